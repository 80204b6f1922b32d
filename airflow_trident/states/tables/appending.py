"""Appends rows to a table that everybody may read and write: staged files become files of the table.

One commit of the table adds the batch's files and the marker. Each decision about a batch is read from one version of
the table; the commit is the next version, or none, and then everything is decided anew.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_trident.contracts.committed_table import BatchKeys, CommittedTable, ReplacedFiles
from airflow_trident.contracts.staged_batch import StagedFiles, StagedPart
from airflow_trident.contracts.state import Applied, Marker, StateSpec, Verdict
from airflow_trident.errors import ConfigurationError, OutcomeUnknownError, StoreUnavailableError, TridentError
from airflow_trident.io.arrow import arrow_schema, table_to_rows
from airflow_trident.io.partitioned import PartitionValues, split_by, values_in
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.table_rewrites import rest_of
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.states.tables.new_files import NewFile, OldFile, file_name, footer_of, missing
from airflow_trident.states.tables.rewriting import require_as_read
from airflow_trident.states.tables.version_race import decided_anew

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Tried: TypeAlias = dict[int, Callable[[], object]]
"""Commits by their id. The value removes everything written for the commit besides the batch's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`commit`: the id of the marker's commit."""

    marker: Marker | None = None
    commit: int | None = None


class AppendingState(AdmittingState):
    """Not for several threads at the same time."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec

    # ---- of one format -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _what(self) -> str:
        """The table, as an error names it: ``the Delta table '/lake/sales'``."""

    @abstractmethod
    def _known(self) -> Known:
        """From one version of the table; all later questions use the same version.

        :raises ConfigurationError: rows cannot be added to it by reference.
        :raises CorruptRecordError: the marker is damaged, or the table was restored to a time before it.
        """

    @abstractmethod
    def _bring(self, ticket: CommitTicket, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        """:param footer: its `pyarrow.parquet.FileMetaData`.
        :param values: of all of its rows, in the partition columns.
        :raises StagingError: the staged file is gone.
        """

    @abstractmethod
    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile: ...

    @abstractmethod
    def _files_of(self, known: Known) -> list[OldFile]:
        """The files of the version of `known`."""

    @abstractmethod
    def _read(self, known: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        """:param columns: None: all columns of the table."""

    @abstractmethod
    def _required(self) -> set[str]:
        """Columns that do not accept nulls."""

    @abstractmethod
    def _commit(
        self, known: Known, marker: Marker, new: Sequence[NewFile], gone: Sequence[OldFile], tried: Tried
    ) -> None:
        """One commit of these files and the marker, on top of the version that `_known` read.

        :param gone: files to remove from the table.
        :param tried: holds the commit from before the table can have it until the table surely has it.
        :raises Overtaken: it is not the next version of the table.
        :raises OutcomeUnknownError: it is unknown whether it is.
        """

    @abstractmethod
    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        """Does the table have one of these commits, or did it before another writer's commit? Their outcome was
        unknown."""

    def _committed(self, known: Known) -> CommittedTable:
        """The version of `known`, with its files in the order of `_files_of`, if `Capabilities.rewrites`."""
        raise ConfigurationError(f"{self._what} cannot be rewritten", 'Use another mode than mode="rewrite".')

    def _version_of(self, known: Known) -> str:
        """`CommittedTable.version` of the version of `known`."""
        return self._committed(known).version

    def _paths_at(self, known: Known, version: str) -> AbstractSet[str] | None:
        """The files of an older version of the table, see `CommittedTable.version`; None: they are not known."""
        return None

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file of `_bring` or `_write`, if possible."""

    # ---- of all --------------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        return self._known().marker

    def committed(self) -> CommittedTable:
        return self._committed(self._known())

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        if self._spec.rewrites and batch.num_rows:
            return self._again(ticket, lambda known, gone: self._rewritten(ticket, batch, known, gone), anew=True)
        return self._again(ticket, lambda _known, _gone: self._written(ticket, batch))

    def apply_files(self, ticket: CommitTicket, files: StagedFiles) -> Applied:
        import pyarrow as pa

        if self._spec.rewrites and files.paths and files.replaces is None:
            return self.apply(ticket, pa.concat_tables(map(_content, files.parts())))
        return self._again(ticket, lambda _known, _gone: self._brought(ticket, files), files.replaces)

    def _written(self, ticket: CommitTicket, rows: pa.Table) -> Iterator[NewFile]:
        import pyarrow.compute as pc

        table = rows.select([one.name for one in self._spec.staged]).cast(arrow_schema(self._spec.staged))
        if self._spec.rewrites and self._spec.deleted is not None:
            table = table.filter(pc.invert(table.column(self._spec.deleted).fill_null(False)))
        yield from self._parts(ticket, table)

    def _parts(self, ticket: CommitTicket, table: pa.Table) -> Iterator[NewFile]:
        for values, part in split_by(table, self._spec.partition_by):
            yield self._write(file_name(ticket), part, values)

    def _brought(self, ticket: CommitTicket, files: StagedFiles) -> Iterator[NewFile]:
        """A staged file with rows of several partitions is rewritten: a script staged it."""
        deleted = self._spec.deleted if self._spec.rewrites else None
        for part in files.parts():
            footer = footer_of(part)
            values = values_in(footer, self._spec.partition_by)
            gone = (False,) if deleted is None else values_in(footer, (deleted,))
            if values is None or gone is None:
                yield from self._written(ticket, _content(part))
            elif gone != (True,):
                yield self._bring(ticket, part, footer, values)
        for part in files.left():
            footer = footer_of(part)
            values = values_in(footer, self._spec.partition_by)
            if values is None:
                yield from self._parts(ticket, _content(part))
            else:
                yield self._bring(ticket, part, footer, values)

    def _rewritten(self, ticket: CommitTicket, batch: pa.Table, known: Known, gone: list[OldFile]) -> Iterator[NewFile]:
        """Copy-on-write by this process, for a batch whose processing phase did not look into the table: a state is
        rebuilt.

        :param gone: receives the files to remove.
        """
        import pyarrow as pa

        table, keys = self._committed(known), BatchKeys.of(batch.select(self._spec.key_names))
        files = {one.path: one for one in self._require_partitions(self._files_of(known))}
        for place, path in enumerate(table.paths):
            rest, file = rest_of(table, place, keys), files[path]
            if rest is None:
                continue
            gone.append(file)
            if rest.num_rows and file.values is not None:
                rows = pa.Table.from_batches(rest.pieces(), table.schema())
                yield self._write(file_name(ticket), rows, file.values)
        yield from self._written(ticket, batch)

    def _again(
        self,
        ticket: CommitTicket,
        make: Callable[[Known, list[OldFile]], Iterator[NewFile]],
        read: ReplacedFiles | None = None,
        *,
        anew: bool = False,
    ) -> Applied:
        """Repeats until no other writer is faster. Each try decides anew; the files are made once.

        :param make: makes the batch's files in the table's place; may name more files to remove.
        :param read: what the processing phase found in the table.
        :param anew: make the files again for each try, as they depend on the version of the table.
        :raises TableChangedError: that is not so any more; nothing was applied.
        """
        new: list[NewFile] = []
        tried: Tried = {}
        is_made = False

        def once() -> Applied:
            nonlocal is_made
            known = self._known()
            # A storage that repeats requests took our own commit for another one.
            if known.commit is not None and known.commit in tried:
                tried.pop(known.commit)
                new.clear()
                return Applied.APPLIED
            spec = self._spec
            marker, verdict = admit(known.marker, ticket, state=spec.name, commutes=spec.commutes, opaque=False)
            if verdict is Verdict.SKIP:
                if marker != known.marker:
                    self._commit(known, marker, [], [], tried)
                return Applied.ALREADY
            gone = [] if read is None else self._as_read(known, read)
            if anew:
                self._discard(new)
            if not is_made or anew:
                new.extend(make(known, gone))  # keeps the files made before an error
                is_made = True
            self._require_no_nulls(new)
            self._commit(known, marker, new, gone or self._replaced(known, new), tried)
            new.clear()  # they belong to the table now
            return Applied.APPLIED

        return self._decided(once, new, tried)

    def _discard(self, new: list[NewFile]) -> None:
        for one in new:
            self._delete(one.path)
        new.clear()

    def _as_read(self, known: Known, read: ReplacedFiles) -> list[OldFile]:
        version = self._version_of(known)
        if version == read.version and not read.gone:
            return []
        return require_as_read(
            self._what, self._files_of(known), version, read, lambda then: self._paths_at(known, then)
        )

    def _replaced(self, known: Known, new: Sequence[NewFile]) -> list[OldFile]:
        """The files that a batch replaces if it overwrites its partitions: all of them, whoever wrote them."""
        if not self._spec.overwrites or not new:
            return []
        values = {one.values for one in new}
        return [one for one in self._require_partitions(self._files_of(known)) if one.values in values]

    def _require_partitions(self, files: list[OldFile]) -> list[OldFile]:
        """
        :raises ConfigurationError: a file has rows of several partitions, because the table was partitioned otherwise.
        """
        for one in files:
            if one.values is None:
                raise ConfigurationError(
                    f"{self._what} has files of another partitioning ({one.path})",
                    "Rewrite its files, as by rewrite_data_files of Spark.",
                )
        return files

    def _decided(self, once: Callable[[], T], new: list[NewFile], tried: Tried) -> T:
        """Repeats until no other writer is faster; removes files that were made in vain."""
        cure = "See who else writes, and run the task again. Nothing was applied."
        try:
            return decided_anew(self._what, once, cure)
        except BaseException as error:
            # Only our own errors say that nothing was committed. The time-out of a task, or Ctrl-C, comes at any step,
            # also when the table has the files already.
            if isinstance(error, OutcomeUnknownError) or not isinstance(error, TridentError):
                new.clear()
                tried.clear()
            raise
        finally:
            self._remove(new, tried)

    def _remove(self, new: Sequence[NewFile], tried: Tried) -> None:
        with contextlib.suppress(StoreUnavailableError, ConfigurationError):  # the first error is raised
            if tried and self._has_any(tried, new):
                return
            for undo in tried.values():
                undo()
            for one in new:
                self._delete(one.path)

    def _require_no_nulls(self, new: Sequence[NewFile]) -> None:
        """Nobody else checks files that are added by reference."""
        for name in sorted(self._required()):
            if any(one.nulls.get(name, 1) for one in new):
                raise ConfigurationError(
                    f"column {name!r} of {self._what} takes no nulls, and the batch has some, or nobody counted them",
                    f'Leave them out, as in filter(col("{name}").is_not_null()), or let the column take them.',
                )

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(
            f"rows of sink {self._spec.name!r} are not looked up by key", "Ask the table itself, or use a DeltaState."
        )

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row of the table, also of other writers; with keys (key, value)."""
        known, target = self._known(), arrow_schema(self._spec.staged)
        parts = (
            self._read(known, one, target.names).select(target.names).cast(target) for one in self._files_of(known)
        )
        keys = self._spec.key_names
        if not keys:
            yield from (((), row) for part in parts for row in table_to_rows(part))
            return
        for part in parts:
            for row in table_to_rows(part.select([*keys, *self._spec.value_names])):
                yield row[: len(keys)], row[len(keys) :]


def _content(part: StagedPart) -> pa.Table:
    """:raises StagingError: the staged file is gone."""
    import pyarrow.parquet as pq

    try:
        with part.open() as source:
            return pq.read_table(source)
    except FileNotFoundError as error:
        raise missing(part) from error
