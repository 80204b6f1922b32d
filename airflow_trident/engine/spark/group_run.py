"""One plan over the batches of several transactions as DataFrames: one pass, with rows that name their transaction.

By transaction, every row carries the position of its transaction in the group, and aggregations group by it, too. If
all rows of a transaction can be read into one partition, they need not move for that. By key, rows carry no such
position. :mod:`airflow_trident.plan.coalescing` says which plans are allowed here: after a repartition or a merge there
are only expressions and built-ins. So a row's partition matters only before these, where users' code runs; there each
transaction has the same partitions as in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Emitter, Split, TextFiles
from airflow_trident.engine.base import Job
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.group_passes import blaming, manifest_of_all, manifest_of_each, stage_each
from airflow_trident.engine.spark import progress
from airflow_trident.engine.spark.dataframes import transformed
from airflow_trident.engine.spark.exchange import Exchanges
from airflow_trident.engine.spark.flow import told
from airflow_trident.engine.spark.group_worker import MEMBER, TAGS, GroupWork, ReadUnits, Unit, packed, shares
from airflow_trident.engine.spark.jvm_nodes import Columns, stays_in_jvm, with_tail
from airflow_trident.engine.spark.member_runs import MemberRuns
from airflow_trident.engine.spark.results import apart, is_refused, plain
from airflow_trident.engine.spark.sessions.session import Attached
from airflow_trident.engine.spark.ship import ship
from airflow_trident.engine.spark.text_files import linked, read_linked
from airflow_trident.engine.spark.versions import to_arrow
from airflow_trident.engine.spark.worker import (
    FEW_PARTITIONS,
    PARTITION_BYTES,
    ReadSplits,
    WorkerPass,
    dealt,
    partitions_for,
)
from airflow_trident.engine.spark.worker_notes import FolderNotes, MadeNotes, Notes, notes_of
from airflow_trident.engine.spout_reader import emitter_of, splits_of
from airflow_trident.errors import SparkJobError
from airflow_trident.plan.coalescing import in_place, merged_by
from airflow_trident.plan.graph import Node, SinkNode
from airflow_trident.plan.nodes import FinalAggregateNode, PartialAggregateNode, ProjectNode, SourceNode
from airflow_trident.plan.stages import Coalescing, Stage
from airflow_trident.staging.manifest import Manifest, StagedFile
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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
        self._columns = Columns(attached.functions, attached.known)
        self._exchanges = Exchanges(attached.session, self._columns)
        self._each = MemberRuns(attached, jobs, native=native, tagged=bool(self._member))
        self._results: dict[int, GroupFlow] = {}
        self._kept: list[DataFrame] = []
        self._texts: list[list[TextFiles | None]] = []
        self._reads: list[ReadUnits] = []
        self._folders = ExitStack()
        self._notes: Notes = FolderNotes("")

    def manifest(self) -> Manifest:
        """Run it, and stage the sinks' rows."""
        if self._member:  # the session is ours, and all groups of its plan are by transaction
            self._attached.session.conf.set(_SMALL_MAP, "false")
        try:
            with notes_of(self._last, local=self._attached.local) as self._notes:
                self._each.begin(self._notes)
                with self._folders:
                    files, counts = self._staged()
                self._require_same()
                self._notes.require_made_once()
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
            return manifest_of_each(self._jobs, files, counts, rows_read)
        return manifest_of_all(self._jobs, files, rows_read)

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
                self._attached.describe(f"{about}: {told(sink)}")
                with progress.watched(f"{about}, state {sink.name}", self._attached.tasks, self._last.progress):
                    parts = self._collected(sink, flow)
                counts[sink.name] = [part.num_rows for part in parts]
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

    def _applied(self, node: Node, flow: GroupFlow, data: DataFrame) -> DataFrame:
        return self._columns.apply(data, _with_tags(node, flow.tags), flow.columns)

    def _passed(self, flow: GroupFlow, schema: Schema, tags: Schema, what: str, **how: Any) -> GroupFlow:
        """After a Python pass.

        :param how: arguments of :class:`GroupWork`.
        """
        slots = tuple(job.slot for job in self._jobs)
        work = GroupWork(slots=slots, partitions=flow.partitions, schema=schema, tags=tags, **how)
        call: Any = WorkerPass(ship(work, f"{what} of topology {self._last.slot.topology!r}"))
        data = flow.data.mapInArrow(call, self._columns.ddl((*schema, *tags)))
        return GroupFlow((data,), schema, tags, flow.partitions)

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
            given=source.spout.schema,
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
        if not all(map(self._in_jvm, stage.nodes)) or any(one.forks for one in self._plan.stages):
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
        returns = any(one is not None and one.returns for one in texts)
        tag = MEMBER.name if self._member else None
        name = source.schema[0].name
        data = read_linked(self._attached.session, self._columns, folder, name, tag, returns=returns)
        return data if len(members) == len(self._jobs) else data.coalesce(1)

    def _shares(self, texts: Sequence[TextFiles | None]) -> list[list[int]]:
        """Which transactions are read together. They stay separate if that avoids a shuffle: an aggregation by
        transaction then finds each group in one partition."""
        whole = [list(range(len(texts)))]
        aggregations = [found for found in map(merged_by, self._plan.stages) if found is not None]
        if not self._member or not any(one.groups for one in aggregations):
            return whole
        rows = [one.rows if one is not None else 0 for one in texts]
        found = shares(rows, min(self._attached.partitions, MOST_SHARES))
        found = [share for share in found if any(rows[member] for member in share)]
        heaviest = max(sum(rows[member] for member in share) for share in found)
        return found if len(found) > 1 and heaviest * len(found) <= UNEVEN * sum(rows) else whole

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
        rows = [sum(one.rows for one in some if one is not None) for some in texts]
        try:
            for read in self._reads:
                for member, many in read.rows_read().items():
                    rows[member] += many
        except (KeyError, ValueError):
            return [-1] * len(self._jobs)
        return [-1 if own < 0 else many + own for many, own in zip(rows, self._each.rows_read(), strict=True)]


def _with_tags(node: Node, tags: Schema) -> Node:
    """The same node, but it lets columns pass that the plan does not know."""
    match node:
        case ProjectNode():
            return replace(node, schema=(*node.schema, *tags))
        case PartialAggregateNode():
            return replace(node, groups=(*node.groups, *names_of(tags)))
    return node
