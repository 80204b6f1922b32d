"""Copy-on-write by Spark: its workers read the files of a table, and write those anew that have keys of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.engine.spark.sessions.session import Attached
from airflow_trident.engine.spark.shipping import ship
from airflow_trident.engine.spark.versions import to_arrow
from airflow_trident.engine.spark.workers import WorkerPass
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.places import place_at
from airflow_trident.staging.manifest import StagedFile, TableRewrite
from airflow_trident.staging.table_rewrites import RewriteFiles, Rewritten, rewrites_of
from airflow_trident.types import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_FOUND: Schema = (
    Field("place", "long"),
    Field("path", "string"),
    Field("rows", "long"),
    Field("bytes", "long"),
    Field("footer", "binary"),
)
"""One row for each file of the table with keys of the batch. `path`: null if it has no other rows."""


@dataclass(frozen=True)
class _RewriteInWorker:
    """Input batches hold numbers of files."""

    work: RewriteFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        places = (place for batch in batches for place in batch.column(0).to_pylist())
        for replaced in self.work(places):
            file = replaced.file
            row = {
                "place": replaced.place,
                "path": None if file is None else file.path,
                "rows": 0 if file is None else file.rows,
                "bytes": 0 if file is None else file.bytes,
                "footer": b"" if file is None else file.footer,
            }
            yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(_FOUND))


def rewritten(attached: Attached, columns: Columns, job: Job, files: Sequence[StagedFile]) -> tuple[TableRewrite, ...]:
    """What the staged batches replace in the tables of the job, in one more job of Spark for each table."""

    def run(work: RewriteFiles) -> list[Rewritten]:
        many = len(work.table.paths)
        subject = f"transaction {job.slot.txid}, state {work.state}: rows to replace in {many} files of its table"
        attached.describe(subject)
        job.progress(subject)
        # Each partition reads the keys of the batch once, so there are no more than can run at the same time.
        numbers = attached.session.range(0, many, 1, min(many, attached.partitions))
        payload = ship(_RewriteInWorker(work), f"the table of state {work.state!r}")
        call: Any = WorkerPass(payload)
        rows = to_arrow(numbers.mapInArrow(call, columns.ddl(_FOUND))).to_pylist()
        job.progress(f"state {work.state}: {len(rows)} files have keys of the batch and were written anew")
        return [_of(row, work.state) for row in rows]

    return rewrites_of(job.slot, place_at(job.staging_root), job.tables, files, run)


def _of(row: dict[str, Any], state: str) -> Rewritten:
    place, path = row["place"], row["path"]
    if path is None:
        return Rewritten(place=place, file=None)
    file = StagedFile(state=state, path=path, rows=row["rows"], bytes=row["bytes"], footer=row["footer"])
    return Rewritten(place=place, file=file)
