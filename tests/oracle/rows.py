"""The oracle: an engine in plain Python, row by row. It defines the result that every engine must give (E1).

It need not be fast, but it is complete: it spreads rows over partitions, so a test can tell what is local to a
partition.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

from airflow_trident.engine.custom_grouping import Choosing
from airflow_trident.engine.engine import Engine, Job, conform, emitter_of
from airflow_trident.engine.fused.aggregate import (
    AggregateStep,
    begins_empty,
    folds_of,
    group_rows,
    key_of_groups,
    shown_key,
)
from airflow_trident.engine.fused.joins import multi_reduce
from airflow_trident.engine.state_queries import state_query
from airflow_trident.io.arrow import arrow_schema, python_values, rows_to_table, table_to_rows
from airflow_trident.operations.equality import canonical
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import Expression
from airflow_trident.operations.interfaces import CustomGrouping, OperationContext, VectorFilter, VectorFunction
from airflow_trident.operations.rules import BatchCheck, Expectation, Measure, Rule, written
from airflow_trident.operations.user_code import Border, called, kept, prepared
from airflow_trident.operations.user_functions import callable_of, function_name
from airflow_trident.plan.nodes import (
    CheckNode,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    Grouping,
    MapNode,
    MultiReduceStepNode,
    Node,
    PartialAggregateNode,
    PartitionAggregateNode,
    PartitionNode,
    PeekNode,
    ProjectNode,
    SourceNode,
    StateQueryNode,
    UnionNode,
)
from airflow_trident.plan.stages import Stage
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from airflow_trident.types import WHOLE_TYPES, Json, Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
Partition = list[Row]


class OracleEngine(Engine):
    """Runs a plan on `partitions` partitions, unless the plan gives a number."""

    name = "oracle"

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions

    def run(self, job: Job) -> Manifest:
        area = StagingArea(job.staging_root)
        rows_read = Counter[str]()
        checked: dict[str, list[Row]] = {}
        files = [area.write(job.slot, name, table) for name, table in self.tables(job, rows_read, checked)]
        return Manifest(
            slot=job.slot,
            files=tuple(files),
            rows_read=rows_read.total(),
            sinks=job.plan.staged_fields,
            checks=checks_of(job, checked),
        )

    def tables(
        self,
        job: Job,
        rows_read: Counter[str] | None = None,
        checked: dict[str, list[Row]] | None = None,
    ) -> Iterator[tuple[str, pa.Table]]:
        """The rows for each sink, not staged.

        :param checked: gets the rows that pass each check node.

        :param rows_read: gets the number of tuples of each source.
        """
        results: list[list[Partition]] = []
        for stage in job.plan.stages:
            partitions = self._begin(stage, results, job)
            if stage.source is not None and rows_read is not None:
                rows_read[stage.source.name] += sum(map(len, partitions))
            if stage.exchange is not None:
                partitions = self._exchange(stage.exchange, partitions, stage.count(self._partitions), job)
            partitions = [
                _run(stage, job, index, len(partitions), rows, checked) for index, rows in enumerate(partitions)
            ]
            results.append(partitions)
            for sink in stage.sinks:
                yield sink.name, rows_to_table(sink.schema, list(chain.from_iterable(partitions)))

    def _begin(self, stage: Stage, results: list[list[Partition]], job: Job) -> list[Partition]:
        if stage.source is not None:
            return self._read(stage.source, job, stage.count(self._partitions))
        if stage.union is None:
            (upstream,) = stage.upstreams
            return results[upstream]
        return _united(stage.union, [results[upstream] for upstream in stage.upstreams])

    def _read(self, source: SourceNode, job: Job, count: int) -> list[Partition]:
        partitions: list[Partition] = [[] for _ in range(count)]
        if source.name not in job.metadata:
            return partitions
        import pyarrow as pa

        emitter, wanted = emitter_of(source), arrow_schema(source.schema)
        for split in emitter.splits(job.metadata[source.name]):
            for batch in emitter.read(split):
                fitted = conform(batch, source.name, source.spout.schema, wanted)
                partitions[split.index % count] += table_to_rows(pa.Table.from_batches([fitted]))
        return partitions

    def _exchange(self, how: PartitionNode, partitions: list[Partition], count: int, job: Job) -> list[Partition]:
        if how.grouping is Grouping.COLOCATED:
            return partitions
        moved: list[Partition] = [[] for _ in range(1 if how.grouping.gathers else count)]
        rows = enumerate(chain.from_iterable(partitions))
        if how.custom is not None:
            return self._chosen(how, how.custom, moved, (row for _, row in rows), job)
        targets = _targets(how, len(moved))
        for number, row in rows:
            for target in targets(number, row):
                moved[target].append(row)
        return moved

    def _chosen(
        self, how: PartitionNode, grouping: CustomGrouping, moved: list[Partition], rows: Iterable[Row], job: Job
    ) -> list[Partition]:
        slot = job.slot
        choosing = Choosing(how.name, how.fields, grouping, len(moved), slot.txid)
        context = OperationContext(partition_index=0, num_partitions=1, txid=slot.txid, attempt=slot.attempt)
        border = Border(how.name, function_name(grouping), how.fields, slot.txid)
        with prepared(choosing, context, border) as own:
            for row in rows:
                for target in own.execute(*row):
                    moved[target].append(row)
        return moved


def _targets(how: PartitionNode, count: int) -> Callable[[int, Row], Iterable[int]]:
    """A function from the number of a tuple, and the tuple, to its partitions."""
    if how.grouping.gathers:
        return lambda _, __: (0,)
    if how.grouping is Grouping.SHUFFLE:
        return lambda number, _: (number % count,)
    if how.grouping is Grouping.BROADCAST:
        return lambda _, __: range(count)
    places = [how.fields.index(key) for key in how.keys]
    key_of = key_of_groups(select(how.schema, how.keys, how.name))
    return lambda _, row: (
        crc32(_text(key_of(tuple(row[place] for place in places))).encode(errors="surrogatepass")) % count,
    )


def _text(key: Any) -> str:
    """Equal keys as equal texts, the same in every process, because Python salts its own hashes."""
    if isinstance(key, list | tuple):
        return f"({','.join(map(_text, key))})"
    if isinstance(key, float):
        return repr(key + 0.0)  # the same for both zeros
    if isinstance(key, Decimal):
        return str(key.normalize())
    if isinstance(key, datetime.datetime):
        return key.astimezone(datetime.UTC).isoformat()
    return str(key)


def _united(union: UnionNode, inputs: list[list[Partition]]) -> list[Partition]:
    """Partition i of all inputs, one after the other."""
    united: list[Partition] = [[] for _ in range(max(map(len, inputs)))]
    for number, (node, takes, partitions) in enumerate(zip(union.inputs, union.takes, inputs, strict=True)):
        places = [None if name is None else node.fields.index(name) for name in takes]
        for partition, rows in zip(united, partitions, strict=False):
            for row in rows:
                values = [None if place is None else row[place] for place in places]
                if union.tag:
                    values[union.fields.index(union.tag)] = number
                partition.append(tuple(values))
    return united


def checks_of(job: Job, checked: dict[str, list[Row]]) -> dict[str, Json]:
    """The number of each rule, from the rows themselves."""
    return {
        rule.name: _number(rule, node.schema, checked.get(node.name, []))
        for node in job.plan.check_nodes
        for rule in node.rules
    }


def _number(rule: Rule, schema: Schema, rows: list[Row]) -> dict[str, Json]:
    def holds(expression: Expression, row: Row) -> bool:
        values = (row[names_of(schema).index(name)] for name in expression.reads)
        return bind(expression, schema)(*values) is True

    if isinstance(rule, Expectation):
        return {"rows": len(rows), "value": sum(not holds(rule.condition, row) for row in rows)}
    assert isinstance(rule, BatchCheck)
    counted = [row for row in rows if rule.only is None or holds(rule.only, row)]
    if rule.column is None:
        return {"rows": len(counted), "value": len(counted)}
    place = names_of(schema).index(rule.column)
    column = [row[place] for row in counted]
    values = [canonical(value) for value in column if value is not None]
    return {"rows": len(counted), "value": written(_value(rule.what, schema[place].type, column, values))}


def _value(what: Measure, type_text: str, column: list[Any], values: list[Any]) -> Any:
    different = len({repr(value) for value in values})
    match what:
        case Measure.NULL_COUNT:
            return len(column) - len(values)
        case Measure.NULL_RATIO:
            return (len(column) - len(values)) / len(column) if column else None
        case Measure.DISTINCT_COUNT:
            return different
        case Measure.UNIQUE_VIOLATIONS:
            return len(values) - different
    if not values:
        return None
    if what in (Measure.MIN, Measure.MAX):
        choose = min if what is Measure.MIN else max
        return choose(values, key=lambda value: (value != value, 0 if value != value else value))
    by = 1 if what is Measure.SUM else len(values)
    odd = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    if odd:
        return sum(odd)
    exact = sum(map(Fraction, values), Fraction(0)) / by
    is_whole = exact.denominator == 1 and type_text in WHOLE_TYPES
    if isinstance(values[0], Decimal) and what is Measure.SUM:
        return sum(values, Decimal(0))
    return int(exact) if is_whole else float(exact)


def _run(
    stage: Stage,
    job: Job,
    index: int,
    count: int,
    rows: Iterable[Row],
    checked: dict[str, list[Row]] | None,
) -> Partition:
    """Run all processors of a stage over one partition."""
    context = OperationContext(
        partition_index=index, num_partitions=count, txid=job.slot.txid, attempt=job.slot.attempt
    )
    stream: Iterable[Row] = rows
    for node in stage.nodes:
        if isinstance(node, CheckNode):
            stream = list(stream)
            if checked is not None:
                checked.setdefault(node.name, []).extend(stream)
            continue
        stream = _node(node, stream, context)
    return list(stream)


def _node(node: Node, rows: Iterable[Row], context: OperationContext) -> Iterable[Row]:
    if isinstance(getattr(node, "function", None), VectorFunction | VectorFilter):
        return _vectors(node, rows, context)  # type: ignore[arg-type]
    if isinstance(node, EachNode):
        return _each(node, rows, context)
    if isinstance(node, FilterNode):
        return _filter(node, rows, context)
    if isinstance(node, MapNode):
        return _map(node, rows, context)
    if isinstance(node, StateQueryNode):
        return chain.from_iterable(state_query(node, node.input.fields, [list(rows)], context))
    if isinstance(node, ProjectNode):
        places = [node.input.fields.index(name) for name in node.fields]
        return (tuple(row[place] for place in places) for row in rows)
    if isinstance(node, PeekNode):
        return _peek(node, rows, context)
    if isinstance(node, MultiReduceStepNode):
        return multi_reduce(node, node.input.schema, rows, context)
    if isinstance(node, PartialAggregateNode | PartitionAggregateNode | FinalAggregateNode):
        return _aggregate(node, rows, context)
    raise TypeError(f"unknown node {node!r}")


def _vectors(node: EachNode | MapNode | FilterNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    """A vectorised function over a whole partition. It is not called for an empty one."""
    whole = list(rows)
    reads = node.input.fields if isinstance(node, MapNode) else node.reads
    border = Border(node.name, function_name(node.function), reads, context.txid)
    with prepared(node.function, context, border) as function:
        if not whole:
            return
        table = rows_to_table(node.input.schema, whole)
        columns = [table.column(name).combine_chunks() for name in reads]
        if isinstance(function, VectorFilter):
            keeps = kept(function, border, columns, len(whole)).to_pylist()
            yield from (row for row, keep in zip(whole, keeps, strict=True) if keep)
            return
        outputs = node.outputs if isinstance(node, EachNode) else node.schema
        given = [python_values(column) for column in called(function, border, columns, len(whole), outputs)]
        for row, *values in zip(whole, *given, strict=True):
            yield (*row, *values) if isinstance(node, EachNode) else tuple(values)


def _each(node: EachNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    places = [node.input.fields.index(name) for name in node.reads]
    if node.expression is not None:
        border = Border(node.name, str(node.expression), node.expression.reads, context.txid, node.outputs)
        value_of = bind(node.expression, node.input.schema)
        for row in rows:
            reads = tuple(row[place] for place in places)
            given = border.one(value_of, reads)
            elements = given if node.expression.is_explode else (given,)
            for values in border.many(elements.__iter__, (), 1):
                yield (*row, *values)
        return
    border = Border(node.name, function_name(node.function), node.reads, context.txid, node.outputs)
    with prepared(node.function, context, border) as function:
        call = callable_of(function)
        for row in rows:
            reads = tuple(row[place] for place in places)
            for values in border.many(call, reads, len(node.outputs)):
                yield (*row, *values)


def _filter(node: FilterNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    places = [node.input.fields.index(name) for name in node.reads]
    if node.expression is not None:
        border = Border(node.name, str(node.expression), node.expression.reads, context.txid)
        value_of = bind(node.expression, node.input.schema)
        for row in rows:
            if border.one(value_of, tuple(row[place] for place in places)) is True:
                yield row
        return
    border = Border(node.name, function_name(node.function), node.reads, context.txid)
    with prepared(node.function, context, border) as function:
        call = callable_of(function)
        for row in rows:
            if border.one(call, tuple(row[place] for place in places)):
                yield row


def _map(node: MapNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    border = Border(node.name, function_name(node.function), node.input.fields, context.txid, node.schema)
    with prepared(node.function, context, border) as function:
        call = callable_of(function)
        for row in rows:
            if node.flat:
                yield from border.many(call, row, len(node.schema))
            else:
                yield border.single(call, row, len(node.schema))


def _peek(node: PeekNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    places = [node.input.fields.index(name) for name in node.reads]
    border = Border(node.name, function_name(node.function), node.reads, context.txid)
    with prepared(node.function, context, border) as function:
        call = callable_of(function)
        for row in rows:
            border.one(call, tuple(row[place] for place in places))
            yield row


def _aggregate(node: AggregateStep, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    schema = node.input.schema
    places = {field.name: place for place, field in enumerate(schema)}
    keys = [places[name] for name in node.groups]
    key_of, shown = (make(select(schema, node.groups, node.name)) for make in (key_of_groups, shown_key))
    groups: dict[Any, tuple[Row, list[Any]]] = {}
    with folds_of(node, context) as folds:
        if begins_empty(node):
            groups[()] = ((), [fold.start() for fold in folds])
        for row in rows:
            key = tuple(row[place] for place in keys)
            hashed = key_of(key)
            if hashed not in groups:
                groups[hashed] = (shown(key), [fold.start() for fold in folds])
            _, values = groups[hashed]
            for number, fold in enumerate(folds):
                values[number] = fold.take(values[number], tuple(row[places[name]] for name in fold.reads))
        for key, values in groups.values():
            yield from group_rows(folds, key, values)
