"""The status of the partitions of a bound topology: which are committed, missing or failed, or have changed sources.

The ledger knows all but the last, which needs the topology's code and a look at its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from airflow_trident.contracts.spout import PartitionChange
from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.names import Redo
from airflow_trident.protocol.partition_keys import NO_ENTRY, SeenPartition, has_failed
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.partitions import bound_to, change_since_commit
from airflow_trident.topology.topology import Topology


class KeyStatus(StrEnum):
    """The status of a partition: that of its last transaction, or that there is none."""

    OPEN = "OPEN"
    """It is not complete yet, and nobody has asked for it."""
    MISSING = "MISSING"
    """It is complete, and has no transaction."""
    PROCESSING = "PROCESSING"
    PROCESSED = "PROCESSED"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    """The last attempt failed, whether or not others may pass the transaction."""
    SKIPPED = "SKIPPED"
    """A person skipped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition, as the ledger has it.

    `complete_at`: when its data are all there. `n`, `txid`, `rows`, `error`: of its last transaction. `n` is its number
    among those of the partition; 0: there is none. `rows`: state -> rows; None: not processed, or the ledger has
    forgotten them. `committed_txid`: the transaction that the states have; 0: none. `committed_ms`: when it was
    committed; 0: the ledger has forgotten it. `change`: of the sources since then; None: not looked at.
    """

    partition: Partition
    status: KeyStatus
    complete_at: datetime
    n: int = 0
    txid: int = 0
    rows: Mapping[str, int] | None = None
    error: str = ""
    committed_txid: int = 0
    committed_ms: int = 0
    change: PartitionChange | None = None

    @property
    def key(self) -> str:
        return self.partition.key


class KeyChoice(StrEnum):
    """Which partitions are to be done."""

    MISSING = "missing"
    """They are complete and have no transaction."""
    CHANGED = "changed"
    """They are committed, and their sources have changed since then, or cannot be looked at."""
    FAILED = "failed"
    """The last attempt failed."""

    def has(self, status: PartitionStatus) -> bool:
        if self is KeyChoice.CHANGED:
            return status.status is KeyStatus.COMMITTED and bool(status.change or status.error)
        return status.status == self.name


def partition_statuses(
    ledger: Ledger,
    partitions: Partitions,
    first: str | None = None,
    last: str | None = None,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[PartitionStatus]:
    """The status of each partition from the first to the last, in the order of the calendar. One read of the index, and
    one of the records that are kept.

    :param first: a key; None: that of `Partitions(begin=...)`.
    :param last: a key; None: the one that is now, or a later one that the index has.
    :raises ConfigurationError: one is no key of the topology.
    """
    now = clock()
    begin = partitions.parse(partitions.begin if first is None else first)
    end = None if last is None else partitions.parse(last)
    seen = ledger.seen_partitions(begin.key, "" if end is None else end.key, metadata=False)
    if end is None:
        keys = [partitions.parse(key) for key in list(seen)[-1:]]
        end = max([partitions.of(now), *keys], key=lambda partition: partition.start)
    none = SeenPartition(NO_ENTRY)
    return [
        _status(partition, seen.get(partition.key, none), partitions.complete_at(partition), now)
        for partition in partitions.between(begin, end)
    ]


def changed_sources(ledger: Ledger, topology: Topology, statuses: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """The same, with the change of those that are COMMITTED. Looks at the sources of each. One that cannot be looked at
    has the `error`.

    :raises ConfigurationError: the topology is not bound to partitions.
    """
    bound_to(topology)
    with OpenCoordinators(topology, ledger) as coordinators:

        def looked_at(status: PartitionStatus) -> PartitionStatus:
            if status.status is not KeyStatus.COMMITTED:
                return status
            try:
                seen = ledger.partition(status.key)
                change = change_since_commit(topology, status.partition, coordinators.opened(), seen)
            except TridentError as error:
                return replace(status, error=str(error))
            return replace(status, change=change)

        return list(map(looked_at, statuses))


def chosen_partitions(
    ledger: Ledger, topology: Topology, choice: KeyChoice, first: str | None = None, last: str | None = None
) -> Iterator[PartitionStatus]:
    """The partitions of a choice, from the first to the last: see :func:`partition_statuses`."""
    statuses = partition_statuses(ledger, bound_to(topology), first, last)
    if choice is KeyChoice.CHANGED:
        statuses = changed_sources(ledger, topology, statuses)
    return filter(choice.has, statuses)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySelection:
    """Partitions that a person or a task names: keys, or a range with both its ends, or a choice and a range for it.

    :raises ConfigurationError: it is none of these.
    """

    keys: tuple[str, ...] = ()
    choice: KeyChoice | None = None
    first: str | None = None
    last: str | None = None

    def __post_init__(self) -> None:
        is_range = self.first is not None or self.last is not None
        if self.keys and (self.choice or is_range):
            raise ConfigurationError("keys, and a range or a choice of partitions", "Give one of them.")
        if not self.choice and (self.first is None) != (self.last is None):
            raise ConfigurationError("a range of partitions has two ends", "Give its first and its last key.")

    def keys_of(self, ledger: Ledger, topology: Topology) -> tuple[str, ...]:
        """The keys in the order of the calendar, each once.

        :raises ConfigurationError: the topology is not bound, or a key is none of its keys.
        """
        partitions = bound_to(topology)
        if self.choice is not None:
            chosen = chosen_partitions(ledger, topology, self.choice, self.first, self.last)
            return tuple(status.key for status in chosen)
        if self.first is not None and self.last is not None:
            first, last = partitions.parse(self.first), partitions.parse(self.last)
            if first.start > last.start:
                raise ConfigurationError(
                    f"the partition {first.key} is after {last.key}", "Give the earlier one first."
                )
            return tuple(partition.key for partition in partitions.between(first, last))
        named = {key: partitions.parse(key).start for key in self.keys}
        return tuple(sorted(named, key=lambda key: named[key]))

    def does_again(self, redo: Redo | str) -> bool:
        """Is a committed partition done again, also if its sources are as they were? A failed one is."""
        return self.choice is KeyChoice.FAILED or (self.choice is None and Redo(redo) is Redo.ASKED)


def _status(partition: Partition, seen: SeenPartition, complete_at: datetime, now: datetime) -> PartitionStatus:
    tx, committed = seen.tx, seen.committed
    status = _status_of(seen, tx)
    if status is None:
        status = KeyStatus.MISSING if now >= complete_at else KeyStatus.OPEN
    return PartitionStatus(
        partition=partition,
        status=status,
        complete_at=complete_at,
        n=seen.entry.n,
        txid=seen.entry.tx,
        rows=dict(tx.staged.rows) if tx is not None and tx.staged is not None else None,
        error=tx.all_errors if tx is not None and status is not KeyStatus.COMMITTED else "",
        committed_txid=seen.committed_txid,
        committed_ms=committed.times_ms.get(Status.COMMITTED.value, 0) if committed is not None else 0,
    )


def _status_of(seen: SeenPartition, tx: TxRecord | None) -> KeyStatus | None:
    """None: there is no transaction."""
    if not seen.entry.tx or (tx is not None and tx.status is Status.CLOSED):
        return None
    if tx is None:  # pruned: only what is COMMITTED is
        return KeyStatus.COMMITTED
    return KeyStatus.FAILED if has_failed(tx) else KeyStatus(tx.status.value)
