"""The local engine: plain Python, row by row. It defines what every other engine must give (E1).

Nothing here is fast, and nothing is left out: rows are spread over partitions, so that what is partition-local can be
told from what is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

from airflow_trident.arrow import rows_to_table, table_to_rows
from airflow_trident.engine.base import Engine, Job
from airflow_trident.engine.folds import Fold, key_of_groups
from airflow_trident.operations.base import OperationContext
from airflow_trident.operations.calls import Border, callable_of, prepared
from airflow_trident.operations.evaluate import bind
from airflow_trident.plan.explain import function_name
from airflow_trident.plan.nodes import (
    EachNode,
    FilterNode,
    FinalAggregateNode,
    Grouping,
    MapNode,
    Node,
    PartialAggregateNode,
    PartitionNode,
    ProjectNode,
    SourceNode,
)
from airflow_trident.plan.stages import Stage
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.base import Manifest, StagedFile
from airflow_trident.types import select

Row = tuple[Any, ...]
Partition = list[Row]


class LocalEngine(Engine):
    """Runs a plan in this process, on `partitions` partitions at least."""

    name = "local"

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions

    def run(self, job: Job) -> Manifest:
        area = StagingArea(job.staging_root)
        results: list[list[Partition]] = []
        files: list[StagedFile] = []
        rows_read = 0
        for stage in job.plan.stages:
            if stage.source is not None:
                partitions = self._read(stage.source, job)
                rows_read += sum(map(len, partitions))
            else:
                partitions = results[stage.upstream or 0]
            if stage.exchange is not None:
                partitions = self._exchange(stage.exchange, partitions)
            partitions = [_run(stage, job, index, len(partitions), rows) for index, rows in enumerate(partitions)]
            results.append(partitions)
            for sink in stage.sinks:
                rows = list(chain.from_iterable(partitions))
                files.append(area.write(job.slot, sink.name, rows_to_table(sink.schema, rows)))
        return Manifest(slot=job.slot, files=tuple(files), rows_read=rows_read)

    def _read(self, source: SourceNode, job: Job) -> list[Partition]:
        partitions: list[Partition] = [[] for _ in range(self._partitions)]
        if source.name not in job.metadata:
            return partitions
        emitter = source.spout.emitter()
        for split in emitter.splits(job.metadata[source.name]):
            import pyarrow as pa

            for batch in emitter.read(split):
                partitions[split.index % self._partitions] += table_to_rows(pa.Table.from_batches([batch]))
        return partitions

    def _exchange(self, how: PartitionNode, partitions: list[Partition]) -> list[Partition]:
        moved: list[Partition] = [[] for _ in range(self._partitions)]
        places = [how.fields.index(key) for key in how.keys]
        key_of = key_of_groups(select(how.schema, how.keys, how.name))
        for number, row in enumerate(chain.from_iterable(partitions)):
            if how.grouping is Grouping.GLOBAL:
                target = 0
            elif how.grouping is Grouping.SHUFFLE:
                target = number % self._partitions
            else:
                target = hash(key_of(tuple(row[place] for place in places))) % self._partitions
            moved[target].append(row)
        return moved[:1] if how.grouping is Grouping.GLOBAL else moved


def _run(stage: Stage, job: Job, index: int, count: int, rows: Partition) -> Partition:
    """All processors of a stage over one partition."""
    context = OperationContext(
        partition_index=index, num_partitions=count, txid=job.slot.txid, attempt=job.slot.attempt
    )
    stream: Iterable[Row] = rows
    for node in stage.nodes:
        stream = _node(node, stream, context)
    return list(stream)


def _node(node: Node, rows: Iterable[Row], context: OperationContext) -> Iterable[Row]:
    if isinstance(node, EachNode):
        return _each(node, rows, context)
    if isinstance(node, FilterNode):
        return _filter(node, rows, context)
    if isinstance(node, MapNode):
        return _map(node, rows, context)
    if isinstance(node, ProjectNode):
        places = [node.input.fields.index(name) for name in node.fields]
        return (tuple(row[place] for place in places) for row in rows)
    if isinstance(node, PartialAggregateNode | FinalAggregateNode):
        return _aggregate(node, rows, context)
    raise TypeError(f"unknown node {node!r}")


def _each(node: EachNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    places = [node.input.fields.index(name) for name in node.reads]
    if node.expression is not None:
        border = Border(node.name, str(node.expression), node.expression.reads, context.txid, node.outputs)
        value_of = bind(node.expression, node.input.schema)
        call = value_of if node.expression.is_explode else lambda *values: (value_of(*values),)
        for row in rows:
            for values in border.many(call, tuple(row[place] for place in places), 1):
                yield (*row, *values)
        return
    border = Border(node.name, function_name(node.function), node.reads, context.txid, node.outputs)
    with prepared(node.function, context, border):
        call = callable_of(node.function)
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
    with prepared(node.function, context, border):
        call = callable_of(node.function)
        for row in rows:
            if border.one(call, tuple(row[place] for place in places)):
                yield row


def _map(node: MapNode, rows: Iterable[Row], context: OperationContext) -> Iterator[Row]:
    border = Border(node.name, function_name(node.function), node.input.fields, context.txid, node.schema)
    with prepared(node.function, context, border):
        call = callable_of(node.function)
        for row in rows:
            if node.flat:
                yield from border.many(call, row, len(node.schema))
            else:
                yield border.single(call, row, len(node.schema))


def _aggregate(
    node: PartialAggregateNode | FinalAggregateNode, rows: Iterable[Row], context: OperationContext
) -> Iterator[Row]:
    schema = node.input.schema
    places = {field.name: place for place, field in enumerate(schema)}
    keys = [places[name] for name in node.groups]
    key_of = key_of_groups(select(schema, node.groups, node.name))
    folds = [Fold(node, one, context.txid) for one in node.aggregations]
    groups: dict[Any, tuple[Row, list[Any]]] = {}
    if not node.groups and isinstance(node, FinalAggregateNode):
        groups[()] = ((), [fold.begin() for fold in folds])
    with ExitStack() as lives:
        for fold in folds:
            lives.enter_context(prepared(fold.aggregator, context, fold.border))
        for row in rows:
            key = tuple(row[place] for place in keys)
            _, values = groups.setdefault(key_of(key), (key, [fold.begin() for fold in folds]))
            for number, fold in enumerate(folds):
                values[number] = fold.take(values[number], tuple(row[places[name]] for name in fold.reads))
        results = [fold.results([values[number] for _, values in groups.values()]) for number, fold in enumerate(folds)]
    for (key, _), *values in zip(groups.values(), *results, strict=True):
        yield (*key, *values)
