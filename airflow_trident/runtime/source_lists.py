"""The lists of read files, with what a person does: back them up, put them back, make a new one.

A list is beside the ledger (:class:`airflow_trident.runtime.open_resources.SourceNotes`), and the ledger names it. So a
backup of the ledger has all lists that its transactions name.
"""

from __future__ import annotations

import base64
import re
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_trident.errors import ConfigurationError, CorruptRecordError, TransitionError, spout_code
from airflow_trident.io.place import Place, PosixPlace
from airflow_trident.ledger.answers import NextBatches
from airflow_trident.ledger.backup import contents_of
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.open_resources import OpenCoordinators, SourceNotes
from airflow_trident.runtime.phases import require_definition
from airflow_trident.runtime.waiting import blocked, paused
from airflow_trident.spouts.files.coordinator import FileCoordinator
from airflow_trident.spouts.files.read_list import ReadList, ReadPosition, position_in
from airflow_trident.types import Json

LISTS = "lists"
"""Key in an export: stream name -> file name -> content in base64."""
_FILE = re.compile(r"[0-9]{19}-[0-9a-f]{32}\Z")
_TRIES = 3


# ---- backup ----------------------------------------------------------------------------------------------------


def export_ledger(ledger: Ledger) -> dict[str, Json]:
    """:meth:`Ledger.export`, with the lists.

    :raises CorruptRecordError: a list is lost or damaged.
    """
    for tries_left in reversed(range(_TRIES)):
        everything: dict[str, Any] = ledger.export()
        notes = SourceNotes.of(ledger)
        positions = [{**each["carried"], **each["metadata"]} for each in everything["transactions"]]
        try:
            lists: dict[str, Json] = {
                name: _files(_place(notes, name), named) for name, named in _positions(positions).items()
            }
        except CorruptRecordError:
            if not tries_left:  # otherwise it may have been swept since the ledger was read
                raise
            continue
        return {**everything, LISTS: lists} if any(lists.values()) else everything
    raise AssertionError


def import_ledger(ledger: ZNodeLedger, exported: Json) -> None:
    """:meth:`ZNodeLedger.import_from`, with the lists, which are put first.

    :raises CorruptRecordError: a list that a transaction names is not whole, neither in the export nor in its folder.
    """
    contents = contents_of(exported, ledger.topology_name, op="")
    lists = exported.get(LISTS, {}) if isinstance(exported, dict) else {}
    notes = SourceNotes()
    if ledger.sources_root:
        notes = SourceNotes(ledger.sources_root, ledger.topology_name, contents.topology.incarnation)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, positions) in enumerate(_positions(tx.position for tx in contents.transactions).items()):
            aside, place = PosixPlace(folder).below(str(number)), _place(notes, name)
            _put(aside, _contents(lists, name))
            for position in positions:
                try:
                    _require_whole(aside, position)
                except CorruptRecordError:
                    _require_whole(place, position)
                    continue
                if place is not None and position.newest:
                    chunks = ReadList(aside, position).chunks()
                    _put(place, {chunk.file: aside.read(chunk.file) for chunk in chunks})
    ledger.import_from(exported)


def _positions(positions: Iterable[Mapping[str, Json]]) -> dict[str, set[ReadPosition]]:
    """Stream name -> the different lists that transactions name, without what is in the metadata itself.

    :param positions: of transactions.
    """
    named: dict[str, set[ReadPosition]] = {}
    for position in positions:
        for stream, metadata in position.items():
            if (read := position_in(metadata)) is not None and read.newest:
                named.setdefault(stream, set()).add(ReadPosition(read.newest))
    return named


def _place(notes: SourceNotes, stream: str) -> Place | None:
    return notes.place(stream) if notes.root else None


def _files(place: Place | None, positions: Iterable[ReadPosition]) -> dict[str, Json]:
    files: dict[str, Json] = {}
    for position in positions:
        reader = ReadList(place, position)
        reader.require_whole()
        new = {chunk.file for chunk in reader.chunks()} - files.keys()
        files |= {name: base64.b64encode(place.read(name)).decode() for name in sorted(new) if place is not None}
    return files


def _contents(lists: Any, stream: str) -> dict[str, bytes]:
    try:
        contents = {str(name): base64.b64decode(text, validate=True) for name, text in lists.get(stream, {}).items()}
        if all(map(_FILE.match, contents)):
            return contents
    except (AttributeError, TypeError, ValueError):
        pass
    raise CorruptRecordError(
        f"the list of stream {stream!r} in the export is damaged", "Nothing was written: export the ledger again."
    )


def _put(place: Place, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        place.put(name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    if contents:
        place.sync()


def _require_whole(place: Place | None, position: ReadPosition) -> None:
    ReadList(place, position).require_whole()


# ---- a new list ------------------------------------------------------------------------------------------------


def mark_read(runner: LocalRunner, stream: str, before_ns: int | None) -> tuple[int, int]:
    """All files that are there now count as read, as they are: by a transaction without files, which is committed here.
    If the list is lost or damaged, a new one begins. Returns the transaction and the number of files.

    :param before_ns: only files that are older.
    :raises ConfigurationError: the stream has no list of files.
    :raises TransitionError: nothing may begin now.
    :raises BlockedError: a lower transaction is FAILED.
    """
    ledger, topology = runner.ledger, runner.topology
    if stream not in topology.spouts:
        names = ", ".join(sorted(topology.spouts))
        raise ConfigurationError(f"topology {topology.name!r} has no stream {stream!r} with a spout", f"Name {names}.")
    require_definition(ledger, topology, check_states=True)
    marked = 0
    with OpenCoordinators(topology, ledger) as coordinators:
        coordinator = coordinators.opened()[stream]
        if not isinstance(coordinator, FileCoordinator):
            raise ConfigurationError(
                f"stream {stream!r} of topology {topology.name!r} keeps no list of files: {topology.spouts[stream]}",
                "Name the stream of a FileSpout.",
            )

        def batches_of(txid: int, position: dict[str, Json], _most: int) -> list[dict[str, Json]]:
            nonlocal marked
            with spout_code(stream, txid):
                metadata, marked = coordinator.mark_read(txid, position.get(stream), before_ns)
            return [{stream: metadata}]

        claims, digest = [Claim(key=f"mark-read/{uuid.uuid4().hex}")], topology.compile().digest
        begun = ledger.begin(NextBatches(claims, batches_of, max_pending=1, plan=digest))
    if isinstance(begun, Blocked):
        raise blocked(topology.name, begun)
    if isinstance(begun, Paused):
        raise TransitionError(paused(topology.name, begun.command), "Resume it first.")
    if isinstance(begun, Full) or not isinstance(begun, tuple):
        oldest = f"transaction {begun.oldest} is" if isinstance(begun, Full) else "others are"
        raise TransitionError(
            f"nothing can begin in topology {topology.name!r}: {oldest} not committed yet",
            "Wait until it is committed, and run the command again.",
        )
    runner.finish(begun[0].txid)
    return begun[0].txid, marked
