"""Asks a Kafka cluster about topics, offsets and settings. Errors of the driver become errors of this package here.

Reads ranges of offsets completely: for each offset there is a record, or a reason why there is none.

A split of many small ranges is read by one consumer, some of them at a time; the rows come range by range all the same,
since two reads of a batch must give equal rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
    TridentError,
)
from airflow_trident.io.arrow import arrow_schema, fitted
from airflow_trident.io.connections import require_extra
from airflow_trident.spouts.kafka.ranges import (
    CUT_OFF,
    NO_EPOCH,
    NO_ID,
    LogOffsets,
    LogPosition,
    OffsetRange,
    TopicPartition,
)
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

EXTRA = "airflow-trident[kafka]"
_REFUSED = frozenset({
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL", "_INVALID_ARG", "INVALID_CONFIG",
})  # fmt: skip
_DAMAGED = frozenset({"INVALID_MSG", "_BAD_MSG", "_BAD_COMPRESSION"})
_OF_CONSUMERS = (
    "group.", "auto.offset.", "enable.auto.", "enable.partition.eof", "isolation.level", "fetch.", "max.poll",
    "session.timeout", "queued.", "check.crcs", "max.partition.fetch",
)  # fmt: skip
_LAGGING_S = 5.0
_FOREVER_MS = 1000 * 365 * 86_400_000
_EVENT_WAIT_S = 0.1
_PROVED_AT_ONCE = 500
_PROVING = {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "fetch.message.max.bytes": 1000,
            "queued.min.messages": 1}  # fmt: skip
PASSING = ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT")
"""Errors that the driver reports and gets over by itself; where it does not, a deadline ends the wait."""
_GONE = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"})
_Answer = TypeVar("_Answer")


def quiet_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with fewer messages: the driver logs on stderr what it retries. Set `log_level` to see that."""
    return {"log_level": 2, "error_cb": _ignored, **settings}


def _ignored(error: Any) -> None:
    """Ignores connection errors: the driver retries, and a call that waits fails with an error of its own."""


