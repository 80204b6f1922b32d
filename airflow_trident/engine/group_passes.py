"""Common part of engines that process groups of transactions: which jobs form a group, and how to stage its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_trident.engine.base import Engine, Job
from airflow_trident.errors import ConfigurationError, FencedError, PlanError, RetryableError, TridentError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.plan.graph import SinkNode
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, StagedFile, StagedMember

if TYPE_CHECKING:
    import pyarrow as pa

_NOBODYS = (RetryableError, FencedError, PlanError, ConfigurationError)


def require_group(engine: Engine, jobs: Sequence[Job]) -> None:
    """:raises ConfigurationError: these jobs cannot be processed together (E10)."""
    if wrong := _wrong(engine, jobs):
        raise ConfigurationError(
            f"engine {engine.name} cannot process {_listed(jobs)} together: {wrong}",
            "Run the jobs one by one, lowest txid first.",
        )


def _wrong(engine: Engine, jobs: Sequence[Job]) -> str:
    txids = [job.slot.txid for job in jobs]
    if not txids or sorted(set(txids)) != txids:
        return "their txids do not rise"
    if len({(job.slot.topology, job.slot.incarnation, job.staging_root, job.plan.digest) for job in jobs}) > 1:
        return "they are not of one plan, incarnation and staging folder"
    if any(job.trial for job in jobs):
        return "one of them is a trial"
    coalesces = engine.coalesces(jobs[0].plan)
    return "" if coalesces.passes or len(jobs) == 1 else coalesces.why


def _listed(jobs: Sequence[Job]) -> str:
    if not jobs:
        return "no transactions"
    return f"the transactions {', '.join(str(job.slot.txid) for job in jobs)} of topology {jobs[0].slot.topology!r}"


@contextmanager
def blaming(txid: int) -> Iterator[None]:
    """Assigns an error inside to one transaction (E9), unless the error names another, or its cause is external: an
    unavailable source, a setting."""
    try:
        yield
    except TridentError as error:
        if error.txid is None and not isinstance(error, _NOBODYS):
            error.txid = txid
        raise


def stage_each(job: Job, sink: SinkNode, parts: Sequence[pa.Table]) -> StagedFile | None:
    """Write the rows of all members for a sink into one file; None if there are no rows.

    :param job: the last of the group.
    :param parts: one per member, in order.
    """
    import pyarrow as pa

    schema = arrow_schema(sink.schema)
    whole = pa.concat_tables([part.cast(schema) for part in parts])
    if not whole.num_rows:
        return None
    return StagingArea(job.staging_root).write(job.slot, sink.name, whole, kept_bytes=job.chunk_bytes)


def manifest_of_each(
    jobs: Sequence[Job],
    files: Iterable[StagedFile | None],
    counts: Mapping[str, Sequence[int]],
    rows_read: Sequence[int],
) -> Manifest:
    """The manifest of a group whose rows are separable.

    :param counts: state -> number of rows of each member, in order.
    :param rows_read: of each member.
    """
    begins = dict.fromkeys(counts, 0)
    members = []
    for place, (job, read) in enumerate(zip(jobs, rows_read, strict=True)):
        rows = {state: (begins[state], many[place]) for state, many in counts.items()}
        members.append(StagedMember(txid=job.slot.txid, attempt=job.slot.attempt, rows_read=read, rows=rows))
        begins = {state: begin + counts[state][place] for state, begin in begins.items()}
    return _manifest(jobs, files, members, inseparable=False)


def manifest_of_all(jobs: Sequence[Job], files: Iterable[StagedFile | None], rows_read: Sequence[int]) -> Manifest:
    """The manifest of a group whose rows were merged by key."""
    members = [
        StagedMember(txid=job.slot.txid, attempt=job.slot.attempt, rows_read=read, rows={})
        for job, read in zip(jobs, rows_read, strict=True)
    ]
    return _manifest(jobs, files, members, inseparable=True)


def _manifest(
    jobs: Sequence[Job], files: Iterable[StagedFile | None], members: Sequence[StagedMember], *, inseparable: bool
) -> Manifest:
    counts = [one.rows_read for one in members]
    return Manifest(
        slot=jobs[-1].slot,
        files=tuple(file for file in files if file is not None),
        rows_read=-1 if -1 in counts else sum(counts),
        sinks=jobs[0].plan.staged_fields,
        group=tuple(members),
        inseparable=inseparable,
    )
