"""The work of Spark's Python workers for a group: the passes of several transactions, one after the other.

Each pass has its own context and its own copies of users' objects, as in a separate task. Its output rows have extra
columns that name their transaction, if a later step needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Split
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.group_passes import blaming
from airflow_trident.engine.spark.worker import ReadSplits, as_spark_has_it
from airflow_trident.engine.spark.worker_notes import COUNTED, NOTES, MadeNotes, partition_here
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.operations.api import OperationContext
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import Field, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa

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
    found = shares([unit.size_bytes for unit in units], min(tasks, len(units)))
    return tuple(tuple(units[place] for place in share) for share in found)


def shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Positions of `sizes`, dealt into `count` shares of about equal size; ascending within a share."""
    found: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for place in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        size, number = heappop(lightest)
        found[number].append(place)
        heappush(lightest, (size + sizes[place], number))
    return [sorted(share) for share in found]


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
        whole, found = Counter[int](), self.reading.notes.all()
        for pack in range(len(self.packs)):
            for said in filter(None, found[self._counted(pack)].split(",")):
                member, many = map(int, said.split(":"))
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.read is None and self.nodes is None:
            stream = iter(batches)
        else:
            stream = self._passed(units_of(batches) if self.read is None else self.read(batches))
        return as_spark_has_it(
            stream if self.made is None else self.made(stream, partition_here()), (*self.schema, *self.tags)
        )

    def _passed(self, parts: Iterable[UnitRows]) -> Iterator[pa.RecordBatch]:
        for member, place, rows in parts:
            with blaming(self.slots[member].txid):
                yield from self._tagged(self._through(member, place, rows), member, place)

    def _through(self, member: int, place: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        return self.nodes(rows, context)

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
