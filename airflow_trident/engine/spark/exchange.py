"""Moving rows between partitions, as operations on DataFrames. Each is one exchange in Spark.

Joins that Spark makes itself: it sorts and spills, where a Python pass holds all tuples of a partition in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.engine.spark.versions import repartition_by_id
from airflow_trident.engine.spark.workers import MARKER
from airflow_trident.errors import UnknownNodeError
from airflow_trident.operations.interfaces import Joiner, JoinOutFieldsMode, JoinType
from airflow_trident.plan.graph import Grouping
from airflow_trident.plan.nodes import MultiReduceStepNode, PartitionNode, UnionNode
from airflow_trident.plan.stages import Stage
from airflow_trident.types import Schema, has_reals, is_nested, members, names_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET = "to partition"
"""A last column with the number of a row's target partition. No field can have this name."""

_PLACED = (Grouping.CUSTOM, Grouping.COLOCATED)
"""Rows of these groupings have TARGET already."""


class Exchanges:
    """:param columns: of the session in use."""

    def __init__(self, session: SparkSession, columns: Columns) -> None:
        self._session = session
        self._f = columns.functions
        self._columns = columns

    def united(
        self, union: UnionNode, inputs: list[DataFrame], *, placed: bool, also: tuple[str, ...] = ()
    ) -> DataFrame:
        """The rows of all inputs.

        :param placed: with TARGET, the number of each row's partition.
        :param also: columns of all inputs that the plan does not know.
        """
        behind = [*map(self._columns.named, also), *([self.here()] if placed else [])]
        frames = [data.select(*self._taken(union, number), *behind) for number, data in enumerate(inputs)]
        return reduce(lambda left, right: left.union(right), frames)

    def _taken(self, union: UnionNode, number: int) -> list[Any]:
        columns = []
        for field, name in zip(union.schema, union.takes[number], strict=True):
            value = number if field.name == union.tag else None
            column = self._columns.named(name) if name is not None else self._f.lit(value).cast(field.type)
            columns.append(column.alias(field.name))
        return columns

    def here(self) -> Any:
        """The number of a row's partition, as TARGET."""
        return self._f.spark_partition_id().alias(TARGET)

    def moved(self, data: DataFrame, how: PartitionNode, count: int, *, exact: bool = False) -> DataFrame:
        """By shuffle, fields, global or broadcast; rows with TARGET go there.

        :param exact: must rows with equal keys come to the same partition as those of other frames? Spark leaves out a
            repartition by keys of rows that an aggregation has moved by them, and may unite the partitions of that one.
        """
        match how.grouping:
            case Grouping.FIELDS if exact:
                return self._sent(data.select("*", self._target(how, count)), how.schema, count)
            case Grouping.GLOBAL | Grouping.BATCH_GLOBAL:
                return data.repartition(1)
            case Grouping.CUSTOM | Grouping.COLOCATED:
                return self._sent(data, how.schema, count)
            case Grouping.BROADCAST:
                return self._sent(data.select("*", self._target(how, count)), how.schema, count)
            case Grouping.FIELDS | Grouping.SHUFFLE:
                return data.repartition(count, *map(self._columns.named, how.keys))
        raise UnknownNodeError(how.name, how.grouping, "Spark's exchange")

    def marked(self, data: DataFrame, how: PartitionNode, count: int) -> DataFrame:
        """As `moved`, with an extra row per partition, whose column MARKER is false: Spark may leave out empty
        partitions."""
        if how.grouping.gathers:
            return self._columns.marked(self._session, data, how.schema).repartition(1)
        targets = data if how.grouping in _PLACED else data.select("*", self._target(how, count))
        rows = targets.select(
            *map(self._columns.named, names_of(how.schema)),
            self._f.lit(True).alias(MARKER),
            self._columns.named(TARGET),
        )
        nothing = self._columns.nothing(how.schema)
        place = self._f.col("id").cast("int").alias(TARGET)
        extra = self._session.range(0, count, 1, 1).select(*nothing, self._f.lit(False).alias(MARKER), place)
        return repartition_by_id(self._f, rows.union(extra), count, self._columns.named(TARGET)).drop(TARGET)

    def _target(self, how: PartitionNode, count: int) -> Any:
        if how.grouping is Grouping.BROADCAST:
            return self._f.explode(self._f.sequence(self._f.lit(0), self._f.lit(count - 1))).alias(TARGET)
        if how.grouping is Grouping.FIELDS:
            number = self._f.pmod(self._f.hash(*map(self._columns.named, how.keys)), self._f.lit(count))
        else:
            number = self._f.monotonically_increasing_id() % count
        return number.cast("int").alias(TARGET)

    def _sent(self, data: DataFrame, schema: Schema, count: int) -> DataFrame:
        sent = repartition_by_id(self._f, data, count, self._columns.named(TARGET))
        return sent.select(*map(self._columns.named, names_of(schema)))


