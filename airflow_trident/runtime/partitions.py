"""Gives requests for partitions their transactions.

A transaction of a bound topology reads all of its partition. While no state can have it, each request for the partition
makes it take its sources as they are then. Afterwards the partition gets another transaction, which replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_trident.contracts.bound_spout import has_data
from airflow_trident.contracts.spout import Coordinator, PartitionChange
from airflow_trident.errors import (
    ConfigurationError,
    EmptyPartitionError,
    IncompletePartitionError,
    SourceGoneError,
    TransitionError,
    TridentError,
    spout_code,
)
from airflow_trident.ledger.answers import AskedPartition, Begun, NextBatches, NotBegun, PartitionMoved
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.names import DEFAULT_MAX_PENDING
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import SeenTransaction
from airflow_trident.protocol.partition_keys import NO_ENTRY, SeenPartition, may_begin, may_refresh, source_digest
from airflow_trident.protocol.partitions import OnMissing, Partition, Partitions
from airflow_trident.protocol.records import NO_ATTEMPT, Claim, Owner, Status, TxRecord
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_resources import MendedStreams, OpenCoordinators
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

Metadata = dict[str, Json]
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """A request for a partition. The same claim always gets the same transaction.

    `redo`: the partition is read after the request, also if its sources are as they were. So a COMMITTED one is done
    again, and an attempt that began before is made again. `gone`, `empty`: instead of those of the topology. `reason`:
    a person's, which the transaction keeps.
    """

    key: str | None
    claim: Claim
    redo: bool = True
    gone: OnMissing | None = None
    empty: OnMissing | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PartitionUnchanged:
    """The partition is COMMITTED as transaction `txid`, and its sources are as they were: nothing is to do."""

    key: str
    txid: int


@dataclass(frozen=True, slots=True)
class PartitionUnderWay:
    """A commit of the partition's transaction `txid` has begun. The request is not served by it: ask again after it."""

    key: str
    txid: int


PartitionResult = Begun | PartitionUnchanged | PartitionUnderWay | NotBegun
PartitionAnswer = PartitionResult | TridentError | None
"""Of several requests: the error of one, or None: ask again."""


