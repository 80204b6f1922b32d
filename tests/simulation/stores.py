"""Replacements for stores, which outlive every process. Their decisions are production code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core import groups
from airflow_trident.states.core import marker as marker_module
from tests.simulation.days import key_of
from tests.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True)
class Rows:
    """Replaces an Arrow table: the numbers of the source's records; in states that others feed, key and number."""

    records: tuple[Any, ...]

    @property
    def num_rows(self) -> int:
        return len(self.records)

    def slice(self, first: int, many: int) -> Rows:
        return Rows(self.records[first : first + many])


@dataclass
class Store:
    """The content of one state: how often it has each record, and the marker. `last`: the records of its highest txid.
    `order`: all records in the order in which they came."""

    marker: Marker | None = None
    records: Counter[Any] = field(default_factory=Counter)
    last: tuple[Any, ...] = ()
    order: tuple[Any, ...] = ()

    def copy(self) -> Store:
        return replace(self, records=Counter(self.records))

    def put_back(self, copy: Store) -> None:
        self.marker, self.records, self.last, self.order = copy.marker, Counter(copy.records), copy.last, copy.order

    def leave(self, days: Collection[str]) -> None:
        """It loses what it has of these days (T13)."""
        if days:
            self.records = Counter({item: n for item, n in self.records.items() if key_of(item) not in days})

    def take_in(self, batch: Rows, *, replaces: bool, highest: bool) -> None:
        if replaces:
            self.records.subtract(self.last)
            self.order = tuple(record for record in self.order if record not in self.last)
        self.records.update(batch.records)
        self.order += batch.records
        if highest:
            self.last = batch.records


@dataclass(frozen=True)
class SimStates(StateFactory):
    """Stores that outlive every process. The decisions are production code: `admit` and `admit_group` of
    `states.core.marker`, and :class:`groups.Group`.

    :param played: the world of the history that is played now; topologies are built once for all histories.
    """

    played: Callable[[], World]

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True, partitions=True)

    @property
    def scheduler(self) -> Scheduler:
        return self.played().scheduler

    def make_state(self, spec: StateSpec) -> OpenStore:
        self.scheduler.step()
        if self.scheduler.faults.unopened and self.scheduler.random.random() < self.scheduler.faults.unopened:
            raise StoreUnavailableError(f"the store of state {spec.name!r} does not answer", "Try again later.")
        return OpenStore(self, spec)

    def describe(self) -> str:
        return "SimStates"


class OpenStore(State):
    def __init__(self, where: SimStates, spec: StateSpec) -> None:
        self.where = where
        self.spec = spec
        self.store = where.played().stores_here().setdefault(spec.name, Store())

    def marker(self) -> Marker | None:
        self.where.scheduler.step()
        return self.store.marker

    def apply(self, ticket: CommitTicket, batch: Rows) -> Applied:
        self.where.scheduler.step()
        store = self.store
        store.marker, verdict = marker_module.admit(
            store.marker, ticket, state=self.spec.name, commutes=self.spec.commutes, opaque=self.spec.opaque
        )
        wanted = verdict is not marker_module.Verdict.SKIP
        if wanted:
            replaces = verdict is marker_module.Verdict.REPLACE
            store.leave(() if ticket.bars else ticket.partitions)
            store.take_in(batch, replaces=replaces, highest=ticket.txid == store.marker.high)
        applied = Applied.APPLIED if wanted else Applied.ALREADY
        self.where.played().applied(self.spec.name, store, ticket, batch, applied)
        self.where.played().judge.step_ended(self.spec.name, store)
        self.where.scheduler.step()
        return applied

    def apply_group(self, tickets: Sequence[CommitTicket], batches: Sequence[Any]) -> tuple[Applied, ...]:
        if len(tickets) == 1:
            return (self.apply(tickets[0], *batches),)
        group = groups.Group(self.spec, tickets, batches)
        self.where.scheduler.step()
        store = self.store
        marker, verdicts = marker_module.admit_group(
            store.marker, tickets, state=self.spec.name, commutes=self.spec.commutes
        )
        if group.is_inseparable and marker_module.Verdict.SKIP not in verdicts:
            parts = [(tickets[-1], batches[0])]
        else:
            parts = group.missing(verdicts) if marker_module.Verdict.APPLY in verdicts else []
        store.marker = marker
        for ticket, batch in parts:
            store.leave(ticket.partitions)
            store.take_in(batch, replaces=False, highest=ticket.txid == marker.high)
        answers = groups.answers(verdicts)
        for ticket, applied in zip(tickets, answers, strict=True):
            self.where.played().applied(self.spec.name, store, ticket, Rows(()), applied)
        self.where.played().judge.step_ended(self.spec.name, store)
        self.where.scheduler.step()
        return answers

    def bar(self, ticket: CommitTicket) -> None:
        self.apply(replace(ticket, bars=True), Rows(()))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        return [(self.store.records[record],) if record in self.store.records else None for (record,) in keys]

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter([((record,), (count,)) for record, count in self.store.records.items()])

    def close(self) -> None:
        """Does nothing: nothing is held open."""
