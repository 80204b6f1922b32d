"""Levels of the commit phase: states that are fed by the new values of others. What they must hold follows from the
batches of the COMMITTED transactions alone. The levels themselves run in production code, on Arrow tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from airflow_trident import Sum
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.plan.nodes import GivenTuples, SourceNode
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.topology.stream import Stream
from tests.simulation.pieces import SimBatch
from tests.simulation.stores import OpenStore, Rows, SimStates, Store

HALVES = 2
FED = {"second": "first", "third": "second"}
"""State -> the state whose new values feed it."""

Item = int | tuple[int, int]
"""What a store counts: records in the first state, key and staged number in those that are fed."""


def split(record: int) -> list[tuple[int, int]]:
    """Records of one half change the same value, and no sum of records is like another."""
    return [(record % HALVES, 1 << record)]


def build(stream: Stream, states: SimStates) -> None:
    """Three states, one behind the other: each value of the second is a sum of values that the first had."""
    bits = stream.each("record", split, "half long, bit long")
    first = bits.group_by("half").persistent_aggregate(states, "bit", Sum(), "bits", name="first")
    changed = first.new_values_stream().group_by("half")
    second = changed.persistent_aggregate(states, "bits", Sum(), "sums", name="second")
    again = second.new_values_stream().group_by("half")
    again.persistent_aggregate(states, "sums", Sum(), "sums_of_sums", name="third")


def _brought(batches: Sequence[tuple[int, ...]]) -> Iterator[Mapping[str, tuple[Item, ...]]]:
    """What each of these transactions, applied one after the other, brings to each state."""
    totals: dict[str, Counter[int]] = {name: Counter() for name in ("first", *FED.values())}
    for batch in batches:
        items: dict[str, tuple[Item, ...]] = {"first": batch}
        totals["first"].update(_sums(batch))
        for name, source in FED.items():
            staged = tuple((half, totals[source][half]) for half in sorted({record % HALVES for record in batch}))
            items[name] = staged
            if name in totals:
                totals[name].update(_sums(staged))
        yield items


def contents(done: Mapping[int, tuple[int, ...]]) -> dict[str, Counter[Item]]:
    """What each state holds when just these transactions are applied, in the order of their txids."""
    found: dict[str, Counter[Item]] = {name: Counter() for name in ("first", *FED)}
    for items in _brought([done[txid] for txid in sorted(done)]):
        for name, more in items.items():
            found[name].update(more)
    return found


def _sums(items: Sequence[Item]) -> Counter[int]:
    found: Counter[int] = Counter()
    for item in items:
        half, number = item if isinstance(item, tuple) else split(item)[0]
        found[half] += number
    return found


class LevelBatch(SimBatch):
    """As a table it is what the processing phase stages for `first`: a sum for each half."""

    def table(self) -> Any:
        (rows,) = self.pieces()
        return rows_to_table(self.schema, sorted(_sums(cast(Rows, rows).records).items()))


class RememberingEngine(LocalEngine):
    """Works out only once in a process what comes of the same tuples: these are few numbers in every history, and the
    levels are the same in all."""

    known: ClassVar[dict[tuple[Any, ...], list[tuple[str, Any]]]] = {}

    def tables(self, job: Job, rows_read: Any = None, *, whose: Any = None) -> Iterator[tuple[str, Any]]:
        spouts = [stage.source.spout for stage in job.plan.stages if isinstance(stage.source, SourceNode)]
        given = [tuple(table_to_rows(spout.table)) for spout in spouts if isinstance(spout, GivenTuples)]
        key = (*(sink.name for stage in job.plan.stages for sink in stage.sinks), *given)
        if key not in self.known:
            self.known[key] = list(super().tables(job, rows_read, whose=whose))
        yield from self.known[key]


@dataclass(frozen=True)
class LevelStates(SimStates):
    """Stores whose values can be read."""

    def make_state(self, spec: StateSpec) -> LevelStore:
        return LevelStore(self, super().make_state(spec).spec)


class LevelStore(OpenStore):
    def apply_staged(self, ticket: CommitTicket, batch: SimBatch) -> Applied:
        (rows,) = batch.pieces()
        return self.apply(ticket, cast(Rows, rows))

    def apply(self, ticket: CommitTicket, batch: Any) -> Applied:
        """:param batch: of the simulation; a table if a level of the commit phase has made it."""
        return super().apply(ticket, batch if isinstance(batch, Rows) else Rows(tuple(table_to_rows(batch))))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        self.where.scheduler.step()
        sums = values_of(self.store)
        return [(sums[half],) if half in sums else None for (half,) in keys]

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter([((half,), (total,)) for half, total in values_of(self.store).items()])


def values_of(store: Store) -> Counter[int]:
    """The value of each half."""
    return _sums(tuple((+store.records).elements()))
