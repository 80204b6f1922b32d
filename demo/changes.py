"""Changes of the ledger as lines for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.protocol.records import NO_ATTEMPT, Status, TxRecord
from demo.screen import Colour

ERROR_CHARACTERS = 150
_READ, _STAGED = "{read}", "{staged}"
_FOLDER = re.compile(r"/[^ '\"]*(?=input/)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line about transaction `txid`."""

    txid: int
    text: str
    colour: Colour | None = None


def changes(
    before: Mapping[int, TxRecord], after: Mapping[int, TxRecord], *, read: str = "rows", staged: str = "staged rows"
) -> list[Line]:
    """The lines for all changes between two readings of the ledger, lowest transaction first.

    :param read: name for the rows of a batch.
    :param staged: name for the rows that are staged of it.
    """
    return [
        Line(txid, text.replace(_READ, read).replace(_STAGED, staged), colour)
        for txid in sorted(after)
        for text, colour in _between(before.get(txid), after[txid])
    ]


def _between(old: TxRecord | None, new: TxRecord) -> Iterator[tuple[str, Colour | None]]:
    if old is None:
        yield f"begun      {batch_of(new)} ({new.claim.run_id})", None
    if new.attempt > (old.attempt if old else NO_ATTEMPT):
        again = " (again)" if new.attempt > 0 else ""
        yield f"PROCESSING attempt {new.attempt}{again}", None
    if new.error and new.error != (old.error if old else "") and new.status is not Status.FAILED:
        yield f"attempt {new.attempt} failed: {short(new.error)}", Colour.YELLOW
    if old is None or old.status is not new.status or old.fence != new.fence:
        yield from _status(new)


def _status(new: TxRecord) -> Iterator[tuple[str, Colour | None]]:
    if new.status is Status.PROCESSED and new.staged is not None:
        yield f"PROCESSED  {rows_read(new)} {_READ} -> {staged_rows(new):,} {_STAGED} staged", None
    elif new.status is Status.COMMITTING:
        yield f"COMMITTING fence {new.fence}", None
    elif new.status is Status.COMMITTED:
        yield f"COMMITTED  fence {new.fence}", Colour.GREEN
    elif new.status is Status.FAILED:
        yield f"FAILED     {short(new.error)}", Colour.RED
    elif new.status is Status.SKIPPED:
        yield "SKIPPED", Colour.YELLOW


def standing(records: Mapping[int, TxRecord]) -> str:
    """The transactions by status, in one line: ``COMMITTED 1 2   PROCESSING 3 4``."""
    groups = {status: [str(txid) for txid, one in sorted(records.items()) if one.status is status] for status in Status}
    return "   ".join(f"{status} {' '.join(txids)}" for status, txids in groups.items() if txids)


def rows_read(record: TxRecord) -> str:
    """A dash if the ledger has no number, because a script read the rows itself."""
    return f"{record.staged.rows_read:,}" if record.staged is not None and record.staged.rows_read >= 0 else "-"


def staged_rows(record: TxRecord) -> int:
    return sum(record.staged.rows.values()) if record.staged is not None else 0


def batch_of(record: TxRecord) -> str:
    """What the transaction reads, from its spouts' metadata: names of files, or ranges of numbers by partition."""
    streams: list[dict[str, Any]] = [one for one in record.metadata.values() if isinstance(one, dict)]
    names = [str(file[0]) for metadata in streams for file in metadata.get("files", ())]
    parts = [(name, part) for metadata in streams for name, part in metadata.get("parts", {}).items()]
    names += [f"{name}: {part['from']}-{part['to'] - 1}" for name, part in parts if "from" in part]
    return ", ".join(names)


def short(error: str) -> str:
    """The first sentence of an error. Paths are shortened to the part below the demonstration's folder."""
    line = _FOLDER.sub("", " ".join(error.split())).partition(". ")[0]
    return line if len(line) <= ERROR_CHARACTERS else line[: ERROR_CHARACTERS - 3] + "..."
