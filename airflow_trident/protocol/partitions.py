"""The calendar of topologies that are bound to partitions: hours, days, weeks or months, each named by its key.

The key is the identity of a partition; it is written in one way only. A partition is half-open, in UTC. An hour begins
on the hour; a day, a week or a month begins at local midnight of its zone. So a day has 23, 24 or 25 hours where clocks
change. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cached_property
from zoneinfo import ZoneInfo

from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.names import require_counts
from airflow_trident.protocol.topologies import Definition
from airflow_trident.types import Field, parse_names


class PartitionStep(StrEnum):
    """How long a partition is."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday, with ISO's number."""
    MONTH = "month"


class OnMissing(StrEnum):
    """How a request for a partition ends whose data are not there."""

    ERROR = "error"
    TAKE = "take"
    """The partition loses the rows."""


KEY_FORMATS = {
    PartitionStep.HOUR: "%Y-%m-%dT%H:%M:%S",
    PartitionStep.DAY: "%Y-%m-%d",
    PartitionStep.WEEK: "%G-W%V",
    PartitionStep.MONTH: "%Y-%m",
}
"""How keys are written: also the `key_format` of Airflow's timetables. Hours: as Airflow's mappers write them."""
_EXAMPLES = {
    PartitionStep.HOUR: "2026-11-24T05:00:00",
    PartitionStep.DAY: "2026-11-24",
    PartitionStep.WEEK: "2026-W48",
    PartitionStep.MONTH: "2026-11",
}
_AN = {step: f"{'an' if step == 'hour' else 'a'} {step}" for step in PartitionStep}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DESCRIBED = re.compile(r"(?P<step>\w+) of (?P<timezone>\S+) in (?P<column>.+)")
_ZONES_OF_A_MACHINE = ("localtime", "posixrules", "Factory")
_DURATION = re.compile(r"([0-9]+)([smhd])\Z")
_FIRST_YEAR, _LAST_YEAR = 1900, 9998
"""Before, offsets of zones are of seconds; after, a partition could have no end."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the calendar. Its rows are of the time from `start` up to, but not including, `end`.

    `key`: its name; `start` and `end`: in UTC; `value`: of its rows in the partition column.
    """

    key: str
    start: datetime
    end: datetime
    value: date | str


