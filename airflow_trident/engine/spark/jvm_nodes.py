"""Plan nodes that stay in the JVM, as operations on DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_trident.engine.spark.expressions import compile_expression
from airflow_trident.engine.spark.tuple_order import ranked
from airflow_trident.engine.spark.worker import MARKER
from airflow_trident.errors import UnknownNodeError
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.api import MergeKind
from airflow_trident.operations.expr.dtypes import dtype, resolve
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import (
    Aggregation,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    PartialAggregateNode,
    PartitionAggregateNode,
    ProjectNode,
)
from airflow_trident.types import Field, Schema, names_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Columns:
    """
    :param functions: the session's module of column functions.
    :param known: columns made before; see `Attached.known`.
    """

    def __init__(self, functions: ModuleType, known: dict[Hashable, Any]) -> None:
        self.functions: Any = functions
        self._f: Any = functions
        self._known = known

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
        values = [self._value(one, before) for one in node.aggregations]
        return data.select(*(self.named(name) for name in node.groups), *values)

    def passed(self, data: DataFrame, node: PartitionAggregateNode, _: Schema) -> DataFrame:
        """All tuples: the next node makes Spark choose before the shuffle by itself."""
        (one,) = node.aggregations
        return data.select(*self.given(one))

    def given(self, one: Aggregation) -> list[Any]:
        """The inputs of an aggregation, under the names of its outputs."""
        pairs = zip(one.reads, one.output, strict=True)
        return [self.named(name) if name == to.name else self.named(name).alias(to.name) for name, to in pairs]

    def _value(self, one: Aggregation, before: Schema) -> Any:
        (output,) = one.output
        if one.combiner is None:
            text = ranked(one, before)
            return self.known(("rank", text, output.name), lambda: self._f.expr(text).alias(output.name))
        key = ("value", type(one.aggregator).__name__, one.merge_kind, one.reads, output.name, output.type)
        return self.known(key, lambda: self._initial(one).cast(output.type).alias(output.name))

    def _initial(self, one: Aggregation) -> Any:
        if isinstance(one.aggregator, Count):
            return self._f.lit(1)
        value = self.named(one.reads[0])
        if one.merge_kind is not MergeKind.ADD:
            return value
        (output,) = one.output
        # of one type: Spark's common type of a decimal and a number cuts digits of the decimal
        return self._f.coalesce(value.cast(output.type), self._f.lit(0).cast(output.type))

    def final(self, data: DataFrame, node: FinalAggregateNode) -> DataFrame:
        """Merges partial values, or raw tuples, of equal groups. Without groups there is one row even without input,
        with the zeros."""
        if not node.merges:
            data = self.partial(data, node, node.input.schema)
        merged = [self._sql(_merged(one)) for one in node.aggregations]
        return data.groupBy(*(self.named(name) for name in node.groups)).agg(*merged)

    def _sql(self, text: str) -> Any:
        return self.known(("sql", text), lambda: self._f.expr(text))


def _merged(one: Aggregation) -> str:
    """As SQL text: one call to the JVM instead of ten for columns."""
    (output,) = one.output
    if one.combiner is None:
        return f"min(`{output.name}`).value as `{output.name}`"
    if one.merge_kind is MergeKind.ADD:
        zero = f"cast(0 as {output.type})"
        return f"cast(coalesce(sum(`{output.name}`), {zero}) as {output.type}) as `{output.name}`"
    return f"{one.merge_kind}(`{output.name}`) as `{output.name}`"


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
