"""Asks a Kafka cluster about topics, offsets and settings. Errors of the driver become errors of this package here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.errors import ConfigurationError, SourceUnavailableError, TridentError
from airflow_trident.io.extras import require_extra
from airflow_trident.spouts.kafka.ranges import NO_EPOCH, NO_ID, LogOffsets, LogPosition, OffsetRange, TopicPartition

EXTRA = "airflow-trident[kafka]"
_REFUSED = frozenset({
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL", "_INVALID_ARG", "INVALID_CONFIG",
})  # fmt: skip
_OF_CONSUMERS = (
    "group.", "auto.offset.", "enable.auto.", "enable.partition.eof", "isolation.level", "fetch.", "max.poll",
    "session.timeout", "queued.", "check.crcs", "max.partition.fetch",
)  # fmt: skip
_LAGGING_S = 5.0
_WAIT_S = 0.1
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

    def __init__(self, settings: Mapping[str, Any], what: str, timeout_s: float) -> None:
        """
        :param settings: of librdkafka, for a consumer.
        :param what: the source, for error texts; without secrets.
        """
        self._admin_module = require_extra("confluent_kafka.admin", EXTRA)
        self._module = require_extra("confluent_kafka", EXTRA)
        self._what = what
        self._timeout_s = timeout_s
        self._settings = quiet_settings(settings)
        common = {name: value for name, value in self._settings.items() if not name.startswith(_OF_CONSUMERS)}
        with driver_errors(what):
            self._admin = self._admin_module.AdminClient(common)

    def topics(self) -> dict[str, int]:
        """Name -> number of partitions of every topic that this user may see, without the cluster's internal topics."""
        with driver_errors(self._what):
            found = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Name -> id; topics that do not exist are left out."""
        ids: dict[str, str] = {}
        if not names:
            return ids
        asked = self._module.TopicCollection(list(names))
        with driver_errors(self._what):
            answers = self._admin.describe_topics(asked, request_timeout=self._timeout_s)
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
        asked = {partition(place.topic, place.partition): of for place in places}
        with driver_errors(self._what):
            answers = self._admin.list_offsets(asked, request_timeout=self._timeout_s, **options)
            results = {TopicPartition(of.topic, of.partition): answer.result(self._timeout_s)
                       for of, answer in answers.items()}  # fmt: skip
        return {
            place: LogPosition(int(result.offset), _epoch(result.leader_epoch)) for place, result in results.items()
        }

    def offsets_of_time(self, places: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        answers = self._offsets(places, self._admin_module.OffsetSpec.for_timestamp(time_ms))
        return {place: answer.offset for place, answer in answers.items()}

    def offsets_of_group(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the consumer group in the settings has committed; partitions without one are left out."""
        partition = self._module.TopicPartition
        with self.consumer() as consumer, driver_errors(self._what):
            asked = [partition(place.topic, place.partition) for place in places]
            found = consumer.committed(asked, timeout=self._timeout_s)
        return {TopicPartition(one.topic, one.partition): int(one.offset) for one in found if one.offset >= 0}

    def is_compacted(self, topic: str) -> bool:
        resource = self._admin_module.ConfigResource("topic", topic)
        with driver_errors(self._what):
            (answer,) = self._admin.describe_configs([resource], request_timeout=self._timeout_s).values()
            return "compact" in str(answer.result(self._timeout_s)["cleanup.policy"].value)

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
        asked = [partition(at.topic, at.partition, of.offset, "", of.epoch) for at, of in positions.items()]
        with self.consumer(**_PROVING, **{"auto.offset.reset": reset}) as consumer, driver_errors(self._what):
            consumer.assign(asked)
            for each in asked:
                self._seek(consumer, each, in_time)  # assigning proves nothing, seeking does
            while len(events) < len(asked):
                if not next(in_time, False):
                    silent = sorted(positions.keys() - events.keys())
                    raise SourceUnavailableError(
                        f"{self._what}: the leader of {silent[0]} does not say whether its log was cut off",
                        "See that the brokers run.",
                    )
                for event in consumer.consume(len(asked) - len(events), _WAIT_S):
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
def driver_errors(what: str) -> Iterator[None]:
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
        raise translated(error.args[0], what) from error
    except (LateError, ValueError, TypeError) as error:
        if isinstance(error, LateError):
            raise SourceUnavailableError(f"{what} does not answer", "See that the cluster runs.") from error
        raise ConfigurationError(f"{what}: the driver refuses a setting ({error})", "Correct it.") from error


def translated(error: Any, what: str) -> TridentError:
    """This package's error for a KafkaError. Its text names brokers, never credentials."""
    name = error.name()
    if name in _REFUSED:
        return ConfigurationError(
            f"{what} refuses this user or these settings: {error.str()}", "Correct the connection or the access list."
        )
    if name in _GONE:
        return TopicGoneError(f"{what}: {error.str()}", "Make the topic, or correct its name.")
    return SourceUnavailableError(f"{what} does not answer: {error.str()}", "See that the cluster runs, and try again.")
