"""Reads ranges of offsets completely: for each offset there is a record, or a reason why there is none.

A split of many small ranges is read by one consumer, some of them at a time; the rows come range by range all the same,
since two reads of a batch must give equal rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema, fitted
from airflow_trident.io.extras import require_extra
from airflow_trident.spouts.kafka.client import EXTRA, PASSING, KafkaCluster, TopicGoneError, driver_errors, translated
from airflow_trident.spouts.kafka.ranges import CUT_OFF, NO_EPOCH, NO_ID, LogOffsets, OffsetRange, TopicPartition
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000
_RANGES_AT_ONCE = 16
"""Ranges that a consumer fetches at the same time: what comes before its turn waits in memory."""
_WAIT_S = 0.05
_NEVER_STORED = (
    "Nothing was committed. Let the topic keep its records as long as transactions may be replayed; for a topic that "
    "drops records by design use OpaqueKafkaSpout."
)
_READING = {"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 100}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """A part of a batch as a transaction recorded it: exactly this is read, or an error says why not.

    `epoch`: the leader epoch in which the log had all its records.
    """

    place: TopicPartition
    range: OffsetRange
    topic_id: str
    epoch: int = NO_EPOCH


@dataclass
class _Progress:
    """How far a range was read. `waiting`: its records that were not handed on yet. `gaps`: offsets without a
    record."""

    recorded: RecordedRange
    next: int
    waiting: list[Sequence[Any]]
    gaps: list[OffsetRange]

    @classmethod
    def of(cls, recorded: RecordedRange) -> _Progress:
        return cls(recorded, recorded.range.begin, [], [])

    @property
    def is_complete(self) -> bool:
        return self.next >= self.recorded.range.end

    def reach(self, offset: int) -> None:
        """Note a gap if there are offsets between the last record and this offset."""
        if offset > self.next:
            self.gaps.append(OffsetRange(self.next, offset))
            self.next = offset


@dataclass
class SplitReader:
    """Reads recorded ranges; see :meth:`batches`.

    :param strict: are missing records an error (transactional)? Otherwise those of a topic that is still there are
        logged, and for another topic a new attempt decides anew (opaque).
    """

    _cluster: KafkaCluster
    _what: str
    _recorded: Sequence[RecordedRange]
    _schema: Schema
    _isolation: str
    _timeout_s: float
    _strict: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the ranges, range by range, each ordered by offset.

        :raises SourceChangedError: strict, and a record that existed may be missing.
        :raises SourceUnavailableError: the cluster does not answer; or a new attempt must decide what is read.
        """
        self._require_same_topics()
        every = [_Progress.of(recorded) for recorded in self._recorded]
        if not self._strict:
            self._skip_expired(every)
        with self._cluster.consumer(**_READING, **{"isolation.level": self._isolation}) as consumer:
            for begin in range(0, len(every), _RANGES_AT_ONCE):
                for part, messages in self._messages(consumer, every[begin : begin + _RANGES_AT_ONCE]):
                    yield _batch(part.recorded.place, self._schema, messages)
        # Checked afterwards, because both may have changed during the reading.
        self._explain_gaps(every)
        self._require_same_topics()

    def _messages(self, consumer: Any, window: Sequence[_Progress]) -> Iterator[tuple[_Progress, Sequence[Any]]]:
        """The records of some ranges of different partitions, in their order."""
        fetched = {part.recorded.place: part for part in window if not part.is_complete}
        if fetched:
            with driver_errors(self._what):
                consumer.assign([_partition(place, part.next) for place, part in fetched.items()])
        until = time.monotonic() + self._timeout_s
        for part in window:
            while part.waiting or not part.is_complete:
                while part.waiting:
                    yield part, part.waiting.pop(0)
                    until = time.monotonic() + self._timeout_s
                if part.is_complete:
                    break
                if self._fetch(consumer, fetched):
                    until = time.monotonic() + self._timeout_s
                elif time.monotonic() > until:
                    raise self._stuck(part)

    def _fetch(self, consumer: Any, fetched: dict[TopicPartition, _Progress]) -> bool:
        """Take what has come. What is complete is fetched no further. False: nothing of the ranges came."""
        missing = sum(part.recorded.range.end - part.next for part in fetched.values())
        with driver_errors(self._what):
            messages = consumer.consume(min(_ROWS_AT_ONCE, missing), _WAIT_S)
        is_any = False
        for place, of_place in _by_partition(messages, fetched).items():
            part = fetched[place]
            before = part.next
            good = self._sorted_out(part, of_place)
            if good:
                part.waiting.append(good)
            is_any = is_any or part.next > before
            if part.is_complete:
                del fetched[place]
                if fetched:
                    with driver_errors(self._what):
                        consumer.pause([_partition(place, part.next)])
        return is_any

    def _sorted_out(self, part: _Progress, messages: Sequence[Any]) -> Sequence[Any]:
        """The records of the range. Gaps are noted; errors are raised or ignored by :meth:`_judge`."""
        end = part.recorded.range.end
        last = part.next + len(messages)
        # Offsets of records only rise, so the first and the last one show whether all in between are there.
        is_full = messages and messages[0].offset() == part.next and messages[-1].offset() == last - 1 < end
        # An event may stand where an offset has no record, and is none.
        if is_full and all(message.error() is None for message in messages):
            part.next = last
            self._require_not_cut_off(part, messages)
            return messages
        good = []
        for message in messages:
            if message.error() is not None:
                self._judge(part, message)
                continue
            offset = message.offset()
            part.reach(min(offset, end))
            if offset == part.next < end:
                good.append(message)
                part.next = offset + 1
        self._require_not_cut_off(part, good)
        return good

    def _require_not_cut_off(self, part: _Progress, messages: Sequence[Any]) -> None:
        """Leader epochs only rise in a log. A record of a later one than the log had when the range was recorded was
        written instead of a record that is gone.

        :raises SourceChangedError, SourceUnavailableError: see :meth:`_lost`.
        """
        epoch = part.recorded.epoch
        if epoch == NO_EPOCH or not messages or (messages[-1].leader_epoch() or NO_EPOCH) <= epoch:
            return
        first = next(message.offset() for message in messages if (message.leader_epoch() or NO_EPOCH) > epoch)
        raise self._lost(part, OffsetRange(first, part.recorded.range.end), CUT_OFF)

    def _judge(self, part: _Progress, message: Any) -> None:
        error = message.error()
        if error.name() == "_PARTITION_EOF":
            # The end of the log, perhaps only for a moment: a new leader learns late how far its followers have read.
            if message.offset() >= part.recorded.range.end:
                part.reach(part.recorded.range.end)
        elif error.name() == "_AUTO_OFFSET_RESET":
            raise self._out_of_range(part)
        elif error.name() not in PASSING:
            raise translated(error, self._what)

    # ---- what is missing ---------------------------------------------------------------------------------------

    def _logs_now(self, parts: Sequence[_Progress]) -> dict[TopicPartition, LogOffsets]:
        places = [part.recorded.place for part in parts]
        logs = self._cluster.logs(places, committed=False)
        if gone := [place for place in places if place not in logs]:
            raise TopicGoneError(f"{self._what}: there is no {gone[0]}", "Put it back.")
        return logs

    def _require_same_topics(self) -> None:
        """Not every broker knows at once that a topic was made, so one answer proves nothing.

        :raises SourceChangedError, SourceUnavailableError: see :meth:`_lost`. Only a new attempt of an opaque spout can
            record what is lost: its coordinator sees where the topic that is there now begins.
        """
        recorded = {each.place.topic: each.topic_id for each in self._recorded}

        def changed(now: dict[str, str]) -> list[str]:
            return [
                name
                for name, topic_id in recorded.items()
                if name not in now or (NO_ID not in (now[name], topic_id) and now[name] != topic_id)
            ]

        now = self._cluster.retried(lambda: self._cluster.topic_ids(sorted(recorded)), lambda ids: not changed(ids))
        for topic in changed(now):
            why = "the topic was deleted and made again" if topic in now else "the topic is gone"
            first = next(each for each in self._recorded if each.place.topic == topic)
            raise self._lost(_Progress.of(first), first.range, why)

    def _skip_expired(self, parts: Sequence[_Progress]) -> None:
        for place, now in self._logs_now(parts).items():
            part = next(part for part in parts if part.recorded.place == place)
            part.reach(min(now.begin, part.recorded.range.end))

    def _out_of_range(self, part: _Progress) -> SourceChangedError | SourceUnavailableError:
        now = self._logs_now([part])[part.recorded.place]
        if now.begin > part.next:
            gone = OffsetRange(part.next, min(now.begin, part.recorded.range.end))
            return self._lost(part, gone, "they expired or were deleted")
        return self._stuck(part)

    def _stuck(self, part: _Progress) -> SourceChangedError | SourceUnavailableError:
        """The error when no record came in time."""
        place, end = part.recorded.place, part.recorded.range.end
        now = self._logs_now([part])[place]
        if now.end < end:
            return self._lost(
                part, OffsetRange(max(part.next, now.end), end), f"the log ends at {now.end}: it was cut off"
            )
        return SourceUnavailableError(
            f"{self._what}: {place} gave nothing from offset {part.next} for {self._timeout_s:g} s",
            "See that its leader runs; the task tries again.",
        )

    def _lost(self, part: _Progress, gone: OffsetRange, why: str) -> SourceChangedError | SourceUnavailableError:
        """The error that ends this reading: for good, or until the next attempt of an opaque spout decides new
        ranges."""
        error = _changed(part.recorded.place, gone, why)
        if self._strict:
            return error
        return SourceUnavailableError.of_gone_batch(error.message, "A new attempt takes what is there.")

    def _explain_gaps(self, parts: Sequence[_Progress]) -> None:
        """Find out why offsets have no record: transaction markers, aborted records, expired, or removed by
        compaction."""
        with_gaps = [part for part in parts if part.gaps]
        if not with_gaps:
            return
        logs = self._logs_now(with_gaps)
        compacted: dict[str, bool] = {}
        for part in with_gaps:
            place = part.recorded.place
            begin = logs[place].begin
            expired = [OffsetRange(gap.begin, min(gap.end, begin)) for gap in part.gaps if gap.begin < begin]
            for gap in expired:
                self._missing(part, gap, "they expired or were deleted")
            if len(expired) == len(part.gaps):
                continue
            if place.topic not in compacted:
                compacted[place.topic] = self._cluster.is_compacted(place.topic)
            if compacted[place.topic]:
                self._missing(part, part.gaps[-1], "the topic is compacted, so nobody can tell what was there")

    def _missing(self, part: _Progress, gone: OffsetRange, why: str) -> None:
        error = _changed(part.recorded.place, gone, why)
        if self._strict:
            raise error
        log.warning("An opaque batch goes on without some of its records: %s", error.message)


