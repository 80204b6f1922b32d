"""Exactly-once rows: every transaction's tuples are appended to a PostgreSQL table, with their txid, in one transaction
of the server's together with the marker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Capabilities, StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.sql.postgres import PostgresState
from airflow_trident.states.sql.postgres_connect import run
from airflow_trident.states.sql.postgres_copy import column_type, copy_text, decoder
from airflow_trident.states.sql.postgres_store import PostgresStore
from airflow_trident.states.sql.postgres_table import Place, quote, require_name
from airflow_trident.types import Field, Schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableSink(PostgresState):
    """A table of appended rows in PostgreSQL; parameters as :class:`PostgresState`.

    :param txid_column: the column that says which transaction a row came in.
    """

    txid_column: str = field(default="txid", kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, appends=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("column", self.txid_column)

    def validate(self, spec: StateSpec) -> None:
        for one in spec.staged:
            require_name("column", one.name)
            if one.name == self.txid_column:
                raise ConfigurationError(
                    f"sink {spec.name!r} has the field {one.name!r}, which is its column of txids",
                    "Rename the field, or give another txid_column.",
                )

    def make_state(self, spec: StateSpec) -> OpenTableSink:  # type: ignore[override]
        """
        :raises DefinitionChangedError: the table was made with other fields.
        """
        self.validate(spec)
        return OpenTableSink(self.txid_column, *self.opening(spec))

    def describe(self) -> str:
        return super().describe().replace("PostgresState", "TableSink", 1)


class OpenTableSink(PostgresStore):
    """See :class:`TableSink`."""

    def __init__(self, txid_column: str, *opening: Any) -> None:
        self._txid_column = txid_column
        super().__init__(*opening)

    @property
    def _fields(self) -> Schema:
        return (*self._spec.staged, Field(self._txid_column, "long"))

    @property
    def definition(self) -> str:
        return f"rows ({ddl(self._fields)})"

    def _tables(self) -> dict[Place, list[str]]:
        columns = ", ".join(f"{quote(one.name)} {column_type(one.type)}" for one in self._fields)
        txid = quote(self._txid_column)
        index = f"CREATE INDEX {quote(f'{self.place.table}_txid')} ON {self.place} ({txid})"
        return {self.place: [f"CREATE TABLE {self.place} ({columns})", index]}

    def _stage(self, batch: pa.Table) -> None:
        """Nothing: rows are copied to where they stay."""

    def _write(self, ticket: CommitTicket, batch: pa.Table, *, replaces: bool, late: bool) -> None:
        import pyarrow as pa

        if replaces:
            run(self._connection, f"DELETE FROM {self.place} WHERE {quote(self._txid_column)} = %s", (ticket.txid,))
        rows = batch.append_column(self._txid_column, pa.array([ticket.txid] * batch.num_rows, pa.int64()))
        names = ", ".join(quote(one.name) for one in self._fields)
        with self._connection.cursor().copy(f"COPY {self.place} ({names}) FROM STDIN".encode()) as copy:
            for piece in copy_text(rows, self._fields, 0):
                copy.write(piece)

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row, without its txid."""
        decoders = [decoder(one.type) for one in self._spec.staged]
        names = ", ".join(quote(one.name) for one in self._spec.staged)
        with (
            self._errors(),
            closing(self._connect()) as connection,
            connection.transaction(),
            connection.cursor(name="trident_rows") as rows,
        ):
            self._prepare_reading(connection)
            for row in rows.execute(f"SELECT {names} FROM {self.place}".encode()):
                yield (), tuple(code(part) for code, part in zip(decoders, row, strict=True))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(f"sink {self._spec.name!r} cannot be queried by key", "Use a state with keys.")
