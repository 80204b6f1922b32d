"""The work of Spark's Python workers: reading splits, fused passes, writing staged parts, each inside `mapInArrow`.

The driver pickles everything once, with users' objects; a worker needs only this package and pyarrow.
"""

from __future__ import annotations

import pickle
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Emitter, Split
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.group_passes import blaming
from airflow_trident.engine.spark.errors import SAME_VERSION, to_worker_error
from airflow_trident.engine.spark.worker_notes import COUNTED, NOTES, SO_FAR, MadeNotes, Notes, partition_here
from airflow_trident.engine.spout_reader import rows_of
from airflow_trident.errors import ConfigurationError, ExecutorPackageError, TridentError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.partitioned import split_by
from airflow_trident.operations.api import OperationContext
from airflow_trident.staging.manifest import Slot
from airflow_trident.staging.parts import write_part
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import Field, Schema, has_times, names_of
from airflow_trident.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

OLDEST_PYARROW = 18
"""As in the package's requirements."""
PART_BYTES = 256 * 2**20
"""About this many bytes of rows in memory go into one staged file."""

FEW_PARTITIONS = 32
PARTITION_BYTES = 32 * 2**20
"""Small splits share a partition up to about this many bytes, unless there are few partitions."""

PARTS: Schema = (
    Field("path", "string"),
    Field("rows", "long"),
    Field("bytes", "long"),
    Field("content", "binary"),
    Field("footer", "binary"),
)
"""Rows of :class:`WriteParts`, one per file: the fields of `StagedFile` without the state."""

MARKER = "is a row"
"""A last column that is false for a row that only keeps its partition alive. No field can have this name."""


@dataclass(frozen=True)
class WorkerPass:
    """The function for `mapInArrow`. `payload`: the pickled :class:`Work`, or another callable for batches. `version`:
    of the package that pickled it; another version may have other classes."""

    payload: bytes
    version: str = VERSION

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            if self.version != VERSION:
                raise ExecutorPackageError(
                    f"the Python workers of Spark have airflow-trident {VERSION}, and this job is of {self.version}",
                    SAME_VERSION,
                )
            require_pyarrow()
            work = pickle.loads(self.payload)  # noqa: S301 - our own driver made it
            yield from work(batches)
        except TridentError as error:
            raise to_worker_error(error) from None


def require_pyarrow() -> None:
    """:raises ConfigurationError: this Python's pyarrow is older than the package needs; Spark accepts older ones."""
    import pyarrow

    if int(pyarrow.__version__.partition(".")[0]) < OLDEST_PYARROW:
        raise ConfigurationError(
            f"the Python workers of Spark have pyarrow {pyarrow.__version__}, and airflow-trident needs "
            f"{OLDEST_PYARROW} or newer",
            "Install a newer pyarrow where the executors run.",
        )


@dataclass(frozen=True)
class Work:
    """Any of these: read splits (input batches hold their numbers), run nodes, note a partition, write rows."""

    slot: Slot
    partitions: int
    marked: bool = False
    read: ReadSplits | None = None
    nodes: FusedPass | None = None
    made: MadeNotes | None = None
    write: WriteParts | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blaming(self.slot.txid):
            yield from self._rows(batches)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stream: Iterable[pa.RecordBatch] = map(_without_marked, batches) if self.marked else batches
        place = None
        if self.read is not None:
            place, stream = self.read.of_partition(stream, self.partitions)
        place = partition_here() if place is None else place
        if self.nodes is not None:
            context = OperationContext(
                partition_index=place,
                num_partitions=self.partitions,
                txid=self.slot.txid,
                attempt=self.slot.attempt,
                topology=self.slot.topology,
            )
            stream = self.nodes(stream, context)
        if self.made is not None:
            stream = self.made(stream, place)
        if self.write is not None:
            return self.write(stream)
        last = self.nodes or self.read
        return iter(stream) if last is None else as_spark_has_it(stream, last.schema)


def _without_marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(batch.column(MARKER)).drop_columns([MARKER])