def begin_partition(
    ledger: Ledger,
    topology: Topology,
    request: PartitionRequest,
    *,
    max_pending: int = DEFAULT_MAX_PENDING,
    attempt_by: Owner | str = "",
    coordinators: OpenCoordinators | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PartitionResult:
    """The transaction of a request: a new one of its partition, or the unfinished one with the sources as they are.

    The caller has checked the definition.

    :param attempt_by: see :class:`NextBatches`.
    :param coordinators: of a caller that asks for several partitions, and closes them.
    :raises ConfigurationError: the key is none of the topology's partitions.
    :raises IncompletePartitionError: it is too early.
    :raises EmptyPartitionError: no source has any data of it.
    :raises SourceGoneError: data that its last COMMITTED transaction read are gone.
    """
    result: PartitionAnswer = None
    with nullcontext(coordinators) if coordinators else OpenCoordinators(topology, ledger) as using:
        while result is None:
            (result,) = begin_partitions(
                ledger,
                topology,
                [request],
                max_pending=max_pending,
                attempt_by=attempt_by,
                coordinators=using,
                clock=clock,
            )
    if isinstance(result, TridentError):
        raise result
    return result


def begin_partitions(
    ledger: Ledger,
    topology: Topology,
    requests: Sequence[PartitionRequest],
    *,
    max_pending: int,
    attempt_by: Owner | str,
    coordinators: OpenCoordinators,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[PartitionAnswer]:
    """:func:`begin_partition` for several partitions; the new transactions begin in one step, in this order.

    :param requests: of different partitions.
    :returns: for each request its result, or the error of it alone. None: ask again; others were faster, or the step
        was full.
    """
    claimed = _claimed(ledger, requests)
    results: list[PartitionAnswer] = [
        claimed.get(request.claim.key) or _too_early(topology, request, clock()) for request in requests
    ]
    seen = _seen(ledger, [request for request, result in zip(requests, results, strict=True) if result is None])
    new: dict[int, AskedPartition] = {}
    for place, request in enumerate(requests):
        if results[place] is None:
            partition = bound_to(topology).parse(request.key)
            sources = _Sources(topology, partition, coordinators.opened())
            answer = _asked(ledger, sources, request, seen.get(partition.key, SeenPartition(NO_ENTRY)))
            if isinstance(answer, AskedPartition):
                new[place] = answer
            else:
                results[place] = answer
    if new:
        batches = NextBatches(
            [requests[place].claim for place in new],
            max_pending=max_pending,
            attempt_by=attempt_by,
            plan=topology.compile().digest,
            partitions={requests[place].claim.key: asked for place, asked in new.items()},
        )
        outcome = ledger.begin(batches)
        if isinstance(outcome, tuple):
            results = _with_begun(results, list(new), outcome)
        elif not isinstance(outcome, PartitionMoved):
            results = [outcome if place in new else result for place, result in enumerate(results)]
    return results


def _claimed(ledger: Ledger, requests: Sequence[PartitionRequest]) -> dict[str, Begun]:
    """The transactions that requests have already, by claim key."""
    txids = ledger.claimed([request.claim.key for request in requests])
    records = {record.txid: record for record in ledger.records(txids.values())} if txids else {}
    return {key: Begun(record=records.get(txid), txid=txid, new=False) for key, txid in txids.items()}


def _too_early(topology: Topology, request: PartitionRequest, now: datetime) -> TridentError | None:
    """Why the partition cannot be asked for now."""
    partitions = bound_to(topology)
    try:
        require_complete(partitions, partitions.parse(request.key), now)
    except (ConfigurationError, IncompletePartitionError) as error:
        return error
    return None


def _seen(ledger: Ledger, requests: Sequence[PartitionRequest]) -> dict[str, SeenPartition]:
    keys = sorted(request.key for request in requests if request.key is not None)
    if len(keys) == 1:
        return {keys[0]: ledger.partition(keys[0])}
    return ledger.seen_partitions(keys[0], keys[-1]) if keys else {}


def _with_begun(
    results: list[PartitionAnswer], places: Sequence[int], outcome: Sequence[Begun]
) -> list[PartitionAnswer]:
    """:param places: of the requests that the step was for; `outcome`: of the first ones."""
    for place, begun in zip(places, outcome, strict=False):
        results[place] = begun
        if begun.new:
            reached(Milestone.BEGUN, begun.txid)
    return results


def bound_to(topology: Topology) -> Partitions:
    """:raises ConfigurationError: the topology is not bound to partitions."""
    if topology.partitions is None:
        raise ConfigurationError(
            f"topology {topology.name!r} is not bound to partitions", "Give it Topology(partitions=...), or no key."
        )
    return topology.partitions


def require_complete(partitions: Partitions, partition: Partition, now: datetime) -> None:
    """:raises IncompletePartitionError: the partition is the current or the next one, or not complete yet.
    :raises ConfigurationError: it is further in the future."""
    complete = partitions.complete_at(partition)
    if now >= complete:
        return
    if partition.start > partitions.after(partitions.of(now)).start:
        raise ConfigurationError(
            f"the partition {partition.key} is in the future: it begins at {partition.start:%Y-%m-%dT%H:%MZ}",
            f"Ask for it when it is over: at {complete:%Y-%m-%dT%H:%MZ}.",
        )
    raise IncompletePartitionError(
        f"the partition {partition.key} is complete at {complete:%Y-%m-%dT%H:%MZ}", "Ask for it then."
    )


def refresh_sources(ledger: Ledger, topology: Topology, record: TxRecord, reason: str) -> bool:
    """The unfinished transaction takes its sources as they are now; the next attempt reads them. Also of a topology
    whose files replace their rows.

    :returns: False: it has been taken over, or a commit of it has begun.
    :raises EmptyPartitionError, SourceGoneError: as :func:`begin_partition`, by the topology's own rules. They do not
        ask again about what was gone when the transaction took its sources.
    """
    if record.partition is None:
        with OpenCoordinators(topology, ledger) as using:
            as_begun = SeenTransaction(Status.PROCESSING, record.attempt)
            ledger.accept_source(record.txid, MendedStreams(using.opened()), reason, seen=as_begun)
        return True
    key = record.partition.key
    request = PartitionRequest(key=key, claim=record.claim)
    seen = ledger.partition(key)
    if seen.tx is None or (seen.tx.txid, seen.tx.attempt) != (record.txid, record.attempt):
        return False
    with OpenCoordinators(topology, ledger) as using:
        sources = _Sources(topology, bound_to(topology).parse(key), using.opened())
        now = sources.look(record.metadata)
        sources.require(now, seen, request, accepted=record.metadata)
    return ledger.refresh(seen.entry, key, now, reason) is not None


def changed(coordinators: Mapping[str, Coordinator], before: Metadata, now: Metadata) -> PartitionChange:
    """The change in all streams of a partition; the names of the parts begin with that of the stream."""
    new: list[str] = []
    removed: list[str] = []
    other = sorted(before.keys() ^ now.keys())
    for name in before.keys() & now.keys():
        with spout_code(name):
            change = coordinators[name].compared(before[name], now[name])
        new += (f"{name}: {part}" for part in change.new)
        removed += (f"{name}: {part}" for part in change.gone)
        other += (f"{name}: {part}" for part in change.other)
    return PartitionChange(tuple(new), tuple(removed), tuple(other))


def change_since_commit(
    topology: Topology, partition: Partition, coordinators: Mapping[str, Coordinator], seen: SeenPartition
) -> PartitionChange:
    """The change in the sources of a partition since its last COMMITTED transaction."""
    sources = _Sources(topology, partition, coordinators)
    return sources.since(seen, sources.look(seen.committed.metadata if seen.committed is not None else {}))


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a partition."""

    topology: Topology
    partition: Partition
    coordinators: Mapping[str, Coordinator]

    def look(self, before: Metadata) -> Metadata:
        """The metadata of all streams, as the sources are now.

        :param before: that of an earlier transaction of the partition, if any.
        """
        metadata_by_stream: Metadata = {}
        for name, coordinator in self.coordinators.items():
            with spout_code(name):
                metadata = coordinator.partition(self.partition, before.get(name))
            metadata_by_stream[name] = codec.require_json(metadata, f"the metadata of stream {name!r}")
        return metadata_by_stream

    def require(
        self, now: Metadata, seen: SeenPartition, request: PartitionRequest, accepted: Metadata | None = None
    ) -> PartitionChange:
        """The change since the last COMMITTED transaction.

        :param accepted: sources whose losses are accepted already: those of the unfinished transaction.
        :raises EmptyPartitionError: there are no data. :raises SourceGoneError: some that it read are gone.
        """
        rules = bound_to(self.topology)
        change = self.since(seen, now)
        gone = change.gone
        if accepted is not None:
            lost = changed(self.coordinators, accepted, now).gone
            gone = tuple(part for part in gone if part in lost)
        if (request.gone or rules.gone) is OnMissing.ERROR:
            if gone:
                raise SourceGoneError(
                    f"transaction {seen.committed_txid} read parts of the partition {self.partition.key} that are "
                    f"gone: {_listed(gone)}",
                    'Restore them; or ask for the partition with gone="take" (`--gone take`), and it loses their rows.',
                )
            if seen.committed is None and (expired := self._expired(now)):
                raise SourceGoneError(
                    f"rows of the partition {self.partition.key} may have expired: {_listed(expired)}",
                    'Restore them; or ask for the partition with gone="take" (`--gone take`), and it has the others.',
                )
        was_empty = accepted is not None and not any(map(has_data, accepted.values()))
        is_empty = not was_empty and not any(map(has_data, now.values()))
        if is_empty and (request.empty or rules.empty) is OnMissing.ERROR:
            raise EmptyPartitionError(
                f"no source of topology {self.topology.name!r} has data of the partition {self.partition.key}",
                'Deliver them; or ask for the partition with empty="take" (`--empty take`), and it becomes empty.',
            )
        return change

    def _expired(self, now: Metadata) -> tuple[str, ...]:
        every = []
        for name, coordinator in self.coordinators.items():
            with spout_code(name):
                every += [f"{name}: {part}" for part in coordinator.expired(now[name])]
        return tuple(every)

    def since(self, seen: SeenPartition, now: Metadata) -> PartitionChange:
        """The change since the last COMMITTED transaction."""
        if not seen.committed_txid:
            return PartitionChange(new=(self.partition.key,))
        if seen.committed is not None:
            return changed(self.coordinators, seen.committed.metadata, now)
        # The record is pruned, and the index has a digest.
        is_same = seen.committed_src == source_digest(now)
        return PartitionChange() if is_same else PartitionChange(other=(self.partition.key,))


def _listed(parts: tuple[str, ...]) -> str:
    return f"{len(parts)} ({', '.join(parts[:_SHOWN])})"


def _asked(
    ledger: Ledger, sources: _Sources, request: PartitionRequest, seen: SeenPartition
) -> AskedPartition | PartitionAnswer:
    """One look at the sources, and a step if the partition's last transaction serves the request. An
    :class:`AskedPartition`: a new one is to begin. None: others were faster."""
    key = sources.partition.key
    is_open = may_refresh(seen.entry, seen.tx)
    if not is_open and not may_begin(seen.entry, seen.tx):
        return PartitionUnderWay(key, seen.entry.tx)
    before = seen.tx if is_open else seen.committed
    try:
        now = sources.look(before.metadata if before is not None else {})
        change = sources.require(now, seen, request)
        is_same = is_open and before is not None and not changed(sources.coordinators, before.metadata, now)
    except TridentError as error:
        return error
    if is_open and before is not None:
        is_served = is_same and (not request.redo or before.attempt == NO_ATTEMPT)
        if is_served:
            return ledger.join(seen.entry, key, claim=request.claim)
        reason = request.reason or f"partition {key} as it is, for {request.claim.key}"
        return ledger.refresh(seen.entry, key, now, reason, claim=request.claim)
    if not change and not request.redo:
        return PartitionUnchanged(key, seen.committed_txid)
    return AskedPartition(partition=sources.partition, seen=seen.entry, metadata=now, reason=request.reason)


def not_begun(topology: str, key: str, outcome: PartitionUnderWay | NotBegun) -> TransitionError:
    """For a caller that does not wait."""
    if isinstance(outcome, PartitionUnderWay):
        why = f"a commit of its transaction {outcome.txid} has begun"
    else:
        why = f"nothing can begin now ({type(outcome).__name__})"
    return TransitionError(f"topology {topology!r} has not begun the partition {key}: {why}", "Ask for it later.")
