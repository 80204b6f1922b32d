"""The files of a Delta state. Each is a *run*: the rows of one batch, or of several that were folded into one.

A run is written once. Its place in the order is a partition value of the table, so the table's log alone gives the list
of runs. The marker of the state is in the footer of the last run, so marker and data change in one commit. Rows are
sorted by the first key: a look-up reads only row groups that may hold a key.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import TXID, Marker, StateSpec
from airflow_trident.errors import CorruptRecordError
from airflow_trident.io.arrow import arrow_schema, grouped, rows_to_table, table_to_rows, taken
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.states.core.groups import merged
from airflow_trident.states.core.marker import group_from_json, group_to_json
from airflow_trident.states.core.merge import EXACT, NOBODY, Key, OfAttempt, Value, canonical_key, does_not_fit, merge
from airflow_trident.states.delta.table import require_whole_files
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Field, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

COMMIT, ORDER = "_commit", "_order"
DELETED = Field("_deleted", "boolean")
PARTITIONS: Schema = (Field(COMMIT, "long"), Field(ORDER, "long"), Field(TXID, "long"))
_FOOTER = b"trident"
_MARKS = 2**256
_GROUP_ROWS = 8192
_ORDERED = (*WHOLE_TYPES, "date", "timestamp")
_FAST: dict[MergeKind | None, tuple[str, ...]] = {
    MergeKind.ADD: (*WHOLE_TYPES, *REAL_TYPES),
    MergeKind.MIN: _ORDERED,
    MergeKind.MAX: _ORDERED,
}
"""Types that Arrow folds as `merge` does: no floating point in MIN and MAX, where Arrow skips NaN, and no sums of
decimals."""
_ROW = "number of row"
"""A column. No field of a user can have this name."""
_VERBS = {MergeKind.ADD: "sum", MergeKind.MIN: "min", MergeKind.MAX: "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A file. `commit`: number of the commit that wrote it. `txid`: of its rows, None if it was folded."""

    path: str
    commit: int
    order: int
    txid: int | None
    rows: int
    bytes: int

    @property
    def partition(self) -> dict[str, str | None]:
        return {COMMIT: str(self.commit), ORDER: str(self.order), TXID: None if self.txid is None else str(self.txid)}

    @property
    def stats(self) -> str:
        return json.dumps({"numRecords": self.rows})

    @property
    def mark(self) -> int:
        """A number that no other run has, see `Footer.files`."""
        text = json.dumps([self.path, self.partition, self.rows], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a commit knows. `bounds`: per value field, an upper bound of the absolute value of any sum; 0 for other
    fields. `files`: the sum of the marks of all runs that the table has from this commit on, so that a file which the
    state did not add, or did not remove, is noticed by the log alone."""

    marker: Marker | None
    bounds: tuple[int, ...]
    files: int = 0

    def with_runs(self, added: Sequence[Run] = (), removed: Sequence[Run] = ()) -> Footer:
        change = sum(run.mark for run in added) - sum(run.mark for run in removed)
        return replace(self, files=(self.files + change) % _MARKS)

    def to_bytes(self) -> bytes:
        marker = None if self.marker is None else asdict(self.marker)
        group = [] if marker is None else group_to_json(marker.pop("group"))
        # Beside the marker: older versions, which know no groups, refuse unknown fields in it.
        beside = {"group": group} if group else {}
        content = {"v": 1, "marker": marker, "bounds": self.bounds, "files": f"{self.files:x}", **beside}
        return json.dumps(content).encode()


def opened(files: pafs.FileSystem, run: Run) -> pa.NativeFile:
    """:raises CorruptRecordError: the file is gone."""
    try:
        return files.open_input_file(run.path)
    except FileNotFoundError as error:
        raise CorruptRecordError(
            f"the file {run.path!r} of a Delta state, with {run.rows:,} rows of its commit {run.commit}, is gone",
            "Somebody removed it, perhaps a vacuum of another program: put it back, or rebuild the state.",
        ) from error


def last_footer(files: pafs.FileSystem, runs: Sequence[Run]) -> Footer:
    """The footer of the newest run.

    :raises CorruptRecordError: the table has not exactly the runs that its last commit left.
    """
    footer = footer_of(files, runs[-1])
    if sum(run.mark for run in runs) % _MARKS != footer.files:
        for run in runs:
            footer_of(files, run)  # names a file of another writer
        raise CorruptRecordError(
            f"the Delta table of a state has other files than commit {runs[-1].commit} left in it ({len(runs):,} now)",
            "Another program added, copied or removed files. Restore the table's version of that commit.",
        )
    return footer


def footer_of(files: pafs.FileSystem, run: Run) -> Footer:
    """:raises CorruptRecordError: another writer made the file, or it is gone."""
    import pyarrow.parquet as pq

    try:
        with opened(files, run) as file:
            content = json.loads(pq.read_schema(file).metadata[_FOOTER])
        marker = content["marker"]
        if marker is not None:
            holes = tuple((first, last) for first, last in marker["holes"])
            marker = Marker(**{**marker, "holes": holes, "group": group_from_json(content.get("group", []))})
        return Footer(marker=marker, bounds=tuple(content["bounds"]), files=int(content["files"], 16))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecordError(
            f"the file {run.path!r} of a Delta state was not written by it ({error!r})",
            "Somebody rewrote the table: restore an older version of it.",
        ) from error


@dataclass(frozen=True, slots=True)
class Runs:
    """How the rows of one state are kept and folded. Combiners add partial values; otherwise the last row wins, also a
    removal."""

    spec: StateSpec

    @property
    def adds(self) -> bool:
        return bool(self.spec.combiners)

    @property
    def rows(self) -> Schema:
        """The columns of a file."""
        return (*self.spec.keys, *self.spec.values, *(() if self.adds else (DELETED,)))

    @property
    def is_builtin(self) -> bool:
        """Do all combinations surely succeed, except for sums that overflow?"""
        return self.adds and all(combiner.merge_kind is not None for combiner in self.spec.combiners)

    # ---- writing -----------------------------------------------------------------------------------------------

    def write(self, files: pafs.FileSystem, table: pa.Table, footer: Footer, **place: Any) -> Run:
        """:param footer: without the new run."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        run = Run(path=f"{uuid.uuid4().hex}.parquet", rows=table.num_rows, bytes=0, **place)
        if self.spec.keys:
            table = taken(table, pc.sort_indices(table, sort_keys=[(self.spec.keys[0].name, "ascending")]))
        table = table.replace_schema_metadata({_FOOTER: footer.with_runs([run]).to_bytes()})
        with files.open_output_stream(run.path) as file:
            pq.write_table(table, file, row_group_size=_GROUP_ROWS)
            return replace(run, bytes=file.tell())

    def partials(self, batch: pa.Table, whose: OfAttempt) -> pa.Table:
        """A staged batch of partial values as rows, each key once."""
        table = batch.select(list(names_of(self.rows))).cast(arrow_schema(self.rows))
        return self.fold(self._canonical(table), whose)

    def of_several(self, batches: Sequence[tuple[OfAttempt, pa.Table]]) -> pa.Table:
        """Staged batches of partial values as one table. Each is first combined alone, as its own attempt.

        :raises UserCodeError: a sum of them does not fit its field; no file could hold it.
        """
        import pyarrow as pa

        if self.spec.merges_exactly and merged(self.spec, [batch for _, batch in batches]) is None:
            raise does_not_fit(self.spec, "a sum of several transactions, which it may be one by one")
        parts = [rows_to_table(self.rows, self._combined(batch, whose)) for whose, batch in batches]
        return pa.concat_tables(parts).select(list(names_of(self.spec.staged)))

    def changes(self, changes: dict[Key, Value | None]) -> pa.Table:
        """New values as rows."""
        nothing = (None,) * len(self.spec.values)
        return rows_to_table(
            self.rows, [(*key, *(nothing if value is None else value), value is None) for key, value in changes.items()]
        )

    def _canonical(self, table: pa.Table) -> pa.Table:
        """With equal bits for equal keys."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for place, each in enumerate(self.spec.keys):
            if each.type in REAL_TYPES:
                column = table.column(each.name)
                plain = pc.add(column, pa.scalar(0.0, column.type))
                column = pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), plain)
                table = table.set_column(place, each.name, column)
        return table

    def bounds(self, table: pa.Table) -> tuple[int, ...]:
        """Per value field, the largest absolute value of a sum, without its decimal point."""
        import pyarrow.compute as pc

        largest = []
        for combiner, each in zip(self.spec.combiners, self.spec.values, strict=True):
            bound = 0
            if combiner.merge_kind is MergeKind.ADD and _scale(each.type) is not None and table.num_rows:
                extremes = pc.min_max(table.column(each.name)).as_py().values()
                scale = _scale(each.type) or 0
                bound = max((abs(int(EXACT.scaleb(Decimal(value), scale))) for value in extremes if value), default=0)
            largest.append(bound)
        return tuple(largest)

    def may_overflow(self, bounds: Sequence[int]) -> bool:
        return any(bound > _largest(each.type) for bound, each in zip(bounds, self.spec.values, strict=True))

    # ---- reading -----------------------------------------------------------------------------------------------

    def read(self, files: pafs.FileSystem, runs: Sequence[Run]) -> pa.Table:
        """All rows in order, not folded."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = arrow_schema(self.rows)
        parts = [schema.empty_table()]
        for run in sorted(runs, key=lambda run: run.order):
            if run.rows:
                with opened(files, run) as file:
                    parts.append(pq.read_table(file).replace_schema_metadata(None).cast(schema))
        return pa.concat_tables(parts)

    def look_up(self, files: pafs.FileSystem, runs: Sequence[Run], keys: Sequence[Key]) -> dict[Key, Value]:
        """The values of the keys that have one."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if not keys:
            return {}
        if not self.spec.keys:
            return self.mapping(self.read(files, runs))
        first, schema = self.spec.keys[0], arrow_schema(self.rows)
        wanted = pa.array([key[0] for key in keys], type=schema.field(0).type).unique()
        parts = [schema.empty_table()]
        for run in sorted(runs, key=lambda run: run.order):
            if not run.rows:
                continue
            with opened(files, run) as file:
                parquet = pq.ParquetFile(file)
                groups = _groups(parquet.metadata, wanted.to_pylist())
                table = parquet.read_row_groups(groups).replace_schema_metadata(None).cast(schema)
            parts.append(table.filter(pc.is_in(table.column(first.name), value_set=wanted)))
        return self.mapping(pa.concat_tables(parts))

    def fold(self, table: pa.Table, whose: OfAttempt = NOBODY) -> pa.Table:
        """Each key once. Rows of removed keys stay: they hide rows of other runs."""
        if not table.num_rows:
            return table
        if not self.adds:
            return self._last_of_each(table)
        kinds = zip(self.spec.combiners, self.spec.values, strict=True)
        if self.spec.keys and all(each.type in _FAST.get(combiner.merge_kind, ()) for combiner, each in kinds):
            return self._fold_by_arrow(table)
        return rows_to_table(self.rows, self._combined(table, whose))

    def _combined(self, table: pa.Table, whose: OfAttempt) -> list[tuple[Any, ...]]:
        staged = table.select(list(names_of(self.spec.staged)))
        folded = merge(self.spec, staged, lambda keys: [None] * len(keys), whose)
        return [(*key, *value) for key, value in folded.items() if value is not None]

    def _last_of_each(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        numbered = table.append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
        (*_, last) = grouped(numbered, self.spec.key_names, [(_ROW, "max")])
        return taken(table, last)

    def _fold_by_arrow(self, table: pa.Table) -> pa.Table:
        verbs = [
            (each.name, _VERBS[combiner.merge_kind])
            for combiner, each in zip(self.spec.combiners, self.spec.values, strict=True)
            if combiner.merge_kind is not None
        ]
        columns = grouped(table, self.spec.key_names, verbs)
        return type(table).from_arrays(columns, names=list(names_of(self.rows))).cast(arrow_schema(self.rows))

    def mapping(self, table: pa.Table) -> dict[Key, Value]:
        """The folded rows without removed keys."""
        width, values = len(self.spec.keys), len(self.spec.values)
        rows = table_to_rows(self.fold(table))
        return {
            canonical_key(row[:width]): tuple(row[width : width + values]) for row in rows if self.adds or not row[-1]
        }


def runs_of(table: Any) -> list[Run]:
    """The runs of an open table, oldest commit first.

    :raises ConfigurationError: somebody deleted rows of a run, which would still count here.
    """
    import pyarrow as pa

    require_whole_files(table)
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    try:
        runs = [
            Run(
                path=file["path"],
                commit=int(file[f"partition.{COMMIT}"]),
                order=int(file[f"partition.{ORDER}"]),
                txid=file[f"partition.{TXID}"],
                rows=int(file["num_records"]),
                bytes=int(file["size_bytes"]),
            )
            for file in files
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecordError(
            f"the Delta table of a state has files that are not its own ({error!r})",
            "Somebody wrote into it: restore an older version of it.",
        ) from error
    return sorted(runs, key=lambda run: run.commit)


def now_ms() -> int:
    """For the log's own times; nothing depends on them."""
    return time.time_ns() // 1_000_000


def _scale(type_text: str) -> int | None:
    """Digits after the point, for a type whose sums may overflow; None for others."""
    if type_text in WHOLE_TYPES:
        return 0
    return int(type_text.rstrip(")").split(",")[1]) if type_text.startswith("decimal(") else None


def _largest(type_text: str) -> int:
    if type_text.startswith("decimal("):
        return int("9" * int(type_text.removeprefix("decimal(").split(",")[0]))
    return WHOLE_TYPES.get(type_text, 2**63) - 1


def _groups(metadata: Any, wanted: Sequence[Any]) -> list[int]:
    """The row groups that may have one of the values in their first column."""
    everything = list(range(metadata.num_row_groups))
    plain = [value for value in wanted if value is not None and value == value]
    if len(plain) < len(wanted):
        return everything  # nulls and NaN are not in the statistics
    try:
        plain.sort()
        return [number for number in everything if _may_have(metadata.row_group(number).column(0).statistics, plain)]
    except TypeError:  # statistics of a type that cannot be compared with its values
        return everything


def _may_have(stats: Any, wanted: Sequence[Any]) -> bool:
    if stats is None or not stats.has_min_max:
        return True
    place = bisect_left(wanted, stats.min)
    return place < len(wanted) and bool(wanted[place] <= stats.max)
