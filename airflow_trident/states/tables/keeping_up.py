"""Upkeep of a table beside its transactions: compaction, and the query for its latest rows.

A compaction commits as a batch does: on top of the version that it was decided on, or not at all. It changes neither
the marker nor the rows that count.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from airflow_trident.contracts.upkeep import Dialect, named_table
from airflow_trident.errors import ConfigurationError
from airflow_trident.states.tables.appending import AppendingState, Known, Tried
from airflow_trident.states.tables.compaction import Compaction
from airflow_trident.states.tables.latest_view import latest_query
from airflow_trident.states.tables.new_files import NewFile, OldFile, file_name

log = logging.getLogger(__name__)


class KeptUpState(AppendingState):
    """Not for several threads at the same time."""

    @abstractmethod
    def _relation(self, known: Known, dialect: Dialect) -> str:
        """The table of `known` as a query names it, by its place.

        :raises ConfigurationError: the engine cannot name it so.
        """

    def latest_query(self, dialect: Dialect, table: str | None = None) -> str:
        """The query for the rows of upserts that count, as :func:`latest_rows` defines them.

        :param table: how the engine's catalogue names the table; None: by its place.
        :raises ConfigurationError: it is no table of upserts, or the engine cannot name it by its place.
        """
        self._require_upserts()
        known = self._known()
        relation = self._relation(known, dialect) if table is None else named_table(table, dialect)
        columns = self._committed(known).schema().names
        return latest_query(relation, columns, self._spec.key_names, self._spec.deleted, dialect)

    def compact(self, *, progress: Callable[[str], object] = log.info) -> bool:
        """Rewrites the rows of an upsert table in a commit of its own: the latest row of each key without those it
        replaced, and small files as larger ones. Rows that others append meanwhile stay unchanged. Needs memory for the
        keys of all rows.

        A row that marks its key as deleted stays while a skipped transaction may still bring an older row.

        :param progress: gets lines for people.
        :return: was there anything to do?
        :raises ConfigurationError: it is no table of upserts.
        """
        self._require_upserts()
        new: list[NewFile] = []
        gone: list[OldFile] = []
        tried: Tried = {}

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
            if gone and all(one.path in now for one in gone):  # others have only appended
                gone[:] = [now[one.path] for one in gone]
            elif tried and self._has_any(tried, new):  # our commit's outcome was unknown, and others built on it
                tried.clear()
                new.clear()
                return True
            else:
                self._discard(new)
                made = Compaction(self._spec, self._require_partitions(files), partial(self._read, known))
                progress(f"reading the keys of all files ({len(files):,})")
                gone[:] = made.chosen(known.marker)
                progress(f"{made.counts} count; files that are written anew: {len(gone):,}")
                for values, table in made.tables(gone):
                    new.append(self._write(file_name(None), table, values))
            if not gone:
                return False
            self._require_no_nulls(new)
            self._commit(known, known.marker, new, gone, tried)
            new.clear()
            return True

        return self._decided(once, new, tried)

    def _require_upserts(self) -> None:
        if not self._spec.upserts:
            raise ConfigurationError(
                f"{self._what} has no changes by key, so no row of it is replaced",
                'Leave it as it is; persist_table(..., mode="upsert", keys=...) writes changes.',
            )
