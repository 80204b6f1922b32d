"""Which ledger fits what the states hold: the cure for one that was wiped or restored from an old copy (P11). Pure.

Then the states are the truth: each keeps the txids that it holds, the highest fence that it saw, and the position where
the next transaction begins.

Writes the ledger that fits the states (:mod:`airflow_trident.ledger.recovery`), in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

from airflow_trident.contracts.state import Marker, is_known_as
from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.backup import claims_of
from airflow_trident.ledger.layout import LedgerPaths, nodes_of, shared_records
from airflow_trident.ledger.verbs.announcements import decode_events, encode_events
from airflow_trident.ledger.znodes import Create, Delete, Op, Set, ZNode, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.announcements import Announcement
from airflow_trident.protocol.partition_keys import BOUND_METADATA
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    CommitPointer,
    Exceptions,
    Loss,
    Owner,
    PartitionRevision,
    StagedRef,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import NO_TXIDS, Ranges, Txids
from airflow_trident.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A ledger that agrees with the states.


    All txids up to `committed` are in every state. `unfinished`: the metadata of transaction `next_txid` - 1, if some
    states have it and others do not, or have it from another attempt. It must be replayed with the same batch, or, if a
    spout is opaque, under an attempt above `attempt`, the highest whose batch a state has. `known`: that transaction as
    the ledger that is there knows it, if it does, and those below it that came to a state in one step with it and not
    to all. `lost`: skipped transactions, whose batches are not known any more. `gaps`: the transactions up to
    `committed` that each state lacks; `nowhere`: those that all of them lack. `since`: state that holds nothing ->
    the first txid since it belongs to the topology. `presumed`: states have the highest transaction from different
    attempts, which are taken for equal because they end at the same position, and nobody knows where they began.
    """

    incarnation: str
    committed: int
    next_txid: int
    fence: int
    position: Mapping[str, Json]
    unfinished: Mapping[str, Json] | None
    lost: Ranges
    gaps: tuple[Loss, ...] = ()
    nowhere: Txids = NO_TXIDS
    attempt: int = NO_ATTEMPT
    known: tuple[TxRecord, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    presumed: bool = False

    @property
    def unfinished_txids(self) -> tuple[int, ...]:
        return () if self.unfinished is None else tuple(range(self.committed + 1, self.next_txid))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTransactions:
    """What a marker does not tell and the ledger that is there may know.

    `committed`: the transaction at the commit pointer, behind which the next one began; `above`: those above it. A
    marker has only digests of those that came in one step with its highest. `since`: as in the topology's record.
    `closed`: skipped for good, which markers forget.
    """

    incarnation: str = ""
    committed: TxRecord | None = None
    above: tuple[TxRecord, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    closed: Txids = NO_TXIDS

    def begin_of(self, txid: int, marker: Marker | None = None) -> dict[str, Json] | None:
        """Where the transaction began, if that is certain: the batch of one above the pointer may have changed since.

        :param marker: of a state whose highest it is. If that is the very attempt that is known here, it began behind
            what is known here.
        """
        if txid == 1:
            return {}
        if self.committed is not None and self.committed.txid == txid - 1:
            return self.committed.position
        above = {tx.txid: tx for tx in self.above}
        before, this = above.get(txid - 1), above.get(txid)
        if before is None or before.invalidated or this is None or marker is None or not is_own(marker, this):
            return None
        return before.position if this.attempt == marker.attempt or marker.attempt == NO_ATTEMPT else None


NOTHING_KNOWN = KnownTransactions()


def seed_from(markers: Mapping[str, Marker], ledger_knows: KnownTransactions = NOTHING_KNOWN) -> Seed | None:
    """The ledger that fits the states of a topology; None if no state holds anything.

    :param markers: the marker of each state. A state that never applied anything has `high` 0 and no incarnation.
    :param ledger_knows: of the ledger that is there, if any. In another life nothing is known.
    :raises CorruptError: the states contradict each other.
    """
    full = {name: marker for name, marker in markers.items() if marker.incarnation}
    if not full:
        return None
    incarnation = _one_life(full)
    ledger_knows = ledger_knows if ledger_knows.incarnation == incarnation else NOTHING_KNOWN
    markers, since = _as_they_began(markers, ledger_knows)
    low_name, low = min(markers.items(), key=lambda named_marker: named_marker[1].high)
    high_name, high = max(markers.items(), key=lambda named_marker: (named_marker[1].high, named_marker[1].attempt))
    between = Txids.span(low.high + 1, high.high - 1)
    left_out = between & (Txids.joined(high.holes) | ledger_knows.closed)
    missing = between - left_out
    own_above = tuple(tx for tx in ledger_knows.above if tx.txid > low.high and is_own(high, tx))
    if missing and (left_out or len(own_above) <= len(missing)):
        raise _missing(markers, low_name, high_name, missing)
    behind = high.high > low.high
    begin = ledger_knows.begin_of(high.high, high) if left_out or not behind else low.position
    guessed = behind and begin is None
    if guessed:  # it began there, or behind what was left out
        begin = low.position
    differ = _several_attempts(full, high_name, replaceable=begin is not None)
    if behind and low_name in full:
        _several_attempts(full, low_name, replaceable=False)
    unfinished = None
    if begin is not None and (behind or differ):
        unfinished = {name: value for name, value in high.position.items() if begin.get(name) != value}
        if guessed and not own_above:
            _require_one_stream(sorted(unfinished), full, low_name, high_name)
    committed = high.high - 1 if unfinished is not None and not missing else low.high
    gaps = [_gap(name, marker, committed) for name, marker in sorted(markers.items())]
    return Seed(
        incarnation=incarnation,
        committed=committed,
        next_txid=high.high + 1,
        fence=max(marker.fence for marker in full.values()),
        position=low.position if begin is None or unfinished is None else begin,
        unfinished=unfinished,
        lost=tuple(sorted({hole for marker in full.values() for hole in marker.holes})),
        gaps=tuple(loss for loss in gaps if loss.txids),
        nowhere=reduce(and_, (loss.txids for loss in gaps)),
        attempt=high.attempt,
        known=own_above if unfinished is not None else (),
        since={name: min(first, committed + 1) for name, first in since.items()},
        presumed=differ and unfinished is None,
    )


def _one_life(full: Mapping[str, Marker]) -> str:
    incarnations = {marker.incarnation for marker in full.values()}
    if len(incarnations) > 1:
        raise CorruptError(
            "the states belong to different lives of the ledger: "
            + ", ".join(f"{name} to {marker.incarnation}" for name, marker in sorted(full.items())),
            "Restore them from one back-up, or give the topology new states.",
        )
    return incarnations.pop()


def _as_they_began(
    markers_by_state: Mapping[str, Marker], ledger_knows: KnownTransactions
) -> tuple[Mapping[str, Marker], Mapping[str, int]]:
    """The markers, without those of states that hold nothing and need nothing that the others hold; and since when such
    states belong to the topology, if that is not from the beginning on."""
    highest = max(marker.high for marker in markers_by_state.values())
    markers, since = dict(markers_by_state), {}
    for name, marker in markers_by_state.items():
        first = ledger_knows.since.get(name, 1)
        if marker.incarnation or first == 1:
            continue
        if first > highest:
            del markers[name]
        elif (begin := ledger_knows.begin_of(first)) is not None:
            markers[name] = replace(marker, high=first - 1, position=begin)
        else:
            continue
        since[name] = first
    return markers, since


def _missing(markers: Mapping[str, Marker], low_name: str, high_name: str, missing: Txids) -> CorruptError:
    low, high = markers[low_name], markers[high_name]
    cure = _newer(low_name, high_name)
    if not low.incarnation:
        cure = (
            f"If {low_name!r} was added lately, repair with the DAG as it was without it, and add it afterwards with "
            f"`airflow trident ledger accept`. Else restore it from a back-up, or the ledger from a newer one"
        )
    return CorruptError(
        f"state {low_name!r} holds transactions up to {low.high} and state {high_name!r} up to {high.high}: "
        f"{missing.lowest} to {missing.highest} are lost in the first, and the ledger that is there does not have them",
        f"{cure}, and repair again.",
    )


def _newer(low_name: str, high_name: str) -> str:
    return f"Restore {low_name!r} from a newer back-up, {high_name!r} from an older one, or the ledger from a newer one"


def _require_one_stream(streams: Sequence[str], full: Mapping[str, Marker], low_name: str, high_name: str) -> None:
    """Between the two states is what was left out, and nobody knows where it ended. So of several streams that have
    another position in the higher state nobody knows which ones its highest transaction read. Who can replace that
    transaction's batch gets another one, whatever it is; others have to get the very same.

    :param streams: those with another position.
    :raises CorruptError: there are several.
    """
    high = full[high_name]
    if len(streams) > 1 and any(marker.attempt == NO_ATTEMPT for marker in full.values() if marker.high == high.high):
        raise CorruptError(
            f"state {low_name!r} does not have transaction {high.high} of state {high_name!r}, those before it were "
            f"left out, and the ledger that is there does not know which of the streams {', '.join(streams)} it read",
            f"{_newer(low_name, high_name)}, and repair again.",
        )


def _several_attempts(full: Mapping[str, Marker], name: str, *, replaceable: bool) -> bool:
    """Has another state the highest transaction of this one from another attempt, and will a newer one replace both?

    :param replaceable: there can be a newer attempt, because it is known where the transaction began. Without it equal
        positions are taken for equal batches.
    :raises CorruptError: another state knows another transaction by a txid that this one knows, too.
    """
    this, differ = full[name], False
    for other, other_marker in full.items():
        if other_marker.high != this.high and other_marker.high not in this.group:
            continue  # nothing to compare
        same = is_known_as(this, other_marker.high, other_marker.position, other_marker.attempt, opaque=False)
        can_replace = other_marker.high == this.high and NO_ATTEMPT not in (other_marker.attempt, this.attempt)
        if not same and not (replaceable and can_replace):
            raise CorruptError(
                f"states {name!r} and {other!r} hold different batches of transaction {other_marker.high}",
                f"Restore {other!r} or {name!r} from an older back-up, or the ledger from a newer one, and repair "
                "again.",
            )
        differ |= can_replace and (not same or other_marker.attempt != this.attempt)
    return differ


def is_own(marker: Marker, tx: TxRecord) -> bool:
    """Is it one of the step that brought the state its highest transaction, with the batch that the state has?"""
    return tx.txid in (marker.high, *marker.group) and is_known_as(
        marker, tx.txid, tx.position, tx.attempt, opaque=False
    )


def _gap(name: str, marker: Marker, committed: int) -> Loss:
    """What a state lacks: left out for a reason that the ledger does not know any more."""
    has = Txids.span(1, marker.high) - Txids.joined(marker.holes)
    return Loss(state=name, txids=Txids.span(1, committed) - has, reason="left out before the ledger was repaired")


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
        [path, *paths.folders(bound=True), paths.head, paths.commit, paths.exceptions],
        [paths.transactions, paths.chunks, paths.claims, paths.keys],
    )
    try:
        _require_behind(read.nodes, paths, seed)
    except TransitionError:
        if not behind():
            raise
    record = _as_commanded(record, path, read.nodes[path])
    ops: list[Op] = [_put(read.nodes, path, codec.encode_topology(record, op=op))]
    folders = paths.folders(bound=bool(record.definition.partitions))
    ops += [Create(folder) for folder in folders if read.nodes[folder] is None]
    # Each partition that is asked for is done again: that costs work, and an old entry might name another transaction.
    ops += [Delete(f"{paths.keys}/{period}") for period in sorted(read.folders[paths.keys] or ())]
    ops += [Delete(paths.tx(int(name))) for name in sorted(read.folders[paths.transactions] or ())]
    ops += [Delete(paths.chunk(name)) for name in sorted(read.folders[paths.chunks] or ())]
    pointer = CommitPointer(committed=seed.committed, fence=seed.fence)
    # No task owns what is unfinished: the list of those whose replay began is where people find it.
    shared = shared_records(paths, seed.next_txid, pointer, Exceptions(replaying=seed.unfinished_txids))
    ops += [_put(read.nodes, znode_path, content) for znode_path, content in shared.items()]
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
    announcement = Announcement(txids=open_, by=Owner(program="repair"), since_ms=begun_ms)
    after = replace(after, announced=(*events.announced, announcement))
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
    records_by_txid = {tx.txid: tx for tx in seed.known}
    for txid in seed.unfinished_txids:
        tx = records_by_txid.get(txid)
        if tx is None:  # the last one alone: only the positions of the states tell what it is
            carried = {name: value for name, value in seed.position.items() if name not in seed.unfinished}
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


def partition_of(metadata: Mapping[str, Json]) -> PartitionRevision | None:
    """The partition of a transaction of a bound topology, from the metadata of its streams."""
    keys = {
        stream_metadata["partition"]
        for stream_metadata in metadata.values()
        if isinstance(stream_metadata, dict) and stream_metadata.keys() == BOUND_METADATA
    }
    key = next(iter(keys), None)
    return PartitionRevision(key=key, n=1, start_ms=0, end_ms=0) if isinstance(key, str) else None


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
        partition=tx.partition or partition_of(tx.metadata),
        touched=True,
        accepted=tx.accepted,
        times_ms={"begun": tx.begun_ms or now_ms, Status.PROCESSING.value: now_ms},
        extra=tx.extra,
    )