@dataclass(frozen=True)
class Partitions:
    """Binds a topology to hours, days, weeks or months: ``Topology("shop", partitions=Partitions("day", begin=...))``.

    Each transaction of the topology reads all of one partition, and replaces it in every state.

    :param step: ``"hour"``, ``"day"``, ``"week"`` or ``"month"``.
    :param begin: the key of the first partition; older ones are refused.
    :param timezone: of days, weeks and months, which begin at its midnight. Hours are those of UTC.
    :param column: the field that each stream gets as its last one: a date, the first day of the partition; of hours the
        key. Default: the name of the step.
    :param complete_after: how long after its end a partition is complete: a timedelta, or a text such as ``"2h"``.
    :param empty: a partition without any data is an error (``"error"``), or becomes empty (``"take"``).
    :param gone: data that its last transaction read and that are gone are an error (``"error"``), or the partition
        loses their rows (``"take"``).
    :param lookback: how many partitions before its own a scheduled run does again if their sources have changed.
    :raises PlanError: hours of another zone than UTC, or one of the values is none of these.
    """

    step: PartitionStep | str
    begin: str = field(kw_only=True)
    timezone: str = field(default="UTC", kw_only=True)
    column: str = field(default="", kw_only=True)
    complete_after: timedelta | str = field(default=timedelta(), kw_only=True)
    empty: OnMissing | str = field(default=OnMissing.ERROR, kw_only=True)
    gone: OnMissing | str = field(default=OnMissing.ERROR, kw_only=True)
    lookback: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        _set(self, step=_member(PartitionStep, self.step, "step"))
        _set(self, column=self.column or str(self.step), complete_after=duration("complete_after", self.complete_after))
        for name in ("empty", "gone"):
            _set(self, **{name: _member(OnMissing, getattr(self, name), name)})
        require_counts("Partitions", least=0, lookback=self.lookback)
        if self.step is PartitionStep.HOUR and self.timezone != "UTC":
            raise PlanError(
                f"hours of {self.timezone}: an hour comes twice when its clocks are set back",
                "Leave timezone out: hours are of UTC. Days, weeks and months can be of any zone.",
            )
        if not isinstance(self.column, str) or len(parse_names(self.column)) != 1:
            raise PlanError(f"column is {self.column!r}", "Give the name of one field.")
        require_zone(self.timezone)
        if not isinstance(self.begin, str):
            raise PlanError(
                f"begin is {self.begin!r}, and no text",
                f"Give the key of the first {self.step}, such as {_EXAMPLES[self._step]!r}.",
            )
        try:
            self._parsed(self.begin)
        except ConfigurationError as error:
            raise PlanError(f"begin: {error.message}", error.cure) from error

    # ---- one key -----------------------------------------------------------------------------------------------

    def parse(self, key: str | None) -> Partition:
        """The partition of a key.

        :raises ConfigurationError: there is no key, it is written in another way, or it is before `begin`.
        """
        partition = self._parsed(key)
        if partition.start < self.first.start:
            raise ConfigurationError(
                f"the partition {partition.key} is before the topology's first one, {self.begin}",
                "Ask for a later one, or set Partitions(begin=...) back.",
            )
        return partition

    def of(self, moment: datetime) -> Partition:
        """The partition that has a moment. May be before `begin`.

        :param moment: with its zone.
        """
        local = moment.astimezone(self._zone)
        partition = self._at(_floor(self._step, local.replace(tzinfo=None)))
        # Where clocks are set back over midnight, a moment may have the date of the day before the one it is in.
        while moment >= partition.end:
            partition = self.after(partition)
        while moment < partition.start:
            partition = self.before(partition)
        return partition

    def after(self, partition: Partition) -> Partition:
        """The next one."""
        following = self._at(_next(self._step, self._local(partition.key)))
        return following if following.start < following.end else self.after(following)

    def before(self, partition: Partition) -> Partition:
        """The one before; it may be before `begin`."""
        former = self._at(_floor(self._step, self._local(partition.key) - timedelta(hours=1)))
        return former if former.start < former.end else self.before(former)

    def between(self, first: Partition, last: Partition) -> Iterator[Partition]:
        """All partitions from the first to the last, both included."""
        while first.start <= last.start:
            yield first
            first = self.after(first)

    def complete_at(self, partition: Partition) -> datetime:
        """When its data are all there."""
        assert isinstance(self.complete_after, timedelta)
        return partition.end + self.complete_after

    # ---- for the topology --------------------------------------------------------------------------------------

    noun = "partition"
    """For error texts, as `binding`: a batch replaces it."""
    binding = "a topology that is bound to partitions"

    def value_of(self, key: str) -> date | str:
        """The rows of a partition have it in the partition column."""
        return self.parse(key).value

    @property
    def field(self) -> Field:
        """The partition column."""
        return Field(self.column, self._type)

    @property
    def key_format(self) -> str:
        """How a key is written, for Airflow's timetables."""
        return KEY_FORMATS[self._step]

    @property
    def example(self) -> str:
        """A key, for texts."""
        return _EXAMPLES[self._step]

    @property
    def first(self) -> Partition:
        """The partition `begin`."""
        return self._parsed(self.begin)

    @property
    def complete_after_s(self) -> int:
        """`complete_after` in whole seconds."""
        assert isinstance(self.complete_after, timedelta)
        return math.ceil(self.complete_after.total_seconds())

    def describe(self) -> str:
        """One line, part of the topology's definition: it must not change silently."""
        return f"{self.step} of {self.timezone} in {self.column}"

    # ---- how -----------------------------------------------------------------------------------------------------

    @property
    def _step(self) -> PartitionStep:
        assert isinstance(self.step, PartitionStep)
        return self.step

    @property
    def _type(self) -> str:
        return "string" if self.step is PartitionStep.HOUR else "date"

    @cached_property
    def _zone(self) -> tzinfo:
        return ZoneInfo(self.timezone)

    def _parsed(self, key: str | None) -> Partition:
        local = self._local(key)
        assert key is not None
        partition = self._at(local)
        if partition.start >= partition.end:
            raise ConfigurationError(
                f"{self.timezone} has no {self.step} {key}: its clocks went over it", "Leave it out."
            )
        return partition

    def _local(self, key: str | None) -> datetime:
        """Where the partition begins, as local time."""
        example = _EXAMPLES[self._step]
        if not isinstance(key, str) or not key.strip():
            raise ConfigurationError(
                "there is no partition key, and a topology that is bound to partitions never asks what is new",
                f"Give the key of {_AN[self._step]}, such as {example}.",
            )
        # %V without a day of the week is nothing that strptime reads.
        text, pattern = (f"{key}-1", "%G-W%V-%u") if self._step is PartitionStep.WEEK else (key, self.key_format)
        try:
            local = datetime.strptime(text, pattern)
        except ValueError:
            local = None
        # strptime reads 2026-1-2, too.
        if local is None or local.strftime(self.key_format) != key or local != _floor(self._step, local):
            raise ConfigurationError(f"{key!r} is no key of {_AN[self._step]}", f"Write it as {example}.")
        if not _FIRST_YEAR <= local.year <= _LAST_YEAR:
            raise ConfigurationError(
                f"the partition {key} is too far away", f"Give {_AN[self._step]} such as {example}."
            )
        return local

    def _at(self, local: datetime) -> Partition:
        end = _instant(_next(self._step, local), self._zone)
        key = local.strftime(self.key_format)
        value = key if self._step is PartitionStep.HOUR else local.date()
        return Partition(key, _instant(local, self._zone), end, value)


