"""One plan over one batch as DataFrames.

Rows on their way through a run on Spark.

Transforms of a group, and what is before them: planned for each transaction as in a run of its own.

A user's function may do anything with the DataFrame that it gets, so it gets the rows of one transaction at a time,
with that transaction's context, in a session of its own. Nothing of this runs: the results are united, each with the
position of its transaction, and become part of the group's jobs.

One plan over the batches of several transactions as DataFrames: one pass, with rows that name their transaction.

By transaction, every row carries the position of its transaction in the group, and aggregations group by it, too. If
all rows of a transaction can be read into one partition, they need not move for that. By key, rows carry no such
position. :mod:`airflow_trident.plan.coalescing` says which plans are allowed here: after a repartition or a merge there
are only expressions and built-ins. So a row's partition matters only before these, where users' code runs; there each
transaction has the same partitions as in a pass of its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Emitter, Split, TextFiles
from airflow_trident.engine.custom_grouping import Choosing
from airflow_trident.engine.engine import (
    Job,
    OwnPartition,
    blaming,
    emitter_of,
    manifest_of_all,
    manifest_of_each,
    require_own_partition,
    splits_of,
    stage_each,
    turned,
)
from airflow_trident.engine.fused.measuring import Numbers
from airflow_trident.engine.fused.passes import FusedPass, PassStep
from airflow_trident.engine.spark import progress, results
from airflow_trident.engine.spark.check_notes import (
    NOTE,
    CheckNotes,
    CheckPasses,
    LeaveNote,
    MemberChecks,
    check_notes,
)
from airflow_trident.engine.spark.dataframes import (
    is_told_partitions,
    may_see_all,
    meets_others,
    of_halves,
    transformed,
)
from airflow_trident.engine.spark.errors import failed_task, is_lost_worker, lost_worker
from airflow_trident.engine.spark.exchange import TARGET, Exchanges, JvmJoin
from airflow_trident.engine.spark.jvm_nodes import Columns, JvmChoice, stays_in_jvm, with_tail
from airflow_trident.engine.spark.jvm_sources import JvmSources, linked, read_linked
from airflow_trident.engine.spark.results import apart, is_refused, plain
from airflow_trident.engine.spark.rewriting_workers import rewritten
from airflow_trident.engine.spark.sessions.session import Attached, Sibling
from airflow_trident.engine.spark.shipping import ship
from airflow_trident.engine.spark.versions import to_arrow
from airflow_trident.engine.spark.workers import (
    FEW_PARTITIONS,
    MARKER,
    MEMBER,
    PARTITION_BYTES,
    PARTS,
    TAGS,
    FolderNotes,
    GroupWork,
    MadeNotes,
    Notes,
    PartitionPass,
    ReadSplits,
    ReadUnits,
    Unit,
    Work,
    WorkerPass,
    WriteParts,
    dealt,
    notes_of,
    packed,
    partitions_for,
    shares,
)
from airflow_trident.errors import SparkJobError
from airflow_trident.io.places import place_at
from airflow_trident.plan.coalescing import before_transforms, in_place, merged_by
from airflow_trident.plan.graph import Grouping, Node, SinkNode, ordered
from airflow_trident.plan.nodes import (
    CheckNode,
    EachNode,
    FinalAggregateNode,
    PartialAggregateNode,
    PartitionNode,
    ProjectNode,
    SourceNode,
    TransformNode,
)
from airflow_trident.plan.stages import Coalescing, Stage
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, StagedFile
from airflow_trident.types import Field, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_TOLD = 300
"""Longest description of a job, in characters."""


@dataclass(frozen=True)
class Flow:
    """Rows on their way: a DataFrame, and a Python pass after it that may still take in more nodes. `schema`: of the
    result. `partitions`: their number. `sized`: does Spark know the size? For rows read by Python it knows only the
    split numbers."""

    data: DataFrame
    schema: Schema
    partitions: int
    work: Work | None = None
    subject: str = ""
    marked: bool = False
    sized: bool = False


def job_description(sink: SinkNode) -> str:
    """The names of the nodes that lead to the sink, for Spark's UI."""
    text = " > ".join(dict.fromkeys(node.name for node in ordered([sink]) if node.name))
    return text if len(text) <= _TOLD else f"... {text[-_TOLD:]}"


def sized_of(flows: Iterable[Flow]) -> bool:
    """Does Spark know the sizes of all of them?"""
    return all(flow.sized for flow in flows)


_MOST_KEPT = 16
"""All partitions of a state together may send this multiple of a small staged batch's bytes to the driver."""


