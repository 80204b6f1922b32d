"""Staged batches: the durable result of a processing phase, under (topology, incarnation, txid, attempt).

Layout below the staging root, which every task must see (a shared folder where there are several workers)::

    <topology>/<incarnation>/<txid 19 digits>/<attempt>/<state>-<uuid>.parquet
    <topology>/<incarnation>/<txid 19 digits>/<attempt>/manifest.json

Files are written under names that nobody else uses; the manifest is published last, by put-if-absent, and names exactly
the files that count: what a killed or duplicated worker left beside them is never read. Overwriting a folder instead
mixes a zombie's rows with the new ones, appending doubles them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Whose staged batch."""

    topology: str
    incarnation: str
    txid: int
    attempt: int

    @property
    def path(self) -> str:
        """Relative to the staging root."""
        return f"{self.topology}/{self.incarnation}/{self.txid:019d}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """`path` is relative to the staging root."""

    state: str
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one attempt staged. `rows_read`: rows that came out of the spouts, -1 if the engine did not count them.

    `sinks`: all that was staged for, name -> fields as DDL, those without any rows too: what is not among them was not
    staged, which is another thing than no rows. None: a manifest of version 1, which did not say.
    """

    slot: Slot
    files: tuple[StagedFile, ...]
    rows_read: int
    sinks: dict[str, str] | None = None
