"""Compaction by Spark: its workers read the keys of a table, Spark finds the rows that count, and its workers write the
remaining rows of files anew. The driver learns numbers of rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.committed_table import CommittedTable
from airflow_trident.contracts.state import TXID
from airflow_trident.engine.spark.jvm_nodes import Columns
from airflow_trident.engine.spark.sessions.session import Attached
from airflow_trident.engine.spark.ship import ship
from airflow_trident.engine.spark.versions import repartition_by_id, to_arrow
from airflow_trident.engine.spark.worker import WorkerPass
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.staging.manifest import Slot, StagedFile
from airflow_trident.staging.table_compaction import (
    Compacted,
    CompactedFile,
    CompactionWork,
    WriteTogether,
    files_to_rewrite,
    require_whole,
)
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_NUMBERS: Schema = (Field("place", "long"), Field("row", "long"))
"""Of a file, and of a row in it."""
_WRITTEN: Schema = (Field("together", "long"), Field("path", "string"), Field("rows", "long"), Field("bytes", "long"))
_ALL_ROWS = -1
_MOST_PARTITIONS = 200


@dataclass(frozen=True)
class _ReadKeys:
    """Input batches hold numbers of files. Gives a row for each of theirs: its numbers, and these columns as the fields
    behind the numbers."""

    table: CommittedTable
    names: tuple[str, ...]
    fields: Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        target = arrow_schema(self.fields)
        kinds = target.types[len(_NUMBERS) :]
        for place in (place for batch in batches for place in batch.column(0).to_pylist()):
            first = 0
            for piece in self.table.pieces(place, self.names):
                rows = pa.array(np.arange(first, first + piece.num_rows))
                first += piece.num_rows
                found = (piece.column(name).cast(kind) for name, kind in zip(self.names, kinds, strict=True))
                numbers = pa.repeat(pa.scalar(place, pa.int64()), piece.num_rows)
                yield pa.RecordBatch.from_arrays([numbers, rows, *found], schema=target)


@dataclass(frozen=True)
class _WriteInWorker:
    """Input rows name the rows that count, sorted by new file, file and row."""

    write: WriteTogether

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for together, rows in _groups(batches):
            file = self.write(rows)
            row = {"together": together, "path": file.path, "rows": file.rows, "bytes": file.bytes}
            yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(_WRITTEN))


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, dict[int, pa.Array | None]]]:
    """New file -> the rows of files that it gets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at: int | None = None
    held: dict[int, list[Any]] = {}

    def whole() -> dict[int, Any]:
        joined = {place: pa.concat_arrays(parts) for place, parts in held.items()}
        return {place: None if rows[0].as_py() == _ALL_ROWS else rows for place, rows in joined.items()}

    for batch in batches:
        ends = pc.run_end_encode(batch.column(0)) if batch.num_rows else None
        first = 0
        for together, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True) if ends else ():
            if together != at and at is not None:
                yield at, whole()
                held = {}
            at = together
            part = batch.slice(first, end - first)
            inside, begins = pc.run_end_encode(part.column(1)), 0
            for place, stops in zip(inside.values.to_pylist(), inside.run_ends.to_pylist(), strict=True):
                held.setdefault(place, []).append(part.column(2).slice(begins, stops - begins))
                begins = stops
            first = end
    if at is not None:
        yield at, whole()


def compacted(
    attached: Attached, work: CompactionWork, storage: Storage, slot: Slot, progress: Callable[[str], object]
) -> Compacted:
    """Chooses files, and writes those of their rows that count."""
    many = len(work.table.paths)
    write = WriteTogether(storage=storage, slot=slot, state=work.state, table=work.table)
    if not work.keys or not many:
        ones = [1] * many  # as if each file had one row, which counts
        return _written(attached, work, write, None, ones, ones, progress)
    progress(f"reading the keys of all files ({many:,})")
    attached.describe(f"state {work.state}: rows that count in {many} files of its table")
    marked = _marked(attached, work).persist()
    try:
        counted = marked.selectExpr("place", "CAST(counts AS long) AS counting").groupBy("place")
        rows, counting = [0] * many, [0] * many
        for one in to_arrow(counted.agg({"*": "count", "counting": "sum"})).to_pylist():
            rows[one["place"]], counting[one["place"]] = one["count(1)"], one["sum(counting)"]
        return _written(attached, work, write, marked, rows, counting, progress)
    finally:
        marked.unpersist()


