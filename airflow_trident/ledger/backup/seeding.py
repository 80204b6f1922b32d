"""Writes the ledger that fits the states (:mod:`airflow_trident.ledger.backup.seed`), in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.backup.export import claims_of
from airflow_trident.ledger.backup.seed import Seed
from airflow_trident.ledger.creating import nodes_of, shared_records
from airflow_trident.ledger.paths import LedgerPaths
from airflow_trident.ledger.verbs.announcements import decode_events, encode_events
from airflow_trident.ledger.znodes import Create, Delete, Op, Set, ZNode, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.announcements import Announcement
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    CommitPointer,
    Exceptions,
    Owner,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.protocol.txids import Txids

GONE = "gone with the ledger"
"""The manifest of a committed transaction whose batch is not known any more."""


def record_of(name: str, definition: Definition, seed: Seed, *, now_ms: int, taken_over: str = "") -> TopologyRecord:
    """The topology's own record. Cleared runs whose claim keys were lost are refused from now on (`floor_ms`)."""
    return TopologyRecord(
        name=name,
        incarnation=seed.incarnation,
        definition=definition,
        floor_ms=now_ms,
        created_ms=now_ms,
        since={**dict.fromkeys(definition.states, 1), **seed.since},
        lost=tuple(replace(loss, at_ms=now_ms) for loss in seed.gaps),
        taken_over=(taken_over,) if taken_over else (),
    )


def seed_ops(
    znodes: ZNodes,
    record: TopologyRecord,
    path: str,
    seed: Seed,
    *,
    op: str,
    now_ms: int,
    behind: Callable[[], bool] = lambda: False,
) -> list[Op]:
    """The one multi that makes the ledger agree with `seed`: it deletes records that contradict it, and claim keys of
    transactions that no state holds: their numbers are given out again.

    :param behind: asked only if the numbers do not show it: is the ledger behind nevertheless?
    :raises TransitionError: the ledger is not behind the states; seeding would lose what it knows.
    """
    paths = LedgerPaths(path, seed.incarnation)
    read = znodes.read(
        [path, *paths.folders(), paths.head, paths.commit, paths.exceptions],
        [paths.transactions, paths.chunks, paths.claims],
    )
    try:
        _require_behind(read.nodes, paths, seed)
    except TransitionError:
        if not behind():
            raise
    record = _as_commanded(record, path, read.nodes[path])
    ops: list[Op] = [_put(read.nodes, path, codec.encode_topology(record, op=op))]
    ops += [Create(folder) for folder in paths.folders() if read.nodes[folder] is None]
    ops += [Delete(paths.tx(int(name))) for name in sorted(read.folders[paths.transactions] or ())]
    ops += [Delete(paths.chunk(name)) for name in sorted(read.folders[paths.chunks] or ())]
    pointer = CommitPointer(committed=seed.committed, fence=seed.fence)
    # No task owns what is unfinished: the list of those whose replay began is where people find it.
    shared = shared_records(paths, seed.next_txid, pointer, Exceptions(replaying=seed.unfinished_txids))
    ops += [_put(read.nodes, one, content) for one, content in shared.items()]
    if read.folders[paths.claims] is not None:
        claims = claims_of(znodes, paths).items()
        ops += [Delete(paths.claim(key)) for key, (txid, _) in claims if txid >= seed.next_txid]
    for tx in _records(seed, op, now_ms):
        ops += nodes_of(paths, tx)
    return [*ops, *_events(znodes, paths, seed, op)]


