"""One plan over one batch as DataFrames."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Split
from airflow_trident.engine.base import Job
from airflow_trident.engine.custom_grouping import Choosing
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.shaken_run import turned
from airflow_trident.engine.spark import progress, results
from airflow_trident.engine.spark.dataframes import is_told_partitions, meets_others, of_halves, transformed
from airflow_trident.engine.spark.errors import failed_task, is_lost_worker, lost_worker
from airflow_trident.engine.spark.exchange import TARGET, Exchanges
from airflow_trident.engine.spark.flow import Flow, sized_of, told
from airflow_trident.engine.spark.jvm_choices import JvmChoice
from airflow_trident.engine.spark.jvm_joins import JvmJoin
from airflow_trident.engine.spark.jvm_nodes import Columns, stays_in_jvm, with_tail
from airflow_trident.engine.spark.jvm_sources import JvmSources
from airflow_trident.engine.spark.rewriting_workers import rewritten
from airflow_trident.engine.spark.sessions.session import Attached
from airflow_trident.engine.spark.ship import ship
from airflow_trident.engine.spark.versions import to_arrow
from airflow_trident.engine.spark.worker import (
    MARKER,
    PARTITION_BYTES,
    PARTS,
    ReadSplits,
    Work,
    WorkerPass,
    WriteParts,
    dealt,
    partitions_for,
)
from airflow_trident.engine.spark.worker_notes import FolderNotes, MadeNotes, Notes, notes_of
from airflow_trident.engine.spout_reader import emitter_of, splits_of
from airflow_trident.plan.graph import Node, SinkNode
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import EachNode, FinalAggregateNode, PartitionNode, SourceNode
from airflow_trident.plan.stages import Stage
from airflow_trident.plan.transform_node import TransformNode
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, StagedFile
from airflow_trident.staging.storage import storage_at
from airflow_trident.types import Field, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_MOST_KEPT = 16
"""All partitions of a state together may send this multiple of a small staged batch's bytes to the driver."""


def name_of_run(job: Job) -> str:
    return f"Spark job of topology {job.slot.topology!r}, transaction {job.slot.txid}, attempt {job.slot.attempt}"