class KafkaCluster(Closing):
    """One client for questions. A context manager; opens a connection with the first question."""

    def __init__(self, settings: Mapping[str, Any], source: str, timeout_s: float) -> None:
        """
        :param settings: of librdkafka, for a consumer.
        :param source: the source, for error texts; without secrets.
        """
        self._admin_module = require_extra("confluent_kafka.admin", EXTRA)
        self._module = require_extra("confluent_kafka", EXTRA)
        self._what = source
        self._timeout_s = timeout_s
        self._settings = quiet_settings(settings)
        common = {name: value for name, value in self._settings.items() if not name.startswith(_OF_CONSUMERS)}
        with driver_errors(source):
            self._admin = self._admin_module.AdminClient(common)

    def topics(self) -> dict[str, int]:
        """Name -> number of partitions of every topic that this user may see."""
        with driver_errors(self._what):
            topics = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Name -> id; topics that do not exist are left out."""
        ids: dict[str, str] = {}
        if not names:
            return ids
        collection = self._module.TopicCollection(list(names))
        with driver_errors(self._what):
            answers = self._admin.describe_topics(collection, request_timeout=self._timeout_s)
        for name, answer in answers.items():
            try:
                with driver_errors(self._what):
                    ids[name] = str(answer.result(self._timeout_s).topic_id or NO_ID)
            except TopicGoneError:
                continue
        return ids

    def logs(self, places: Sequence[TopicPartition], *, committed: bool) -> dict[TopicPartition, LogOffsets]:
        """The offsets of partitions. Those of topics that do not exist are left out.

        :param committed: end at the first undecided transaction of a producer.
        """
        ids = self.topic_ids(sorted({place.topic for place in places}))
        places = [place for place in places if place.topic in ids]
        begins = self._offsets(places, self._admin_module.OffsetSpec.earliest())
        ends = self._offsets(places, self._admin_module.OffsetSpec.latest(), committed=committed)
        return {
            place: LogOffsets(
                ids[place.topic], begins[place].offset, max(ends[place].offset, begins[place].offset), ends[place].epoch
            )
            for place in places
        }

    def _offsets(
        self, places: Sequence[TopicPartition], of: Any, *, committed: bool = False
    ) -> dict[TopicPartition, LogPosition]:
        """One offset for each partition, and the leader epoch of the answer; -1 if no record is of that time or
        later."""
        levels = self._module.IsolationLevel
        options = {"isolation_level": levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED}
        partition = self._module.TopicPartition
        if not places:
            return {}
        requests = {partition(place.topic, place.partition): of for place in places}
        with driver_errors(self._what):
            answers = self._admin.list_offsets(requests, request_timeout=self._timeout_s, **options)
            results = {TopicPartition(of.topic, of.partition): answer.result(self._timeout_s)
                       for of, answer in answers.items()}  # fmt: skip
        return {
            place: LogPosition(int(answer.offset), _epoch(answer.leader_epoch)) for place, answer in results.items()
        }

    def offsets_of_time(self, places: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        answers = self._offsets(places, self._admin_module.OffsetSpec.for_timestamp(time_ms))
        return {place: answer.offset for place, answer in answers.items()}

    def offsets_of_group(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the consumer group in the settings has committed; partitions without one are left out."""
        partition = self._module.TopicPartition
        with self.consumer() as consumer, driver_errors(self._what):
            partitions = [partition(place.topic, place.partition) for place in places]
            offsets = consumer.committed(partitions, timeout=self._timeout_s)
        return {
            TopicPartition(offset.topic, offset.partition): int(offset.offset)
            for offset in offsets
            if offset.offset >= 0
        }

    def is_compacted(self, topic: str) -> bool:
        return "compact" in self._config(topic)["cleanup.policy"]

    def keeps_for(self, topic: str) -> timedelta | None:
        """So long a topic keeps its records. None: it depends on their number, too."""
        config = self._config(topic)
        if "delete" not in config["cleanup.policy"]:
            return timedelta.max
        if int(config["retention.bytes"]) >= 0:
            return None
        age_ms = int(config["retention.ms"])
        return timedelta(milliseconds=age_ms) if 0 <= age_ms < _FOREVER_MS else timedelta.max

    def _config(self, topic: str) -> dict[str, str]:
        resource = self._admin_module.ConfigResource("topic", topic)
        with driver_errors(self._what):
            (answer,) = self._admin.describe_configs([resource], request_timeout=self._timeout_s).values()
            return {name: str(entry.value) for name, entry in answer.result(self._timeout_s).items()}

    def record_bytes(self, ranges: Mapping[TopicPartition, OffsetRange], sample: int = 300) -> float:
        """The mean size of a record, from a sample at the beginnings of the ranges; 0 if no record came in time."""
        partition = self._module.TopicPartition
        read = _until(self._timeout_s)
        sizes: list[int] = []
        with self.consumer() as consumer, driver_errors(self._what):
            consumer.assign([partition(place.topic, place.partition, each.begin) for place, each in ranges.items()])
            while len(sizes) < sample and next(read, False):
                messages = [m for m in consumer.consume(sample, 0.1) if m.error() is None]
                if sizes and not messages:
                    break
                sizes += [len(m) + len(m.key() or b"") for m in messages]
        return sum(sizes) / len(sizes) if sizes else 0.0

    # ---- logs that were cut off ----------------------------------------------------------------------------------

    def cuts(self, positions: Mapping[TopicPartition, LogPosition]) -> dict[TopicPartition, int]:
        """The logs that were cut off below a position, and where the first new record of each is, or would be.

        The driver asks each partition's leader where the position's epoch ended (OffsetForLeaderEpoch, KIP-320): below
        the position, if records from there on were lost and others have their offsets now.
        """
        cut: dict[TopicPartition, int] = {}
        places = sorted(positions)
        for begin in range(0, len(places), _PROVED_AT_ONCE):
            part = {place: positions[place] for place in places[begin : begin + _PROVED_AT_ONCE]}
            events = self._first_events(part, "error")
            doubtful = {place: part[place] for place, event in events.items() if _is_reset(event)}
            first = self._first_events(doubtful, "earliest") if doubtful else {}
            # A log that expired meanwhile begins above the position: the next look says so.
            cut |= {place: event.offset() for place, event in first.items() if event.offset() < part[place].offset}
        return cut

    def _first_events(self, positions: Mapping[TopicPartition, LogPosition], reset: str) -> dict[TopicPartition, Any]:
        """What a consumer gets first behind each position: a record, the end of the log, or, where the log was cut off
        and `reset` is "error", an error. Otherwise the driver continues where the log was cut off."""
        partition = self._module.TopicPartition
        events: dict[TopicPartition, Any] = {}
        in_time = _until(self._timeout_s)
        partitions = [partition(at.topic, at.partition, of.offset, "", of.epoch) for at, of in positions.items()]
        with self.consumer(**_PROVING, **{"auto.offset.reset": reset}) as consumer, driver_errors(self._what):
            consumer.assign(partitions)
            for each in partitions:
                self._seek(consumer, each, in_time)  # assigning proves nothing, seeking does
            while len(events) < len(partitions):
                if not next(in_time, False):
                    silent = sorted(positions.keys() - events.keys())
                    raise SourceUnavailableError(
                        f"{self._what}: the leader of {silent[0]} does not say whether its log was cut off",
                        "See that the brokers run.",
                    )
                for event in consumer.consume(len(partitions) - len(events), _EVENT_WAIT_S):
                    error = event.error()
                    if error is None or error.name() == "_PARTITION_EOF" or _is_reset(event):
                        place = TopicPartition(event.topic(), event.partition())
                        events.setdefault(place, event)
                        consumer.pause([partition(place.topic, place.partition)])
                    elif error.name() not in PASSING:
                        raise translated(error, self._what)
        return events

    def _seek(self, consumer: Any, position: Any, in_time: Iterator[bool]) -> None:
        while True:
            try:
                consumer.seek(position)
                return
            except self._module.KafkaException as error:
                # The assignment is under way in another thread of the driver.
                if error.args[0].name() != "_STATE" or not next(in_time, False):
                    raise
            time.sleep(0.01)

    @contextmanager
    def consumer(self, **more: Any) -> Iterator[Any]:
        """A consumer that joins no group and commits nothing."""
        with driver_errors(self._what):
            consumer = self._module.Consumer(
                {
                    "group.id": "airflow-trident",
                    **self._settings,
                    **more,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                }
            )
        try:
            yield consumer
        finally:
            with suppress(self._module.KafkaException, RuntimeError):  # what was asked for is there, or has failed
                consumer.close()

    def close(self) -> None:
        """The driver closes the connections when nothing refers to the client any more."""
        self._admin = None

    def retried(self, ask: Callable[[], _Answer], is_good: Callable[[_Answer], bool]) -> _Answer:
        """Ask until the answer is good or the time is up: after a change of leader, answers are outdated for a
        moment."""
        answer, again = ask(), _until(min(self._timeout_s, _LAGGING_S))
        while not is_good(answer) and next(again, False):
            time.sleep(0.2)
            answer = ask()
        return answer


