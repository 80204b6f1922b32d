"""The local engine: fused passes over Arrow tables in this process, one partition after the other.

Tuples are spread over partitions as on a cluster, so partition-local operations behave as there. The tests compare it
with an engine that works row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_trident.engine.engine import (
    LOCAL_NODES,
    MORE,
    Engine,
    Job,
    blaming,
    emitter_of,
    manifest_of_each,
    require_group,
    require_known,
    require_own_partition,
    rows_of,
    splits_of,
    stage_each,
    turned,
)
from airflow_trident.engine.fused.frames import BATCH_ROWS
from airflow_trident.engine.fused.measuring import Gauges, Numbers
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.partitioning import spread, united
from airflow_trident.errors import AttemptCancelledError
from airflow_trident.io.arrow import arrow_schema, split_by
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.stages import Stage
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.staging.table_rewrites import RewriteFiles, Rewritten, rewrites_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class LocalEngine(Engine):
    """Runs a plan in this process.

    :param partitions: their number, if the plan does not give it.
    """

    name = "local"
    takes_groups = True

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions
        self._running: set[Slot] = set()
        self._cancelled: set[Slot] = set()

    def run(self, job: Job) -> Manifest:
        """:raises AttemptCancelledError: the job was cancelled; checked between two calls of a user's function."""
        self._running.add(job.slot)
        try:
            rows_read, numbers = Counter[str](), Numbers(job.plan.check_nodes)
            area = StagingArea(job.staging_root)
            sinks = {sink.name: sink for sink in job.plan.staged}
            files = [
                area.write(
                    job.slot,
                    name,
                    part,
                    kept_bytes=job.kept_bytes(name),
                    by_reference=sinks[name].by_reference,
                    is_fitted=True,
                )
                for name, table in self.tables(job, rows_read, numbers=numbers)
                for part in [part for _, part in split_by(table, sinks[name].split_by)] or [table]
            ]
            rewrites = rewrites_of(job.slot, area.place, job.tables, files, _all_files)
        finally:
            self._running.discard(job.slot)
            self._cancelled.discard(job.slot)
        return Manifest(
            slot=job.slot,
            files=tuple(files),
            rows_read=rows_read.total(),
            sinks=job.plan.staged_fields,
            rewrites=rewrites,
            checks=numbers.of_each()[0],
        )

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        """Runs each job after the other. The gain comes later: one staged batch, one commit."""
        require_group(self, jobs)
        if len(jobs) == 1:
            return self.run(jobs[0])
        last = jobs[-1]
        staged = {sink.name: sink for sink in last.plan.staged}
        parts: dict[str, list[pa.Table]] = {name: [] for name in staged}
        read, checks = [], []
        self._running.add(last.slot)
        try:
            for job in jobs:
                rows_read, numbers = Counter[str](), Numbers(job.plan.check_nodes)
                with blaming(job.slot.txid):
                    for name, table in self.tables(job, rows_read, whose=last.slot, numbers=numbers):
                        parts[name].append(table)
                read.append(rows_read.total())
                checks += numbers.of_each()
        finally:
            self._running.discard(last.slot)
            self._cancelled.discard(last.slot)
        files = [stage_each(last, sink, parts[name]) for name, sink in staged.items()]
        counts = {name: [table.num_rows for table in tables] for name, tables in parts.items()}
        return manifest_of_each(jobs, files, counts, read, checks)

    def cancel(self, slot: Slot | None = None) -> None:
        self._cancelled |= self._running & {slot} if slot is not None else self._running

    def tables(
        self,
        job: Job,
        rows_read: Counter[str] | None = None,
        *,
        whose: Slot | None = None,
        numbers: Numbers | None = None,
    ) -> Iterator[tuple[str, pa.Table]]:
        """The output for each sink, without staging.

        :param rows_read: receives the number of tuples of each source.
        :param numbers: receives what the plan's checks measure.
        :param whose: cancelling this slot ends the work; default: the job's own.
        """
        import pyarrow as pa

        require_known(job.plan, LOCAL_NODES)
        results: list[list[pa.Table]] = []
        for stage in job.plan.stages:
            count = stage.count(self._partitions + (MORE if job.shaken else 0))
            partitions = self._begin(stage, results, job, count)
            if stage.source is not None and rows_read is not None:
                rows_read[stage.source.name] += sum(part.num_rows for part in partitions)
            if stage.exchange is not None:
                partitions = spread(stage.exchange, partitions, count, job.slot)
            if stage.nodes:
                partitions = list(self._passed(stage, partitions, job, whose or job.slot, numbers))
            results.append(partitions)
            for sink in stage.sinks:
                rows = pa.concat_tables(partitions)
                require_own_partition(job, sink, rows)
                yield sink.name, rows

    def _begin(self, stage: Stage, results: list[list[pa.Table]], job: Job, count: int) -> list[pa.Table]:
        if stage.source is not None:
            return _read(stage.source, job, count)
        upstreams = [results[upstream] for upstream in stage.upstreams]
        return upstreams[0] if stage.union is None else united(stage.union, upstreams)

    def _passed(
        self, stage: Stage, partitions: list[pa.Table], job: Job, whose: Slot, numbers: Numbers | None
    ) -> Iterator[pa.Table]:
        """Each partition after the nodes of the stage."""
        import pyarrow as pa

        nodes, schema = FusedPass.of(stage.nodes, stage.before, job.max_keys), arrow_schema(stage.schema)
        for index, part in enumerate(partitions):
            context = OperationContext(
                partition_index=index,
                num_partitions=len(partitions),
                txid=job.slot.txid,
                attempt=job.slot.attempt,
                topology=job.slot.topology,
            )
            batches = part.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
            gauges = Gauges() if numbers is not None and nodes.checks else None
            yield pa.Table.from_batches(nodes(batches, context, partial(self._wanted, whose), gauges), schema)
            if numbers is not None and gauges is not None:
                numbers.merge(gauges)

    def _wanted(self, slot: Slot, rows: Iterable[T]) -> Iterator[T]:
        """The rows, until the work is cancelled."""
        cancelled = self._cancelled
        for row in rows:
            if cancelled and slot in cancelled:
                raise AttemptCancelledError(
                    f"attempt {slot.attempt} of transaction {slot.txid} was cancelled",
                    "Run the task again if that was not intended.",
                )
            yield row


def _all_files(work: RewriteFiles) -> Iterator[Rewritten]:
    return work(range(len(work.table.paths)))


def _read(source: SourceNode, job: Job, count: int) -> list[pa.Table]:
    """Deals the splits out to the partitions, one after the other."""
    import pyarrow as pa

    batches: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    wanted = arrow_schema(source.schema)
    if source.name in job.metadata:
        emitter, name, txid = emitter_of(source), source.name, job.slot.txid
        splits = splits_of(emitter, name, job.metadata[name], txid)
        for split in turned(splits) if job.shaken else splits:
            batches[split.index % count] += rows_of(emitter, split, name, source.spout.schema, wanted, txid)
    return [pa.Table.from_batches(part, wanted) for part in batches]
