"""Plan nodes that stay in the JVM, as operations on DataFrames.

Orders tuples in Spark's SQL as `MinBy` and `MaxBy` do.

The first tuples of a batch, chosen by Spark itself: `FirstN`, and `min_by` and `max_by` of one partition. Spark
keeps the first of each partition before the shuffle; a Python pass would need all tuples in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_trident.engine.spark.expressions import compile_expression
from airflow_trident.engine.spark.workers import MARKER
from airflow_trident.errors import UnknownNodeError
from airflow_trident.operations.aggregators import ComparisonAggregator, Count, MaxBy
from airflow_trident.operations.builtin import FirstNAggregator
from airflow_trident.operations.expressions import Expression, dtype, resolve
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import (
    Aggregation,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    PartialAggregateNode,
    PartitionAggregateNode,
    PartitionNode,
    ProjectNode,
)
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Field, Schema, names_of, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ranked(aggregation: Aggregation, before: Schema) -> str:
    """A value of `MinBy` or `MaxBy` after its rank, of which the smallest is best; null for a skipped tuple. In Spark,
    NaN is above every number and both zeros are equal; of the values, -0.0 is smaller."""
    value, by = select(before, aggregation.reads, str(aggregation))
    ranks = _reversed(by.name, by.type) if isinstance(aggregation.aggregator, MaxBy) else [f"`{by.name}`"]
    ranks += [f"`{value.name}` is null", f"`{value.name}`"]
    if value.type in REAL_TYPES:
        ranks.append(f"not (`{value.name}` = 0 and cast(`{value.name}` as string) = '-0.0')")
    parts = ", ".join(f"'{place}', {text}" for place, text in enumerate(ranks))
    return f"case when `{by.name}` is not null then named_struct({parts}, 'value', `{value.name}`) end"


def _reversed(name: str, type_text: str) -> list[str]:
    """A key that is smaller if the value is larger."""
    value = f"`{name}`"
    if type_text in WHOLE_TYPES:
        return [f"~{value}"]  # the smallest number has no negative
    if type_text in REAL_TYPES:
        return [f"not isnan({value})", f"-{value}"]
    match type_text:
        case "boolean":
            return [f"not {value}"]
        case "date":
            return [f"-unix_date({value})"]
        case "timestamp":
            return [f"-unix_micros({value})"]
        case "string" | "binary":
            return [_reversed_text(value)]
        case "time":
            return [_reversed_text(f"cast({value} as string)")]
    return [f"-{value}"]  # decimals, intervals


def _reversed_text(text: str) -> str:
    """The hexadecimal digits of its bytes, inverted, with a larger character at the end: "a" is smaller than "ab"."""
    return f"concat(translate(hex({text}), '0123456789ABCDEF', 'FEDCBA9876543210'), 'G')"


class Columns:
    """
    :param functions: the session's module of column functions.
    :param cache: columns made before; see `Attached.cache`.
    """

    def __init__(self, functions: ModuleType, cache: dict[Hashable, Any]) -> None:
        self.functions: Any = functions
        self._f: Any = functions
        self._known = cache

    def known(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The column of this key, made on first use. Two threads may both make it: the results are equal."""
        column = self._known.get(key)
        if column is None:
            column = self._known[key] = make()
        return column

    def named(self, name: str) -> Any:
        return self.known(("field", name), lambda: self._f.col(f"`{name}`"))

    @staticmethod
    def ddl(schema: Schema) -> str:
        """A schema for Spark's parser; quoted, because a field may be called `select`."""
        return ", ".join(f"`{field.name}` {field.type}" for field in schema)

    def nothing(self, schema: Schema) -> list[Any]:
        """A null for each field."""
        return [self._f.lit(None).cast(field.type).alias(field.name) for field in schema]

    def empty(self, session: SparkSession, schema: Schema) -> DataFrame:
        """No rows."""
        return session.range(0, 0, 1, 1).select(*self.nothing(schema))

    def nothing_of(self, numbers: DataFrame, schema: Schema, tag: Field) -> DataFrame:
        """One row per number, with the number as `tag` and nulls elsewhere."""
        return numbers.select(*self.nothing(schema), self._f.col("id").cast(tag.type).alias(tag.name))

    def marked(self, session: SparkSession, data: DataFrame, schema: Schema) -> DataFrame:
        """With an extra row and a column that is false for it, so that there is certainly a row."""
        rows = data.select(*map(self.named, names_of(schema)), self._f.lit(True).alias(MARKER))
        return rows.union(session.range(0, 1, 1, 1).select(*self.nothing(schema), self._f.lit(False).alias(MARKER)))

    def apply(self, data: DataFrame, node: Node, before: Schema) -> DataFrame:
        """One node. `before`: the schema of `data`."""
        if not may_run_in_jvm(node):
            raise UnknownNodeError(node.name, type(node).__name__, "the JVM")
        return _IN_JVM[type(node)].apply(self, data, node, before)

    def project(self, data: DataFrame, node: ProjectNode, _: Schema) -> DataFrame:
        return data.select(*(self.named(name) for name in node.fields))

    def filter(self, data: DataFrame, node: FilterNode, before: Schema) -> DataFrame:
        assert node.expression is not None
        return data.where(self._compiled(node.expression, before))

    def each(self, data: DataFrame, node: EachNode, before: Schema) -> DataFrame:
        assert node.expression is not None
        (output,) = node.outputs
        wider = data.select(
            *(self.named(name) for name in names_of(before)), self._compiled(node.expression, before, output.name)
        )
        if dtype(node.expression, before) == output.type:
            return wider
        kept = [self.named(name) for name in names_of(before)]
        return wider.select(*kept, self.named(output.name).cast(output.type).alias(output.name))

    def _compiled(self, expression: Expression, before: Schema, name: str = "") -> Any:
        """:param name: of the new column."""

        def make() -> Any:
            column: Any = compile_expression(expression, before, self._f)
            return column.alias(name) if name else column

        # as text: 0.0 equals -0.0, and True equals 1
        return self.known(("expression", repr(resolve(expression, before)), name), make)

    def partial(self, data: DataFrame, node: PartialAggregateNode | FinalAggregateNode, before: Schema) -> DataFrame:
        """Only the value of each single row: Spark combines before the shuffle of the next aggregation by itself."""
        values = [self._value(aggregation, before) for aggregation in node.aggregations]
        return data.select(*(self.named(name) for name in node.groups), *values)

    def passed(self, data: DataFrame, node: PartitionAggregateNode, _: Schema) -> DataFrame:
        """All tuples: the next node makes Spark choose before the shuffle by itself."""
        (aggregation,) = node.aggregations
        return data.select(*self.given(aggregation))

    def given(self, aggregation: Aggregation) -> list[Any]:
        """The inputs of an aggregation, under the names of its outputs."""
        pairs = zip(aggregation.reads, aggregation.output, strict=True)
        return [self.named(name) if name == to.name else self.named(name).alias(to.name) for name, to in pairs]

    def _value(self, aggregation: Aggregation, before: Schema) -> Any:
        (output,) = aggregation.output
        if aggregation.combiner is None:
            text = ranked(aggregation, before)
            return self.known(("rank", text, output.name), lambda: self._f.expr(text).alias(output.name))
        key = (
            "value",
            type(aggregation.aggregator).__name__,
            aggregation.merge_kind,
            aggregation.reads,
            output.name,
            output.type,
        )
        return self.known(key, lambda: self._initial(aggregation).cast(output.type).alias(output.name))

    def _initial(self, aggregation: Aggregation) -> Any:
        if isinstance(aggregation.aggregator, Count):
            return self._f.lit(1)
        value = self.named(aggregation.reads[0])
        if aggregation.merge_kind is not MergeKind.ADD:
            return value
        (output,) = aggregation.output
        # of one type: Spark's common type of a decimal and a number cuts digits of the decimal
        return self._f.coalesce(value.cast(output.type), self._f.lit(0).cast(output.type))

    def final(self, data: DataFrame, node: FinalAggregateNode) -> DataFrame:
        """Merges partial values, or raw tuples, of equal groups. Without groups there is one row even without input,
        with the zeros."""
        if not node.merges:
            data = self.partial(data, node, node.input.schema)
        merged = [self._sql(_merged(aggregation)) for aggregation in node.aggregations]
        return data.groupBy(*(self.named(name) for name in node.groups)).agg(*merged)

    def _sql(self, text: str) -> Any:
        return self.known(("sql", text), lambda: self._f.expr(text))