def _marked(attached: Attached, work: CompactionWork) -> DataFrame:
    """Each row of the table by its numbers: does it count?"""
    many = len(work.table.paths)
    numbers = attached.session.range(0, many, 1, min(many, 4 * attached.partitions))
    names = (*(one.name for one in work.keys), TXID, *([work.deleted] if work.deleted else []))
    keys = [Field(f"k{place}", one.type) for place, one in enumerate(work.keys)]
    fields = (*_NUMBERS, *keys, Field("txid", "long"), *([Field("gone", "boolean")] if work.deleted else []))
    call: Any = WorkerPass(ship(_ReadKeys(work.table, names, fields), f"the table of state {work.state!r}"))
    read = numbers.mapInArrow(call, Columns.ddl(fields))
    by, late = ", ".join(one.name for one in keys), ""
    if work.deleted and work.below is not None:
        late = f" AND coalesce(txid, 0) < {work.below}"
    order = "txid DESC NULLS LAST, place DESC, row DESC"
    ranked = read.selectExpr("*", f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS nth")
    left = f" AND NOT (coalesce(gone, false){late})" if work.deleted else ""
    return ranked.selectExpr("place", "row", f"(nth = 1{left}) AS counts")


def _written(
    attached: Attached,
    work: CompactionWork,
    write: WriteTogether,
    marked: DataFrame | None,
    rows: Sequence[int],
    counting: Sequence[int],
    progress: Callable[[str], object],
) -> Compacted:
    together = files_to_rewrite(work.bytes, work.partitions, rows, counting)
    gone = [place for places in together for place in places]
    if marked is not None:
        progress(f"{sum(counting):,} of {sum(rows):,} rows count; files that are written anew: {len(gone):,}")
    else:
        progress(f"small files that are merged: {len(gone):,} of {len(rows):,}")
    made = {
        number: [place for place in places if counting[place]]
        for number, places in enumerate(together)
        if any(counting[place] for place in places)
    }
    files = list[tuple[int, StagedFile]]()
    if made:
        attached.describe(f"state {work.state}: {len(made)} files of {len(gone)} are written")
        chosen = _chosen(attached, made, marked, {place for place in gone if counting[place] == rows[place]})
        count = min(len(made), max(attached.partitions, _MOST_PARTITIONS))
        target = (attached.functions.col("together") % attached.functions.lit(count)).cast("int")
        sent = repartition_by_id(attached.functions, chosen, count, target)
        call: Any = WorkerPass(ship(_WriteInWorker(write), f"the table of state {work.state!r}"))
        done = sent.sortWithinPartitions("together", "place", "row").mapInArrow(call, Columns.ddl(_WRITTEN))
        for one in to_arrow(done).to_pylist():
            file = StagedFile(state=work.state, path=one["path"], rows=one["rows"], bytes=one["bytes"])
            files.append((one["together"], file))
    if marked is not None:
        require_whole(work, [file for _, file in files], sum(counting[place] for place in gone))
    return Compacted(
        gone=tuple(gone),
        files=tuple(CompactedFile(path=write.storage.at(file.path), place=made[number][0]) for number, file in files),
    )


def _chosen(
    attached: Attached, made: Mapping[int, Sequence[int]], marked: DataFrame | None, whole: AbstractSet[int]
) -> DataFrame:
    """The rows of each new file, by the numbers of old file and row; `_ALL_ROWS` for files that stay whole."""
    schema = Columns.ddl((Field("together", "long"), Field("place", "long"), Field("row", "long")))
    all_of = [(number, place, _ALL_ROWS) for number, places in made.items() for place in places if place in whole]
    some_of = [(place, number) for number, places in made.items() for place in places if place not in whole]
    found = attached.session.createDataFrame(all_of, schema)
    if marked is None or not some_of:
        return found
    new = attached.session.createDataFrame(some_of, "place long, together long").hint("broadcast")
    return found.unionAll(marked.where("counts").join(new, "place").selectExpr("together", "place", "row"))
