"""Reads one range of offsets completely: for each offset there is a record, or a reason why there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.extras import require_extra
from airflow_trident.spouts.kafka.client import EXTRA, KafkaCluster, TopicGoneError, driver_errors, translated
from airflow_trident.spouts.kafka.ranges import NO_ID, OffsetRange, TopicPartition
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000
_WAIT_S = 0.05
_NEVER_STORED = (
    "Nothing was committed. Let the topic keep its records as long as transactions may be replayed; for a topic that "
    "drops records by design use OpaqueKafkaSpout."
)
_READING = {"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 100}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """A part of a batch as a transaction recorded it: exactly this is read, or an error says why not."""

    place: TopicPartition
    range: OffsetRange
    topic_id: str
    schema: Schema
    strict: bool
    """Are missing records an error (transactional)? Otherwise those of a topic that is still there are logged, and for
    another topic a new attempt decides anew (opaque)."""


@dataclass
class RangeReader:
    """Reads one recorded range; see :meth:`batches`."""

    _cluster: KafkaCluster
    _what: str
    _recorded: RecordedRange
    _isolation: str
    _timeout_s: float

    def __post_init__(self) -> None:
        self._gaps: list[OffsetRange] = []
        self._next = self._recorded.range.begin

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the range, ordered by offset.

        :raises SourceChangedError: strict, and a record that existed may be missing.
        :raises SourceUnavailableError: the cluster does not answer; or a new attempt must decide what is read.
        """
        self._require_same_topic()
        if not self._recorded.strict:
            self._skip_expired()
        with self._cluster.consumer(**_READING, **{"isolation.level": self._isolation}) as consumer:
            with driver_errors(self._what):
                consumer.assign([_partition(self._recorded.place, self._next)])
            for messages in self._messages(consumer):
                yield _batch(self._recorded, messages)
        # Checked afterwards, because both may have changed during the reading.
        self._explain_gaps()
        self._require_same_topic()

    def _messages(self, consumer: Any) -> Iterator[Sequence[Any]]:
        end = self._recorded.range.end
        until = time.monotonic() + self._timeout_s
        while self._next < end:
            with driver_errors(self._what):
                messages = consumer.consume(min(_ROWS_AT_ONCE, end - self._next), _WAIT_S)
            good = self._sorted_out(messages)
            if good:
                yield good
                until = time.monotonic() + self._timeout_s
            elif self._next < end and time.monotonic() > until:
                raise self._stuck()

    def _sorted_out(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The records of the range. Gaps are noted; errors are raised or ignored by :meth:`_judge`."""
        end = self._recorded.range.end
        last = self._next + len(messages)
        # Offsets of records only rise, so the first and the last one show whether all in between are there.
        is_full = messages and messages[0].offset() == self._next and messages[-1].offset() == last - 1 < end
        # An event may stand where an offset has no record, and is none.
        if is_full and all(message.error() is None for message in messages):
            self._next = last
            return messages
        good = []
        for message in messages:
            if message.error() is not None:
                self._judge(message)
                continue
            offset = message.offset()
            self._reach(min(offset, end))
            if offset == self._next < end:
                good.append(message)
                self._next = offset + 1
        return good

    def _reach(self, offset: int) -> None:
        """Note a gap if there are offsets between the last record and this offset."""
        if offset > self._next:
            self._gaps.append(OffsetRange(self._next, offset))
            self._next = offset

    def _judge(self, message: Any) -> None:
        error = message.error()
        if error.name() == "_PARTITION_EOF":
            # The end of the log, perhaps only for a moment: a new leader learns late how far its followers have read.
            if message.offset() >= self._recorded.range.end:
                self._reach(self._recorded.range.end)
        elif error.name() == "_AUTO_OFFSET_RESET":
            raise self._out_of_range()
        elif error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT"):
            raise translated(error, self._what)

    # ---- what is missing ---------------------------------------------------------------------------------------

    def _log_now(self) -> OffsetRange:
        place = self._recorded.place
        found = self._cluster.logs({place.topic: place.partition + 1}, committed=False).get(place)
        if found is None:
            raise TopicGoneError(f"{self._what}: there is no {place}", "Put it back.")
        return OffsetRange(found.begin, found.end)

    def _require_same_topic(self) -> None:
        """Not every broker knows at once that a topic was made, so one answer proves nothing.

        :raises SourceChangedError, SourceUnavailableError: see :meth:`_lost`. Only a new attempt of an opaque spout can
            record what is lost: its coordinator sees where the topic that is there now begins.
        """
        recorded, topic = self._recorded.topic_id, self._recorded.place.topic

        def is_same(now: str | None) -> bool:
            return now is not None and (NO_ID in (now, recorded) or now == recorded)

        now = self._cluster.retried(lambda: self._cluster.topic_ids([topic]).get(topic), is_same)
        if not is_same(now):
            why = "the topic is gone" if now is None else "the topic was deleted and made again"
            raise self._lost(self._recorded.range, why)

    def _skip_expired(self) -> None:
        begin = self._log_now().begin
        if begin > self._next:
            self._reach(min(begin, self._recorded.range.end))

    def _out_of_range(self) -> SourceChangedError | SourceUnavailableError:
        now = self._log_now()
        if now.begin > self._next:
            gone = OffsetRange(self._next, min(now.begin, self._recorded.range.end))
            return self._lost(gone, "they expired or were deleted")
        return self._stuck()

    def _stuck(self) -> SourceChangedError | SourceUnavailableError:
        """The error when no record came in time."""
        now = self._log_now()
        if now.end < self._recorded.range.end:
            gone = OffsetRange(max(self._next, now.end), self._recorded.range.end)
            return self._lost(gone, f"the log ends at {now.end}: it was cut off")
        return SourceUnavailableError(
            f"{self._what}: {self._recorded.place} gave nothing from offset {self._next} for {self._timeout_s:g} s",
            "See that its leader runs; the task tries again.",
        )

    def _lost(self, gone: OffsetRange, why: str) -> SourceChangedError | SourceUnavailableError:
        """The error that ends this reading: for good, or until the next attempt of an opaque spout decides new
        ranges."""
        error = _changed(self._recorded.place, gone, why)
        if self._recorded.strict:
            return error
        return SourceUnavailableError.of_gone_batch(error.message, "A new attempt takes what is there.")

    def _explain_gaps(self) -> None:
        """Find out why offsets have no record: transaction markers, aborted records, expired, or removed by
        compaction."""
        if not self._gaps:
            return
        begin = self._log_now().begin
        expired = [OffsetRange(gap.begin, min(gap.end, begin)) for gap in self._gaps if gap.begin < begin]
        for gap in expired:
            self._missing(gap, "they expired or were deleted")
        if len(expired) < len(self._gaps) and self._cluster.is_compacted(self._recorded.place.topic):
            self._missing(self._gaps[-1], "the topic is compacted, so nobody can tell what was there")

    def _missing(self, gone: OffsetRange, why: str) -> None:
        error = _changed(self._recorded.place, gone, why)
        if self._recorded.strict:
            raise error
        log.warning("An opaque batch goes on without some of its records: %s", error.message)


def _changed(place: TopicPartition, gone: OffsetRange, why: str) -> SourceChangedError:
    return SourceChangedError(
        f"{place} no longer has the offsets {gone.begin} to {gone.end - 1}, which the transaction recorded: {why}",
        _NEVER_STORED,
    )


def _partition(place: TopicPartition, offset: int) -> Any:
    kafka: Any = require_extra("confluent_kafka", EXTRA)

    return kafka.TopicPartition(place.topic, place.partition, offset)


# ---- records as rows -------------------------------------------------------------------------------------------


def _batch(recorded: RecordedRange, messages: Sequence[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(recorded.schema)
    columns = []
    for field in schema:
        values = _COLUMNS[field.name](messages)
        try:
            columns.append(pa.array(values, type=field.type))
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(recorded.place, field.name, messages, values) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _unreadable(place: TopicPartition, name: str, messages: Sequence[Any], values: Sequence[Any]) -> DamagedInputError:
    """The error for bytes in a field declared as text: names the record."""
    offset = messages[0].offset()
    for message, value in zip(messages, values, strict=True):
        try:
            (value or b"").decode()
        except (UnicodeDecodeError, AttributeError):
            offset = message.offset()
            break
    return DamagedInputError(
        f"the {name} of the record at offset {offset} of {place} is not UTF-8 text",
        f'Declare it as "{name} binary" and take it apart with each().',
    )


def _headers(messages: Sequence[Any], part: int) -> list[list[Any]]:
    return [[header[part] for header in message.headers() or ()] for message in messages]


def _times_us(messages: Sequence[Any]) -> list[int | None]:
    stamps = [message.timestamp() for message in messages]
    return [stamp * 1000 if kind else None for kind, stamp in stamps]


_COLUMNS: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "key": lambda messages: [message.key() for message in messages],
    "value": lambda messages: [message.value() for message in messages],
    "topic": lambda messages: [message.topic() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "timestamp": _times_us,
    "header_keys": lambda messages: _headers(messages, 0),
    "header_values": lambda messages: _headers(messages, 1),
}
