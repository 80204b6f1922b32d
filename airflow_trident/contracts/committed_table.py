"""Copy-on-write: a processing phase reads a committed version of a table and writes anew those of its files that have
rows of the batch's keys. The commit replaces these files only if no other writer has changed what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.io.arrow import comparable, taken

if TYPE_CHECKING:
    import pyarrow as pa

KeyBounds: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Key column -> the lowest and the highest value that a file has by the table's log, as Python values. A column is left
out if the log does not say it, or not exactly."""


class CommittedTable(ABC):
    """A committed version of a table, as an open state gives it (`State.committed`). Pickled for Spark's workers, so it
    needs no connection of the process that made it."""

    keys: tuple[str, ...]
    """The key columns."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Identifies the table and the version."""

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """The files of the version, as the table names them."""

    @abstractmethod
    def pieces(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of file number `place`, in their order.

        :param columns: None: all columns of the table.
        :raises StagingError: the file is gone; a newer version of the table no longer has it.
        """

    @abstractmethod
    def may_have(self, place: int, keys: BatchKeys) -> bool:
        """May file number `place` have a row with one of the keys? The table's log decides, and the file is opened only
        if the log has no bounds of its keys."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns of the table."""


@dataclass(frozen=True)
class BatchKeys:
    """The key columns of a batch. `bounds`: of each column; of none with NaN, which statistics of files ignore."""

    rows: pa.Table
    bounds: Mapping[str, tuple[Any, Any]]

    @classmethod
    def of(cls, rows: pa.Table) -> BatchKeys:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = comparable(rows)
        real = {field.name for field in rows.schema if pa.types.is_floating(field.type)}
        has_nan = {name for name in real if pc.any(pc.is_nan(rows.column(name))).as_py()}
        found = {name: pc.min_max(rows.column(name)) for name in rows.column_names if name not in has_nan}
        return cls(rows, {name: (one["min"], one["max"]) for name, one in found.items()})

    def any_within(self, bounds: KeyBounds) -> bool:
        """Is there, for each column, a key between the lowest and the highest value of a file?"""
        return all(self._has_between(name, low, high) for name, (low, high) in bounds.items())

    def _has_between(self, name: str, low: Any, high: Any) -> bool:
        values = self._ordered[name]
        try:
            place = bisect_left(values, low, key=lambda value: value.as_py())
            return place < len(values) and bool(values[place].as_py() <= high)
        except (OverflowError, ValueError, TypeError):  # a moment that Python does not have, or of another kind
            return True

    @cached_property
    def _ordered(self) -> dict[str, pa.ChunkedArray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = {name: self.rows.column(name).drop_null().unique() for name in self.bounds}
        return {name: taken(pa.table({name: one}), pc.sort_indices(one)).column(0) for name, one in keys.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedFiles:
    """What a batch replaces in a version of a table.

    `version`: that was read (`CommittedTable.version`). `gone`: its files with rows of the batch's keys. `left`: files
    with their other rows, as absolute paths.
    """

    version: str
    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
