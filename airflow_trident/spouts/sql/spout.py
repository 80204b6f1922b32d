"""A spout of the new rows of a database table, by ranges of a key that rises.

Transactional: the metadata of a batch is a range of keys and its number of rows. A replay reads the same rows, or
raises if they are gone. Rows must be added with rising keys, and must not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.io.connections import Connection, resolve
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.datasets import Dataset, table_dataset
from airflow_trident.spouts.checks import one_of, require_at_least
from airflow_trident.spouts.data_loss import TAKE_AS_IT_IS, OnDataLoss
from airflow_trident.spouts.metadata import read_back
from airflow_trident.spouts.sql.driver_values import table_of
from airflow_trident.spouts.sql.source import NextKeys, SqlSource
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_ROWS = 100
_ROWS_AT_ONCE = 10_000
log = logging.getLogger(__name__)


class SqlSpout(Spout):
    """Reads the rows that are added to a table, each in exactly one transaction. It uses SQLAlchemy and a Python
    driver, no JVM.

    :param conn_id: an Airflow connection: postgres, mysql, sqlite, ...
    :param table: its name, or ``schema.table``. Instead of it `query`: a SELECT without ORDER BY.
    :param key: a column of whole numbers; new rows get higher ones (identity, serial, AUTO_INCREMENT).
    :param fields: the columns with their types.
    :param max_rows: of one batch, about.
    :param max_bytes: of one batch, about; estimated from a sample of its rows.
    :param splits: into how many splits a batch is cut, at most.
    :param settle_s: how long to wait for transactions that may still commit keys lower than the visible ones.
    :param on_data_loss: ``error`` or ``continue``, for rows that came among keys that were read.
    :param connection: explicit settings instead of `conn_id`.
    :param connect_timeout_s: time limit for a connection.
    :param lock_timeout_s: how long to wait for a lock of somebody else, such as of an ALTER TABLE.
    :param statement_timeout_s: time limit for one statement. Which database knows which limit: see the reference.
    :raises ConfigurationError: arguments are wrong, or contradict each other.
    """

    schema: Schema = ()
    _on_data_loss = OnDataLoss.ERROR

    def __init__(
        self,
        conn_id: str,
        *,
        fields: FieldSpec,
        table: str = "",
        query: str = "",
        key: str = "id",
        max_rows: int = 1_000_000,
        max_bytes: int | None = None,
        splits: int = 4,
        settle_s: float = 5.0,
        on_data_loss: OnDataLoss | str = OnDataLoss.ERROR,
        connection: Connection | None = None,
        connect_timeout_s: float = 10.0,
        lock_timeout_s: float = 30.0,
        statement_timeout_s: float = 600.0,
    ) -> None:
        if bool(table) == bool(query):
            raise ConfigurationError("SqlSpout with both or none of table and query", "Give one of them.")
        require_at_least(1, "SqlSpout", max_rows=max_rows, max_bytes=max_bytes, splits=splits)
        require_at_least(0, "SqlSpout", settle_s=settle_s)
        self._limits = Limits(connect_s=connect_timeout_s, lock_s=lock_timeout_s, statement_s=statement_timeout_s)
        self._limits.require_positive("SqlSpout")
        self._conn_id = conn_id
        self._connection = connection
        self.schema = parse_declared(fields)
        self._what = (table, query, key)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._splits = splits
        self._settle_s = settle_s
        self._on_data_loss = OnDataLoss(one_of("SqlSpout", "on_data_loss", on_data_loss, tuple(OnDataLoss)))

    def coordinator(self) -> SqlCoordinator:
        return SqlCoordinator(self._source(), self._max_rows, self._settle_s, self._max_bytes, self._on_data_loss)

    def emitter(self) -> SqlEmitter:
        return SqlEmitter(self._source(), self._splits)

    def _source(self) -> SqlSource:
        """The source with its connection: executors cannot ask Airflow for one."""
        table, query, key = self._what
        where = self._connection or resolve(self._conn_id)
        return SqlSource(where=where, table=table, query=query, key=key, fields=self.schema, limits=self._limits)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        """Empty for a query: only the database knows which tables it reads."""
        table = self._what[0]
        return (table_dataset(self._connection or resolve(self._conn_id), table),) if table else ()

    def describe(self) -> str:
        table, query, key = self._what
        return f"SqlSpout({self._conn_id}, {table or query}, key {key})"


@dataclass(frozen=True)
class SqlCoordinator(Coordinator):
    """Metadata: ``{"from": f, "to": t, "rows": n}``: the n rows whose key is above f and at most t; f is null in the
    first batch, before which no key was read. ``"lost"``: how many rows came into the range before that one after it
    was recorded, and are in no transaction."""

    source: SqlSource
    max_rows: int
    settle_s: float
    max_bytes: int | None = None
    on_data_loss: OnDataLoss = OnDataLoss.ERROR

    def is_ready(self, previous: Json) -> bool:
        before = _range(previous) if previous is not None else None
        more, lower = self.source.peek(None if before is None else before[1])
        if before is not None:
            self._lost(before, NextKeys(lower=lower))  # a sensor would wait until the keys that were read have passed
        return more

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceUnavailableError: the database does not answer.
        :raises SourceChangedError: its keys went back, or rows came among those that were read last, and
            `on_data_loss` is "error".
        """
        before = _range(previous) if previous is not None else None
        after = None if before is None else before[1]
        max_rows = self.max_rows
        if self.max_bytes is not None and (sample := self.source.sample(after, _SAMPLE_ROWS)):
            bytes_each = _table(self.source, sample).nbytes / len(sample)
            max_rows = min(max_rows, max(1, int(self.max_bytes / max(1.0, bytes_each))))
        look = self.source.look(None if before is None else before[:2], max_rows, self.settle_s)
        lost = 0 if before is None else self._lost(before, look)
        if look.found is None:
            return None
        begin, end, rows = look.found
        known: dict[str, Json] = {"from": begin, "to": end, "rows": rows}
        return {**known, "lost": lost} if lost else known

    def _lost(self, before: tuple[int | None, int, int], look: NextKeys) -> int:
        """How many rows came into the range `before` after it was recorded."""
        begin, end, rows = before
        lost = 0 if look.rows_before is None else max(0, look.rows_before - rows)
        if look.lower is not None:
            error = _went_back(self.source, end, look.lower)
        elif lost:
            error = _came_late(self.source, begin, end, rows, lost)
        else:
            return 0
        if self.on_data_loss is OnDataLoss.ERROR:
            raise error
        log.warning("The stream goes on: %s", error.message)
        return lost

    def accept_source(self, metadata: Json) -> Json:
        begin, end, recorded = _range(metadata)
        (rows,) = self.source.counts([(begin, end)])
        if recorded and not rows:
            raise _changed(self.source, begin, end, recorded, rows)
        assert isinstance(metadata, dict)
        return {**metadata, "rows": rows}