def _merged(aggregation: Aggregation) -> str:
    """As SQL text: one call to the JVM instead of ten for columns."""
    (output,) = aggregation.output
    if aggregation.combiner is None:
        return f"min(`{output.name}`).value as `{output.name}`"
    if aggregation.merge_kind is MergeKind.ADD:
        zero = f"cast(0 as {output.type})"
        return f"cast(coalesce(sum(`{output.name}`), {zero}) as {output.type}) as `{output.name}`"
    return f"{aggregation.merge_kind}(`{output.name}`) as `{output.name}`"


class _InJvm(NamedTuple):
    """A kind of nodes in the JVM: which nodes can run there, and how.

    `computes`: has expressions or aggregations, so it stays in Python if those must run there.
    `less_after`: emits less than it receives, so it is cheaper at the end of a Python pass than after it.
    """

    can: Callable[[Any], bool]
    apply: Callable[[Columns, DataFrame, Any, Schema], DataFrame]
    computes: bool = True
    less_after: bool = False


_IN_JVM: dict[type[Node], _InJvm] = {
    ProjectNode: _InJvm(lambda _: True, Columns.project, computes=False, less_after=True),
    EachNode: _InJvm(lambda node: node.expression is not None, Columns.each),
    FilterNode: _InJvm(lambda node: node.expression is not None, Columns.filter),
    PartialAggregateNode: _InJvm(lambda node: node.is_builtin, Columns.partial, less_after=True),
    PartitionAggregateNode: _InJvm(lambda node: node.only_narrows, Columns.passed, less_after=True),
}