def _by_partition(messages: Sequence[Any], fetched: dict[TopicPartition, _Progress]) -> dict[TopicPartition, list[Any]]:
    """The messages of each partition that is fetched; errors that name no partition count for the first one."""
    if len(fetched) == 1:
        return {place: list(messages) for place in fetched}
    grouped: dict[TopicPartition, list[Any]] = {}
    for message in messages:
        place = TopicPartition(message.topic(), message.partition()) if message.topic() else next(iter(fetched))
        if place in fetched:
            grouped.setdefault(place, []).append(message)
    return grouped


def _changed(place: TopicPartition, gone: OffsetRange, why: str) -> SourceChangedError:
    return SourceChangedError(
        f"{place} no longer has the offsets {gone.begin} to {gone.end - 1}, which the transaction recorded: {why}",
        _NEVER_STORED,
    )


def _partition(place: TopicPartition, offset: int) -> Any:
    kafka: Any = require_extra("confluent_kafka", EXTRA)

    return kafka.TopicPartition(place.topic, place.partition, offset)


# ---- records as rows -------------------------------------------------------------------------------------------


def _batch(place: TopicPartition, declared: Schema, messages: Sequence[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(declared)
    columns = []
    for field in schema:
        try:
            columns.append(_column(field, messages))
        except (pa.ArrowException, ValueError) as error:
            raise _unreadable(place, field, messages) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(field: pa.Field, messages: Sequence[Any]) -> pa.Array:
    """
    :raises ValueError: a record has no value of the field's type.
    """
    import pyarrow as pa

    if field.name == "timestamp":
        stamps = [stamp if kind else None for kind, stamp in (message.timestamp() for message in messages)]
        return fitted(pa.array(stamps, pa.timestamp("ms", "UTC")), "timestamp")
    return pa.array(_VALUES[field.name](messages), type=field.type)


def _unreadable(place: TopicPartition, field: pa.Field, messages: Sequence[Any]) -> DamagedInputError:
    """The error for the first record whose value of a field does not fit it."""
    import pyarrow as pa

    damaged = messages[0]
    for message in messages:
        try:
            _column(field, [message])
        except (pa.ArrowException, ValueError):
            damaged = message
            break
    record = f"the record at offset {damaged.offset()} of {place}"
    if field.name == "timestamp":
        return DamagedInputError(
            f"the timestamp of {record} is {damaged.timestamp()[1]}, which is no number of milliseconds of the years "
            "1 to 9999",
            "Let the producer send milliseconds since 1970, not micro- or nanoseconds. For records that are in the "
            'topic already, leave "timestamp" out of the spout\'s fields.',
        )
    if field.name.startswith("header_"):
        return DamagedInputError(
            f"a header of {record} has a name that is not UTF-8 text",
            'Leave "header_keys" and "header_values" out of the spout\'s fields.',
        )
    return DamagedInputError(
        f"the {field.name} of {record} is not UTF-8 text",
        f'Declare it as "{field.name} binary" and take it apart with each().',
    )


def _headers(messages: Sequence[Any], part: int) -> list[list[Any]]:
    return [[header[part] for header in message.headers() or ()] for message in messages]


_VALUES: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "key": lambda messages: [message.key() for message in messages],
    "value": lambda messages: [message.value() for message in messages],
    "topic": lambda messages: [message.topic() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "header_keys": lambda messages: _headers(messages, 0),
    "header_values": lambda messages: _headers(messages, 1),
}