def recorded(definition: Definition) -> Partitions | None:
    """The calendar of a topology whose code is not at hand; None: it is not bound."""
    match = _DESCRIBED.fullmatch(definition.partitions)
    if match is None or not definition.begin:
        return None
    return Partitions(
        match["step"],
        begin=definition.begin,
        timezone=match["timezone"],
        column=match["column"],
        complete_after=timedelta(seconds=definition.complete_after_s),
    )


def _set(partitions: Partitions, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(partitions, name, value)


def _member(kind: type[PartitionStep] | type[OnMissing], value: object, name: str) -> PartitionStep | OnMissing:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise PlanError(
            f"{name} is {value!r}", f"Use one of {', '.join(repr(str(member)) for member in kind)}."
        ) from error


def require_zone(name: str) -> None:
    """:raises PlanError: there is no such time zone, or it is another one on each machine."""
    try:
        if ZoneInfo(name).key in _ZONES_OF_A_MACHINE or name.startswith("right/"):  # those count leap seconds
            raise ValueError(name)
    except (OSError, ValueError, TypeError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise PlanError(
            f"there is no time zone {name!r}", "Use a name of the IANA database, such as Europe/Berlin."
        ) from error


def duration(name: str, value: timedelta | str) -> timedelta:
    """A timedelta, or a text such as "2h".

    :param name: of the option.
    :raises PlanError: it is neither, or negative.
    """
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match:
        value = timedelta(**{_UNITS[match[2]]: int(match[1])})
    if not isinstance(value, timedelta) or value < timedelta():
        raise PlanError(f"{name} is {value!r}", 'Give a timedelta, or a text such as "2h", "30m" or "1d".')
    return value


def _floor(step: PartitionStep, local: datetime) -> datetime:
    hour = local.replace(minute=0, second=0, microsecond=0)
    if step is PartitionStep.HOUR:
        return hour
    day = hour.replace(hour=0)
    if step is PartitionStep.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if step is PartitionStep.MONTH else day


def _next(step: PartitionStep, local: datetime) -> datetime:
    if step is PartitionStep.MONTH:
        return (local + timedelta(days=31)).replace(day=1)
    return (
        local
        + {
            PartitionStep.HOUR: timedelta(hours=1),
            PartitionStep.DAY: timedelta(days=1),
            PartitionStep.WEEK: timedelta(days=7),
        }[step]
    )


def _instant(local: datetime, zone: tzinfo) -> datetime:
    """The first moment at which the clocks of a zone show this time or a later one."""
    before, after = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if before <= after:  # once, or twice: then the first time
        return before
    # The clocks went over it, at a moment between these two.
    low, high = after, before
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        shows = middle.astimezone(zone).replace(tzinfo=None)
        low, high = (low, middle) if shows >= local else (middle, high)
    return high
