"""Moving rows between partitions, as operations on DataFrames. Each is one exchange in Spark."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.engine.spark.versions import repartition_by_id
from airflow_trident.engine.spark.worker import MARKER
from airflow_trident.errors import UnknownNodeError
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import PartitionNode, UnionNode
from airflow_trident.types import Schema, names_of

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
