"""The work of Spark's Python workers: reading splits, fused passes, writing staged parts, each inside `mapInArrow`.

The driver pickles everything once, with users' objects; a worker needs only this package and pyarrow.

Notes of workers for the driver: rows read, and partitions made.

A counter of Spark would count a recomputed split twice, and Connect has none; a repeated note says the same. If the
driver does not see the notes, only the count is unknown.

The work of Spark's Python workers for a group: the passes of several transactions, one after the other.

Each pass has its own context and its own copies of users' objects, as in a separate task. Its output rows have extra
columns that name their transaction, if a later step needs them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Emitter, Split
from airflow_trident.engine.engine import Job, OwnPartition, blaming, rows_of
from airflow_trident.engine.fused.measuring import Gauges
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.spark.check_notes import LeaveNote
from airflow_trident.engine.spark.errors import SAME_VERSION, to_worker_error
from airflow_trident.errors import ConfigurationError, ExecutorPackageError, SparkJobError, TridentError
from airflow_trident.io.arrow import arrow_schema, split_by
from airflow_trident.io.place import Place, clear, make_folder
from airflow_trident.io.places import place_at
from airflow_trident.names import Composed
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.staging.area import make_slot_folder, write_part
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import Field, Schema, has_times, names_of
from airflow_trident.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

NOTES = Composed(joint="-", has_case=False)
COUNTED, SO_FAR, _MADE = ".rows", ".so-far", ".made"


class Notes(ABC):
    """Best effort: no note is worth a failed attempt."""

    @abstractmethod
    def leave(self, name: str, text: str = "") -> None:
        """Replaces an older note of this name. `text`: short, no ``/``. For numbers, the largest ever left may count
        instead."""

    @abstractmethod
    def all(self) -> dict[str, str]:
        """Name -> text."""

    def rows_so_far(self) -> int:
        """The number of rows read so far over all splits, as far as notes say."""
        rows: dict[str, int] = {}
        for name, text in sorted(self.all().items(), reverse=True):  # a split's final count overrides progress
            with suppress(ValueError):
                rows[name.removesuffix(SO_FAR)] = int(text)
        return sum(rows.values())

    def made_twice(self) -> int:
        """How many partitions have more than one note."""
        made = Counter(name.rpartition("-")[0] for name in self.all() if name.endswith(_MADE))
        return sum(count > 1 for count in made.values())

    def require_made_once(self) -> None:
        """:raises SparkJobError: Spark recomputed rows that several states are made of."""
        lost = self.made_twice()
        if lost:
            raise SparkJobError(
                f"an executor was lost, and Spark made {lost} partitions again that several states are made of",
                "Nothing of this attempt counts, for the two results may differ; a retry begins anew.",
            )


@dataclass(frozen=True)
class FolderNotes(Notes):
    """Files in a folder that workers see."""

    folder: str

    def leave(self, name: str, text: str = "") -> None:
        with suppress(OSError), open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def all(self) -> dict[str, str]:
        notes = {}
        with suppress(OSError):
            for name in os.listdir(self.folder):
                with suppress(OSError, ValueError), open(os.path.join(self.folder, name), encoding="ascii") as file:
                    notes[name] = file.read()
        return notes


@dataclass(frozen=True)
class ObjectNotes(Notes):
    """Empty objects: the names hold everything, so one listing reads all notes."""

    place: Place
    folder: str

    def leave(self, name: str, text: str = "") -> None:
        with suppress(TridentError):
            self.place.put(f"{self.folder}/{name}={text}", lambda _: None)

    def all(self) -> dict[str, str]:
        notes: dict[str, str] = {}
        with suppress(TridentError):
            for entry in self.place.list(self.folder):
                name, _, text = entry.name.rpartition("/")[2].rpartition("=")
                notes[name] = max(notes.get(name, ""), text, key=lambda written: (len(written), written))
        return notes


@contextmanager
def notes_of(job: Job, *, local: bool) -> Iterator[Notes]:
    """Notes of one pass; removed afterwards.

    :param local: workers see the file system of this process.
    """
    place, name = place_at(job.staging_root), f"rows-read-{uuid.uuid4().hex}"
    if not place.is_local and not local:
        folder = f"{job.slot.path}/{name}"
        try:
            yield ObjectNotes(place.resolved(), folder)
        finally:
            clear(place, folder)
        return
    if place.is_local:
        folder = place.at(f"{job.slot.path}/{name}")
        with suppress(OSError):  # whoever writes data reports a place that cannot be written
            make_slot_folder(job.staging_root, job.slot)
            make_folder(folder, durably=False)
    else:
        folder = tempfile.mkdtemp(prefix=name)
    try:
        yield FolderNotes(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class MadeNotes:
    """Leaves a note each time that a partition of a stage was completely made.

    Spark keeps rows that several states are made of. If a kept partition is lost with its executor, Spark makes it
    again. Code that is not deterministic then gives other rows than earlier states got. Only this note shows it to the
    driver.
    """

    notes: Notes
    stage: int

    def __call__(self, batches: Iterable[pa.RecordBatch], place: int) -> Iterator[pa.RecordBatch]:
        """:param place: the number of the partition."""
        yield from batches
        self.notes.leave(f"{self.stage}-{place}-{uuid.uuid4().hex}{_MADE}")


def partition_here() -> int:
    """The number of this Spark task's partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


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
    """Any of these: read splits (input batches hold their numbers), run nodes, note a partition, write rows. `checks`:
    for nodes that measure rules; `member`: the position of the transaction in its group."""

    slot: Slot
    partitions: int
    marked: bool = False
    read: ReadSplits | None = None
    nodes: FusedPass | None = None
    made: MadeNotes | None = None
    write: WriteParts | None = None
    checks: LeaveNote | None = None
    member: int = 0

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
            gauges = None if self.checks is None else Gauges(self.member)
            stream = self.nodes(stream, context, gauges=gauges)
            if self.checks is not None and gauges is not None:
                stream = self.checks.after(stream, place, [gauges])
                if self.checks.returns:
                    return iter(stream)
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
    spout_schema: Schema
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

    def stopped_at(self, partition: int, partitions: int, notes: Mapping[str, str]) -> Split | None:
        """The split at which a partition's worker was, for it reads one after the other; None: it has read all.

        :param notes: all notes.
        """
        begin, end = (place * len(self.splits) // partitions for place in (partition, partition + 1))
        return next((split for split in self.splits[begin:end] if self.counted(split.index) not in notes), None)

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
        return rows_of(self.emitter, split, self.stream, self.spout_schema, arrow_schema(self.schema), self.txid)

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
    for split in sorted(splits, key=lambda candidate: (-(candidate.size_bytes or 0), candidate.index)):
        size_bytes, place = heappop(lightest)
        parts[place].append(split)
        if len(parts[place]) < rooms[place]:
            heappush(lightest, (size_bytes + (split.size_bytes or 0), place))
    return tuple(split for part in parts for split in sorted(part, key=lambda candidate: candidate.index))


# ---- writing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteParts:
    """Stages the rows of a partition and returns the files. Only files that reach the driver count."""

    place: Place
    slot: Slot
    state: str
    schema: Schema
    split_by: tuple[str, ...] = ()
    kept_bytes: int = 0
    by_reference: bool = False
    own: OwnPartition | None = None

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
        if self.own is not None:
            self.own.require(table)
        write = partial(
            write_part,
            self.place,
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


@dataclass(frozen=True)
class PartitionPass:
    """Calls `work` with the batches of a partition, and its number."""

    work: Callable[[Iterable[pa.RecordBatch], int], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.work(batches, partition_here())


MEMBER = Field("of transaction", "int")
"""A column with the position of a row's transaction in the group. No field can have this name."""
PLACE = Field("in partition", "int")
"""A column with the partition that the row would have in a pass of its transaction alone."""
TAGS: Schema = (MEMBER, PLACE)

UnitRows = tuple[int, int, "Iterator[pa.RecordBatch]"]
"""Position of a transaction in the group, number of a partition of its pass, and the rows there."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One partition of the pass of one transaction, at a source. Without splits: its stream has no data."""

    member: int
    place: int
    splits: tuple[Split, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Approximate size; 1 for a split of unknown size."""
        return sum(split.size_bytes or 1 for split in self.splits)


def packed(units: Sequence[Unit], tasks: int) -> tuple[tuple[Unit, ...], ...]:
    """The units of each task, with about as many bytes for each.

    :param units: by transaction and partition.
    """
    packs = shares([unit.size_bytes for unit in units], min(tasks, len(units)))
    return tuple(tuple(units[place] for place in share) for share in packs)


def shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Positions of `sizes`, dealt into `count` shares of about equal size; ascending within a share."""
    share_positions: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for place in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        size, number = heappop(lightest)
        share_positions[number].append(place)
        heappush(lightest, (size + sizes[place], number))
    return [sorted(share) for share in share_positions]


@dataclass(frozen=True)
class ReadUnits:
    """Reads packs of units by their numbers; leaves a note for each pack with the rows read of each transaction.

    :param reading: how splits of the stream are read.
    """

    reading: ReadSplits
    packs: tuple[tuple[Unit, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[UnitRows]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = Counter[int]()
                for unit in self.packs[number]:
                    yield unit.member, unit.place, self._rows(unit, rows)
                self._leave(number, rows)

    def _rows(self, unit: Unit, rows: Counter[int]) -> Iterator[pa.RecordBatch]:
        for split in unit.splits:
            for batch in self.reading.rows_of(split):
                rows[unit.member] += batch.num_rows
                yield batch

    def _leave(self, pack: int, rows: Counter[int]) -> None:
        self.reading.notes.leave(self._counted(pack), ",".join(f"{member}:{many}" for member, many in rows.items()))

    def rows_read(self) -> Counter[int]:
        """Position in the group -> rows.

        :raises KeyError, ValueError: a count is missing: workers may not see where notes are left.
        """
        whole, notes = Counter[int](), self.reading.notes.all()
        for pack in range(len(self.packs)):
            for pair in filter(None, notes[self._counted(pack)].split(",")):
                member, many = map(int, pair.split(":"))
                whole[member] += many
        return whole

    def _counted(self, pack: int) -> str:
        return f"{NOTES.of(self.reading.stream, 'all', pack)}{COUNTED}"


@dataclass(frozen=True)
class GroupWork:
    """Reads packs of units, or takes rows with their TAGS; runs nodes on the rows of each unit; notes that a partition
    was made. Without anything to read or run, rows pass with the tags that they have.

    :param slots: of each transaction.
    :param partitions: of each transaction's own pass.
    :param schema: the output fields before `tags`.
    """

    slots: tuple[Slot, ...]
    partitions: tuple[int, ...]
    schema: Schema
    tags: Schema
    read: ReadUnits | None = None
    nodes: FusedPass | None = None
    made: MadeNotes | None = field(default=None, kw_only=True)
    checks: LeaveNote | None = field(default=None, kw_only=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        measured: list[Gauges] = []
        if self.read is None and self.nodes is None:
            stream = iter(batches)
        else:
            stream = self._passed(units_of(batches) if self.read is None else self.read(batches), measured)
        if self.checks is not None:
            stream = self.checks.after(stream, partition_here(), measured)
            if self.checks.returns:
                return stream
        return as_spark_has_it(
            stream if self.made is None else self.made(stream, partition_here()), (*self.schema, *self.tags)
        )

    def _passed(self, parts: Iterable[UnitRows], measured: list[Gauges]) -> Iterator[pa.RecordBatch]:
        for member, place, rows in parts:
            with blaming(self.slots[member].txid):
                yield from self._tagged(self._through(member, place, rows, measured), member, place)

    def _through(
        self, member: int, place: int, rows: Iterator[pa.RecordBatch], measured: list[Gauges]
    ) -> Iterator[pa.RecordBatch]:
        if self.nodes is None:
            return rows
        slot = self.slots[member]
        context = OperationContext(
            partition_index=place,
            num_partitions=self.partitions[member],
            txid=slot.txid,
            attempt=slot.attempt,
            topology=slot.topology,
        )
        gauges = Gauges(member)
        if self.checks is not None:
            measured.append(gauges)
        return self.nodes(rows, context, gauges=gauges if self.checks is not None else None)

    def _tagged(self, batches: Iterable[pa.RecordBatch], member: int, place: int) -> Iterator[pa.RecordBatch]:
        if not self.tags:
            yield from batches
            return
        import pyarrow as pa

        schema = arrow_schema((*self.schema, *self.tags))
        values = {MEMBER.name: member, PLACE.name: place}
        for batch in batches:
            tags = [pa.repeat(pa.scalar(values[tag.name], pa.int32()), batch.num_rows) for tag in self.tags]
            yield pa.RecordBatch.from_arrays([*batch.columns, *tags], schema=schema)


def units_of(batches: Iterable[pa.RecordBatch]) -> Iterator[UnitRows]:
    """Rows with TAGS, split into one unit after the other, without TAGS. Units are whole, because one task wrote
    each."""
    cuts = (cut for batch in batches if batch.num_rows for cut in _cut(batch))
    for (member, place), some in groupby(cuts, key=itemgetter(0)):
        yield member, place, (rows for _, rows in some)


def _cut(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    import numpy as np

    members, places = (batch.column(name).to_numpy() for name in names_of(TAGS))
    ends = (np.flatnonzero(np.diff(members) | np.diff(places)) + 1).tolist()
    rows = batch.drop_columns(list(names_of(TAGS)))
    for begin, end in pairwise([0, *ends, batch.num_rows]):
        yield (int(members[begin]), int(places[begin])), rows.slice(begin, end - begin)
