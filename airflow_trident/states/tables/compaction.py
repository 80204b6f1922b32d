"""Compaction in this process: finds the rows that still count, and rewrites files without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import TXID, Marker, StateSpec
from airflow_trident.io.arrow import taken
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.staging.table_compaction import small_files
from airflow_trident.states.tables.new_files import OldFile
from airflow_trident.states.tables.upserts import latest_places

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 128 << 20
"""Rows of this size in memory, in bytes, become a file."""


class Compaction:
    """Compaction of one version of a table.

    :param read: a file's rows, in the named columns or, with None, in all columns of the table.
    """

    def __init__(
        self, spec: StateSpec, files: Sequence[OldFile], read: Callable[[OldFile, Sequence[str] | None], pa.Table]
    ) -> None:
        self._spec = spec
        self._files = files
        self._read = read
        self._kept: dict[str, pa.Array] = {}
        self.counts = ""
        """What is written anew and why, once the files are chosen, for people."""

    def chosen(self, marker: Marker) -> list[OldFile]:
        """The files to rewrite: those with rows that no longer count, and small ones.

        :param marker: what is applied.
        """
        if not self._spec.upserts:
            small = self._small()
            self.counts = f"small files that are merged: {len(small):,} of {len(self._files):,}"
            return [one for one in self._files if one.path in small]
        found = self._with_old_rows(marker)
        self.counts += f" count; files that are written anew: {len(found):,}"
        return found

    def _with_old_rows(self, marker: Marker) -> list[OldFile]:
        import pyarrow as pa
        import pyarrow.compute as pc

        spec, rows = self._spec, list[int]()
        names = [*spec.key_names, TXID, *([spec.deleted] if spec.deleted else [])]
        parts = []
        for one in self._files:
            parts.append(self._read(one, names).select(names))
            rows.append(parts[-1].num_rows)
        if not parts:
            return []
        whole = pa.concat_tables(parts, promote_options="permissive")
        places = latest_places(whole, spec.key_names)
        if spec.deleted:
            latest = taken(whole, places)
            gone = latest.column(spec.deleted).fill_null(False)
            if marker.holes:  # a late row is older than the deletion of its key
                gone = pc.and_(gone, pc.less(latest.column(TXID).fill_null(0), marker.holes[0][0]))
            places = places.filter(pc.invert(gone))
        self.counts = f"{len(places):,} of {sum(rows):,} rows"
        first = 0
        for one, count in zip(self._files, rows, strict=True):
            within = pc.and_(pc.greater_equal(places, first), pc.less(places, first + count))
            self._kept[one.path] = pc.subtract(places.filter(within), first)
            first += count
        touched = {one.path for one, count in zip(self._files, rows, strict=True) if len(self._kept[one.path]) < count}
        return [one for one in self._files if one.path in touched | self._small()]

    def _small(self) -> set[str]:
        places = small_files([one.bytes for one in self._files], [partition_of(one) for one in self._files])
        return {self._files[place].path for place in places}

    def tables(self, chosen: Sequence[OldFile]) -> Iterator[tuple[PartitionValues, pa.Table]]:
        """The remaining rows of the files, in pieces of the size of a file."""
        import pyarrow as pa

        for _, files in groupby(sorted(chosen, key=partition_of), partition_of):
            held = list[pa.Table]()
            values: PartitionValues = ()
            for one in files:
                values = one.values or ()
                if one.path not in self._kept:
                    held.append(self._read(one, None))
                elif len(self._kept[one.path]):
                    held.append(taken(self._read(one, None), self._kept[one.path]))
                if sum(table.nbytes for table in held) >= _PIECE_BYTES:
                    yield values, pa.concat_tables(held)
                    held = []
            if held:
                yield values, pa.concat_tables(held)


def partition_of(file: OldFile) -> str:
    """The same text for files of the same partition."""
    return repr(file.values)
