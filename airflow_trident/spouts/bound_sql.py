"""SqlSpout in a topology that is bound to partitions: the rows whose time is in the partition.

Rows may change, come and go: a look counts them and takes a digest of all of them, which a read must have, too. So what
changes between the two is noticed. With `changed_by` the look is ``count`` and ``max`` of a column instead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from zoneinfo import ZoneInfo

from airflow_trident.contracts.bound_spout import KeyedCoordinator
from airflow_trident.contracts.spout import Emitter, PartitionChange, Split, Spout, not_metadata_of
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError
from airflow_trident.io.datasets import Dataset
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy

_ROWS_AT_ONCE = 10_000
_BITS = 128
_UTC_ENDINGS = ("", "Z", "+00:00", "+00", "+0000")


class RowSource(Protocol):
    """A table or query with a key column, as SqlSpout reads it."""

    @property
    def key(self) -> str: ...
    def opened(self, **options: Any) -> AbstractContextManager[sqlalchemy.Connection]: ...
    def table_and_key(self, *more: str) -> tuple[Any, Any]: ...
    def shown_columns(self, connection: sqlalchemy.Connection, source: Any) -> list[Any]: ...
    def pieces(self, rows: sqlalchemy.CursorResult[Any], at_once: int) -> Iterator[list[tuple[Any, ...]]]: ...
    def as_table(self, rows: list[tuple[Any, ...]]) -> pa.Table: ...


class _Database(Protocol):
    """The spout, which looks its connection up when it is asked for a source."""

    def source(self, key: str) -> RowSource: ...
    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]: ...


@dataclass(frozen=True)
class BoundSql(Spout):
    """`time`: the column that says in which partition a row is. `time_zone`: of values without a zone. `changed_by`: a
    column that rises when a row changes, or "".
    """

    database: _Database
    shown: str
    fields: Schema
    partitions: Partitions
    time: str
    time_zone: str
    changed_by: str

    @property
    def schema(self) -> Schema:
        return self.fields

    def coordinator(self) -> BoundSqlCoordinator:
        return BoundSqlCoordinator(self._rows())

    def emitter(self) -> BoundSqlEmitter:
        return BoundSqlEmitter(self._rows(), self.partitions)

    def _rows(self) -> RowsByTime:
        source = self.database.source(self.time)
        return RowsByTime(source, self.partitions.timezone, self.time_zone, self.changed_by, self.describe())

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return self.database.lineage_datasets(metadata)

    @property
    def adapts(self) -> str:
        return "SqlSpout"

    def describe(self) -> str:
        return f"SqlSpout({self.shown}, time {self.time})"


@dataclass(frozen=True)
class RowsByTime:
    """The rows of a partition. `source`: its key is the column of times. `timezone`: of the partitions."""

    source: RowSource
    timezone: str
    time_zone: str
    changed_by: str
    shown: str

    def look(self, partition: Partition) -> tuple[int, str]:
        """The number of rows, and a text that is another one if they are others."""
        import sqlalchemy as sa

        if not self.changed_by:
            digest = _Digest()
            for piece in self.rows(partition):
                digest.take(piece)
            return digest.count, digest.text
        with self.source.opened() as connection:
            table, _ = self.source.table_and_key(self.changed_by)
            within = self._within(connection, partition, table)
            if within is None:
                return 0, ""
            condition, _ = within
            newest = sa.func.max(table.c[self.changed_by])
            count, changed = connection.execute(sa.select(sa.func.count(), newest).where(*condition)).one()
            return int(count), str(changed)

    def rows(self, partition: Partition) -> Iterator[list[tuple[Any, ...]]]:
        """Each with its time in front, from one statement."""
        import sqlalchemy as sa

        table, time = self.source.table_and_key()
        with self.source.opened() as connection:
            within = self._within(connection, partition, table)
        if within is None:
            return
        condition, sample = within
        with self.source.opened(stream_results=True, max_row_buffer=_ROWS_AT_ONCE) as connection:
            columns = self.source.shown_columns(connection, table)
            with connection.execute(sa.select(time.label("trident_key"), *columns).where(*condition)) as rows:
                for piece in self.source.pieces(rows, _ROWS_AT_ONCE):
                    if isinstance(sample, str):
                        self._require_alike((row[0] for row in piece), sample)
                    yield piece

    def _within(self, connection: sqlalchemy.Connection, partition: Partition, table: Any) -> tuple[Any, Any] | None:
        """The condition of a partition, and the greatest time in the table; None: it has no row.

        A value of the column shows how its times are written: with a zone, without one, as days or as texts.

        :raises DamagedInputError: a row has no time, or texts are written in several ways. It would be in no partition.
        """
        import sqlalchemy as sa

        time = table.c[self.source.key]
        without = sa.select(sa.literal(1)).select_from(table).where(time.is_(None)).limit(1)
        if connection.execute(without).scalar() is not None:
            raise DamagedInputError(
                f"{self.shown}: a row has no {self.source.key!r}, so it is in no partition",
                f'Give it a time; or leave such rows out: SqlSpout(query="... WHERE {self.source.key} IS NOT NULL").',
            )
        least, sample = connection.execute(sa.select(sa.func.min(time), sa.func.max(time))).one()
        if sample is None:
            return None
        begin, end = (self._written(moment, sample) for moment in (partition.start, partition.end))
        if isinstance(sample, str):
            self._require_alike([least], sample)
        return (time >= begin, time < end), sample

    def _require_alike(self, texts: Iterable[Any], sample: str) -> None:
        """Texts have the order of their times only if all are written in the same way.

        :raises DamagedInputError: one is not.
        """
        is_alike = _form_of(sample).fullmatch
        for text in texts:
            if not is_alike(str(text)):
                raise DamagedInputError(
                    f"{self.shown}: the column {self.source.key!r} holds {sample!r:.60} and {text!r:.60}",
                    "Write all its times in the same way, or convert them in a query: SqlSpout(query=...).",
                )

    def _written(self, moment: datetime, sample: Any) -> Any:
        local = moment.astimezone(ZoneInfo(self.time_zone)).replace(tzinfo=None)
        if isinstance(sample, datetime):
            return moment if sample.tzinfo is not None else local
        if isinstance(sample, date):
            return self._day(moment)
        if isinstance(sample, str):
            return self._text(moment, local, sample)
        raise self._no_time(sample)

    def _day(self, moment: datetime) -> date:
        of_day = moment.astimezone(ZoneInfo(self.timezone))
        if (of_day.hour, of_day.minute) != (0, 0):
            raise ConfigurationError(
                f"{self.shown}: the column {self.source.key!r} has days, and no times within them",
                "Bind the topology to days, weeks or months; or name a column of times.",
            )
        return of_day.date()

    def _text(self, moment: datetime, local: datetime, sample: str) -> str:
        """Without what follows the seconds: a text that goes on is greater."""
        try:
            datetime.fromisoformat(sample)
        except ValueError:
            raise self._no_time(sample) from None
        if len(sample) == len("2026-01-31"):
            return self._day(moment).isoformat()
        ending = sample[19:].lstrip(".0123456789")
        if ending not in _UTC_ENDINGS or len(sample) < len("2026-01-31T00:00:00"):
            raise self._no_time(sample)
        return (moment.astimezone(UTC).replace(tzinfo=None) if ending else local).isoformat(sample[10], "seconds")

    def _no_time(self, sample: Any) -> ConfigurationError:
        return ConfigurationError(
            f"{self.shown}: the column {self.source.key!r} holds {sample!r:.60}",
            "Name a column of timestamps or dates, or of texts such as 2026-01-31 23:59:59 or 2026-01-31T23:59:59Z.",
        )


def _form_of(sample: str) -> re.Pattern[str]:
    """Of all texts that are written like one."""
    day = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    if len(sample) == len("2026-01-31"):
        return re.compile(day)
    ending = r"(Z|\+00(:?00)?)" if sample[19:].lstrip(".0123456789") else ""
    return re.compile(rf"{day}{re.escape(sample[10])}[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?{ending}")


class _Digest:
    """Of rows in any order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def take(self, rows: list[tuple[Any, ...]]) -> None:
        self.count += len(rows)
        for row in rows:
            self._sum += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=_BITS // 8).digest())

    @property
    def text(self) -> str:
        return f"{self._sum % 2**_BITS:032x}"