class PlanRun:
    """
    :param native: expressions and built-in aggregations in the JVM; else everything in the Python passes.
    :param notes: for a run that only makes frames: where its workers leave notes.
    :param beside: how many other runs work in the same job. Each core then has work, though small batches stay in one
        partition, in which nothing that a transform plans needs a shuffle.
    """

    def __init__(
        self, attached: Attached, job: Job, *, native: bool, notes: Notes | None = None, beside: int = 0
    ) -> None:
        self._attached = attached
        self._job = job
        self._native = native
        self._beside = beside
        self._columns = Columns(attached.functions, attached.known)
        self._exchanges = Exchanges(attached.session, self._columns)
        self._results: dict[int, Flow] = {}
        self._kept: list[DataFrame] = []
        self._splits: list[Split] = []
        self._reads: dict[str, tuple[ReadSplits, int]] = {}
        self.sources = JvmSources(attached, job, self._columns)
        self._storage = storage_at(job.staging_root)
        self._notes: Notes = notes or FolderNotes("")

    def manifest(self) -> Manifest:
        """Run it, and stage the sinks' rows."""
        try:
            with notes_of(self._job, local=self._attached.local) as self._notes:
                with self._naming_what_was_read():
                    files = self._staged()
                self.sources.require_same()
                self._notes.require_made_once()
                rows_read = self.rows_read(self._notes.all())
                rewrites = rewritten(self._attached, self._columns, self._job, files)
        except Exception:
            self.sources.require_same()  # else Spark would raise a less clear error
            raise
        finally:
            self.release()
        slot, sinks = self._job.slot, self._job.plan.staged_fields
        return Manifest(slot=slot, files=tuple(files), rows_read=rows_read, sinks=sinks, rewrites=rewrites)

    def _staged(self) -> list[StagedFile]:
        """The files of all sinks."""
        files: list[StagedFile] = []
        count, done = sum(len(stage.sinks) for stage in self._job.plan.stages), 0
        for stage in self._job.plan.stages:
            flow = self._stage(stage)
            for sink in stage.sinks:
                done += 1
                self._attached.describe(told(sink))
                what = f"transaction {self._job.slot.txid}, state {sink.name} ({done} of {count})"
                with progress.watched(what, self._so_far, self._job.progress):
                    staged = self._stage_rows(sink, flow)
                rows = sum(file.rows for file in staged)
                self._job.progress(f"staged {rows} rows for state {sink.name}")
                files += staged
        return files

    def physical(self) -> dict[str, str]:
        """State -> Spark's plan for its staged rows; nothing runs."""
        plans = {}
        for stage in self._job.plan.stages:
            flow = self._stage(stage)
            for sink in stage.sinks:
                text = io.StringIO()
                with redirect_stdout(text):
                    (self._frame(flow) if sink.aggregates else self._parts(sink, flow, 0)).explain()
                plans[sink.name] = text.getvalue()
        return plans

    # ---- stages ------------------------------------------------------------------------------------------------

    def frame(self, stage: Stage) -> DataFrame:
        """The rows of a stage; of those before it, this was asked before. Nothing runs."""
        return self._frame(self._stage(stage))

    def release(self) -> None:
        for kept in self._kept:
            with suppress(Exception):
                kept.unpersist()

    def _stage(self, stage: Stage) -> Flow:
        flow = self._results[stage.index] = self._made(stage)
        return flow

    def _made(self, stage: Stage) -> Flow:
        nodes = stage.nodes
        if stage.source is not None:
            flow, nodes = self._read(stage, stage.source)
        else:
            flow, nodes = self._moved(stage)
        flow = self._process(flow, nodes)
        if not stage.forks:
            return flow
        noted = self._attached.local or stage.source is not None
        kept = self._frame(flow if noted else self._noted(flow, self._made_notes(stage))).persist()
        self._kept.append(kept)
        return Flow(kept, flow.schema, flow.partitions, sized=flow.sized)

    def _made_notes(self, stage: Stage) -> MadeNotes | None:
        """Not needed if executors live and die with this process."""
        return MadeNotes(notes=self._notes, stage=stage.index) if stage.forks and not self._attached.local else None

    def _noted(self, flow: Flow, made: MadeNotes | None) -> Flow:
        """With notes of the partitions made."""
        work = flow.work or Work(slot=self._job.slot, partitions=flow.partitions)
        return replace(flow, work=replace(work, made=made), what=flow.what or "a kept stage")

    def _moved(self, stage: Stage) -> tuple[Flow, tuple[Node, ...]]:
        """Rows from other stages, repartitioned if the stage says so, and the remaining nodes."""
        upstreams = [self._results[upstream] for upstream in stage.upstreams]
        how = stage.exchange
        colocates = how is not None and how.grouping is Grouping.COLOCATED
        if stage.transform is not None:
            flow = self._transformed(stage, stage.transform, upstreams)
        elif stage.union is None:
            (flow,) = upstreams
        elif (joined := self._joined(stage, upstreams)) is not None:
            return joined, stage.nodes[1:]
        else:
            frames = [self._frame(one) for one in upstreams]
            data = self._exchanges.united(stage.union, frames, placed=colocates)
            count = sum(one.partitions for one in upstreams)
            flow = Flow(data, stage.union.schema, count, sized=sized_of(upstreams))
        wanted = stage.count(self._attached.partitions)
        if how is not None and (not colocates or stage.union is not None):
            return self._exchange(flow, how, stage, wanted)
        if stage.union is None and any(node.runs_without_tuples for node in stage.nodes):
            here = PartitionNode(name="", schema=flow.schema, inputs=(), grouping=Grouping.COLOCATED)
            data = self._frame(flow).select("*", self._exchanges.here())
            flow = replace(flow, data=self._exchanges.marked(data, here, flow.partitions), work=None, marked=True)
        return flow, stage.nodes

    def _transformed(self, stage: Stage, node: TransformNode, upstreams: list[Flow]) -> Flow:
        """The result of the user's function, lazily. Spark chooses the partitions, unless a number is given or a later
        operation sees them."""
        packs = self._beside >= self._attached.partitions and results.known_bytes(self._splits) <= PARTITION_BYTES
        frames = [self._frame(one).coalesce(1) if packs else self._frame(one) for one in upstreams]
        if node.rowwise and self._job.shaken:
            self._kept.append(frames[0].persist())
        made = of_halves if node.rowwise and self._job.shaken else transformed
        data = made(self._attached, node, frames, self._job)
        count = stage.count(self._attached.partitions)
        told = stage.partitions is not None or is_told_partitions(self._job.plan, stage, stage.nodes)
        if stage.exchange is None and (told or stage.at_most is not None):
            data = data.repartition(count) if told else data.coalesce(count)
        return Flow(data, node.schema, count, sized=sized_of(upstreams))

    def _joined(self, stage: Stage, upstreams: list[Flow]) -> Flow | None:
        """The join at the start of the stage, made by Spark; None: a Python pass must do it. Spark chooses the
        partitions, unless a number is given or a later operation sees them."""
        numbered = stage.partitions is not None or is_told_partitions(self._job.plan, stage, stage.nodes[1:])
        join = JvmJoin.of(stage, numbered=numbered) if self._native else None
        if join is None:
            return None
        count, sized = stage.count(self._attached.partitions), sized_of(upstreams)
        frames = [self._frame(one) for one in upstreams]
        data = join.data(self._columns, frames, count=count if numbered else None, sized=sized)
        limited = stage.at_most is not None and not numbered
        return Flow(data.coalesce(count) if limited else data, join.step.schema, count, sized=sized)

    def _read(self, stage: Stage, source: SourceNode) -> tuple[Flow, tuple[Node, ...]]:
        """The source with the nodes fused into reading, and the remaining nodes.

        Every split is a partition, from a range of numbers. Several splits share one if they are many and small, or if
        fewer partitions are wanted.
        """
        nodes = stage.nodes
        session = self._attached.session
        emitter, splits = None, tuple[Split, ...]()
        if source.name in self._job.metadata:
            emitter = emitter_of(source)
            splits = splits_of(emitter, source.name, self._job.metadata[source.name], self._job.slot.txid)
            splits = tuple(turned(splits)) if self._job.shaken else splits
        if emitter is None or not splits:
            return self._nothing(source, nodes)
        self._splits += splits
        if self._native and not self._job.shaken:
            data = self.sources.read(stage, source, emitter, self._job.metadata[source.name])
            if data is not None:
                return Flow(data, source.schema, len(splits), sized=True), nodes
        last = max((place for place, node in enumerate(nodes) if not self._in_jvm(node)), default=-1)
        fused, rest = with_tail(nodes, last + 1)
        partitions = min(stage.count(partitions_for(splits)), len(splits))
        reading = ReadSplits(
            stream=source.name,
            emitter=emitter,
            splits=dealt(splits, partitions),
            schema=source.schema,
            given=source.spout.schema,
            txid=self._job.slot.txid,
            notes=self._notes,
            say_every_s=progress.COUNT_EVERY_S,
        )
        self._reads[source.name] = reading, partitions
        work = Work(
            slot=self._job.slot,
            partitions=partitions,
            read=reading,
            nodes=FusedPass.of(fused, source.schema, self._job.max_keys) if fused else None,
            made=self._made_notes(stage),
        )
        numbers = session.range(0, len(splits), 1, partitions)
        after = fused[-1].schema if fused else source.schema
        return Flow(numbers, after, partitions, work, f"stream {source.name!r}"), rest

    def _nothing(self, source: SourceNode, nodes: tuple[Node, ...]) -> tuple[Flow, tuple[Node, ...]]:
        """A stream without data in this batch: one empty partition."""
        data = self._columns.empty(self._attached.session, source.schema)
        marked = any(node.runs_without_tuples for node in nodes)
        if marked:
            data = self._columns.marked(self._attached.session, data, source.schema).repartition(1)
        return Flow(data, source.schema, 1, marked=marked), nodes

    def _exchange(self, flow: Flow, how: PartitionNode, stage: Stage, wanted: int) -> tuple[Flow, tuple[Node, ...]]:
        nodes, first = stage.nodes, next(iter(stage.nodes), None)
        exact = how.grouping is Grouping.FIELDS and meets_others(self._job.plan, stage)
        if isinstance(first, FinalAggregateNode) and self._native and first.in_sql and how.keys == first.groups:
            data = self._columns.final(self._frame(flow), first)
            if exact:
                data = self._exchanges.moved(data, replace(how, schema=first.schema), wanted, exact=True)
            elif first.groups and wanted < self._attached.partitions:
                data = data.coalesce(wanted)
            return Flow(data, first.schema, wanted, sized=flow.sized), nodes[1:]
        if self._native and (choice := JvmChoice.of(how, nodes)) is not None:
            data = choice.data(self._columns, self._frame(flow))
            return Flow(data, nodes[0].schema, 1, sized=flow.sized), nodes[1:]
        wanted = 1 if how.grouping.gathers else wanted
        data = self._frame(self._choosing(flow, how, wanted))
        marked = any(node.runs_without_tuples for node in nodes)
        if marked:
            data = self._exchanges.marked(data, how, wanted)
        else:
            data = self._exchanges.moved(data, how, wanted, exact=exact)
        return Flow(data, how.schema, wanted, marked=marked, sized=flow.sized), nodes

    def _choosing(self, flow: Flow, how: PartitionNode, count: int) -> Flow:
        """With the partitions that a custom grouping chooses, computed in the waiting pass if there is one."""
        if how.custom is None:
            return flow
        target = (Field(TARGET, "int"),)
        node = EachNode(
            name=how.name,
            schema=(*flow.schema, *target),
            inputs=(replace(how, inputs=(), schema=flow.schema),),
            reads=names_of(flow.schema),
            outputs=target,
            function=Choosing(how.name, names_of(flow.schema), how.custom, count, self._job.slot.txid),
        )
        passed = FusedPass.of((node,), flow.schema, self._job.max_keys)
        if flow.work is not None:
            work = replace(flow.work, nodes=passed if flow.work.nodes is None else flow.work.nodes.then(passed))
            return replace(flow, schema=node.schema, work=work)
        work = Work(slot=self._job.slot, partitions=flow.partitions, nodes=passed)
        return Flow(flow.data, node.schema, flow.partitions, work, how.name)

    def _process(self, flow: Flow, nodes: tuple[Node, ...]) -> Flow:
        """Nodes in the JVM, a Python pass from the first to the last node that needs one, nodes in the JVM."""
        places = [place for place, node in enumerate(nodes) if not self._in_jvm(node)]
        if flow.marked:  # Python removes the marks
            places.insert(0, 0)
        for node in nodes[: places[0] if places else len(nodes)]:
            data = self._columns.apply(self._frame(flow), node, flow.schema)
            flow = Flow(data, node.schema, flow.partitions, sized=flow.sized)
        if not places:
            return flow
        first, last = places[0], places[-1]
        fused, rest = with_tail(nodes[first:], last - first + 1)
        passed = FusedPass.of(fused, flow.schema, self._job.max_keys)
        data = self._frame(flow)
        needed = [name for name in names_of(flow.schema) if name in passed.reads] or [flow.schema[0].name]
        data = data.select(*map(self._columns.named, [*needed, *([MARKER] if flow.marked else [])]))
        work = Work(slot=self._job.slot, partitions=flow.partitions, marked=flow.marked, nodes=passed)
        return self._process(Flow(data, passed.schema, flow.partitions, work, fused[0].name), rest)

    def _in_jvm(self, node: Node) -> bool:
        return stays_in_jvm(node, native=self._native)

    def _frame(self, flow: Flow) -> DataFrame:
        """The rows after the waiting pass."""
        return flow.data if flow.work is None else self._map(flow.data, flow.work, flow.schema, flow.what)

    def _map(self, data: DataFrame, work: Work, after: Schema, what: str) -> DataFrame:
        call: Any = WorkerPass(ship(work, f"{what} of topology {self._job.slot.topology!r}"))
        return data.mapInArrow(call, self._columns.ddl(after))

    # ---- sinks -------------------------------------------------------------------------------------------------

    def _stage_rows(self, sink: SinkNode, flow: Flow) -> list[StagedFile]:
        """Workers write raw rows; who writes aggregates says :mod:`airflow_trident.engine.spark.results`."""
        if not sink.aggregates:
            most = self._job.kept_bytes(sink.name)
            return self._write_parts(sink, flow, together=_MOST_KEPT * most, each=most)
        if results.is_collected(self._splits, self._attached.session):
            try:
                return [self._write(sink, to_arrow(self._frame(flow)))]
            except Exception as error:
                if not results.is_refused(error):
                    raise
        parts = self._write_parts(sink, flow, together=results.HOME_BYTES, each=results.HOME_BYTES)
        rows, files = results.came_home(parts)
        return files if rows is None else [*files, self._write(sink, rows)]

    def _write(self, sink: SinkNode, rows: pa.Table) -> StagedFile:
        area = StagingArea(self._job.staging_root)
        return area.write(self._job.slot, sink.name, results.plain(rows, sink.schema), kept_bytes=self._job.chunk_bytes)

    def _write_parts(self, sink: SinkNode, flow: Flow, *, together: int, each: int) -> list[StagedFile]:
        """:param together, each: at most so many bytes of all parts, and of one, come home as rows."""
        kept = min(each, results.home_bytes(self._attached.session, together) // max(flow.partitions, 1))
        return results.parts_of(lambda kept: to_arrow(self._parts(sink, flow, kept)), sink.name, kept)

    def _parts(self, sink: SinkNode, flow: Flow, kept_bytes: int) -> DataFrame:
        write = WriteParts(
            storage=self._storage.resolved(),
            slot=self._job.slot,
            state=sink.name,
            schema=sink.schema,
            split_by=sink.split_by,
            kept_bytes=kept_bytes,
            by_reference=sink.by_reference,
        )
        work = flow.work or Work(slot=self._job.slot, partitions=flow.partitions)
        return self._map(flow.data, replace(work, write=write), PARTS, f"state {sink.name!r}")

    def _so_far(self) -> str:
        """Progress, for people."""
        rows = self._notes.rows_so_far()
        return ", ".join(filter(None, (f"{rows:,} rows read so far" if rows else "", self._attached.tasks())))

    @contextmanager
    def _naming_what_was_read(self) -> Iterator[None]:
        """:raises SparkJobError: a Python worker was lost; names the places that it may have been at."""
        try:
            yield
        except Exception as error:
            if not is_lost_worker(str(error)):
                raise
            places = self._places_at(failed_task(str(error)))
            if not places:
                raise
            raise lost_worker(error, name_of_run(self._job), places) from error

    def _places_at(self, task: int | None) -> list[str]:
        """Where reading was when a task failed. Of several sources nobody knows which one the task read."""
        found, places = self._notes.all(), list[str]()
        alone = len(self._reads) == 1 and task is not None
        for reading, partitions in self._reads.values():
            for partition in range(partitions):
                split = reading.stopped_at(partition, partitions, found)
                if split is not None and (partition == task or not alone):
                    places.append(reading.emitter.name_of(split))
        return places

    def rows_read(self, found: Mapping[str, str]) -> int:
        """The sum of the workers' counts; -1 if one is missing: workers may not see where notes are left.

        :param found: all notes.
        """
        total = self.sources.rows()
        if total is None:
            return -1
        try:
            for reading, _ in self._reads.values():
                total += sum(int(found[reading.counted(split.index)]) for split in reading.splits)
        except (KeyError, ValueError):
            return -1
        return total
