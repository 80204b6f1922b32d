"""Records under numbered keys of Redis or Valkey, and a counter: the layout of the book's tweets example.

A writer does ``n = INCR counter``, then ``SET <key of n> record``. A batch is a range of numbers. It ends before the
first number without a key: the writer of that number is between the two commands, or died there.

Redis Streams: ranges of entry ids. A stream may be trimmed while it is read; no loss stays unnoticed.

The metadata of a part has the range of ids, the number of its entries, and the number of entries that were ever added
to the stream up to its end. With the last number a later part finds out whether unread entries were removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from airflow_trident.contracts.partitioned_spout import PartitionedEmitter, PartitionedSpout
from airflow_trident.contracts.spout import require_simple_types
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema, rows_to_table
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.redis import RedisServer, RedisSettings, redis_errors
from airflow_trident.names import require_counts, require_flags, without_none
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.spouts.files.columns import from_text
from airflow_trident.spouts.metadata import NumberRange, as_json, read_back
from airflow_trident.types import Field, FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_AT_ONCE = 1000
_ONLY = "0"


@dataclass(frozen=True, kw_only=True)
class RedisSpout(RedisSettings, PartitionedSpout):
    """A transactional spout over numbered keys; :class:`RedisSettings` says how to reach the server.

    :param counter: the key of the counter, whose value is the last number; ``{partition}`` stands for the partition.
    :param keys: the names of the records' keys: ``{n}`` stands for the number, ``{partition}`` for the partition.
    :param num_partitions: the source has partitions 0, 1, ...; None: it has no partitions.
    :param fields: two: the number (long or string) and the record (string or binary). With partitions a field for the
        partition comes before them.
    :param first: the lowest number.
    :param max_rows: of one batch.
    :param max_bytes: of the records of one batch; a single larger record is a batch by itself.
    :param opaque: each attempt decides the batch again. If a key of a batch is gone, the next attempt ends before it.
    """

    counter: str = "NEXT_WRITE"
    keys: str = "{n}"
    num_partitions: int | None = None
    fields: FieldSpec = ""
    first: int = 1
    max_rows: int | None = 10_000
    max_bytes: int | None = None
    max_partitions: int | None = None
    max_splits: int = 32
    opaque: bool = False
    resolved: RedisServer | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags(type(self).__name__, opaque=self.opaque)
        require_counts("RedisSpout", first=self.first, max_splits=self.max_splits)
        require_counts("RedisSpout", **without_none(num_partitions=self.num_partitions))
        patterns = ("{n}", "{partition}") if self.num_partitions is not None else ("{n}",)
        lacking = [part for part in patterns if part not in self.keys]
        if self.num_partitions is not None and "{partition}" not in self.counter:
            lacking.append("{partition}")
        if lacking:
            raise ConfigurationError(
                f"RedisSpout with keys={self.keys!r}, counter={self.counter!r}, num_partitions={self.num_partitions}",
                'Write, as in keys="tweet:{n}", or keys="{partition}:{n}", counter="{partition}:last" for partitions.',
            )
        kinds = [{"long", "string"}, {"string", "binary"}]
        if self.num_partitions is not None:
            kinds.insert(0, {"int", "long", "string"})
        types = [type_text.type for type_text in self.schema]
        if len(types) != len(kinds) or not all(type_text in kind for type_text, kind in zip(types, kinds, strict=True)):
            raise ConfigurationError(
                f"RedisSpout cannot give the fields {self.fields!r}",
                'As in "id long, value string", or "partition int, id long, value string" with partitions.',
            )
        self.require_limits("max_bytes")

    @property
    def schema(self) -> Schema:
        usual = "id long, value string" if self.num_partitions is None else "partition int, id long, value string"
        return parse_declared(self.fields or usual)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (self._server.dataset(self.keys),)

    def describe(self) -> str:
        parts = "" if self.num_partitions is None else f", {self.num_partitions} partitions"
        return f"RedisSpout({self.place}, {self.keys}{parts}{', opaque' if self.opaque else ''})"

    def emitter(self) -> PartitionedEmitter:
        return PartitionedEmitter(replace(self, resolved=self._server))

    @property
    def _server(self) -> RedisServer:
        return self.resolved or self.resolve()

    # ---- what there is -----------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        return [_ONLY] if self.num_partitions is None else [str(number) for number in range(self.num_partitions)]

    def next_part(self, partition: str, last: Json) -> Json:
        return dict(self.next_parts([partition], {partition: last})).get(partition)

    def next_parts(self, partitions: Sequence[str], last: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
        """
        :raises SourceChangedError: a counter is below a number that was read.
        """
        server, remaining, remaining_bytes, begun = self._server, self.max_rows, self.max_bytes, False
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for partition in partitions:
                begin, end = self._unread(client, partition, last.get(partition))
                if remaining is not None:
                    end = min(end, begin + remaining)
                end = begin + self._there(client, partition, begin, end)
                if remaining_bytes is not None:
                    rows, size = self._within(
                        client, partition, (begin, end), remaining_bytes, at_least=0 if begun else 1
                    )
                    end, remaining_bytes = begin + rows, remaining_bytes - size
                if end > begin:
                    begun = True
                    remaining = None if remaining is None else remaining - (end - begin)
                    yield partition, {"from": begin, "to": end}
                if remaining == 0:
                    return

    def lag(self, last: Mapping[str, Json]) -> Lag:
        server, records = self._server, 0
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for partition in self.partitions():
                begin, end = self._unread(client, partition, last.get(partition))
                records += max(0, end - begin)
        return {"records": records}

    def _unread(self, client: Any, partition: str, last: Json) -> tuple[int, int]:
        """The numbers that were given out and are in no batch yet: from, and to below."""
        counted = self._counted(client, partition)
        if last is None:
            return self.first, counted + 1
        begin = self._range(last)[1]
        if counted + 1 < begin:
            # A server that lost its last writes gives these numbers out again, and nobody would read them.
            raise SourceChangedError(
                f"the counter {self._counter(partition)!r} of {self.describe()} is {counted}, and the numbers up to "
                f"{begin - 1} were read: the server lost writes, or the counter was set back",
                f"SET it to {begin - 1}, and write under new numbers what came under numbers above {counted} since; if "
                "the records are others now, give this stream of the topology another name.",
            )
        return begin, counted + 1

    def _counted(self, client: Any, partition: str) -> int:
        text = client.get(self._counter(partition))
        try:
            return 0 if text is None else int(text)
        except ValueError as error:
            raise ConfigurationError(
                f"{self.counter!r} of {self.describe()} is no number", "Name the key that the writers INCR."
            ) from error

    def _there(self, client: Any, partition: str, begin: int, end: int) -> int:
        """How many keys from `begin` on exist without a gap."""
        for at in range(begin, end, KEYS_AT_ONCE):
            exists = self._ask(client, "EXISTS", partition, at, min(at + KEYS_AT_ONCE, end))
            if not all(exists):
                return at - begin + exists.index(0)
        return max(0, end - begin)

    def _within(
        self, client: Any, partition: str, numbers: tuple[int, int], left_bytes: int, *, at_least: int
    ) -> tuple[int, int]:
        """How many of the records fit into the limit, and their bytes."""
        begin, end = numbers
        size = 0
        for at in range(begin, end, KEYS_AT_ONCE):
            lengths = self._ask(client, "STRLEN", partition, at, min(at + KEYS_AT_ONCE, end))
            for number, length in enumerate(lengths, at):
                if size + length > left_bytes and number - begin >= at_least:
                    return number - begin, size
                size += length
        return max(0, end - begin), size

    def _ask(self, client: Any, command: str, partition: str, begin: int, end: int) -> list[Any]:
        # Not MGET: in a cluster the keys are on many nodes.
        pipe = client.pipeline(transaction=False)
        for number in range(begin, end):
            pipe.execute_command(command, self._key(partition, number))
        replies: list[Any] = pipe.execute()
        return replies

    def _counter(self, partition: str) -> str:
        return self.counter.replace("{partition}", partition)

    def _key(self, partition: str, number: int) -> str:
        return self.keys.replace("{partition}", partition).replace("{n}", str(number))

    def rows_of(self, part: Json) -> int:
        begin, end = self._range(part)
        return end - begin

    # ---- reading -----------------------------------------------------------------------------------------------

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        begin, end = self._range(part)
        server = self._server
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for at in range(begin, end, KEYS_AT_ONCE):
                records = self._ask(client, "GET", partition, at, min(at + KEYS_AT_ONCE, end))
                rows = [self._row(partition, number, record) for number, record in enumerate(records, at)]
                yield from rows_to_table(self.schema, rows).to_batches()

    def _row(self, partition: str, number: int, record: bytes | None) -> tuple[Any, ...]:
        key = self._key(partition, number)
        if record is None:
            raise SourceChangedError(
                f"the key {key!r} of {self.describe()} is gone, and a transaction recorded it",
                "Write it again and replay, or skip the transaction.",
            )
        *place, numbered, content = (column.type for column in self.schema)
        try:
            value = record if content == "binary" else record.decode()
        except UnicodeDecodeError as error:
            raise DamagedInputError(
                f"the key {key!r} of {self.describe()} is no UTF-8", "Mend it, or declare the field as binary."
            ) from error
        row = (str(number) if numbered == "string" else number, value)
        return (*((partition if column_type == "string" else int(partition)) for column_type in place), *row)

    def _range(self, part: Json) -> tuple[int, int]:
        numbers = read_back(NumberRange, part, "a RedisSpout")
        return numbers.begin, numbers.end


ENTRIES_AT_ONCE = 5000
_MAX_ROWS = 10_000
_BEGINNING = "0-0"
_LOOK = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local info, told = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for i = 1, #info, 2 do told[info[i]] = info[i + 1] end
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local bytes, rows = 0, #found
if ARGV[3] ~= '' then
  for i = 1, #found do
    local size = 0
    for _, text in ipairs(found[i][2]) do size = size + #text end
    if bytes + size > tonumber(ARGV[3]) and i > tonumber(ARGV[4]) then rows = i - 1 break end
    bytes = bytes + size
  end
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
return {rows, rows > 0 and found[rows][1] or '', #first > 0 and first[1][1] or '',
  told['length'], told['entries-added'], told['last-generated-id'], bytes}
"""
"""Reads all numbers in one step, so that they belong together. The entries themselves are not sent."""