@dataclass(frozen=True)
class BoundSqlCoordinator(KeyedCoordinator):
    """Metadata: ``{"partition": key, "rows": n, "state": text}``; see :meth:`RowsByTime.look`."""

    rows: RowsByTime

    def partition(self, partition: Partition, before: Json = None) -> Json:
        count, state = self.rows.look(partition)
        return {"partition": partition.key, "rows": count, "state": state} if count else None

    def compared(self, before: Json, now: Json) -> PartitionChange:
        (_, *former), (_, *present) = _recorded(before), _recorded(now)
        if former == present:
            return PartitionChange()
        return PartitionChange(other=(f"{former[0]} rows then, {present[0]} now",))


@dataclass(frozen=True)
class BoundSqlEmitter(Emitter):
    """One split: the rows are of one statement."""

    is_fitted: ClassVar[bool] = True
    rows: RowsByTime
    partitions: Partitions

    def splits(self, metadata: Json) -> list[Split]:
        _recorded(metadata)
        return [Split(0, metadata)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """
        :raises SourceChangedError: the rows are others than those that were recorded.
        """
        key, count, state = _recorded(split.body)
        partition, digest = self.partitions.parse(key), _Digest()
        for piece in self.rows.rows(partition):
            digest.take(piece)
            yield from self.rows.source.as_table(piece).to_batches()
        now = self.rows.look(partition)[1] if self.rows.changed_by else digest.text
        if (digest.count, now) != (count, state):
            raise SourceChangedError(
                f"{self.rows.shown}: the rows of the partition {key} have changed since they were looked at: {count} "
                f"rows then, {digest.count} now",
                "Ask for the partition again.",
            )


def _recorded(metadata: Json) -> tuple[str, int, str]:
    if isinstance(metadata, dict) and metadata.keys() == {"partition", "rows", "state"}:
        key, count, state = metadata["partition"], metadata["rows"], metadata["state"]
        if isinstance(key, str) and isinstance(count, int) and isinstance(state, str):
            return key, count, state
    raise not_metadata_of("a SqlSpout of a partition", metadata)