@dataclass(frozen=True)
class JvmJoin:
    """A join over the streams of its union. Keys are equal as in groups: nulls are equal, NaN are equal, and -0.0
    equals 0.0, output as 0.0."""

    union: UnionNode
    step: MultiReduceStepNode
    joiner: Joiner

    @classmethod
    def of(cls, stage: Stage, *, numbered: bool) -> JvmJoin | None:
        """The join at the start of the stage; None: there is none, or Spark cannot make it.

        :param numbered: must there be as many partitions as the plan says?
        """
        union, how, step = stage.union, stage.exchange, stage.nodes[0] if stage.nodes else None
        if union is None or how is None or how.grouping is not Grouping.FIELDS:
            return None
        if not isinstance(step, MultiReduceStepNode) or not isinstance(step.reducer, Joiner):
            return None
        if how.keys != step.groups or union.tag != step.tag:
            return None
        if numbered and len(union.inputs) > 2 and JoinType.INNER not in step.reducer.types:
            return None  # the second join does not know the partitions of a full join's result
        return cls(union, step, step.reducer)

    def data(
        self, columns: Columns, frames: Sequence[DataFrame], *, count: int | None = None, sized: bool = False
    ) -> DataFrame:
        """All combinations of tuples with equal keys, with the fields of the join.

        :param frames: of the union's inputs.
        :param count: number of partitions, each with whole groups; None: Spark decides.
        :param sized: does Spark know the approximate sizes? Otherwise it takes Python's rows for tiny data and sends
            all of them to every executor.
        """
        return _Joining(self, columns, count, sized=sized).data(frames)


class _Joining:
    def __init__(self, join: JvmJoin, columns: Columns, count: int | None, *, sized: bool) -> None:
        self._join = join
        self._columns = columns
        self._f = columns.functions
        self._count = count
        self._sized = sized

    def data(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Joins the streams that must have tuples first; then each other stream only adds fields, or nulls."""
        types = self._join.joiner.types
        first, *others = sorted(range(len(types)), key=lambda place: types[place] is JoinType.OUTER)
        missing = "left" if types[first] is JoinType.INNER else "full"
        data, keys = self._side(frames[first], first), self._compared(first)
        for place in others:
            side_keys = self._compared(place)
            pairs = zip(keys, side_keys, strict=True)
            equal = [left.eqNullSafe(right) if self._count is None else left == right for left, right in pairs]
            how = "inner" if types[place] is JoinType.INNER else missing
            side = self._side(frames[place], place)
            data = data.join(
                side if self._sized else side.hint("merge"),
                reduce(lambda condition, other: condition & other, equal),
                how,
            )
            if missing == "full":
                keys = [self._f.coalesce(left, right) for left, right in zip(keys, side_keys, strict=True)]
        names = self._join.step.fields
        return data.select(*(value.alias(name) for value, name in zip(self._values(), names, strict=True)))

    def _side(self, data: DataFrame, place: int) -> DataFrame:
        """One stream, with unique column names, so that a stream can be joined with itself."""
        union, groups = self._join.union, self._join.step.groups
        taken = dict(zip(union.schema, union.takes[place], strict=True))
        keys = [
            self._shown(self._columns.named(name), field.type).alias(f"{place} {field.name}")
            for field, name in taken.items()
            if name is not None and field.name in groups
        ]
        read_names = set(self._join.step.reads[place])
        rest = [
            self._columns.named(name).alias(field.name)
            for field, name in taken.items()
            if name is not None and field.name in read_names
        ]
        data = data.select(*keys, *rest)
        if self._count is None:
            return data
        # One value that is never null: so Spark sees that equal keys are in one partition already, and moves nothing
        # more. Its fields have the same names on each side: Spark 3.5 compares no structs of other names.
        fields = (key.alias(group) for key, group in zip(self._keys(place), self._join.step.groups, strict=True))
        whole = self._f.struct(*fields)
        # Spark joins by a constant, such as the keys of a stream without a batch, in another way, with other
        # partitions. So it must not see that this may be one.
        data = data.select("*", self._f.spark_partition_id().alias(f"{place} here"))
        once = self._f.when(self._columns.named(f"{place} here") < 0, 0).otherwise(1)
        hidden = self._f.get(self._f.array_repeat(whole, once), 0).alias(f"{place} keys")
        return data.select("*", hidden).repartition(self._count, self._columns.named(f"{place} keys"))

    def _shown(self, key: Any, type_text: str) -> Any:
        """With a single zero."""
        if not has_reals(type_text):
            return key
        if is_nested(type_text):
            (element,) = members(type_text)
            return self._f.transform(key, lambda value: self._shown(value, element.type))
        return self._f.when(key == self._f.lit(0), self._f.lit(0).cast(type_text)).otherwise(key)

    def _keys(self, place: int) -> list[Any]:
        return [self._columns.named(f"{place} {group}") for group in self._join.step.groups]

    def _compared(self, place: int) -> list[Any]:
        return self._keys(place) if self._count is None else [self._columns.named(f"{place} keys")]

    def _values(self) -> list[Any]:
        """Columns in the order of the joined fields."""
        joiner = self._join.joiner
        keys = [self._keys(place) for place in range(len(joiner.types))]
        values = [[self._columns.named(name) for name in names] for names in self._join.step.reads]
        if joiner.mode is JoinOutFieldsMode.COMPACT:
            return [
                *(self._f.coalesce(*same) for same in zip(*keys, strict=True)),
                *(column for side in values for column in side),
            ]
        return [
            (keys if is_key else values)[place][at]
            for place, layout in enumerate(joiner.layout)
            for is_key, at in layout
        ]
