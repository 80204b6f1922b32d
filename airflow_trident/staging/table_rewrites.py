"""Copy-on-write in the processing phase: files of a table are written anew, in the staging folder, without the rows
whose keys are in the batch. Of files without such rows only the key columns are read, or, where their statistics show
that there are none, nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import BatchKeys, CommittedTable
from airflow_trident.io.arrow import comparable
from airflow_trident.io.place import Place
from airflow_trident.staging.area import write_pieces
from airflow_trident.staging.manifest import Slot, StagedFile, TableRewrite

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = "place of the row"
"""No name of a field: those are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """File number `place` of the table has rows of the batch's keys. `file`: its other rows; None: it has no others."""

    place: int
    file: StagedFile | None


@dataclass(frozen=True, kw_only=True)
class RewriteFiles:
    """Writes files of `table` anew. Picklable, for workers. `batch`: the staged files of the batch."""

    staging: Place
    slot: Slot
    state: str
    table: CommittedTable
    batch: tuple[str, ...]

    def __call__(self, places: Iterable[int]) -> Iterator[Rewritten]:
        """:param places: numbers of files. The keys of the whole batch are in memory meanwhile."""
        keys = None
        for place in places:
            keys = self._keys() if keys is None else keys
            rest = rest_of(self.table, place, keys)
            if rest is None:
                continue
            file = None
            if rest.num_rows:
                file = write_pieces(self.staging, self.slot, self.state, self.table.schema(), rest.pieces())
            yield Rewritten(place=place, file=file)

    def _keys(self) -> BatchKeys:
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = []
        for path in self.batch:
            with self.staging.open(path) as source:
                parts.append(pq.read_table(source, columns=list(self.table.keys)))
        return BatchKeys.of(pa.concat_tables(parts))


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The rows of a file that stay. `stays`: for each of its rows."""

    table: CommittedTable
    place: int
    stays: pa.BooleanArray

    @property
    def num_rows(self) -> int:
        return int(self.stays.true_count)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        first = 0
        for piece in self.table.pieces(self.place):
            yield piece.filter(self.stays.slice(first, piece.num_rows))
            first += piece.num_rows


def rest_of(table: CommittedTable, place: int, keys: BatchKeys) -> Rest | None:
    """The rows of file number `place` that have none of the keys; None: that are all. A null is no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.may_have(place, keys):
        return None
    names = list(table.keys)
    schema = pa.schema([table.schema().field(name) for name in names])
    rows = pa.Table.from_batches(table.pieces(place, names), schema)
    places = pc.indices_nonzero(pa.repeat(True, rows.num_rows))
    numbered = comparable(rows).append_column(_PLACE, places)
    same = numbered.join(keys.rows.cast(schema), names, join_type="left semi", use_threads=False).column(_PLACE)
    if not len(same):
        return None
    return Rest(table=table, place=place, stays=pc.invert(pc.is_in(places, value_set=same)))


def rewrites_of(
    slot: Slot,
    staging: Place,
    tables: Mapping[str, CommittedTable],
    files: Sequence[StagedFile],
    run: Callable[[RewriteFiles], Iterable[Rewritten]],
) -> tuple[TableRewrite, ...]:
    """What the staged batches replace in these tables. A batch without rows replaces nothing.

    :param tables: state -> the version that its batch is to change.
    :param files: of all staged batches.
    :param run: does the work for all files of a table.
    """
    rewrites = []
    for state, table in tables.items():
        batch = tuple(file.path for file in files if file.state == state and file.rows)
        if not batch:
            continue
        work = RewriteFiles(staging=staging.resolved(), slot=slot, state=state, table=table, batch=batch)
        done = sorted(run(work), key=lambda rewritten: rewritten.place) if table.paths else []
        replaced = tuple(table.paths[rewritten.place] for rewritten in done)
        remainders = tuple(rewritten.file for rewritten in done if rewritten.file is not None)
        rewrites.append(TableRewrite(state=state, version=table.version, gone=replaced, files=remainders))
    return tuple(rewrites)
