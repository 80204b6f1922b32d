"""Exactly-once rows: each transaction appends its tuples, with its txid, to a PostgreSQL table, together with the
marker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.contracts.state import Capabilities, StagedBatch, StateSpec, Verdict
from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.groups import Group
from airflow_trident.states.core.merge import Key, Value
from airflow_trident.states.sql.postgres import PostgresDialect, PostgresState, column_type, require_name
from airflow_trident.states.sql.store import SqlStore
from airflow_trident.states.sql.table_names import quote
from airflow_trident.types import Field, Schema, ddl, names_of


@dataclass(frozen=True)
class TableSink(PostgresState):
    """A table of appended rows in PostgreSQL; parameters as :class:`PostgresState`.

    :param txid_column: the column for the transaction of each row.
    """

    txid_column: str = field(default="txid", kw_only=True)

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, appends=True, groups=True, partitions=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("column", self.txid_column)

    def validate(self, spec: StateSpec) -> None:
        for column in spec.staged:
            require_name("column", column.name)
            if column.name == self.txid_column:
                raise ConfigurationError(
                    f"sink {spec.name!r} has the field {column.name!r}, which is its column of txids",
                    "Rename the field, or give another txid_column.",
                )

    def takes_pieces(self, spec: StateSpec) -> bool:
        """Rows are copied as they come."""
        return True

    def make_state(self, spec: StateSpec) -> OpenTableSink:
        """
        :raises DefinitionChangedError: the table was made with other fields.
        """
        self.validate(spec)
        return OpenTableSink(SinkDialect(self.txid_column, *self.opening(spec)))

    def describe(self) -> str:
        return super().describe().replace("PostgresState", "TableSink", 1)


class SinkDialect(PostgresDialect):
    """Rows instead of keys and values.

    :param txid_column: see :class:`TableSink`.
    """

    def __init__(self, txid_column: str, *opening: Any) -> None:
        self.txid_column = txid_column
        super().__init__(*opening)

    @property
    def fields(self) -> Schema:
        return (*self.spec.staged, Field(self.txid_column, "long"))

    @property
    def definition(self) -> str:
        return f"rows ({ddl(self.fields)})"

    def _tables(self) -> dict[str, list[str]]:
        columns = ", ".join(f"{quote(column.name)} {column_type(column.type)}" for column in self.fields)
        index = f"CREATE INDEX {quote(f'trident_txid_{self.table}')} ON {self.data} ({quote(self.txid_column)})"
        return {self.data: [f"CREATE TABLE {self.data} ({columns})", index, *self.partition_index()]}

    def _columns(self) -> Schema:
        return self.fields

    def stage(self, batch: StagedBatch) -> None:
        """Does nothing: rows are copied directly into the table."""

    def pairs(self) -> Iterator[tuple[Key, Value]]:
        """((), row) for each row, without its txid."""
        names = ", ".join(map(quote, names_of(self.spec.staged)))
        return (((), row) for row in self.stream(f"SELECT {names} FROM {self.data}", self.spec.staged))


class OpenTableSink(SqlStore):
    """See :class:`TableSink`."""

    dialect: SinkDialect

    def _write(self, ticket: CommitTicket, batch: StagedBatch, *, replaces: bool, late: bool) -> None:
        import pyarrow as pa

        db = self.dialect
        self._remove_replaced([ticket])
        if replaces:
            db.execute(f"DELETE FROM {db.data} WHERE {quote(db.txid_column)} = :txid", {"txid": ticket.txid})
        rows = (
            piece.append_column(db.txid_column, pa.repeat(pa.scalar(ticket.txid, pa.int64()), piece.num_rows))
            for piece in batch.pieces()
        )
        names = ", ".join(map(quote, names_of(db.fields)))
        db.copy(rows, db.fields, f"COPY {db.data} ({names}) FROM STDIN")

    def _write_group(self, group: Group, verdicts: Sequence[Verdict]) -> None:
        for ticket, batch in group.missing(verdicts):
            self._write(ticket, self._in_memory(batch), replaces=False, late=False)

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(f"sink {self._spec.name!r} cannot be queried by key", "Use a state with keys.")
