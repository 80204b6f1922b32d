"""Spouts of partitioned sources, after Storm's IPartitionedTridentSpout and IOpaquePartitionedTridentSpout.

A user's class says which partitions exist, how far each one goes now, and how to read one partition's part.
Coordinator, emitter and metadata are provided here. The metadata of a batch names each partition's part of the batch,
and keeps the last part of every partition that has none in it: a partition that disappears and comes back goes on where
it stopped.

Transactional: the metadata of a txid fixes its partitions and parts. If one of them is gone when it is needed, that is
a SourceChangedError. Opaque: each attempt decides anew, from the partitions that exist then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout, not_metadata_of
from airflow_trident.errors import SourceChangedError, SourceUnavailableError
from airflow_trident.names import require_counts, without_none
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 5
"""An error names at most this many partitions."""


class PartitionedSpout(Spout):
    """A spout over partitions. It must be picklable as a whole, and opens nothing before it is called.

    Where it is `opaque`, a part that cannot be read again fails its attempt, and the next attempt takes what exists
    then. A missing partition is left out; when it is back, it continues where it stopped.

    `max_partitions`, `max_rows`: of one batch; None: no limit. Partitions without room in a batch come first in the
    next one, in the order of their ids, and after the last id from the first again. `max_splits`: the most parts that a
    batch is cut into.
    """

    max_partitions: int | None = None
    max_rows: int | None = None
    max_splits: int = 32

    @abstractmethod
    def partitions(self) -> Iterable[str]:
        """The ids of all partitions that can be read now (Storm: getPartitionsForBatch).

        :raises SourceUnavailableError: the source does not answer. (An empty answer means that there are no
            partitions.)
        """

    @abstractmethod
    def next_part(self, partition: str, last: Json) -> Json:
        """The metadata of the partition's next part, after the one with metadata `last` (None: none yet).

        None: the partition has nothing new. This must have no side effects; the rules are those of
        ``initialize_transaction``.
        """

    @abstractmethod
    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        """The rows of one part (Storm: reEmitPartitionBatch).

        :raises SourceChangedError: the partition no longer holds them.
        """

    # ---- what need not be overridden ---------------------------------------------------------------------------

    def next_parts(self, partitions: Sequence[str], last: Mapping[str, Json]) -> Iterable[tuple[str, Json]]:
        """(partition, next part) of the partitions that have one, in the given order. Override it for sources that
        answer for many partitions at once. The caller stops reading when the limits are reached."""
        for partition in partitions:
            part = self.next_part(partition, last.get(partition))
            if part is not None:
                yield partition, part

    def rows_of(self, part: Json) -> int:
        """About how many rows a part has, for `max_rows`; 0 if unknown."""
        return 0

    def forget(self, partition: str, last: Json) -> bool:
        """Is a partition that cannot be read gone for good? Then its last part is dropped; if the partition comes back,
        it begins anew."""
        return False

    def success(self, txid: int, parts: Mapping[str, Json]) -> None:
        """The transaction with these parts is committed: see :meth:`Coordinator.success`."""

    def lag(self, last: Mapping[str, Json]) -> Lag | None:
        """How much the partitions have after their last parts: see :meth:`Coordinator.lag`."""
        return None

    # ---- the spout ---------------------------------------------------------------------------------------------

    def coordinator(self) -> Coordinator:
        self.require_limits()
        wants_success = type(self).success is not PartitionedSpout.success
        return (_ToldOfSuccess if wants_success else PartitionedCoordinator)(self)

    def emitter(self) -> PartitionedEmitter:
        return PartitionedEmitter(self)

    def require_limits(self, *others: str) -> None:
        """:param others: more attributes that are limits; None: no limit.
        :raises ConfigurationError: a limit is below 1, or not whole.
        """
        names = ("max_partitions", "max_rows", "max_splits", *others)
        require_counts(self.describe(), **without_none(**{name: getattr(self, name) for name in names}))


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The metadata of a batch. `parts`: partition -> its part; `kept`: partition -> its last part, if it has none in
    the batch; `behind`: the next batch begins with the partitions after this one."""

    parts: Mapping[str, Json]
    kept: Mapping[str, Json]
    behind: str

    @property
    def last(self) -> dict[str, Json]:
        return {**self.kept, **self.parts}

    def to_json(self) -> dict[str, Json]:
        return {"parts": dict(self.parts), "kept": dict(self.kept), "behind": self.behind}


