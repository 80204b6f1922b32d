"""One plan over one batch as DataFrames."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.arrow import arrow_schema
from airflow_trident.engine.base import Job
from airflow_trident.engine.fused import FusedPass
from airflow_trident.engine.fused_aggregate import is_builtin
from airflow_trident.engine.spark_columns import Columns
from airflow_trident.engine.spark_session import Attached
from airflow_trident.engine.spark_ship import ship
from airflow_trident.engine.spark_worker import (
    MARKER,
    PARTS,
    ReadSplits,
    Work,
    WorkerPass,
    WriteParts,
    count_path,
)
from airflow_trident.plan.nodes import (
    EachNode,
    FilterNode,
    FinalAggregateNode,
    Grouping,
    Node,
    PartialAggregateNode,
    PartitionNode,
    PersistNode,
    ProjectNode,
    SourceNode,
)
from airflow_trident.plan.stages import Stage
from airflow_trident.protocol.spouts import Split
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.base import Manifest, StagedFile
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Flow:
    """Rows on their way: a DataFrame, and the Python pass behind it that is not begun yet, because what comes next may
    still be put into it. `schema` is that of what comes out, `partitions` in how many parts."""

    data: DataFrame
    schema: Schema
    partitions: int
    work: Work | None = None
    what: str = ""


class PlanRun:
    """:param native: expressions and built-in aggregations in the JVM; else everything in the Python passes."""

    def __init__(self, attached: Attached, job: Job, *, native: bool) -> None:
        self._attached = attached
        self._job = job
        self._native = native
        self._columns = Columns(attached.functions)
        self._results: list[Flow] = []
        self._kept: list[DataFrame] = []
        self._splits: dict[str, tuple[Split, ...]] = {}
        self._root = os.path.abspath(os.path.expanduser(job.staging_root))
        self._counts = os.path.join(self._root, job.slot.path, f"rows-read-{uuid.uuid4().hex}")

    def manifest(self) -> Manifest:
        """Run it, and stage what the sinks get."""
        files: list[StagedFile] = []
        with suppress(OSError):  # what cannot be written to is told by whoever writes data
            os.makedirs(self._counts, exist_ok=True)
        try:
            for stage in self._job.plan.stages:
                flow = self._stage(stage)
                self._results.append(flow)
                for sink in stage.sinks:
                    staged = self._stage_rows(sink, flow)
                    rows = sum(file.rows for file in staged)
                    self._job.progress(f"staged {rows} rows for state {sink.name}")
                    files += staged
            return Manifest(slot=self._job.slot, files=tuple(files), rows_read=self._rows_read())
        finally:
            shutil.rmtree(self._counts, ignore_errors=True)
            for kept in self._kept:
                with suppress(Exception):
                    kept.unpersist()

    # ---- stages ------------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> Flow:
        nodes = stage.nodes
        if stage.source is not None:
            flow, nodes = self._read(stage.source, nodes)
        else:
            flow = self._results[stage.upstream or 0]
            if stage.exchange is not None:
                flow, nodes = self._exchange(flow, stage.exchange, nodes)
        flow = self._process(flow, nodes)
        if not stage.forks:
            return flow
        kept = self._frame(flow).persist()
        self._kept.append(kept)
        return Flow(kept, flow.schema, flow.partitions)

    def _read(self, source: SourceNode, nodes: tuple[Node, ...]) -> tuple[Flow, tuple[Node, ...]]:
        """The source with the nodes that are fused with reading, and the nodes that are left.

        Every split is a partition: a range of as many numbers. (A source that the JVM could read itself would be taken
        here, leaving all nodes.)
        """
        session = self._attached.session
        emitter, splits = None, tuple[Split, ...]()
        if source.name in self._job.metadata:
            emitter = source.spout.emitter()
            splits = tuple(emitter.splits(self._job.metadata[source.name]))
        if emitter is None or not splits:
            return Flow(self._columns.empty(session, source.schema), source.schema, 1), nodes
        self._splits[source.name] = splits
        last = max((place for place, node in enumerate(nodes) if not self._in_jvm(node)), default=-1)
        fused, rest = self._with_tail(nodes, last + 1)
        work = Work(
            slot=self._job.slot,
            partitions=len(splits),
            read=ReadSplits(
                stream=source.name, emitter=emitter, splits=splits, schema=source.schema, counts=self._counts
            ),
            nodes=FusedPass.of(fused, source.schema) if fused else None,
        )
        numbers = session.range(0, len(splits), 1, len(splits))
        after = fused[-1].schema if fused else source.schema
        return Flow(numbers, after, len(splits), work, f"stream {source.name!r}"), rest

    def _exchange(self, flow: Flow, how: PartitionNode, nodes: tuple[Node, ...]) -> tuple[Flow, tuple[Node, ...]]:
        first = nodes[0] if nodes else None
        wanted = 1 if how.grouping is Grouping.GLOBAL else self._attached.partitions
        data = self._frame(flow)
        if isinstance(first, FinalAggregateNode) and self._native and is_builtin(first) and how.keys == first.groups:
            return Flow(self._columns.final(data, first), first.schema, wanted), nodes[1:]
        keys = [self._columns.named(key) for key in how.keys]
        if isinstance(first, FinalAggregateNode) and not first.groups:
            # it must run even when nothing comes, and Spark may leave out an empty partition
            data = self._columns.marked(self._attached.session, data, how.schema)
        return Flow(data.repartition(wanted, *keys), how.schema, wanted), nodes

    def _process(self, flow: Flow, nodes: tuple[Node, ...]) -> Flow:
        """Nodes in the JVM, a Python pass from the first to the last node that needs one, nodes in the JVM."""
        places = [place for place, node in enumerate(nodes) if not self._in_jvm(node)]
        for node in nodes[: places[0] if places else len(nodes)]:
            flow = Flow(self._columns.apply(self._frame(flow), node, flow.schema), node.schema, flow.partitions)
        if not places:
            return flow
        first, last = places[0], places[-1]
        fused, rest = self._with_tail(nodes[first:], last - first + 1)
        passed = FusedPass.of(fused, flow.schema)
        data = self._frame(flow)
        marked = data.columns[-1:] == [MARKER]
        needed = [name for name in names_of(flow.schema) if name in passed.reads] or [flow.schema[0].name]
        data = data.select(*map(self._columns.named, [*needed, *([MARKER] if marked else [])]))
        work = Work(slot=self._job.slot, partitions=flow.partitions, marked=marked, nodes=passed)
        return self._process(Flow(data, passed.schema, flow.partitions, work, fused[0].name), rest)

    def _with_tail(self, nodes: Sequence[Node], end: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The first `end` nodes, which Python runs, with those behind that are cheaper there than after crossing to the
        JVM: projections and partial aggregation, which send less across."""
        while 0 < end < len(nodes) and isinstance(nodes[end], ProjectNode | PartialAggregateNode):
            end += 1
        return tuple(nodes[:end]), tuple(nodes[end:])

    def _in_jvm(self, node: Node) -> bool:
        if isinstance(node, ProjectNode):
            return True
        if not self._native:
            return False
        if isinstance(node, EachNode | FilterNode):
            return node.expression is not None
        return isinstance(node, PartialAggregateNode) and is_builtin(node)

    def _frame(self, flow: Flow) -> DataFrame:
        """With the pass that was still waiting."""
        return flow.data if flow.work is None else self._map(flow.data, flow.work, flow.schema, flow.what)

    def _map(self, data: DataFrame, work: Work, after: Schema, what: str) -> DataFrame:
        call: Any = WorkerPass(ship(work, f"{what} of topology {self._job.slot.topology!r}"))
        return data.mapInArrow(call, self._columns.ddl(after))

    # ---- sinks -------------------------------------------------------------------------------------------------

    def _stage_rows(self, sink: PersistNode, flow: Flow) -> list[StagedFile]:
        """Aggregates are collected and written by the driver, which is faster up to some 1e5 rows; raw rows, and what
        the driver will not hold, are written where they are."""
        if not sink.state.combiners:
            return self._write_parts(sink, flow)
        try:
            table = self._frame(flow).toArrow()
        except Exception as error:
            if "maxResultSize" not in str(error):
                raise
            return self._write_parts(sink, flow)
        area = StagingArea(self._job.staging_root)
        return [area.write(self._job.slot, sink.name, _plain(table, sink.schema))]

    def _write_parts(self, sink: PersistNode, flow: Flow) -> list[StagedFile]:
        write = WriteParts(root=self._root, slot=self._job.slot, state=sink.name, schema=sink.schema)
        work = flow.work or Work(slot=self._job.slot, partitions=flow.partitions)
        parts = self._map(flow.data, replace(work, write=write), PARTS, f"state {sink.name!r}").toArrow().to_pylist()
        return [StagedFile(state=sink.name, path=row["path"], rows=row["rows"], bytes=row["bytes"]) for row in parts]

    def _rows_read(self) -> int:
        """The sum of the counts that the workers left; -1 if one is missing: another machine's folder, perhaps."""
        total = 0
        for stream, splits in self._splits.items():
            for split in splits:
                try:
                    with open(count_path(self._counts, stream, split.index), encoding="ascii") as file:
                        total += int(file.read())
                except (OSError, ValueError):
                    return -1
        return total


def _plain(table: pa.Table, schema: Schema) -> pa.Table:
    """With exactly the sink's fields and types: Spark marks nullability in its own way."""
    return table.select(list(names_of(schema))).cast(arrow_schema(schema))