def may_run_in_jvm(node: Node) -> bool:
    """Otherwise a Python pass runs it."""
    kind = _IN_JVM.get(type(node))
    return kind is not None and kind.can(node)


def stays_in_jvm(node: Node, *, native: bool) -> bool:
    """:param native: do expressions and built-ins run there?"""
    return may_run_in_jvm(node) and (native or not _IN_JVM[type(node)].computes)


def with_tail(nodes: Sequence[Node], end: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes for Python: the first `end`, and following ones that are cheaper there than after the transfer to the
    JVM (`less_after`). Then the others."""
    while 0 < end < len(nodes) and (kind := _IN_JVM.get(type(nodes[end]))) is not None and kind.less_after:
        end += 1
    return tuple(nodes[:end]), tuple(nodes[end:])


_PLACE = "place of tuple"
"""A column. No field of a user can have this name."""


@dataclass(frozen=True)
class JvmChoice:
    """The first `count` of all tuples in the order of a field, or in stream order. Of tuples with equal values, those
    first in the stream win, with `latest` those last.

    `field`: the position of the field. `reverse`: the largest first. `nulls`: include tuples whose field is null, at
    the end.
    """

    aggregation: Aggregation
    count: int
    field: int | None
    reverse: bool
    nulls: bool = True
    latest: bool = False

    @classmethod
    def of(cls, how: PartitionNode, nodes: tuple[Node, ...]) -> JvmChoice | None:
        """The choice at the start of a stage, after a repartition into one partition; None: there is none, or Spark
        cannot make it."""
        first = nodes[0] if nodes else None
        if not how.grouping.gathers or not isinstance(first, PartitionAggregateNode) or first.groups:
            return None
        if len(first.aggregations) != 1 or any(node.runs_without_tuples for node in nodes[1:]):
            return None
        (aggregation,) = first.aggregations
        read_types = [field.type for field in select(how.schema, aggregation.reads, first.name)]
        if read_types != [field.type for field in aggregation.output]:
            return None
        match aggregation.aggregator:
            case FirstNAggregator(n=count, place=place, reverse=reverse):
                return cls(aggregation, count, place, reverse)
            case ComparisonAggregator(place=int(place), comparator=None, sign=sign):
                return cls(aggregation, 1, place, sign > 0, nulls=False, latest=True)
        return None

    def data(self, columns: Columns, data: DataFrame) -> DataFrame:
        """The chosen tuples in one partition, in order."""
        data = data.select(
            *columns.given(self.aggregation), columns.functions.monotonically_increasing_id().alias(_PLACE)
        )
        names = [columns.named(field.name) for field in self.aggregation.output]
        place = columns.named(_PLACE)
        order = [place.desc() if self.latest else place.asc()]
        if self.field is not None:
            by = names[self.field]
            data = data if self.nulls else data.where(by.isNotNull())
            order.insert(0, by.desc_nulls_last() if self.reverse else by.asc_nulls_last())
        return data.orderBy(*order).limit(self.count).select(*names)
