"""A topology that is bound to days: its source, which changes all the time, and requests for days. What a store has of
a day is always one look at the source, and no request is served by a look from before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_trident import Partitions
from airflow_trident.contracts.spout import Coordinator, Emitter, PartitionChange, Spout
from airflow_trident.errors import SourceChangedError
from airflow_trident.protocol.partitions import Partition
from airflow_trident.types import Field, Json, Schema

if TYPE_CHECKING:
    from tests.simulation.world import World

DAYS = Partitions("day", begin="2026-01-30")
KEYS = ("2026-01-30", "2026-01-31", "2026-02-01")
"""Of two months: the index has a record of each."""
NOW = datetime(2026, 3, 1, tzinfo=UTC)
PARTS = ("a", "b", "c")
SLOW = 0.2
"""How often a look takes long."""
OF_DAY = 1_000

Look = dict[str, int]
"""The parts of a day, as files of a folder: name -> its record. A part that is corrected has another record."""


def key_of(record: int) -> str:
    return KEYS[record // OF_DAY]


def looked_at(metadata: dict[str, Json]) -> Look | None:
    """What the metadata of a transaction name, if they are of a day."""
    stream: Any = metadata.get("records")
    if not isinstance(stream, dict) or "partition" not in stream:
        return None
    return dict(stream["batch"] or {})


@dataclass
class Source:
    """What there is of each day, and was: `since` counts the changes. `days`: those that anybody asks for."""

    now: dict[str, Look] = field(default_factory=lambda: {key: {} for key in KEYS})
    history: dict[str, list[tuple[int, Look]]] = field(default_factory=lambda: {key: [(0, {})] for key in KEYS})
    since: int = 0
    days: tuple[str, ...] = KEYS

    def change(self, world: World) -> None:
        """A part comes, is corrected, or goes; or a day is as it was some time ago."""
        chance = world.random
        key = chance.choice(self.days)
        look = dict(self.now[key])
        what = chance.choice(("comes", "comes", "comes", "corrected", "goes", "as before"))
        names = [name for name in PARTS if (name in look) != (what == "comes")]
        name = chance.choice(names or PARTS)
        if what == "as before":
            look = dict(chance.choice(self.history[key])[1])
        elif what == "goes":
            look.pop(name, None)
        else:
            look[name] = KEYS.index(key) * OF_DAY + self.since
        self.becomes(key, look, world)

    def becomes(self, key: str, look: Look, world: World) -> None:
        self.since += 1
        self.now[key] = look
        self.history[key].append((self.since, look))
        world.note(f"the source has of {key} now {look}")

    def was(self, key: str, look: Look, since: int) -> bool:
        """Would anybody have seen this at some time from then on?"""
        later = [one for at, one in self.history[key] if at > since]
        before = [one for at, one in self.history[key] if at <= since][-1]
        return look in (before, *later)

    def require(self, metadata: dict[str, Json], step: Callable[[], None]) -> None:
        """Reads each part as recorded; new ones are not noticed."""
        stream: Any = metadata["records"]
        for name, record in (stream["batch"] or {}).items():
            step()
            if self.now[stream["partition"]].get(name) != record:
                raise SourceChangedError(f"part {name} is not as it was recorded", "Ask for the day again.")

    def records(self) -> Iterator[int]:
        """All that there is."""
        for look in self.now.values():
            yield from look.values()


@dataclass(frozen=True)
class DaySpout(Spout):
    """:param played: as in :class:`~tests.simulation.stores.SimStates`."""

    played: Callable[[], World]

    @property
    def schema(self) -> Schema:
        return (Field("record", "long"),)

    def bound(self, partitions: Partitions) -> Spout:
        return self

    def coordinator(self) -> DayCoordinator:
        return DayCoordinator(self.played())

    def emitter(self) -> Emitter:
        raise NotImplementedError

    def describe(self) -> str:
        return "DaySpout"


@dataclass(frozen=True)
class DayCoordinator(Coordinator):
    world: World

    def is_ready(self, previous: Json) -> bool:
        raise NotImplementedError

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        raise NotImplementedError

    def partition(self, partition: Partition, before: Json = None) -> Json:
        self.world.scheduler.step()
        look: Any = dict(self.world.source.now[partition.key])
        self.world.scheduler.step()
        if not self.world.calm and self.world.random.random() < SLOW * self.world.rough:
            self.world.scheduler.doze(self.world.random.choice((10, 30, 60)))
        return look or None

    def compared(self, before: Json, now: Json) -> PartitionChange:
        assert isinstance(before, dict)
        assert isinstance(now, dict)
        other = tuple(name for name in before.keys() & now.keys() if before[name] != now[name])
        return PartitionChange(
            tuple(sorted(now.keys() - before.keys())), tuple(sorted(before.keys() - now.keys())), other
        )


@dataclass
class Requests:
    """What was asked for. `begun`: claim key -> the day, and how often the source had changed when it was first asked
    for. `served`: txid -> the claims that have it."""

    begun: dict[str, tuple[str, int]] = field(default_factory=dict)
    served: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