@dataclass(frozen=True)
class SqlEmitter(Emitter):
    """Cuts a batch into ranges with about the same number of rows. `splits` counts the rows and `read` counts them
    again: a missing row is an error."""

    is_fitted: ClassVar[bool] = True
    source: SqlSource
    most_splits: int

    def splits(self, metadata: Json) -> list[Split]:
        """
        :raises SourceChangedError: the range has not as many rows as were recorded.
        """
        begin, end, rows = _range(metadata)
        ranges = self.source.cut(begin, end, self.most_splits)
        counts = self.source.counts(ranges)
        if sum(counts) != rows:
            raise _changed(self.source, begin, end, rows, sum(counts))
        bodies: list[Json] = [
            {"from": at, "to": to, "rows": n} for (at, to), n in zip(ranges, counts, strict=True) if n
        ]
        return [Split(index, body) for index, body in enumerate(bodies)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        begin, end, rows = _range(split.body)
        found = 0
        for piece in self.source.rows(begin, end, _ROWS_AT_ONCE):
            found += len(piece)
            yield from _table(self.source, piece).to_batches()
        if found != rows:
            raise _changed(self.source, begin, end, rows, found)


def _table(source: SqlSource, rows: list[tuple[object, ...]]) -> pa.Table:
    return table_of(source.describe(), source.fields, source.database, rows)


def _changed(source: SqlSource, begin: int | None, end: int, recorded: int, found: int) -> SourceChangedError:
    return SourceChangedError(
        f"{source.describe()} has {found} rows with {_keys(begin, end)}, and the transaction recorded {recorded}",
        f"Put them back as they were and replay; or have the transaction take those that are there: {TAKE_AS_IT_IS}. "
        "Rows must not be deleted, and no row may come with a lower key than others that are older than settle_s.",
    )


def _went_back(source: SqlSource, end: int, highest: int) -> SourceChangedError:
    return SourceChangedError(
        f"the highest key of {source.describe()} is {highest}, and the keys up to {end} were read: the database lost "
        "writes (a failover, a restore, TRUNCATE), or rows were removed from the end",
        f"Let its keys go on above {end}, and give such keys to rows that came since with lower ones; if the rows are "
        'others now, give this stream of the topology another name. on_data_loss="continue" goes on without rows of '
        f"keys up to {end}.",
    )


def _came_late(source: SqlSource, begin: int | None, end: int, recorded: int, late: int) -> SourceChangedError:
    return SourceChangedError(
        f"{late} rows of {source.describe()} came with {_keys(begin, end)} after the transaction that "
        f"recorded {recorded} there: committed late, or under keys that were given out again",
        f"Nothing was begun. Give them keys above {end}; or, if that transaction is not committed, have it take them, "
        f'and replay it: {TAKE_AS_IT_IS}. on_data_loss="continue" records how many are left out and goes on.',
    )


def _keys(begin: int | None, end: int) -> str:
    return f"keys up to {end}" if begin is None else f"keys above {begin} and up to {end}"


class _Rows(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """`begin`: None in the first batch; versions before recorded the number below its least key."""

    begin: int | None
    end: int
    rows: int

    def __post_init__(self) -> None:
        if self.begin is not None and self.begin > self.end:
            raise ValueError(f"{self.begin} to {self.end} is no range")


def _range(metadata: Json) -> tuple[int | None, int, int]:
    found = read_back(_Rows, metadata, "a SqlSpout")
    return found.begin, found.end, found.rows