@dataclass(frozen=True, kw_only=True)
class RedisStreamSpout(RedisSettings, PartitionedSpout):
    """A transactional spout over streams of Redis 7 or Valkey; :class:`RedisSettings` says how to reach the server.

    :param streams: the key of a stream, or of several: each stream is a partition.
    :param fields: of the entries, with types. A field that an entry lacks is null; other fields of an entry are
        ignored.
    :param id_field: the one of `fields` that gets the entry's id.
    :param max_rows: entries of one batch.
    :param max_bytes: of the entries' fields, names and values; a single larger entry is a batch by itself.
    :param opaque: each attempt decides the batch again. Entries trimmed since then are left out; the metadata counts
        them.
    """

    streams: str | Sequence[str] = ()
    fields: FieldSpec = ""
    id_field: str | None = None
    max_rows: int | None = _MAX_ROWS
    max_bytes: int | None = None
    max_partitions: int | None = None
    max_splits: int = 32
    opaque: bool = False
    resolved: RedisServer | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags(type(self).__name__, opaque=self.opaque)
        require_counts(type(self).__name__, max_splits=self.max_splits)
        if not self.partitions() or not self.schema:
            raise ConfigurationError(
                f"{type(self).__name__} with streams={self.streams!r} and fields={self.fields!r}",
                'As in RedisStreamSpout(streams="tweets", fields="user string, text string").',
            )
        if self.id_field is not None and Field(self.id_field, "string") not in self.schema:
            raise ConfigurationError(
                f"id_field={self.id_field!r} is no string of fields={self.fields!r}", "Declare it."
            )
        require_simple_types("entries of a Redis stream", self.schema)
        self.require_limits("max_bytes")

    @property
    def schema(self) -> Schema:
        return parse_declared(self.fields)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return tuple(map(self._server.dataset, self.partitions()))

    def describe(self) -> str:
        return f"RedisStreamSpout({self.place}, {', '.join(self.partitions())}{', opaque' if self.opaque else ''})"

    def emitter(self) -> PartitionedEmitter:
        return PartitionedEmitter(replace(self, resolved=self._server))

    @property
    def _server(self) -> RedisServer:
        return self.resolved or self.resolve()

    # ---- what there is -----------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        return [self.streams] if isinstance(self.streams, str) and self.streams else list(self.streams)

    def next_part(self, partition: str, last: Json) -> Json:
        return dict(self.next_parts([partition], {partition: last})).get(partition)

    def next_parts(self, partitions: Sequence[str], last: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
        """
        :raises SourceChangedError: entries that no transaction had were removed (transactional); a stream was made
            anew.
        """
        server, remaining, remaining_bytes, at_least = self._server, self.max_rows or _MAX_ROWS, self.max_bytes, 1
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for stream in partitions:
                before = _part(last[stream]) if last.get(stream) is not None else None
                after = before.to if before else _BEGINNING
                reply = client.eval(
                    _LOOK, 1, stream, after, remaining, "" if remaining_bytes is None else remaining_bytes, at_least
                )
                look = _Look.of(reply) if reply else None
                part = self._next(stream, before, look) if look else None
                if part is not None and look is not None:
                    remaining, at_least = remaining - part.rows, 0
                    remaining_bytes = None if remaining_bytes is None else remaining_bytes - look.bytes
                    yield stream, as_json(part)
                if remaining <= 0:
                    return

    def lag(self, last: Mapping[str, Json]) -> Lag:
        """Includes entries that were trimmed before any transaction had them."""
        server, records = self._server, 0
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for stream in self.partitions():
                before = _part(last[stream]) if last.get(stream) is not None else None
                reply = client.eval(_LOOK, 1, stream, before.to if before else _BEGINNING, 1, "", 1)
                if reply:
                    look = _Look.of(reply)
                    if before:
                        self._require_same(stream, before, look)
                    records += look.added - before.added if before else look.length
        return {"records": records}

    def _next(self, stream: str, before: _Part | None, look: _Look) -> _Part | None:
        if before is None:
            added_before, lost = look.removed, 0
        else:
            self._require_same(stream, before, look)
            lost = max(0, look.removed - before.added) if look.is_cut(before.to) else 0
            added_before = before.added + lost
        if lost and not self.opaque:
            raise SourceChangedError(
                f"{lost} entries of stream {stream!r} of {self.describe()} were trimmed or deleted before any "
                "transaction had them",
                "Trim less; a RedisStreamSpout(opaque=True) continues without them, and records how many.",
            )
        if not look.rows:
            return None
        begin = before.to if before else _BEGINNING
        return _Part(begin=begin, to=look.last, rows=look.rows, added=added_before + look.rows, lost=lost)

    def _require_same(self, stream: str, before: _Part, look: _Look) -> None:
        """Ids rise in a new stream of the same key, too: the server makes them from its clock. The counts tell.

        :raises SourceChangedError: this is not the stream in which the entries up to `before.to` were read.
        """
        if _order(look.newest) < _order(before.to):
            why = f"its newest id is {look.newest}, and {before.to} was read"
        elif look.added < before.added:
            why = f"it was given {look.added} entries in all, and {before.added} were counted up to {before.to}"
        elif look.is_cut(before.to) and look.removed < before.added:
            # All entries up to there are removed from the stream that was read, whatever was added since.
            why = (
                f"{look.removed} entries were removed from it, and it has none of the {before.added} up to {before.to}"
            )
        else:
            return
        raise SourceChangedError(
            f"stream {stream!r} of {self.describe()} was made anew: {why}",
            "Give the new stream another key, or this stream of the topology another name. If its entries were copied "
            "from the old one, set what it counts to what the old one had: XSETID with ENTRIESADDED.",
        )

    def rows_of(self, part: Json) -> int:
        return _part(part).rows

    # ---- reading -----------------------------------------------------------------------------------------------

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        recorded, server, read, schema = _part(part), self._server, 0, arrow_schema(self.schema)
        begin = recorded.begin
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            client.set_response_callback("XRANGE", _as_sent)
            batches: list[pa.RecordBatch] = []
            while read < recorded.rows:
                entries = client.xrange(partition, f"({begin}", recorded.to, count=ENTRIES_AT_ONCE)
                if not entries:
                    raise SourceChangedError(
                        f"stream {partition!r} of {self.describe()} has {read} of the {recorded.rows} entries that a "
                        f"transaction recorded ({recorded.begin} to {recorded.to})",
                        "They were trimmed or deleted: skip the transaction, or use RedisStreamSpout(opaque=True).",
                    )
                read += len(entries)
                begin = entries[-1][0].decode()
                batches.append(pa.RecordBatch.from_arrays(self._columns(partition, entries), schema=schema))
        yield from batches

    def _columns(self, stream: str, entries: Sequence[_Entry]) -> list[pa.Array]:
        import pyarrow as pa

        fields = [self._fields(stream, entry_id, pairs) for entry_id, pairs in entries]
        columns: list[pa.Array] = []
        for declared in self.schema:
            cells = [of_entry.get(declared.name.encode()) for of_entry in fields]
            try:
                columns.append(_column(cells, declared.type))
            except (pa.ArrowException, ValueError) as error:
                raise self._damaged(stream, declared, entries, error) from error
        return columns

    def _fields(self, stream: str, entry_id: bytes, pairs: Sequence[bytes]) -> dict[bytes, bytes]:
        """
        :raises DamagedInputError: a declared field comes twice; which of its values is meant, nobody knows.
        """
        names = pairs[::2]
        fields = dict(zip(names, pairs[1::2], strict=True))
        if len(fields) < len(names):
            for declared in self.schema:
                if declared.name != self.id_field and names.count(declared.name.encode()) > 1:
                    raise DamagedInputError(
                        f"the entry {entry_id.decode()} of stream {stream!r} has the field {declared.name!r} several "
                        "times",
                        f"Leave {declared.name!r} out of the spout's fields, or skip the transaction. Let the producer "
                        "add each field once.",
                    )
        if self.id_field is not None:
            fields[self.id_field.encode()] = entry_id
        return fields

    def _damaged(self, stream: str, field: Field, entries: Sequence[_Entry], error: Exception) -> DamagedInputError:
        """The error for the first entry whose value does not fit the field."""
        import pyarrow as pa

        name, damaged = field.name.encode(), entries[0][0]
        for entry_id, pairs in entries:
            try:
                _column([self._fields(stream, entry_id, pairs).get(name)], field.type)
            except (pa.ArrowException, ValueError) as of_entry:
                damaged, error = entry_id, of_entry
                break
        return DamagedInputError(
            f"the entry {damaged.decode()} of stream {stream!r} has no {field.type} in its field {field.name!r}: "
            f"{error}",
            "Declare the field as string, or skip the transaction.",
        )


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"begin": "after"}):
    """`begin`: the id before the first entry; `added`: entries ever added up to `to`; `lost`: entries before the first
    one that were removed before a transaction had them."""

    begin: str
    to: str
    rows: int
    added: int
    lost: int


