"""What a kind of database must implement to keep a state. `states.sql.store.SqlStore` does the rest."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.state import StagedBatch, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    CorruptRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_drivers import DatabaseFault, Fault
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.states.sql.alterations import Alteration
from airflow_trident.states.sql.table_names import quote
from airflow_trident.types import INTERVAL, REAL_TYPES, WHOLE_TYPES, Field, ddl

if TYPE_CHECKING:
    from airflow_trident.states.core.merge import Changes, Key, Value


class Dialect(ABC):
    """One kind of database, connected, with the tables of one state; not for several threads at the same time.

    There are three tables. `markers`, shared by all states of a database (or schema), has one row per state. `data` is
    the state. `before`, for an opaque state, holds the values before its highest txid, for that batch's keys only.
    Names of tables are quoted as in statements. Unless said otherwise, methods are called inside :meth:`transaction`.
    """

    container: ClassVar[str] = "database"
    """What holds the tables, for people."""
    where_else: ClassVar[str] = "schema"
    """Where a state with other fields could be kept instead."""
    restore: ClassVar[str] = "Restore the database from a backup."
    factory: ClassVar[str] = ""
    """How a user gives the state another table."""
    mine: ClassVar[str] = "topology = :topology AND state = :state"
    """Condition for the state's row of `markers`."""
    of_table: ClassVar[str] = "table_name = :table_name"
    """Condition for the row of `markers` that owns the state's table."""
    for_update: ClassVar[str] = ""
    """Locks the marker's row, appended to the statement that reads it."""

    spec: StateSpec
    place: str
    """The database, for people."""
    table: str
    """Its plain name."""
    shown: str
    """The table, for people."""
    markers: str
    data: str
    before: str = ""
    """What :meth:`lacking` calls that table; empty if the state is not opaque."""
    allow_triggers: Sequence[str] = ()
    """Names of triggers and rules of these tables that a person allows."""

    @property
    def definition(self) -> str:
        """What the table was made for."""
        return f"({ddl(self.spec.keys)}) -> ({ddl(self.spec.values)})"

    def fold(self, name: str) -> str:
        """Two table names mean the same table if their results are equal."""
        return name

    @cached_property
    def row(self) -> dict[str, Any]:
        """The row of `markers` for a state that nothing was applied to."""
        return {
            "topology": self.spec.topology,
            "state": self.spec.name,
            "table_name": self.table,
            "definition": self.definition,
        }

    # ---- talking to the database -------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """The rows of one statement with parameters ``:name``. Also called outside of a transaction."""

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Translates the driver's errors."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing.

        :raises OutcomeUnknownError: it is unknown whether it was committed.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """A transaction without writes. All its statements see the same committed transactions, if the database can."""

    def lock(self) -> None:
        """Block other committers of this state until the commit, if `for_update` is not enough (T7), and everybody who
        would alter its tables."""

    def alterations(self) -> Sequence[Alteration]:
        """What somebody did to the state's tables, those that are there. Also called outside of a transaction."""
        return ()

    @abstractmethod
    def close(self) -> None: ...

    def outcome_unknown(self, message: object) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the commit of state {self.spec.name!r} in {self.place} ended without an answer ({message})",
            f"Run the task again: the {self.container} knows what is applied.",
        )

    # ---- making tables -----------------------------------------------------------------------------------------

    def making(self) -> AbstractContextManager[None]:
        """A transaction that makes tables, for one process at a time if the database supports that."""
        return self.transaction()

    @abstractmethod
    def lacking(self) -> Sequence[str]:
        """What is missing of `markers`, `data` and the dialect's other needs. Also called outside of a transaction."""

    @abstractmethod
    def make(self, table: str) -> None:
        """:param table: a missing one."""

    def enter(self) -> bool:
        """Insert the state's row into `markers`; False: another process was first."""
        row = self.row
        values = ", ".join(f":{name}" for name in row)
        self.execute(f"INSERT INTO {self.markers} ({', '.join(row)}) VALUES ({values})", row)
        return True

    # ---- the state's table -------------------------------------------------------------------------------------

    def stage(self, batch: StagedBatch) -> None:
        """Send the batch to the server, before the marker is locked."""

    @abstractmethod
    def merge_natively(self, batch: StagedBatch) -> bool:
        """Let the database merge the batch; opaque states keep the values before. False: it cannot do so exactly, and
        nothing changed."""

    @abstractmethod
    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        """The stored value of each key. Also called inside of :meth:`reading`."""

    @abstractmethod
    def put(self, changes: Changes, *, keeps: bool) -> None:
        """Write merged values.

        :param keeps: replace the kept values by those that these keys have now (T9).
        """

    def remove_partitions(self, values: Sequence[datetime.date | str]) -> None:
        """Remove all rows with these values in the partition column (T13)."""
        for value in values:
            self.execute(f"DELETE FROM {self.data} WHERE {self.partition_column} = :value", {"value": value})

    @property
    def partition_column(self) -> str:
        """The partition column, as in statements, if the topology is bound to partitions; else empty."""
        return quote(self.spec.partition.column) if self.spec.partition is not None else ""

    @abstractmethod
    def restore_before(self) -> None:
        """Take back the batch of the highest txid (T9)."""

    @abstractmethod
    def kept(self, keys: Sequence[Key]) -> Changes:
        """Those of `keys` that the highest txid changed, with their values before it."""

    @abstractmethod
    def put_before(self, changes: Changes) -> None:
        """Write into the kept values."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[Key, Value]]:
        """All keys and values, in pieces: the state may be larger than memory. Outside of a transaction."""


_RESTORE = "Somebody changed the tables of the state, or they cannot hold its fields: restore them, or name another."
_CURES = {
    Fault.RIGHTS: "Let the user of the connection create tables in the schema, and read and write its own.",
    Fault.ABSENT: _RESTORE,
    Fault.VALUE: _RESTORE,
    Fault.UNREADABLE: "Correct the value that it names, or keep the state in another table, or with other fields.",
}


def store_error(fault: DatabaseFault, connection: Connection) -> TridentError:
    """One clear error for a database's error; nothing was applied."""
    text, cure = f"{connection.describe()} {fault.kind} ({fault.text})", fault.cure or _CURES.get(fault.kind, "")
    if fault.passes:
        return StoreUnavailableError(text, f"{cure} Nothing was applied.")
    if fault.kind is Fault.DAMAGED:
        return CorruptError(text, cure)
    return ConfigurationError(text, f"{cure} Nothing was applied.")