def _epoch(answered: int | None) -> int:
    return NO_EPOCH if answered is None or answered < 0 else answered


def _is_reset(event: Any) -> bool:
    """Does the log not have the position, or not as it was?"""
    error = event.error()
    return error is not None and error.name() == "_AUTO_OFFSET_RESET"


def _until(seconds: float) -> Iterator[bool]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield True


class TopicGoneError(SourceUnavailableError):
    """A topic or partition does not exist, or not all brokers know it yet."""


@contextmanager
def driver_errors(source: str) -> Iterator[None]:
    """
    :raises ConfigurationError: the cluster refuses this user, or the driver refuses these settings.
    :raises TopicGoneError: a topic or partition does not exist.
    :raises SourceUnavailableError: no answer in time.
    """
    from concurrent.futures import TimeoutError as LateError

    kafka = require_extra("confluent_kafka", EXTRA)
    try:
        yield
    except TridentError:
        raise
    except kafka.KafkaException as error:
        raise translated(error.args[0], source) from error
    except (LateError, ValueError, TypeError) as error:
        if isinstance(error, LateError):
            raise SourceUnavailableError(f"{source} does not answer", "See that the cluster runs.") from error
        raise ConfigurationError(f"{source}: the driver refuses a setting ({error})", "Correct it.") from error


def translated(error: Any, source: str) -> TridentError:
    """This package's error for a KafkaError. Its text names brokers, never credentials."""
    name = error.name()
    if name in _REFUSED:
        return ConfigurationError(
            f"{source} refuses this user or these settings: {error.str()}", "Correct the connection or the access list."
        )
    if name in _DAMAGED:
        return DamagedInputError(
            f"{source}: records are damaged on a broker's disk or on the way ({error.str()})",
            "Let the partition's leader move to a broker with a good copy, and run the task again; or skip the "
            "transaction.",
        )
    if name in _GONE:
        return TopicGoneError(f"{source}: {error.str()}", "Make the topic, or correct its name.")
    return SourceUnavailableError(
        f"{source} does not answer: {error.str()}", "See that the cluster runs, and try again."
    )


_ROWS_AT_ONCE = 10_000
_RANGES_AT_ONCE = 16
"""Ranges that a consumer fetches at the same time: what comes before its turn waits in memory."""
_MESSAGE_WAIT_S = 0.05
_NEVER_STORED = (
    "Nothing was committed. Let the topic keep its records as long as transactions may be replayed; for a topic that "
    "drops records by design use KafkaSpout(opaque=True)."
)
_READING = {
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,
    "check.crcs": True,  # the driver looks at no checksum otherwise, and hands on what a disk has changed
}
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
            messages = consumer.consume(min(_ROWS_AT_ONCE, missing), _MESSAGE_WAIT_S)
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
        if missing := [place for place in places if place not in logs]:
            raise TopicGoneError(f"{self._what}: there is no {missing[0]}", "Put it back.")
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
            lost = OffsetRange(part.next, min(now.begin, part.recorded.range.end))
            return self._lost(part, lost, "they expired or were deleted")
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

    def _lost(self, part: _Progress, lost: OffsetRange, why: str) -> SourceChangedError | SourceUnavailableError:
        """The error that ends this reading: for good, or until the next attempt of an opaque spout decides new
        ranges."""
        error = _changed(part.recorded.place, lost, why)
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

    def _missing(self, part: _Progress, lost: OffsetRange, why: str) -> None:
        error = _changed(part.recorded.place, lost, why)
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


def _changed(place: TopicPartition, lost: OffsetRange, why: str) -> SourceChangedError:
    return SourceChangedError(
        f"{place} no longer has the offsets {lost.begin} to {lost.end - 1}, which the transaction recorded: {why}",
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