def name_of_run(job: Job) -> str:
    return f"Spark job of topology {job.slot.topology!r}, transaction {job.slot.txid}, attempt {job.slot.attempt}"


class PlanRun:
    """
    :param native: expressions and built-in aggregations in the JVM; else everything in the Python passes.
    :param notes: for a run that only makes frames: where its workers leave notes.
    :param checks: for such a run: its passes that measure rules.
    :param beside: how many other runs work in the same job. Each core then has work, though small batches stay in one
        partition, in which nothing that a transform plans needs a shuffle.
    """

    def __init__(
        self,
        attached: Attached,
        job: Job,
        *,
        native: bool,
        notes: Notes | None = None,
        beside: int = 0,
        checks: CheckPasses | None = None,
    ) -> None:
        self._attached = attached
        self._job = job
        self._native = native
        self._beside = beside
        self._columns = Columns(attached.functions, attached.cache)
        self._exchanges = Exchanges(attached.session, self._columns)
        self._results: dict[int, Flow] = {}
        self._kept: list[DataFrame] = []
        self._splits: list[Split] = []
        self._reads: dict[str, tuple[ReadSplits, int]] = {}
        self.sources = JvmSources(attached, job, self._columns)
        self._place = place_at(job.staging_root)
        self._notes: Notes = notes or FolderNotes("")
        self.checks = checks or CheckPasses(job.plan.stages)

    def manifest(self) -> Manifest:
        """Run it, and stage the sinks' rows."""
        try:
            local, numbers = self._attached.local, Numbers(self._job.plan.check_nodes)
            with notes_of(self._job, local=local) as self._notes, check_notes(self._job, local=local) as noted:
                self.checks.notes = noted
                with self._naming_what_was_read():
                    files = self._staged()
                self.sources.require_same()
                self._notes.require_made_once()
                if noted is not None:
                    self.checks.merge_into(numbers, noted.of_each())
                rows_read = self.rows_read(self._notes.all())
                rewrites = rewritten(self._attached, self._columns, self._job, files)
        except Exception:
            self.sources.require_same()  # else Spark would raise a less clear error
            raise
        finally:
            self.release()
        slot, sinks = self._job.slot, self._job.plan.staged_fields
        return Manifest(
            slot=slot,
            files=tuple(files),
            rows_read=rows_read,
            sinks=sinks,
            rewrites=rewrites,
            checks=numbers.of_each()[0],
        )

    def _staged(self) -> list[StagedFile]:
        """The files of all sinks."""
        files: list[StagedFile] = []
        count, done = sum(len(stage.sinks) for stage in self._job.plan.stages), 0
        for stage in self._job.plan.stages:
            flow = self._stage(stage)
            for sink in stage.sinks:
                done += 1
                self._attached.describe(job_description(sink))
                subject = f"transaction {self._job.slot.txid}, state {sink.name} ({done} of {count})"
                with progress.watched(subject, self._so_far, self._job.progress):
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
        return replace(flow, work=replace(work, made=made), subject=flow.subject or "a kept stage")

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
            frames = [self._frame(upstream) for upstream in upstreams]
            data = self._exchanges.united(stage.union, frames, placed=colocates)
            count = sum(upstream.partitions for upstream in upstreams)
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
        frames = [self._frame(upstream).coalesce(1) if packs else self._frame(upstream) for upstream in upstreams]
        if node.rowwise and self._job.shaken:
            self._kept.append(frames[0].persist())
        made = of_halves if node.rowwise and self._job.shaken else transformed
        data = made(self._attached, node, frames, self._job)
        count = stage.count(self._attached.partitions)
        is_fixed = stage.partitions is not None or is_told_partitions(self._job.plan, stage, stage.nodes)
        if stage.exchange is None and (is_fixed or stage.at_most is not None):
            data = data.repartition(count) if is_fixed else data.coalesce(count)
        return Flow(data, node.schema, count, sized=sized_of(upstreams))

    def _joined(self, stage: Stage, upstreams: list[Flow]) -> Flow | None:
        """The join at the start of the stage, made by Spark; None: a Python pass must do it. Spark chooses the
        partitions, unless a number is given or a later operation sees them."""
        numbered = stage.partitions is not None or is_told_partitions(self._job.plan, stage, stage.nodes[1:])
        join = JvmJoin.of(stage, numbered=numbered) if self._native else None
        if join is None:
            return None
        count, sized = stage.count(self._attached.partitions), sized_of(upstreams)
        frames = [self._frame(upstream) for upstream in upstreams]
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
            spout_schema=source.spout.schema,
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
        return flow.data if flow.work is None else self._map(flow.data, flow.work, flow.schema, flow.subject)

    def _map(self, data: DataFrame, work: Work, after: Schema, subject: str) -> DataFrame:
        if work.nodes is not None and work.nodes.checks and work.checks is None:

            def again(leave: LeaveNote) -> list[bytes]:
                alone = replace(work, checks=leave, member=self.checks.member, write=None, made=None)
                return results.notes_in(to_arrow(self._map(data, alone, NOTE, subject)))

            nodes = [step.node for step in work.nodes.steps]
            leave = self.checks.leaving(nodes, partitions=work.partitions if work.read else None, again=again)
            work = replace(work, checks=leave, member=self.checks.member)
        call: Any = WorkerPass(ship(work, f"{subject} of topology {self._job.slot.topology!r}"))
        return data.mapInArrow(call, self._columns.ddl(after))

    # ---- sinks -------------------------------------------------------------------------------------------------

    def _stage_rows(self, sink: SinkNode, flow: Flow) -> list[StagedFile]:
        """Workers write raw rows; who writes aggregates says :mod:`airflow_trident.engine.spark.results`."""
        if not sink.aggregates:
            max_bytes = self._job.kept_bytes(sink.name)
            return self._write_parts(sink, flow, together=_MOST_KEPT * max_bytes, each=max_bytes)
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
        area, plain = StagingArea(self._job.staging_root), results.plain(rows, sink.schema)
        require_own_partition(self._job, sink, plain)
        return area.write(self._job.slot, sink.name, plain, kept_bytes=self._job.chunk_bytes)

    def _write_parts(self, sink: SinkNode, flow: Flow, *, together: int, each: int) -> list[StagedFile]:
        """:param together, each: at most so many bytes of all parts, and of one, come home as rows."""
        kept = min(each, results.home_bytes(self._attached.session, together) // max(flow.partitions, 1))
        return results.parts_of(lambda kept: to_arrow(self._parts(sink, flow, kept)), sink.name, kept)

    def _parts(self, sink: SinkNode, flow: Flow, kept_bytes: int) -> DataFrame:
        write = WriteParts(
            place=self._place.resolved(),
            slot=self._job.slot,
            state=sink.name,
            schema=sink.schema,
            split_by=sink.split_by,
            kept_bytes=kept_bytes,
            by_reference=sink.by_reference,
            own=OwnPartition.of(self._job, sink),
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
        notes, places = self._notes.all(), list[str]()
        alone = len(self._reads) == 1 and task is not None
        for reading, partitions in self._reads.values():
            for partition in range(partitions):
                split = reading.stopped_at(partition, partitions, notes)
                if split is not None and (partition == task or not alone):
                    places.append(reading.emitter.name_of(split))
        return places

    def rows_read(self, notes: Mapping[str, str]) -> int:
        """The sum of the workers' counts; -1 if one is missing: workers may not see where notes are left.

        :param notes: all notes.
        """
        total = self.sources.rows()
        if total is None:
            return -1
        try:
            for reading, _ in self._reads.values():
                total += sum(int(notes[reading.counted(split.index)]) for split in reading.splits)
        except (KeyError, ValueError):
            return -1
        return total


TASKS = 2
"""As many tasks for each of a shuffle's partitions: one alone would wait for the slowest transaction."""

_NUMBERED_CODE = "spark.sql.codegen.useIdInClassName"
"""Spark numbers what it compiles by its place in the plan: then nothing is compiled once for all transactions."""
_ZIPPED_UNION = "spark.sql.unionOutputPartitioning"
"""Spark (since 4.1) unites frames of one partition each in one partition: one core then works for all transactions."""


class MemberRuns:
    """One run per transaction; none if no transform needs it. By key, a transform that works row by row gets the rows
    of all transactions at once, if it is told nothing of them.

    :param attached: a session that the group has for itself; the first transaction's functions get it.
    :param jobs: of one plan that may be processed in groups.
    :param tagged: do rows need the position of their transaction?
    """

    def __init__(self, attached: Attached, jobs: Sequence[Job], *, native: bool, tagged: bool) -> None:
        transforms = {stage.index: stage.transform for stage in jobs[0].plan.stages if stage.transform is not None}
        self._of_all = {index for index, node in transforms.items() if not tagged and may_see_all(node)}
        self._attached = attached
        self._jobs = jobs
        self._native = native
        self._tagged = tagged
        self._before = before_transforms(jobs[0].plan.stages, self._of_all)
        self._transforms = transforms.keys() - self._of_all
        self._runs: list[PlanRun] = []
        self._siblings: list[Sibling | None] = []
        self._notes: Notes = FolderNotes("")

    def begin(self, notes: Notes, noted: CheckNotes | None) -> None:
        """:param notes, noted: of the group's pass."""
        if not self._transforms:
            return
        self._notes = notes
        for place, job in enumerate(self._jobs):
            sibling = Sibling.of(self._attached.session) if place else None
            attached = self._attached if sibling is None else replace(self._attached, session=sibling.session)
            for name in (_NUMBERED_CODE, _ZIPPED_UNION):
                attached.session.conf.set(name, "false")
            member_notes = _NotesOfOne(notes, _begin_of(job))
            self._siblings.append(sibling)
            others = len(self._jobs) - 1
            checks = CheckPasses(job.plan.stages, member=place, notes=noted)
            run = PlanRun(attached, job, native=self._native, notes=member_notes, beside=others, checks=checks)
            self._runs.append(run)

    def make(self, stage: Stage) -> DataFrame | None:
        """The rows of all transactions: after a transform, without the other nodes of its stage; of a whole stage, if
        other stages than a transform read it, too. None: what other stages need is not made here."""
        if stage.index in self._before:
            frames = self._each(stage)
            return self._united(frames) if stage.forks or stage.sinks else None
        if stage.index in self._transforms:
            alone = replace(stage, exchange=None, nodes=(), sinks=(), forks=False)
            return self._united(self._each(alone))
        return None

    def makes_whole(self, stage: Stage) -> bool:
        """Are all nodes of the stage run here?"""
        return stage.index in self._before

    def _each(self, stage: Stage) -> list[DataFrame]:
        frames = []
        for job, run, sibling in zip(self._jobs, self._runs, self._siblings, strict=True):
            deactivate = sibling.activated() if sibling is not None else None
            try:
                with blaming(job.slot.txid):
                    frames.append(run.frame(stage))
            finally:
                if deactivate is not None:
                    deactivate()
        return frames

    def _united(self, frames: Sequence[DataFrame]) -> DataFrame:
        """As a balanced tree, because Spark looks at both sides again with each union; in few partitions, because those
        of small transactions are small, and each task costs some milliseconds."""
        rows, literal = list(frames), self._attached.functions.lit
        if self._tagged:
            rows = [frame.select("*", literal(str(place)).alias(MEMBER.name)) for place, frame in enumerate(frames)]
        while len(rows) > 1:
            pairs = [rows[place : place + 2] for place in range(0, len(rows), 2)]
            rows = [pair[0].union(pair[1]) if len(pair) > 1 else pair[0] for pair in pairs]
        whole = rows[0].coalesce(TASKS * self._attached.partitions)
        if not self._tagged:
            return whole
        # Spark writes a number into the code that it makes, but not a text: so all transactions have the same code
        return whole.withColumn(MEMBER.name, whole[f"`{MEMBER.name}`"].cast(MEMBER.type))

    def require_same(self) -> None:
        """:raises SourceChangedError: what was read has changed; names the transaction."""
        for job, run in zip(self._jobs, self._runs, strict=False):
            with blaming(job.slot.txid):
                run.sources.require_same()

    def merge_into(self, numbers: Numbers, notes: dict[str, dict[int, list[bytes]]]) -> None:
        """The numbers of the checks of these runs."""
        for run in self._runs:
            run.checks.merge_into(numbers, notes)

    def rows_read(self) -> list[int]:
        """Rows read here, of each transaction; -1 if unknown."""
        if not self._runs:
            return [0] * len(self._jobs)
        notes = self._notes.all()
        return [run.rows_read(_of_one(notes, _begin_of(job))) for job, run in zip(self._jobs, self._runs, strict=True)]

    def release(self) -> None:
        for run in self._runs:
            with suppress(Exception):
                run.release()


@dataclass(frozen=True)
class _NotesOfOne(Notes):
    """The notes of one transaction among those of its group."""

    notes: Notes
    begin: str

    def leave(self, name: str, text: str = "") -> None:
        self.notes.leave(f"{self.begin}{name}", text)

    def all(self) -> dict[str, str]:
        return _of_one(self.notes.all(), self.begin)


def _begin_of(job: Job) -> str:
    """What the names of a transaction's notes begin with."""
    return f"{job.slot.txid}-"


def _of_one(notes: Mapping[str, str], begin: str) -> dict[str, str]:
    return {name.removeprefix(begin): text for name, text in notes.items() if name.startswith(begin)}


MOST_SHARES = 8
"""Each is a separate plan that Spark has to make."""
UNEVEN = 1.5
"""The heaviest share may have this multiple of the average; above it, moving rows is cheaper than waiting."""
_SMALL_MAP = "spark.sql.codegen.aggregate.map.twolevel.enabled"
"""Spark puts a small map before the aggregating one. By transaction most keys miss it, so it costs time; by key it
helps."""


@dataclass(frozen=True)
class GroupFlow:
    """Rows of several transactions on their way. `tags`: columns after those of `schema` that name the transaction.
    Also the number of partitions of each transaction, while rows are where they were read.

    `frames`: the rows. Several frames: each is one partition with all rows of its transactions.
    """

    frames: tuple[DataFrame, ...]
    schema: Schema
    tags: Schema
    partitions: tuple[int, ...] = ()

    @property
    def data(self) -> DataFrame:
        return reduce(lambda left, right: left.union(right), self.frames)

    def changed(self, change: Callable[[DataFrame], DataFrame], schema: Schema) -> GroupFlow:
        return replace(self, frames=tuple(map(change, self.frames)), schema=schema)

    @property
    def columns(self) -> Schema:
        return (*self.schema, *self.tags)


class GroupRun:
    """
    :param jobs: two or more, of one plan that may be processed in groups; the last one's slot is the group's.
    :param native: expressions in the JVM; else in the Python passes, as far as these belong to one transaction.
    """

    def __init__(self, attached: Attached, jobs: Sequence[Job], *, native: bool) -> None:
        self._attached = attached
        self._jobs = jobs
        self._last = jobs[-1]
        self._plan = self._last.plan
        self._native = native
        self._member: Schema = () if self._plan.coalesces.how is Coalescing.BY_KEY else (MEMBER,)
        self._columns = Columns(attached.functions, attached.cache)
        self._exchanges = Exchanges(attached.session, self._columns)
        self._each = MemberRuns(attached, jobs, native=native, tagged=bool(self._member))
        self._results: dict[int, GroupFlow] = {}
        self._kept: list[DataFrame] = []
        self._texts: list[list[TextFiles | None]] = []
        self._reads: list[ReadUnits] = []
        self._folders = ExitStack()
        self._notes: Notes = FolderNotes("")
        self._checks = CheckPasses(self._plan.stages)

    def manifest(self) -> Manifest:
        """Run it, and stage the sinks' rows."""
        if self._member:  # the session is ours, and all groups of its plan are by transaction
            self._attached.session.conf.set(_SMALL_MAP, "false")
        try:
            local, numbers = self._attached.local, Numbers(self._plan.check_nodes, len(self._jobs))
            with notes_of(self._last, local=local) as self._notes, check_notes(self._last, local=local) as noted:
                self._checks.notes = noted
                self._each.begin(self._notes, noted)
                with self._folders:
                    files, counts = self._staged()
                self._require_same()
                self._notes.require_made_once()
                if noted is not None:
                    notes = noted.of_each()
                    self._checks.merge_into(numbers, notes)
                    self._each.merge_into(numbers, notes)
                rows_read = self._rows_read()
        except Exception:
            self._require_same()  # else Spark would raise a less clear error
            raise
        finally:
            self._each.release()
            for kept in self._kept:
                with suppress(Exception):
                    kept.unpersist()
        if self._member:
            return manifest_of_each(self._jobs, files, counts, rows_read, numbers.of_each())
        return manifest_of_all(self._jobs, files, rows_read, numbers.of_each())

    def _staged(self) -> tuple[list[StagedFile | None], dict[str, list[int]]]:
        """The files of all sinks; by transaction, also state -> rows of each."""
        files: list[StagedFile | None] = []
        counts: dict[str, list[int]] = {}
        about = f"transactions {self._jobs[0].slot.txid} to {self._last.slot.txid}"
        for stage in self._plan.stages:
            flow = self._stage(stage)
            if flow is None:
                continue
            self._results[stage.index] = flow
            for sink in stage.sinks:
                self._attached.describe(f"{about}: {job_description(sink)}")
                with progress.watched(f"{about}, state {sink.name}", self._attached.tasks, self._last.progress):
                    parts = self._collected(sink, flow)
                counts[sink.name] = [part.num_rows for part in parts]
                for job, part in zip(self._jobs, parts, strict=True) if self._member else ():
                    with blaming(job.slot.txid):
                        require_own_partition(job, sink, part)
                files.append(stage_each(self._last, sink, parts))
                self._last.progress(f"staged {sum(counts[sink.name])} rows of {about} for state {sink.name}")
        return files, counts

    # ---- stages ------------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> GroupFlow | None:
        """None: only a transform takes its rows, of each transaction apart."""
        made = self._each.make(stage)
        if self._each.makes_whole(stage):
            return None if made is None else GroupFlow((made,), stage.schema, self._member)
        if stage.source is not None:
            flow, nodes = self._read(stage, stage.source)
        else:
            flow, nodes = self._brought(stage, made)
        flow = self._processed(flow, nodes, stage)
        if not stage.forks:
            return flow
        if not self._attached.local:
            notes = MadeNotes(notes=self._notes, stage=stage.index)
            rows = self._only(flow, flow.columns)
            flow = self._passed(rows, flow.schema, flow.tags, f"stage {stage.index}", made=notes)
        kept = flow.data.persist()
        self._kept.append(kept)
        return replace(flow, frames=(kept,))

    def _brought(self, stage: Stage, made: DataFrame | None) -> tuple[GroupFlow, tuple[Node, ...]]:
        """Input from other stages, and the remaining nodes. A repartition matters only before an aggregation: no other
        node sees its partition.

        :param made: the result of the stage's transform.
        """
        if made is None and stage.transform is not None:
            flow = self._results[stage.upstreams[0]]
            made = transformed(self._attached, stage.transform, [self._only(flow, flow.schema).data], self._last)
        if stage.begin is not None and made is not None:
            flow = GroupFlow((made,), stage.begin.schema, self._member)
        elif stage.union is None:
            flow = self._results[stage.upstreams[0]]
        else:
            frames = [self._results[upstream].data for upstream in stage.upstreams]
            data = self._exchanges.united(stage.union, frames, placed=False, also=names_of(self._member))
            flow = GroupFlow((data,), stage.union.schema, self._member)
        whole = merged_by(stage)
        return (flow, stage.nodes) if whole is None else (self._merged(flow, whole), stage.nodes[1:])

    def _only(self, flow: GroupFlow, schema: Schema) -> GroupFlow:
        return replace(flow, frames=(flow.data.select(*map(self._columns.named, names_of(schema))),))

    def _merged(self, flow: GroupFlow, whole: FinalAggregateNode) -> GroupFlow:
        if self._member and not whole.groups:  # a transaction has a result even without tuples
            numbers = self._attached.session.range(0, len(self._jobs), 1, 1)
            data = flow.data.select(*map(self._columns.named, names_of((*flow.schema, *self._member)))).union(
                self._columns.nothing_of(numbers, flow.schema, MEMBER)
            )
            flow = replace(flow, frames=(data,))
        node = replace(whole, groups=(*whole.groups, *names_of(self._member)))
        return replace(flow.changed(lambda data: self._columns.final(data, node), whole.schema), tags=self._member)

    def _processed(self, flow: GroupFlow, nodes: tuple[Node, ...], stage: Stage) -> GroupFlow:
        """Nodes run in the JVM. Before rows move, those from the first to the last Python node run in Python passes."""
        places = []
        if in_place(stage, self._plan.stages):
            places = [place for place, node in enumerate(nodes) if not self._in_jvm(node)]
        for node in nodes[: places[0] if places else len(nodes)]:
            if isinstance(node, CheckNode):
                flow = self._checked(flow, node)
            else:
                flow = flow.changed(partial(self._applied, node, flow), node.schema)
        if not places:
            return flow
        fused, rest = with_tail(nodes[places[0] :], places[-1] - places[0] + 1)
        passed = FusedPass.of(fused, flow.schema, self._last.max_keys)
        needed = [name for name in names_of(flow.schema) if name in passed.reads] or [flow.schema[0].name]
        data = flow.data.select(*map(self._columns.named, [*needed, *names_of(TAGS)]))
        chosen = replace(flow, frames=(data,))
        flow = self._passed(chosen, passed.schema, self._tags(stage), fused[0].name, nodes=passed)
        return self._processed(flow, rest, stage)

    def _checked(self, flow: GroupFlow, node: CheckNode) -> GroupFlow:
        """Measures a check for each transaction apart, where their rows are together."""
        slots = tuple(job.slot for job in self._jobs)
        names = names_of((*flow.schema, *self._member))
        data = flow.data.select(*map(self._columns.named, names))

        def passed(leave: LeaveNote, after: Schema) -> DataFrame:
            work = MemberChecks(slots, PassStep.of(node), MEMBER.name, leave)
            call: Any = WorkerPass(ship(PartitionPass(work), f"{node.name} of topology {self._last.slot.topology!r}"))
            return data.mapInArrow(call, self._columns.ddl(after))

        def again(leave: LeaveNote) -> list[bytes]:
            return results.notes_in(to_arrow(passed(leave, NOTE)))

        leave = self._checks.leaving([node], partitions=None, again=again)
        if leave is None:
            return replace(flow, schema=node.schema)
        return replace(
            flow, frames=(passed(leave, (*flow.schema, *self._member)),), schema=node.schema, tags=self._member
        )

    def _applied(self, node: Node, flow: GroupFlow, data: DataFrame) -> DataFrame:
        return self._columns.apply(data, _with_tags(node, flow.tags), flow.columns)

    def _passed(self, flow: GroupFlow, schema: Schema, tags: Schema, subject: str, **how: Any) -> GroupFlow:
        """After a Python pass.

        :param how: arguments of :class:`GroupWork`.
        """
        slots = tuple(job.slot for job in self._jobs)
        work = GroupWork(slots=slots, partitions=flow.partitions, schema=schema, tags=tags, **how)

        def passed(work: GroupWork, after: Schema) -> DataFrame:
            call: Any = WorkerPass(ship(work, f"{subject} of topology {self._last.slot.topology!r}"))
            return flow.data.mapInArrow(call, self._columns.ddl(after))

        def again(leave: LeaveNote) -> list[bytes]:
            return results.notes_in(to_arrow(passed(replace(work, checks=leave, made=None), NOTE)))

        if work.nodes is not None:
            partitions = len(work.read.packs) if work.read is not None else None
            nodes = [step.node for step in work.nodes.steps]
            work = replace(work, checks=self._checks.leaving(nodes, partitions=partitions, again=again))
        return GroupFlow((passed(work, (*schema, *tags)),), schema, tags, flow.partitions)

    def _tags(self, stage: Stage) -> Schema:
        """The tags that later steps need after a Python pass."""
        return TAGS if stage.forks else self._member

    def _in_jvm(self, node: Node) -> bool:
        return stays_in_jvm(node, native=self._native)

    # ---- sources -----------------------------------------------------------------------------------------------

    def _read(self, stage: Stage, source: SourceNode) -> tuple[GroupFlow, tuple[Node, ...]]:
        """The source with the nodes fused into reading, and the remaining nodes."""
        emitter = emitter_of(source)
        text = self._text(stage, source, emitter)
        if text is not None:
            return text, stage.nodes
        units, partitions = self._units(stage, source, emitter)
        last = max((place for place, node in enumerate(stage.nodes) if not self._in_jvm(node)), default=-1)
        fused, rest = with_tail(stage.nodes, last + 1)
        passed = FusedPass.of(fused, source.schema, self._last.max_keys) if fused else None
        bytes_ = sum(unit.size_bytes for unit in units)
        tasks = max(min(self._attached.partitions, FEW_PARTITIONS), -(-bytes_ // PARTITION_BYTES))
        reading = ReadSplits(
            stream=source.name,
            emitter=emitter,
            splits=(),
            schema=source.schema,
            spout_schema=source.spout.schema,
            txid=None,  # the worker knows whose rows it reads
            notes=self._notes,
            say_every_s=progress.COUNT_EVERY_S,
        )
        read = ReadUnits(reading, packed(units, tasks))
        self._reads.append(read)
        count = len(read.packs)
        numbers = GroupFlow((self._attached.session.range(0, count, 1, count),), (), (), partitions)
        schema = source.schema if passed is None else passed.schema
        flow = self._passed(numbers, schema, self._tags(stage), f"stream {source.name!r}", read=read, nodes=passed)
        return flow, rest

    def _units(self, stage: Stage, source: SourceNode, emitter: Emitter) -> tuple[list[Unit], tuple[int, ...]]:
        """All partitions of all transactions, as in separate passes, and the number of each transaction's
        partitions."""
        units, partitions = [], []
        for member, job in enumerate(self._jobs):
            splits = tuple[Split, ...]()
            if source.name in job.metadata:
                splits = splits_of(emitter, source.name, job.metadata[source.name], job.slot.txid)
            count = min(stage.count(partitions_for(splits)), len(splits))
            order = dealt(splits, count)
            ends = [place * len(order) // count for place in range(count + 1)] if count else [0, 0]
            units += [Unit(member, place, order[begin:end]) for place, (begin, end) in enumerate(pairwise(ends))]
            partitions.append(max(count, 1))
        return units, tuple(partitions)

    def _text(self, stage: Stage, source: SourceNode, emitter: Emitter) -> GroupFlow | None:
        """Lines that the JVM reads itself, if no Python node needs them and nothing is computed from them twice."""
        hinted = stage.partitions is not None or stage.at_most is not None
        if not self._native or not self._attached.local or hinted:
            return None
        if not all(map(self._in_jvm, stage.nodes)) or any(planned.forks for planned in self._plan.stages):
            return None
        texts: list[TextFiles | None] = []
        for job in self._jobs:
            if source.name not in job.metadata:
                texts.append(None)
                continue
            with blaming(job.slot.txid):
                files = emitter.text_files(job.metadata[source.name])
            if files is None:
                return None
            texts.append(files)
        if not any(files is not None and files.paths for files in texts):
            return None
        self._texts.append(texts)
        try:
            frames = [self._lines(source, texts, share) for share in self._shares(texts)]
        except OSError:  # a file system without links
            self._texts.pop()
            return None
        return GroupFlow(tuple(frames), source.schema, self._member)

    def _lines(self, source: SourceNode, texts: Sequence[TextFiles | None], members: Sequence[int]) -> DataFrame:
        """
        :param members: the transactions to read; all members with no others beside them form one partition.
        :raises OSError: the file system has no links.
        """
        paths = {member: files.paths for member in members if (files := texts[member]) is not None}
        folder = self._folders.enter_context(
            linked(paths if self._member else {0: tuple(chain.from_iterable(paths.values()))})
        )
        returns = any(text is not None and text.returns for text in texts)
        tag = MEMBER.name if self._member else None
        name = source.schema[0].name
        data = read_linked(self._attached.session, self._columns, folder, name, tag, returns=returns)
        return data if len(members) == len(self._jobs) else data.coalesce(1)

    def _shares(self, texts: Sequence[TextFiles | None]) -> list[list[int]]:
        """Which transactions are read together. They stay separate if that avoids a shuffle: an aggregation by
        transaction then finds each group in one partition."""
        whole = [list(range(len(texts)))]
        aggregations = [merge for merge in map(merged_by, self._plan.stages) if merge is not None]
        if not self._member or not any(merge.groups for merge in aggregations):
            return whole
        rows = [text.rows if text is not None else 0 for text in texts]
        groups = shares(rows, min(self._attached.partitions, MOST_SHARES))
        groups = [share for share in groups if any(rows[member] for member in share)]
        heaviest = max(sum(rows[member] for member in share) for share in groups)
        return groups if len(groups) > 1 and heaviest * len(groups) <= UNEVEN * sum(rows) else whole

    # ---- sinks -------------------------------------------------------------------------------------------------

    def _collected(self, sink: SinkNode, flow: GroupFlow) -> list[pa.Table]:
        """The rows of each transaction; by key, one table."""
        names = names_of((*sink.schema, *self._member))
        try:
            table = to_arrow(flow.data.select(*map(self._columns.named, names)))
        except Exception as error:
            if not is_refused(error):
                raise
            raise SparkJobError(
                f"what {len(self._jobs)} transactions together give state {sink.name} is more than the driver takes",
                "Take fewer at a time, or raise spark.driver.maxResultSize.",
            ) from error
        if not self._member:
            return [plain(table, sink.schema)]
        return apart(table, sink.schema, MEMBER.name, len(self._jobs))

    def _require_same(self) -> None:
        self._each.require_same()
        for texts in self._texts:
            for job, files in zip(self._jobs, texts, strict=True):
                if files is not None:
                    with blaming(job.slot.txid):
                        files.require_same()

    def _rows_read(self) -> list[int]:
        """Rows read of each transaction; -1 if unknown."""
        texts = zip(*self._texts, strict=True) if self._texts else [()] * len(self._jobs)
        rows = [sum(text.rows for text in some if text is not None) for some in texts]
        try:
            for read in self._reads:
                for member, many in read.rows_read().items():
                    rows[member] += many
        except (KeyError, ValueError):
            return [-1] * len(self._jobs)
        return [
            -1 if of_member < 0 else many + of_member
            for many, of_member in zip(rows, self._each.rows_read(), strict=True)
        ]


def _with_tags(node: Node, tags: Schema) -> Node:
    """The same node, but it lets columns pass that the plan does not know."""
    match node:
        case ProjectNode():
            return replace(node, schema=(*node.schema, *tags))
        case PartialAggregateNode():
            return replace(node, groups=(*node.groups, *names_of(tags)))
    return node
