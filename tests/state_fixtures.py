"""States of tests: implementations, specs, tickets and batches of one small word count and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_trident.arrow import rows_to_table
from airflow_trident.connections import Connection
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.base import CombinerAggregator, ReducerAggregator
from airflow_trident.plan.states import Applied, MapState, Marker, State, StateFactory, StateSpec
from airflow_trident.protocol.records import CommitTicket, StagedRef
from airflow_trident.protocol.txids import Txids
from airflow_trident.states.delta import DeltaState
from airflow_trident.states.file_sink import FileSink
from airflow_trident.states.jdbc import JdbcState
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis import RedisState
from airflow_trident.states.sqlite import SqliteState
from airflow_trident.states.table_sink import TableSink
from airflow_trident.types import parse_declared
from tests.postgres_fixtures import CONN_ID, jdbc_state, postgres_state, running
from tests.redis_fixtures import settings_of_a_new_database

# ---- the implementations ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(StateFactory):
    """Crippled: every first apply of a txid happens, and its answer is lost."""

    inner: StateFactory

    @property
    def capabilities(self) -> Any:  # type: ignore[override]
        return self.inner.capabilities

    def validate(self, spec: StateSpec) -> None:
        self.inner.validate(spec)

    def make_state(self, spec: StateSpec) -> State:
        return ForgetfulState(self.inner.make_state(spec))

    def describe(self) -> str:
        return f"Forgetful({self.inner.describe()})"


class ForgetfulState(State):
    def __init__(self, inner: State) -> None:
        self.inner = inner

    def marker(self) -> Marker | None:
        return self.inner.marker()

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        answer = self.inner.apply(ticket, batch)
        if answer is Applied.APPLIED:
            raise StoreUnavailableError("the answer was lost", "Run it again.")
        return answer

    def bar(self, ticket: CommitTicket) -> None:
        self.inner.bar(ticket)

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        return self.inner.get_many(keys)

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return self.inner.items()

    def close(self) -> None:
        self.inner.close()


_DATABASES: dict[str, dict[str, Any]] = {}


def redis_state(folder: Path, **options: Any) -> RedisState:
    """The same folder, the same database."""
    return RedisState(**_DATABASES.setdefault(str(folder), settings_of_a_new_database()), **options)


def jdbc_sqlite(folder: Path) -> JdbcState:
    return JdbcState("jdbc", connection=Connection(conn_type="sqlite", host=str(folder / "jdbc.db")))


FACTORIES: dict[str, Callable[[Path], StateFactory]] = {
    "sqlite": lambda folder: SqliteState(str(folder / "states.db")),
    "memory": lambda folder: MemoryState(str(folder)),
    "redis": redis_state,
    "redis with a key each": lambda folder: redis_state(folder, layout="string"),
    "redis that loses its answers": lambda folder: Forgetful(redis_state(folder)),
    "postgres": postgres_state,
    "postgres that loses its answers": lambda folder: Forgetful(postgres_state(folder)),
    "jdbc on sqlite": jdbc_sqlite,
    "jdbc on postgres": jdbc_state,
    "sqlite that loses its answers": lambda folder: Forgetful(SqliteState(str(folder / "states.db"))),
    "delta": lambda folder: DeltaState(str(folder / "states")),
    "delta that loses its answers": lambda folder: Forgetful(DeltaState(str(folder / "states"), fold_at=2)),
    "memory that loses its answers": lambda folder: Forgetful(MemoryState(str(folder))),
}


def table_sink(folder: Path) -> TableSink:
    running()
    return TableSink(CONN_ID, schema=postgres_state(folder).schema)


SINKS: dict[str, Callable[[Path], StateFactory]] = {
    "files": lambda folder: FileSink(str(folder / "out")),
    "table": table_sink,
}


def apply(state: State, ticket: CommitTicket, rows: pa.Table) -> Applied:
    """As a committer does: when the answer is lost, the same thing again, which says ALREADY then."""
    try:
        return state.apply(ticket, rows)
    except StoreUnavailableError:
        assert state.apply(ticket, rows) is Applied.ALREADY
        return Applied.APPLIED


# ---- specs and batches ----------------------------------------------------------------------------------------


def counts(factory: StateFactory, *, topology: str = "words", name: str = "counts") -> StateSpec:
    """(word) -> (n), added by the store itself."""
    return combined(factory, "word string", "n long", Count(), topology=topology, name=name)


def combined(
    factory: StateFactory,
    keys: str,
    values: str,
    *combiners: CombinerAggregator[Any],
    topology: str = "words",
    name: str = "counts",
) -> StateSpec:
    key_fields, value_fields = parse_declared(keys), parse_declared(values)
    return StateSpec(
        topology=topology,
        name=name,
        keys=key_fields,
        values=value_fields,
        staged=(*key_fields, *value_fields),
        factory=factory,
        combiners=combiners,
    )


def ticket(
    txid: int,
    *,
    attempt: int = 0,
    fence: int | None = None,
    incarnation: str = "i1",
    late: bool = False,
    topology: str = "words",
    position: Any = None,
    needs: Sequence[int] = (),
    floor: int = 0,
) -> CommitTicket:
    """A ticket with `fence` = 10 * txid unless given.

    :param needs: the txids that every state must hold.
    """
    return CommitTicket(
        topology=topology,
        incarnation=incarnation,
        txid=txid,
        attempt=attempt,
        fence=10 * txid if fence is None else fence,
        position={"lines": {"to": txid}} if position is None else position,
        staged=StagedRef(manifest="m", rows_read=0, rows={}, bytes=0),
        late=late,
        needed=dict.fromkeys(("counts", "one", "two", "rows", "trail"), Txids.of(*needs)) if needs else {},
        floor=floor,
    )


def batch(spec: StateSpec, *rows: tuple[Any, ...]) -> pa.Table:
    return rows_to_table(spec.staged, list(rows))


def content(state: State) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    pairs = list(state.items())
    found = dict(pairs)
    assert len(found) == len(pairs), "a key occurs twice"
    return found


class Product(CombinerAggregator[int]):
    """A combiner that no store does by itself."""

    def init(self, *values: Any) -> int:
        return int(values[0])

    def combine(self, left: int, right: int) -> int:
        return left * right

    def zero(self) -> int:
        return 1


class Appended(ReducerAggregator[str]):
    """Depends on order."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: Any) -> str:
        return current + str(values[0])


def keep_longest(state: MapState, tuples: Any) -> None:
    """An updater: word -> the longest line seen with it."""
    for word, line in tuples:
        (known,) = state.multi_get([(word,)])
        if line is None:
            state.multi_remove([(word,)])
        elif known is None or len(line) > len(known[0]):
            state.multi_put([(word,)], [(line,)])


def product(factory: StateFactory) -> StateSpec:
    """(word) -> (n), multiplied by us."""
    return combined(factory, "word string", "n long", Product())


def appended(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "word string", "text string")
    return replace(
        spec, reducer=Appended(), staged=parse_declared("word string, letter string, n long"), reads=("letter",)
    )