def parts_from_json(metadata: Json, spout: str) -> BatchParts:
    """:raises SourceChangedError: this is not the metadata of a partitioned spout."""
    if isinstance(metadata, dict) and metadata.keys() == {"parts", "kept", "behind"}:
        parts, kept, behind = metadata["parts"], metadata["kept"], metadata["behind"]
        if isinstance(parts, dict) and isinstance(kept, dict) and isinstance(behind, str):
            return BatchParts(parts, kept, behind)
    raise not_metadata_of(f"a partitioned spout ({spout})", metadata)


def next_batch(spout: PartitionedSpout, before: BatchParts) -> BatchParts | None:
    """The batch after `before`; None if no partition has anything new."""
    available = sorted(set(spout.partitions()))
    order = [name for name in available if name > before.behind] + [name for name in available if name <= before.behind]
    last, parts, rows, behind = before.last, dict[str, Json](), 0, ""
    for partition, part in spout.next_parts(order, last):
        rows += spout.rows_of(part)
        if parts and spout.max_rows is not None and rows > spout.max_rows:
            break
        parts[partition] = part
        behind = partition
        if len(parts) == spout.max_partitions:
            break
    if not parts:
        return None
    absent = last.keys() - set(available)
    kept = {
        partition: part
        for partition, part in sorted(last.items())
        if partition not in parts and not (partition in absent and spout.forget(partition, part))
    }
    return BatchParts(parts, kept, behind)


@dataclass(frozen=True)
class PartitionedCoordinator(Coordinator):
    """Metadata: see :class:`BatchParts`."""

    spout: PartitionedSpout

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        none = BatchParts({}, {}, "")
        before = none if previous is None else parts_from_json(previous, self.spout.describe())
        batch = next_batch(self.spout, before)
        return None if batch is None else batch.to_json()

    def lag(self, position: Json) -> Lag | None:
        return self.spout.lag({} if position is None else parts_from_json(position, self.spout.describe()).last)


class _ToldOfSuccess(PartitionedCoordinator):
    def success(self, txid: int, metadata: Json) -> None:
        self.spout.success(txid, parts_from_json(metadata, self.spout.describe()).parts)


@dataclass(frozen=True)
class PartitionedEmitter(Emitter):
    """Contains the spout."""

    spout: PartitionedSpout

    def splits(self, metadata: Json) -> list[Split]:
        """Puts neighbouring partitions together, into at most `max_splits` splits.

        :raises SourceChangedError: a partition is gone (transactional).
        :raises SourceUnavailableError: a partition is gone (opaque); the next attempt takes what exists then.
        """
        parts = sorted(parts_from_json(metadata, self.spout.describe()).parts.items())
        missing = sorted({partition for partition, _ in parts} - set(self.spout.partitions()))
        if missing:
            raise self._gone(missing)
        size = max(1, -(-len(parts) // self.spout.max_splits))
        starts = range(0, len(parts), size)
        return [Split(index, [[*part] for part in parts[at : at + size]]) for index, at in enumerate(starts)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, list)
        for pair in split.body:
            assert isinstance(pair, list)
            partition, part = pair
            try:
                yield from self.spout.read_part(str(partition), part)
            except SourceChangedError as error:
                if self.spout.kind is SpoutKind.TRANSACTIONAL:
                    raise
                raise SourceUnavailableError.of_gone_batch(
                    f"{self.spout.describe()}: partition {partition!r} changed while it was read: {error.message}",
                    "The next attempt takes what there is then.",
                ) from error

    def _gone(self, missing: Sequence[str]) -> SourceChangedError | SourceUnavailableError:
        names = ", ".join(map(repr, missing[:_SHOWN])) + (
            f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
        )
        problem = (
            f"{self.spout.describe()}: partition{'s' * (len(missing) > 1)} {names} of the recorded batch cannot be read"
        )
        if self.spout.kind is SpoutKind.TRANSACTIONAL:
            return SourceChangedError(
                problem, "Bring it back and replay; or use an opaque spout, which goes on without what is gone."
            )
        return SourceUnavailableError.of_gone_batch(
            problem, "The next attempt takes the partitions that are there then."
        )