def _part(part: Json) -> _Part:
    return read_back(_Part, part, "a RedisStreamSpout")


@dataclass(frozen=True, slots=True)
class _Look:
    rows: int
    last: str
    first: str
    length: int
    added: int
    newest: str
    bytes: int

    @property
    def removed(self) -> int:
        return self.added - self.length

    def is_cut(self, read_to: str) -> bool:
        """Are all entries up to this id removed?"""
        return not self.first or _order(self.first) > _order(read_to)

    @classmethod
    def of(cls, reply: Sequence[Any]) -> _Look:
        if len(reply) < 7:
            raise ConfigurationError("this server does not count the entries of streams", "Use Redis 7 or Valkey.")
        rows, last, first, length, added, newest, size = reply
        return cls(int(rows), last.decode(), first.decode(), int(length), int(added), newest.decode(), int(size))


_Entry: TypeAlias = tuple[bytes, Sequence[bytes]]
"""The id of an entry, and its fields: name, value, name, value."""


def _as_sent(answer: Sequence[_Entry], **_: Any) -> Sequence[_Entry]:
    """The driver makes a dictionary of an entry, in which a field that comes twice is lost once."""
    return answer


def _order(entry_id: str) -> tuple[int, int]:
    time_ms, _, number = entry_id.partition("-")
    return int(time_ms), int(number or 0)


def _column(cells: list[bytes | None], type_text: str) -> pa.Array:
    """Texts converted to values of a type."""
    import pyarrow as pa

    if type_text == "binary":
        return pa.array(cells, pa.binary())
    texts = pa.array([None if cell is None else cell.decode() for cell in cells], pa.string())
    return from_text(texts, type_text)