def _events(znodes: ZNodes, paths: LedgerPaths, seed: Seed, op: str) -> Iterator[Op]:
    """Since the ledger was copied, tasks may have brought events of which the copy knows nothing. So all that it does
    not know to be settled is said to be announced, by nobody who still runs: the next task asks Airflow which of these
    events exist, by topology, incarnation and txid, and only the others are due again."""
    read = znodes.read([paths.events, paths.commit])
    node, commit = read.nodes[paths.events], read.nodes[paths.commit]
    if node is None or commit is None:
        return
    events = decode_events(node.data, paths.events)
    settled = events.settled | seed.nowhere  # what no state has was skipped: it never comes
    after = replace(events, settled=settled)
    open_ = Txids.span(1, seed.committed) - settled - events.in_hands
    if not open_:
        yield Set(paths.events, encode_events(after, op=op), node.version)
        return
    # No event of theirs is older than the begin of the lowest one, or of the last one that the copy has.
    oldest = paths.tx(min(open_.lowest or 1, codec.decode_pointer(commit.data, paths.commit).committed))
    tx, begun_ms = znodes.read([oldest]).nodes[oldest], 0
    if tx is not None:
        with suppress(CorruptError):  # no record stops a repair: then events of any time are asked for
            begun_ms = codec.decode_tx(tx.data, oldest, lambda _ref: ({}, {})).times_ms.get("begun", 0)
    asked = Announcement(txids=open_, by=Owner(program="repair"), since_ms=begun_ms)
    after = replace(after, announced=(*events.announced, asked))
    yield Set(paths.events, encode_events(after, op=op), node.version)


def _as_commanded(record: TopologyRecord, path: str, node: ZNode | None) -> TopologyRecord:
    """Whoever paused the topology, or shut it down, finds it so."""
    if node is None:
        return record
    before = codec.decode_topology(node.data, path)
    taken_over = (*before.taken_over, *record.taken_over)
    return replace(record, command=before.command, epoch=before.epoch, taken_over=taken_over)


def _require_behind(nodes: Mapping[str, ZNode | None], paths: LedgerPaths, seed: Seed) -> None:
    topology, head, commit = nodes[paths.topology], nodes[paths.head], nodes[paths.commit]
    if topology is None or head is None or commit is None:
        return
    current = codec.decode_topology(topology.data, paths.topology)
    next_txid = codec.decode_head(head.data, paths.head)
    pointer = codec.decode_pointer(commit.data, paths.commit)
    if current.incarnation == seed.incarnation and next_txid >= seed.next_txid and pointer.fence >= seed.fence:
        raise TransitionError(
            f"the ledger of topology {current.name!r} begins at {next_txid} and no state holds a transaction above "
            f"{seed.next_txid - 1}: it is not behind",
            "Nothing has to be repaired.",
        )


def _put(nodes: Mapping[str, ZNode | None], path: str, data: bytes) -> Create | Set:
    node = nodes[path]
    return Create(path, data) if node is None else Set(path, data, node.version)


def _records(seed: Seed, op: str, now_ms: int) -> list[TxRecord]:
    """The last transaction that every state has, for its position; and those that are unfinished."""
    records: list[TxRecord] = []
    if seed.committed >= 1:
        records.append(
            TxRecord(
                txid=seed.committed,
                status=Status.COMMITTED,
                attempt=0,
                metadata={},
                carried=dict(seed.position),
                staged=StagedRef(manifest=GONE, rows_read=-1, rows={}, bytes=0),
                claim=_claim(seed, seed.committed),
                op=op,
                owner=Owner(program="repair"),
                times_ms={Status.COMMITTED.value: now_ms},
            )
        )
    if seed.unfinished is None:
        return records
    known = {tx.txid: tx for tx in seed.known}
    for txid in seed.unfinished_txids:
        tx = known.get(txid)
        if tx is None:  # the last one alone: only the positions of the states tell what it is
            carried = {name: one for name, one in seed.position.items() if name not in seed.unfinished}
            tx = TxRecord(
                txid=txid,
                status=Status.PROCESSING,
                attempt=NO_ATTEMPT,
                metadata=dict(seed.unfinished),
                carried=carried,
                claim=_claim(seed, txid),
                op=op,
            )
        records.append(_unfinished(tx, seed, op, now_ms))
    return records


def _claim(seed: Seed, txid: int) -> Claim:
    return Claim(key=f"repair/{seed.incarnation}/{txid}")


def _unfinished(tx: TxRecord, seed: Seed, op: str, now_ms: int) -> TxRecord:
    """A state has it. Its time stays, if the ledger knew it: a batch that is made again must be the same."""
    return TxRecord(
        txid=tx.txid,
        status=Status.PROCESSING,
        attempt=seed.attempt,
        metadata=tx.metadata,
        carried=tx.carried,
        claim=tx.claim,
        op=op,
        owner=Owner(program="repair"),
        touched=True,
        accepted=tx.accepted,
        times_ms={"begun": tx.begun_ms or now_ms, Status.PROCESSING.value: now_ms},
        extra=tx.extra,
    )
