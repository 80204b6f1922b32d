"""Copy-on-write: a processing phase reads a committed version of a table and writes anew those of its files that have
rows of the batch's keys. The commit replaces these files only if no other writer has changed what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


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

    def may_have(self, place: int, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
        """May file number `place` have a row with values within these bounds, by its statistics?

        :param bounds: column -> its lowest and its highest value, as Arrow scalars.
        """
        return True

    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedFiles:
    """What a batch replaces in a version of a table.

    `version`: that was read (`CommittedTable.version`). `gone`: its files with rows of the batch's keys. `left`: files
    with their other rows, as absolute paths.
    """

    version: str
    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
