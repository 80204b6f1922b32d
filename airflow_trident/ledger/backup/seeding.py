"""Seeds a ledger from what the states hold: the cure for one that was wiped or restored from an old copy (P11).

Then the states are the truth: each keeps the txids that it holds, the highest fence that it saw, and the position where
the next transaction begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_trident.contracts.held import is_known_as
from airflow_trident.contracts.state import Marker
from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.backup.export import claims_of
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
    Loss,
    Owner,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.protocol.txids import Ranges, Txids
from airflow_trident.types import Json

GONE = "gone with the ledger"
"""The manifest of a committed transaction whose batch is not known any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A ledger that agrees with the states.


    All txids up to `committed` are in every state. `unfinished`: the metadata of transaction `next_txid` - 1, if some
    states have it and others do not, or have another batch of it. It must be replayed with the same batch, or, if a
    spout is opaque, under an attempt above `attempt`, the highest whose batch a state has. `known`: that transaction as
    the ledger that is there knows it, if it does, and those below it that came to a state in one step with it and not
    to all. `lost`: skipped transactions, whose batches are not known any more. `gaps`: the transactions up to
    `committed` that each state lacks.
    """

    incarnation: str
    committed: int
    next_txid: int
    fence: int
    position: Mapping[str, Json]
    unfinished: Mapping[str, Json] | None
    lost: Ranges
    gaps: tuple[Loss, ...] = ()
    attempt: int = NO_ATTEMPT
    known: tuple[TxRecord, ...] = ()

    @property
    def unfinished_txids(self) -> tuple[int, ...]:
        return () if self.unfinished is None else tuple(range(self.committed + 1, self.next_txid))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTransactions:
    """What a marker does not tell and the ledger that is there may know: the last COMMITTED transaction, where the next
    one began, and those above it: a marker has only digests of those that came in one step with its highest."""

    incarnation: str = ""
    committed: TxRecord | None = None
    above: Sequence[TxRecord] = ()

    def position_before(self, txid: int, incarnation: str) -> dict[str, Json] | None:
        """Where the transaction began, if that is certain: the batch of one that is not COMMITTED may have changed."""
        if txid == 1:
            return {}
        before = self.committed
        if before is None or self.incarnation != incarnation or before.txid != txid - 1:
            return None
        return before.position


NOTHING_KNOWN = KnownTransactions()


def seed_from(held: Mapping[str, Marker], known: KnownTransactions = NOTHING_KNOWN) -> Seed | None:
    """The ledger that fits the states of a topology; None if no state holds anything.

    :param held: the marker of each state. A state that never applied anything has `high` 0 and no incarnation.
    :param known: of the ledger that is there, if any.
    :raises CorruptError: the states contradict each other.
    """
    full = {name: one for name, one in held.items() if one.incarnation}
    if not full:
        return None
    incarnations = {one.incarnation for one in full.values()}
    if len(incarnations) > 1:
        raise CorruptError(
            "the states belong to different lives of the ledger: "
            + ", ".join(f"{name} to {one.incarnation}" for name, one in sorted(full.items())),
            "Restore them from one back-up, or give the topology new states.",
        )
    low_name, low = min(held.items(), key=lambda item: item[1].high)
    high_name, high = max(held.items(), key=lambda item: item[1].high)
    left_out = {txid for first, last in high.holes for txid in range(max(first, low.high + 1), last + 1)}
    missing = [txid for txid in range(low.high + 1, high.high) if txid not in left_out]
    own = tuple(tx for tx in known.above if tx.txid > low.high and _is_own(high, tx))
    if missing and (left_out or len(own) <= len(missing)):
        raise CorruptError(
            f"state {low_name!r} holds transactions up to {low.high} and state {high_name!r} up to {high.high}: "
            f"{missing[0]} to {missing[-1]} are lost in the first, and the ledger that is there does not have them",
            f"Restore {low_name!r} from a newer back-up, {high_name!r} from an older one, or the ledger from a newer "
            "one, and repair again.",
        )
    incarnation, behind = incarnations.pop(), high.high > low.high
    begin = low.position if behind else known.position_before(high.high, incarnation)
    differ = _several_batches(full, high_name, replaceable=begin is not None)
    unfinished, position = None, low.position
    if begin is not None and (behind or differ):
        position = begin
        unfinished = {name: one for name, one in high.position.items() if begin.get(name) != one}
    if behind and low_name in full:
        _several_batches(full, low_name, replaceable=False)
    committed = high.high - 1 if unfinished is not None and not missing else low.high
    return Seed(
        incarnation=incarnation,
        committed=committed,
        next_txid=high.high + 1,
        fence=max(one.fence for one in full.values()),
        position=position,
        unfinished=unfinished,
        lost=tuple(sorted({hole for one in full.values() for hole in one.holes})),
        gaps=tuple(loss for name, one in sorted(held.items()) if (loss := _gap(name, one, committed)).txids),
        attempt=max(one.attempt for one in full.values() if one.high == high.high),
        known=own if unfinished is not None else (),
    )


def _several_batches(full: Mapping[str, Marker], name: str, *, replaceable: bool) -> bool:
    """Has another state the highest transaction of this one from another attempt, and will a newer one replace both?

    :param replaceable: there can be a newer attempt, because it is known where the transaction began. Without it equal
        positions are taken for equal batches.
    :raises CorruptError: another state knows another transaction by a txid that this one knows, too.
    """
    this, differ = full[name], False
    for other, one in full.items():
        if one.high != this.high and one.high not in this.group:
            continue  # nothing to compare
        known = is_known_as(this, one.high, one.position, one.attempt, opaque=False)
        can_replace = one.high == this.high and NO_ATTEMPT not in (one.attempt, this.attempt)
        if not known and not (replaceable and can_replace):
            raise CorruptError(
                f"states {name!r} and {other!r} hold different batches of transaction {one.high}",
                f"Restore {other!r} or {name!r} from an older back-up, or the ledger from a newer one, and repair "
                "again.",
            )
        differ |= can_replace and (not known or one.attempt != this.attempt)
    return differ


def _is_own(marker: Marker, tx: TxRecord) -> bool:
    """Is it one of the step that brought the state its highest transaction, with the batch that the state has?"""
    return tx.txid in (marker.high, *marker.group) and is_known_as(
        marker, tx.txid, tx.position, tx.attempt, opaque=False
    )


def _gap(name: str, one: Marker, committed: int) -> Loss:
    """What a state lacks: left out for a reason that the ledger does not know any more."""
    has = Txids.span(1, one.high) - Txids.joined(one.holes)
    return Loss(state=name, txids=Txids.span(1, committed) - has, reason="left out before the ledger was repaired")


def record_of(name: str, definition: Definition, seed: Seed, *, now_ms: int) -> TopologyRecord:
    """The topology's own record. Cleared runs whose claim keys were lost are refused from now on (`floor_ms`)."""
    return TopologyRecord(
        name=name,
        incarnation=seed.incarnation,
        definition=definition,
        floor_ms=now_ms,
        created_ms=now_ms,
        since=dict.fromkeys(definition.states, 1),
        lost=tuple(replace(loss, at_ms=now_ms) for loss in seed.gaps),
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
    open_ = Txids.span(1, seed.committed) - events.settled - events.in_hands
    if not open_:
        return
    # No event of theirs is older than the begin of the lowest one, or of the last one that the copy has.
    oldest = paths.tx(min(open_.lowest or 1, codec.decode_pointer(commit.data, paths.commit).committed))
    tx, begun_ms = znodes.read([oldest]).nodes[oldest], 0
    if tx is not None:
        with suppress(CorruptError):  # no record stops a repair: then events of any time are asked for
            begun_ms = codec.decode_tx(tx.data, oldest, lambda _ref: ({}, {})).times_ms.get("begun", 0)
    asked = Announcement(txids=open_, by=Owner(program="repair"), since_ms=begun_ms)
    after = replace(events, announced=(*events.announced, asked))
    yield Set(paths.events, encode_events(after, op=op), node.version)


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
