"""One plan over one batch as DataFrames."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
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


class PlanRun:
    """:param native: expressions and built-in aggregations in the JVM; else everything in the Python passes."""

    def __init__(self, attached: Attached, job: Job, *, native: bool) -> None:
        self._attached = attached
        self._job = job
        self._native = native
        self._columns = Columns(attached.functions)
        self._results: list[tuple[DataFrame, int]] = []
        self._kept: list[DataFrame] = []
        self._splits: dict[str, tuple[Split, ...]] = {}
        root = os.path.abspath(os.path.expanduser(job.staging_root))
        self._counts = os.path.join(root, job.slot.path, "rows-read" if native else "rows-read-again")

    def manifest(self) -> Manifest:
        """Run it, and stage what the sinks get."""
        files: list[StagedFile] = []
        with suppress(OSError):  # what cannot be written to is told by whoever writes data
            os.makedirs(self._counts, exist_ok=True)
        try:
            for stage in self._job.plan.stages:
                data, partitions = self._stage(stage)
                self._results.append((data, partitions))
                for sink in stage.sinks:
                    staged = self._stage_rows(sink, data, partitions)
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

    def _stage(self, stage: Stage) -> tuple[DataFrame, int]:
        """Its output, and in how many partitions that is."""
        if stage.source is not None:
            data, nodes, before, partitions = self._read(stage.source, stage.nodes)
        else:
            data, partitions = self._results[stage.upstream or 0]
            before = self._job.plan.stages[stage.upstream or 0].schema
            nodes = stage.nodes
            if stage.exchange is not None:
                data, nodes, before, partitions = self._exchange(data, stage.exchange, nodes)
        data = self._process(data, nodes, before, partitions)
        if stage.forks:
            data = data.persist()
            self._kept.append(data)
        return data, partitions

    def _read(self, source: SourceNode, nodes: tuple[Node, ...]) -> tuple[DataFrame, tuple[Node, ...], Schema, int]:
        """The source with the nodes that are fused with reading, the nodes that are left, and their input's schema.

        Every split is a partition: a range of as many numbers. (A source that the JVM could read itself would be taken
        here, leaving all nodes.)
        """
        if source.name not in self._job.metadata:
            return self._columns.empty(self._attached.session, source.schema), nodes, source.schema, 1
        emitter = source.spout.emitter()
        splits = tuple(emitter.splits(self._job.metadata[source.name]))
        self._splits[source.name] = splits
        if not splits:
            return self._columns.empty(self._attached.session, source.schema), nodes, source.schema, 1
        last = max((place for place, node in enumerate(nodes) if not self._in_jvm(node)), default=-1)
        fused, rest = self._with_tail(nodes, last + 1)
        read = ReadSplits(
            stream=source.name,
            emitter=emitter,
            splits=tuple(splits),
            schema=source.schema,
            counts=self._counts,
        )
        numbers = self._attached.session.range(0, len(splits), 1, len(splits))
        after = fused[-1].schema if fused else source.schema
        passed = FusedPass.of(fused, source.schema) if fused else None
        work = Work(slot=self._job.slot, partitions=len(splits), read=read, nodes=passed)
        return self._map(numbers, work, after, f"stream {source.name!r}"), rest, after, len(splits)

    def _exchange(
        self, data: DataFrame, how: PartitionNode, nodes: tuple[Node, ...]
    ) -> tuple[DataFrame, tuple[Node, ...], Schema, int]:
        first = nodes[0] if nodes else None
        wanted = 1 if how.grouping is Grouping.GLOBAL else self._attached.partitions
        if isinstance(first, FinalAggregateNode) and self._native and is_builtin(first) and how.keys == first.groups:
            return self._columns.final(data, first), nodes[1:], first.schema, wanted
        keys = [self._columns.named(key) for key in how.keys]
        if isinstance(first, FinalAggregateNode) and not first.groups:
            # it must run even when nothing comes, and Spark may leave out an empty partition
            data = self._columns.marked(self._attached.session, data, how.schema)
        return data.repartition(wanted, *keys), nodes, how.schema, wanted

    def _process(self, data: DataFrame, nodes: tuple[Node, ...], before: Schema, partitions: int) -> DataFrame:
        places = [place for place, node in enumerate(nodes) if not self._in_jvm(node)]
        first = places[0] if places else len(nodes)
        schema = before
        for node in nodes[:first]:
            data = self._columns.apply(data, node, schema)
            schema = node.schema
        if not places:
            return data
        fused, rest = self._with_tail(nodes[first:], places[-1] - first + 1)
        passed = FusedPass.of(fused, schema)
        marked = data.columns[-1:] == [MARKER]
        needed = [name for name in names_of(schema) if name in passed.reads] or [schema[0].name]
        data = data.select(*map(self._columns.named, [*needed, *([MARKER] if marked else [])]))
        work = Work(slot=self._job.slot, partitions=partitions, marked=marked, nodes=passed)
        data = self._map(data, work, passed.schema, fused[0].name)
        return self._process(data, rest, passed.schema, partitions)

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

    def _map(self, data: DataFrame, work: Work, after: Schema, what: str) -> DataFrame:
        call: Any = WorkerPass(ship(work, f"{what} of topology {self._job.slot.topology!r}"))
        return data.mapInArrow(call, self._columns.ddl(after))

    # ---- sinks -------------------------------------------------------------------------------------------------

    def _stage_rows(self, sink: PersistNode, data: DataFrame, partitions: int) -> list[StagedFile]:
        """Aggregates are collected and written by the driver, which is faster up to some 1e5 rows; raw rows, and what
        the driver will not hold, are written where they are."""
        if not sink.state.combiners:
            return self._write_parts(sink, data, partitions)
        try:
            table = data.toArrow()
        except Exception as error:
            if "maxResultSize" not in str(error):
                raise
            return self._write_parts(sink, data, partitions)
        area = StagingArea(self._job.staging_root)
        return [area.write(self._job.slot, sink.name, _plain(table, sink.schema))]

    def _write_parts(self, sink: PersistNode, data: DataFrame, partitions: int) -> list[StagedFile]:
        root = os.path.abspath(os.path.expanduser(self._job.staging_root))
        write = WriteParts(root=root, slot=self._job.slot, state=sink.name, schema=sink.schema)
        work = Work(slot=self._job.slot, partitions=partitions, write=write)
        parts = self._map(data, work, PARTS, f"state {sink.name!r}").toArrow().to_pylist()
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