def as_spark_has_it(batches: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
    """Spark's times of day have microseconds, but Spark takes them from Python only as nanoseconds."""
    if not any(has_times(field.type) for field in schema):
        return iter(batches)
    wanted = arrow_schema(schema, "ns")
    return (batch.cast(wanted) for batch in batches)


# ---- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadSplits:
    """Reads splits of a batch by their numbers; leaves a note with the row count of each.

    During a split, another note shows its progress, for people. It is separate because two tasks may read the same
    split: the progress of the slower one must not replace the count.
    """

    stream: str
    emitter: Emitter
    splits: tuple[Split, ...]
    schema: Schema
    given: Schema
    txid: int | None
    notes: Notes
    say_every_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._split(self.splits[number])

    def of_partition(
        self, batches: Iterable[pa.RecordBatch], partitions: int
    ) -> tuple[int | None, Iterator[pa.RecordBatch]]:
        """The number of the partition among those that read these splits (None: it reads nothing), and its rows. In a
        job over several transactions, Spark's own number counts the partitions of all."""
        batches = iter(batches)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return None, iter(())
        begins = [place * len(self.splits) // partitions for place in range(partitions)]
        return bisect_right(begins, first.column(0)[0].as_py()) - 1, self(chain([first], batches))

    def stopped_at(self, partition: int, partitions: int, found: Mapping[str, str]) -> Split | None:
        """The split at which a partition's worker was, for it reads one after the other; None: it has read all.

        :param found: all notes.
        """
        begin, end = (place * len(self.splits) // partitions for place in (partition, partition + 1))
        return next((split for split in self.splits[begin:end] if self.counted(split.index) not in found), None)

    def _split(self, split: Split) -> Iterator[pa.RecordBatch]:
        rows, said_s = 0, time.monotonic()
        for batch in self.rows_of(split):
            rows += batch.num_rows
            if time.monotonic() - said_s >= self.say_every_s:
                self._count(split, rows, SO_FAR)
                said_s = time.monotonic()
            yield batch
        self._count(split, rows)

    def rows_of(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read one split, without counting."""
        return rows_of(self.emitter, split, self.stream, self.given, arrow_schema(self.schema), self.txid)

    def _count(self, split: Split, rows: int, ending: str = "") -> None:
        self.notes.leave(f"{self.counted(split.index)}{ending}", str(rows))

    def counted(self, split: int) -> str:
        """Name of the note about one split."""
        return f"{NOTES.of(self.stream, split)}{COUNTED}"


def partitions_for(splits: Sequence[Split]) -> int:
    """The number of partitions to read in: one per split, but thousands of small files are packed, because every task
    of Spark costs some 10 ms. It depends on the batch alone, so a replay has the same partitions."""
    sizes = [split.size_bytes for split in splits]
    if len(splits) <= FEW_PARTITIONS or None in sizes:
        return len(splits)
    whole = sum(size for size in sizes if size is not None)
    return min(len(splits), max(FEW_PARTITIONS, -(-whole // PARTITION_BYTES)))


def dealt(splits: Sequence[Split], partitions: int) -> tuple[Split, ...]:
    """The splits in an order in which equal ranges of numbers, one per partition, have about as many bytes: neighbours
    are often alike, old and small or new and large. Spark gives every partition equally many numbers."""
    if len(splits) <= partitions or any(split.size_bytes is None for split in splits):
        return tuple(splits)
    ends = [(place + 1) * len(splits) // partitions for place in range(partitions)]
    rooms = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    parts: list[list[Split]] = [[] for _ in rooms]
    lightest = [(0, place) for place in range(partitions)]
    for split in sorted(splits, key=lambda one: (-(one.size_bytes or 0), one.index)):
        size_bytes, place = heappop(lightest)
        parts[place].append(split)
        if len(parts[place]) < rooms[place]:
            heappush(lightest, (size_bytes + (split.size_bytes or 0), place))
    return tuple(split for part in parts for split in sorted(part, key=lambda one: one.index))


# ---- writing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteParts:
    """Stages the rows of a partition and returns the files. Only files that reach the driver count."""

    storage: Storage
    slot: Slot
    state: str
    schema: Schema
    split_by: tuple[str, ...] = ()
    kept_bytes: int = 0
    by_reference: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in batches:
            if batch.num_rows:
                waiting.append(batch)
                size_bytes += batch.nbytes
            if size_bytes > PART_BYTES:
                yield self._write(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield self._write(waiting)

    def _write(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        import pyarrow as pa

        table = pa.Table.from_batches(batches).cast(arrow_schema(self.schema))
        write = partial(
            write_part,
            self.storage,
            self.slot,
            self.state,
            kept_bytes=self.kept_bytes,
            by_reference=self.by_reference,
        )
        files = [write(part) for _, part in split_by(table, self.split_by)]
        names = names_of(PARTS)
        return pa.RecordBatch.from_pylist(
            [{name: getattr(file, name) for name in names} for file in files], schema=arrow_schema(PARTS)
        )