def changed_otherwise(spec: StateSpec, table: str, sent: object, changed: object) -> ConfigurationError:
    """The database did something else than it was told; the transaction is rolled back."""
    return ConfigurationError(
        f"state {spec.name!r} sent {sent} to the table {table}, and the database has {changed}",
        "A trigger, a rule, a changed column or another kind of table does that: make the table as it was. "
        "Nothing was applied.",
    )


_STORED: dict[str, type] = {
    **dict.fromkeys(WHOLE_TYPES, int),
    **dict.fromkeys(REAL_TYPES, float),
    "string": str,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
    "time": datetime.time,
    "timestamp": datetime.datetime,
    INTERVAL: datetime.timedelta,
}


def own_values(
    fields: Sequence[Field], decoders: Sequence[Callable[[Any], Any]], parts: Sequence[Any], table: str
) -> Value:
    """The values of columns, which other programs may have written, or made columns of other types.

    :raises CorruptRecordError: a value is none of its field's type.
    """
    values = []
    for field, decode, part in zip(fields, decoders, parts, strict=True):
        try:
            value = None if part is None else decode(part)
            kind = _STORED.get(field.type)
            if value is not None and kind is not None and type(value) is not kind:
                raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
        except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError) as error:
            raise CorruptRecordError(
                f"the table {table} has {part!r:.100} in column {field.name!r}, which is {field.type} ({error})",
                "Another program wrote it, or the column has another type now: correct it, or restore the table from "
                "a copy.",
            ) from error
        values.append(value)
    return tuple(values)


def fields_of(spec: StateSpec) -> tuple[Field, ...]:
    """Key fields, then value fields."""
    return (*spec.keys, *spec.values)


def merges_natively(spec: StateSpec, is_exact: Callable[[MergeKind, str], bool]) -> bool:
    """Can the database do the arithmetic of all combiners?

    :param is_exact: is the arithmetic exact for values of the type?
    """
    kinds = [combiner.merge_kind for combiner in spec.combiners]
    pairs = zip(kinds, spec.values, strict=bool(kinds))
    return bool(kinds) and all(kind is not None and is_exact(kind, field.type) for kind, field in pairs)
