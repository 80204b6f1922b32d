"""Records under numbered keys of Redis or Valkey, and a counter: the layout of the book's tweets example.

A writer does ``n = INCR counter``, then ``SET <key of n> record``. A batch is a range of numbers. It ends before the
first number without a key: the writer of that number is between the two commands, or died there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.partitioned_spout import OpaquePartitionedSpout, PartitionedEmitter, PartitionedSpout
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.redis import RedisServer, RedisSettings, redis_errors
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.metadata import NumberRange, read_back
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 1000
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
    resolved: RedisServer | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        patterns = ("{n}", "{partition}") if self.num_partitions is not None else ("{n}",)
        lacking = [part for part in patterns if part not in self.keys]
        if self.num_partitions is not None and "{partition}" not in self.counter:
            lacking.append("{partition}")
        if lacking or (self.num_partitions is not None and self.num_partitions < 1):
            raise ConfigurationError(
                f"RedisSpout with keys={self.keys!r}, counter={self.counter!r}, num_partitions={self.num_partitions}",
                'Write, as in keys="tweet:{n}", or keys="{partition}:{n}", counter="{partition}:last" for partitions.',
            )
        kinds = [{"long", "string"}, {"string", "binary"}]
        if self.num_partitions is not None:
            kinds.insert(0, {"int", "long", "string"})
        types = [one.type for one in self.schema]
        if len(types) != len(kinds) or not all(one in kind for one, kind in zip(types, kinds, strict=True)):
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
        return f"{type(self).__name__}({self.place}, {self.keys}{parts})"

    def emitter(self) -> PartitionedEmitter:
        return PartitionedEmitter(replace(self, resolved=self._server))

    @property
    def _server(self) -> RedisServer:
        return self.resolved or self.resolve()

    # ---- what there is -----------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        return [_ONLY] if self.num_partitions is None else [str(one) for one in range(self.num_partitions)]

    def next_part(self, partition: str, last: Json) -> Json:
        return dict(self.next_parts([partition], {partition: last})).get(partition)

    def next_parts(self, partitions: Sequence[str], last: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
        """
        :raises SourceChangedError: a counter is below a number that was read.
        """
        server, left, left_bytes, begun = self._server, self.max_rows, self.max_bytes, False
        with redis_errors(server.place, SourceUnavailableError), server.open(SourceUnavailableError) as client:
            for partition in partitions:
                begin, end = self._unread(client, partition, last.get(partition))
                if left is not None:
                    end = min(end, begin + left)
                end = begin + self._there(client, partition, begin, end)
                if left_bytes is not None:
                    rows, size = self._within(client, partition, (begin, end), left_bytes, at_least=0 if begun else 1)
                    end, left_bytes = begin + rows, left_bytes - size
                if end > begin:
                    begun = True
                    left = None if left is None else left - (end - begin)
                    yield partition, {"from": begin, "to": end}
                if left == 0:
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
        for at in range(begin, end, AT_ONCE):
            found = self._ask(client, "EXISTS", partition, at, min(at + AT_ONCE, end))
            if not all(found):
                return at - begin + found.index(0)
        return max(0, end - begin)

    def _within(
        self, client: Any, partition: str, numbers: tuple[int, int], left_bytes: int, *, at_least: int
    ) -> tuple[int, int]:
        """How many of the records fit into the limit, and their bytes."""
        begin, end = numbers
        size = 0
        for at in range(begin, end, AT_ONCE):
            lengths = self._ask(client, "STRLEN", partition, at, min(at + AT_ONCE, end))
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
        found: list[Any] = pipe.execute()
        return found

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
            for at in range(begin, end, AT_ONCE):
                records = self._ask(client, "GET", partition, at, min(at + AT_ONCE, end))
                rows = [self._row(partition, number, record) for number, record in enumerate(records, at)]
                yield from rows_to_table(self.schema, rows).to_batches()

    def _row(self, partition: str, number: int, record: bytes | None) -> tuple[Any, ...]:
        key = self._key(partition, number)
        if record is None:
            raise SourceChangedError(
                f"the key {key!r} of {self.describe()} is gone, and a transaction recorded it",
                "Write it again and replay, or skip the transaction.",
            )
        *place, numbered, content = (one.type for one in self.schema)
        try:
            value = record if content == "binary" else record.decode()
        except UnicodeDecodeError as error:
            raise DamagedInputError(
                f"the key {key!r} of {self.describe()} is no UTF-8", "Mend it, or declare the field as binary."
            ) from error
        row = (str(number) if numbered == "string" else number, value)
        return (*((partition if one == "string" else int(partition)) for one in place), *row)

    def _range(self, part: Json) -> tuple[int, int]:
        found = read_back(NumberRange, part, "a RedisSpout")
        return found.begin, found.end


@dataclass(frozen=True, kw_only=True)
class OpaqueRedisSpout(RedisSpout, OpaquePartitionedSpout):
    """Decides the batch anew for each attempt. If a key of a batch is gone, the next attempt ends before that key."""

    kind = SpoutKind.OPAQUE
