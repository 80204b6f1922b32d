"""What a database must give to keep a state in it. `states.sql.store.SqlStore` does the rest."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.staged_batch import StagedBatch
from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.operations.api import MergeKind
from airflow_trident.states.core.merge import Changes, Key, Value
from airflow_trident.types import Field, ddl

if TYPE_CHECKING:
    pass


KEY_COLUMN = "_key"
"""The primary key where the key fields cannot be it: databases differ in what they index and what they call equal."""


class Dialect(ABC):
    """One kind of database, connected, with the tables of one state; not for several threads at the same time.

    Three tables: `markers`, which the states of a database (or of its schema) share, has a row for each of them;
    `data` is the state; an opaque state has one of what was there `before` its highest txid, of that batch's keys only.
    Names of tables are as statements have them. Unless said otherwise, methods are called inside :meth:`transaction`.
    """

    container: ClassVar[str] = "database"
    """What holds the tables, for people."""
    where_else: ClassVar[str] = "schema"
    """What a state with other fields could be kept in instead."""
    restore: ClassVar[str] = "Restore the database from a backup."
    factory: ClassVar[str] = ""
    """How a person gives the state another table."""
    mine: ClassVar[str] = "topology = :topology AND state = :state"
    """Which row of `markers` is the state's."""
    of_table: ClassVar[str] = "table_name = :table_name"
    """Which row of `markers` is of the state's table, whoever's it is."""
    for_update: ClassVar[str] = ""
    """Put to the statement that reads the marker's row, it locks the row."""

    spec: StateSpec
    place: str
    """The database, for people."""
    table: str
    """Its plain name."""
    shown: str
    """The table, for people."""
    markers: str
    data: str

    @property
    def definition(self) -> str:
        """What the table was made for."""
        return f"({ddl(self.spec.keys)}) -> ({ddl(self.spec.values)})"

    def fold(self, name: str) -> str:
        """Two names of tables are one table if this is equal."""
        return name

    @cached_property
    def row(self) -> dict[str, Any]:
        """What `markers` keeps of a state that was never applied to."""
        return {
            "topology": self.spec.topology,
            "state": self.spec.name,
            "table_name": self.table,
            "definition": self.definition,
        }

    # ---- talking to the database -------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """The rows of one statement, whose parameters are written ``:name``. Outside of a transaction, too."""

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Translates the driver's errors."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing.

        :raises OutcomeUnknownError: nobody knows whether it was committed.
        """

    def reading(self) -> AbstractContextManager[None]:
        """A transaction that writes nothing."""
        return nullcontext()

    def lock(self) -> None:
        """Let no other committer of this state do anything until the commit, where `for_update` is not enough (T7)."""

    @abstractmethod
    def close(self) -> None: ...

    def outcome_unknown(self, said: object) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the commit of state {self.spec.name!r} in {self.place} ended without an answer ({said})",
            f"Run the task again: the {self.container} knows what is applied.",
        )

    # ---- making tables -----------------------------------------------------------------------------------------

    def making(self) -> AbstractContextManager[None]:
        """A transaction in which tables are made, by one process at a time where the database can do that."""
        return self.transaction()

    @abstractmethod
    def lacking(self) -> Sequence[str]:
        """What is not there of `markers`, `data` and what the dialect needs besides. Outside of a transaction, too."""

    @abstractmethod
    def make(self, table: str) -> None:
        """
        :param table: one that is lacking.
        """

    def enter(self) -> bool:
        """Put the state's row into `markers`; False: somebody else was first."""
        row = self.row
        values = ", ".join(f":{name}" for name in row)
        self.execute(f"INSERT INTO {self.markers} ({', '.join(row)}) VALUES ({values})", row)
        return True

    # ---- the state's table -------------------------------------------------------------------------------------

    def stage(self, batch: StagedBatch) -> None:
        """Bring the batch to the server, before the marker is locked."""

    @abstractmethod
    def merge_natively(self, batch: StagedBatch) -> bool:
        """Have the database merge the batch; opaque states keep the values before. False: not exactly, nothing
        changed."""

    @abstractmethod
    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        """What is stored under each key. Inside of :meth:`reading`, too."""

    @abstractmethod
    def put(self, changes: Changes, *, keeps: bool) -> None:
        """Write merged values.

        :param keeps: forget what was kept, and keep what is stored under these keys before they are written (T9).
        """

    @abstractmethod
    def restore_before(self) -> None:
        """Take the batch of the highest txid back (T9)."""

    @abstractmethod
    def kept(self, keys: Sequence[Key]) -> Changes:
        """Of `keys` those that the highest txid has, with their values before it."""

    @abstractmethod
    def put_before(self, changes: Changes) -> None:
        """Write into what is kept."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[Key, Value]]:
        """All of the state, in pieces: it may be larger than the memory. Outside of a transaction."""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def safe_name(text: str) -> str:
    """A table name without need of quotes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def fields_of(spec: StateSpec) -> tuple[Field, ...]:
    """Key fields, then value fields."""
    return (*spec.keys, *spec.values)


def merges_natively(spec: StateSpec, is_exact: Callable[[MergeKind, str], bool]) -> bool:
    """Can the database do the arithmetic of all combiners?

    :param is_exact: can it do this on values of the type?
    """
    kinds = [combiner.merge_kind for combiner in spec.combiners]
    pairs = zip(kinds, spec.values, strict=bool(kinds))
    return bool(kinds) and all(kind is not None and is_exact(kind, field.type) for kind, field in pairs)
