"""Upkeep of a table beside its transactions: compaction, and the query for its latest rows.

A compaction commits as a batch does: on top of the version that it was decided on, or not at all. It changes neither
the marker nor the rows that count.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from airflow_trident.contracts.staged_batch import StagedPart
from airflow_trident.contracts.upkeep import ViewDialect, named_table
from airflow_trident.errors import ConfigurationError, CorruptRecordError, TableChangedError
from airflow_trident.staging.table_compaction import Compact, CompactionWork
from airflow_trident.states.tables.appending import AppendingState, Known, Tried
from airflow_trident.states.tables.compaction import Compaction, partition_of
from airflow_trident.states.tables.latest_view import latest_query
from airflow_trident.states.tables.new_files import NewFile, OldFile, file_name, footer_of
from airflow_trident.states.tables.rewriting import file_there
from airflow_trident.states.tables.version_race import Overtaken

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class KeptUpState(AppendingState):
    """Not for several threads at the same time."""

    @abstractmethod
    def _relation(self, known: Known, dialect: ViewDialect) -> str:
        """The table of `known` as a query names it, by its place.

        :raises ConfigurationError: the engine cannot name it so.
        """

    def latest_query(self, dialect: ViewDialect, table: str | None = None) -> str:
        """The query for the rows of upserts that count, as :func:`latest_rows` defines them.

        :param table: how the engine's catalogue names the table; None: by its place.
        :raises ConfigurationError: it is no table of upserts, or the engine cannot name it by its place.
        """
        self._require_upserts()
        known = self._known()
        relation = self._relation(known, dialect) if table is None else named_table(table, dialect)
        columns = self._committed(known).schema().names
        return latest_query(relation, columns, self._spec.key_names, self._spec.deleted, dialect)

    def compact(self, *, progress: Callable[[str], object] = log.info, by: Compact | None = None) -> bool:
        """Rewrites rows in a commit of its own: of a table of upserts the latest row of each key without those it
        replaced, and small files as larger ones. Rows that others append meanwhile stay unchanged.

        A row that marks its key as deleted stays while a skipped transaction may still bring an older row.

        :param progress: gets lines for people.
        :param by: finds and writes the rows elsewhere; None: in this process, which needs memory for the keys of all
            rows.
        :return: was there anything to do?
        :raises ConfigurationError: it is a table of neither upserts nor rewritten rows.
        :raises CorruptRecordError: one of its files is gone.
        """
        if not self._spec.rewrites:
            self._require_upserts()
        new: list[NewFile] = []
        gone: list[OldFile] = []
        tried: Tried = {}
        columns: list[pa.Schema] = []

        def once() -> bool:
            known = self._known()
            if known.commit is not None and known.commit in tried:
                tried.pop(known.commit)
                new.clear()
                return True
            if known.marker is None:
                return False
            files = self._files_of(known)
            now = {one.path: one for one in files}
            schema = self._committed(known).schema()
            if gone and columns == [schema] and all(one.is_still(now.get(one.path)) for one in gone):
                gone[:] = [now[one.path] for one in gone]  # others have only appended
            elif tried and self._has_any(tried, new):  # our commit's outcome was unknown, and others built on it
                tried.clear()
                new.clear()
                return True
            else:
                self._discard(new)
                gone.clear()  # if these cannot be made now, nothing replaces those files
                columns[:] = [schema]
                make = self._made_here if by is None else partial(self._made_by, by)
                gone[:] = make(known, self._require_partitions(files), progress, new)
            if not gone:
                return False
            self._require_no_nulls(new)
            assert known.marker is not None
            self._commit(known, known.marker, new, gone, tried)
            new.clear()
            return True

        return self._decided(once, new, tried)

    def _made_here(
        self, known: Known, files: list[OldFile], progress: Callable[[str], object], new: list[NewFile]
    ) -> list[OldFile]:
        """The files to remove.

        :param new: receives the files that replace them.
        """
        assert known.marker is not None

        def read(file: OldFile, columns: Sequence[str] | None) -> pa.Table:
            with file_there(f"the file {file.path!r} of {self._what}"):
                return self._read(known, file, columns)

        made = Compaction(self._spec, files, read)
        if self._spec.upserts:
            progress(f"reading the keys of all files ({len(files):,})")
        with self._decided_on(self._version_of(known)):
            gone = made.chosen(known.marker)
            progress(made.counts)
            for values, table in made.tables(gone):
                new.append(self._write(file_name(None), table, values))
        return gone

    def _made_by(
        self, by: Compact, known: Known, files: list[OldFile], progress: Callable[[str], object], new: list[NewFile]
    ) -> list[OldFile]:
        """As :meth:`_made_here`. The files are taken as they are."""
        assert known.marker is not None
        spec, holes, table = self._spec, known.marker.holes, self._committed(known)
        named = {one.path: one for one in files}
        files = [named[path] for path in table.paths]  # a catalogue may give them in another order each time
        work = CompactionWork(
            topology=spec.topology,
            state=spec.name,
            table=table,
            keys=spec.keys if spec.upserts else (),
            deleted=spec.deleted if spec.upserts else None,
            below=holes[0][0] if holes else None,
            bytes=tuple(one.bytes for one in files),
            partitions=tuple(map(partition_of, files)),
        )
        with self._decided_on(work.table.version):
            done = by(work)
        for file in done.files:
            values = files[file.place].values
            assert values is not None
            part = StagedPart(path=file.path)
            new.append(self._bring(None, part, footer_of(part), values))
        return [files[place] for place in done.gone]

    @contextmanager
    def _decided_on(self, version: str) -> Iterator[None]:
        """A file of this version that is gone is damage, or others have replaced it, and removed it."""
        try:
            yield
        except TableChangedError as error:
            if self._version_of(self._known()) == version:
                raise CorruptRecordError(
                    f"{error.message}, and no other version followed",
                    f"Bring the file back, or restore {self._what} to a version whose files are all there.",
                ) from error
            raise Overtaken from error

    def _require_upserts(self) -> None:
        if not self._spec.upserts:
            raise ConfigurationError(
                f"{self._what} has no changes by key, so no row of it is replaced",
                'Leave it as it is; persist_table(..., mode="upsert", keys=...) writes changes.',
            )
