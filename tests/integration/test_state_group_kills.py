"""T12 and P9: processes that die by SIGKILL while they apply a group, or between that and COMMITTED. Whoever comes next
ends as if nobody had been killed, whether one by one or in other groups."""

from __future__ import annotations

import os
import pickle
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec, digest_of
from airflow_trident.errors import FencedError, LedgerBehindStateError
from airflow_trident.protocol.records import CommitTicket, Status
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.staging.area import StagingArea
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.postgres import postgres_state, sql_state
from tests.fixtures.program import run_code
from tests.fixtures.runtime import ALL, World
from tests.fixtures.state import Product, batch, combined, content, counts, product, redis_state, sql_on_sqlite, ticket

STORES: dict[str, Callable[[Path], StateFactory]] = {
    "sqlite": lambda folder: SqliteState(str(folder / "states.db")),
    "redis": redis_state,
    "postgres": postgres_state,
    "sqlalchemy on sqlite": sql_on_sqlite,
    "sqlalchemy on postgres": sql_state,
    "delta": lambda folder: DeltaState(str(folder / "states")),
}
SPECS = {"added by the store": counts, "merged by us": product}
GROUP = (2, 3, 4)

WORKER = """
import os, pickle, signal, sys

with open(sys.argv[1], "rb") as file:
    spec, tickets, batches, where = pickle.load(file)
state = spec.factory.make_state(spec)


def trace(statement):
    # Called before each statement runs.
    if statement.split()[0] == where:
        os.kill(os.getpid(), signal.SIGKILL)


if where.isupper():
    state.dialect.file.connection.set_trace_callback(trace)
state.apply_group(tickets, batches)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path, spec: StateSpec, tickets: Sequence[CommitTicket], given: Sequence[pa.Table], at: str) -> None:
    """
    :param at: a word of SQL before which the process dies; "after": it dies when all is applied.
    """
    order = folder / "order"
    order.write_bytes(pickle.dumps((spec, list(tickets), list(given), at)))
    done = run_code(WORKER, order)
    assert done.returncode == -signal.SIGKILL, done.stdout


def rows(spec: StateSpec, txid: int) -> pa.Table:
    return batch(spec, ("every", 2), (f"w{txid}", 3), *((f"v{number}", 1 + txid % 2) for number in range(50)))


def group(*txids: int, fence: int) -> list[CommitTicket]:
    return [ticket(txid, fence=fence) for txid in txids]


def undisturbed(spec: StateSpec, last: int) -> tuple[Any, Any]:
    """The rows and the highest txid that a state has to which all was applied one by one."""
    memory = MemoryState(f"undisturbed {uuid.uuid4()}")
    with memory.make_state(replace(spec, factory=memory)) as state:
        for txid in range(1, last + 1):
            state.apply(ticket(txid), rows(spec, txid))
        marker = state.marker()
        assert marker is not None
        return content(state), (marker.high, marker.holes, marker.position)


def found(state: State) -> tuple[Any, Any]:
    marker = state.marker()
    assert marker is not None
    return content(state), (marker.high, marker.holes, marker.position)


FOLLOWERS = {"one by one": (1, 1, 1, 1), "the same": (3, 1), "another cut": (1, 3), "smaller ones": (2, 2)}


def follow(state: State, spec: StateSpec, cuts: Sequence[int]) -> list[Applied]:
    """From the first of the group on, each cut with a newer fence."""
    said, txid = list[Applied](), GROUP[0]
    for fence, many in enumerate(cuts, start=101):
        txids = range(txid, txid + many)
        if many == 1:
            said.append(state.apply(ticket(txid, fence=fence), rows(spec, txid)))
        else:
            said += state.apply_group(group(*txids, fence=fence), [rows(spec, one) for one in txids])
        txid += many
    return said


@pytest.mark.parametrize("cuts", FOLLOWERS)
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("store", STORES)
def test_t12_killed_between_the_state_and_committed(tmp_path: Path, store: str, kind: str, cuts: str) -> None:
    spec = SPECS[kind](STORES[store](tmp_path))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), rows(spec, 1))
    killed(tmp_path, spec, group(*GROUP, fence=100), [rows(spec, txid) for txid in GROUP], "after")
    with spec.factory.make_state(spec) as state:
        assert follow(state, spec, FOLLOWERS[cuts]) == [Applied.ALREADY] * 3 + [Applied.APPLIED]
        assert found(state) == undisturbed(spec, 5)
        with pytest.raises(FencedError):
            state.apply_group(group(*GROUP, fence=100), [rows(spec, txid) for txid in GROUP])
        assert found(state) == undisturbed(spec, 5)


@pytest.mark.parametrize("cuts", FOLLOWERS)
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("at", ["BEGIN", "INSERT", "UPDATE", "COMMIT"])
def test_t12_killed_at_any_statement_of_the_step_nothing_of_it_is_there(
    tmp_path: Path, at: str, kind: str, cuts: str
) -> None:
    spec = SPECS[kind](SqliteState(str(tmp_path / "states.db")))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), rows(spec, 1))
        before = found(state)
    killed(tmp_path, spec, group(*GROUP, fence=100), [rows(spec, txid) for txid in GROUP], at)
    with spec.factory.make_state(spec) as state:
        assert found(state) == before, "all or nothing"
        assert follow(state, spec, FOLLOWERS[cuts]) == [Applied.APPLIED] * 4
        assert found(state) == undisturbed(spec, 5)


class DyingAtThree(Product):
    """Kills the process in the middle of the second batch, where its environment says so."""

    def combine(self, left: int, right: int) -> int:
        if right == 3 and os.environ.get("DIE"):
            os.kill(os.getpid(), signal.SIGKILL)
        return left * right


@pytest.mark.parametrize("store", STORES)
def test_t12_killed_inside_the_users_combiner_of_a_later_batch_leaves_nothing(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = combined(STORES[store](tmp_path), "word string", "n long", DyingAtThree())
    given = [batch(spec, ("a", value)) for value in (5, 3, 7)]
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2)))
    monkeypatch.setenv("DIE", "now")
    killed(tmp_path, spec, group(*GROUP, fence=100), given, "after")
    monkeypatch.delenv("DIE")
    with spec.factory.make_state(spec) as state:
        assert content(state) == {("a",): (2,)}
        assert state.apply_group(group(*GROUP, fence=101), given) == (Applied.APPLIED,) * 3
        assert content(state) == {("a",): (210,)}


@pytest.mark.parametrize("kind", SPECS)
def test_t12_killed_in_a_second_group_that_finds_a_part_of_it_there(tmp_path: Path, kind: str) -> None:
    spec = SPECS[kind](SqliteState(str(tmp_path / "states.db")))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), rows(spec, 1))
    killed(tmp_path, spec, group(2, 3, fence=100), [rows(spec, txid) for txid in (2, 3)], "after")
    killed(tmp_path, spec, group(2, 3, 4, fence=101), [rows(spec, txid) for txid in (2, 3, 4)], "COMMIT")
    killed(tmp_path, spec, group(2, 3, 4, fence=102), [rows(spec, txid) for txid in (2, 3, 4)], "after")
    with spec.factory.make_state(spec) as state:
        said = [state.apply(ticket(txid, fence=101 + txid), rows(spec, txid)) for txid in (2, 3, 4, 5)]
        assert said == [Applied.ALREADY] * 3 + [Applied.APPLIED]
        assert found(state) == undisturbed(spec, 5)


# ---- with a ledger ---------------------------------------------------------------------------------------------


def gated(world: World, last: int) -> tuple[tuple[CommitTicket, ...], list[pa.Table]]:
    """The tickets of one gate for all transactions up to `last`, with their batches."""
    tickets, spec = world.ledger.gate(range(1, last + 1), owner="group"), world.topology.states["count"]
    area = StagingArea(world.staging)
    return tickets, [area.read(area.load(one.staged), "count", spec.staged) for one in tickets]


def processed(world: World, last: int) -> None:
    for txid in range(1, last + 1):
        world.begin(f"run-{txid}")
        world.process(txid)


def test_p9_a_single_committer_ends_what_a_killed_group_began(tmp_path: Path) -> None:
    world = World(tmp_path)
    processed(world, 4)
    tickets, given = gated(world, 4)
    killed(tmp_path, world.topology.states["count"], tickets, given, "after")
    counted = world.counts()
    require_agreement(world.ledger, world.topology)
    assert world.begin("run-5") == 5
    world.process(5)
    assert world.committer().commit(1, take_over=True).committed[:4] == (1, 2, 3, 4)
    world.committer().commit(5)
    assert world.statuses() == [Status.COMMITTED] * 5
    assert (world.counts(), counted == ALL) == (ALL, False)
    spec = world.topology.states["count"]
    with spec.factory.make_state(spec) as state, pytest.raises(FencedError):
        state.apply_group(tickets, given)


def test_p11_a_ledger_that_was_restored_after_a_group_is_refused_at_each_of_its_transactions(tmp_path: Path) -> None:
    world = World(tmp_path)
    processed(world, 3)
    tickets, given = gated(world, 3)
    spec = world.topology.states["count"]
    killed(tmp_path, spec, tickets, given, "after")
    with spec.factory.make_state(spec) as state:
        marker = state.marker()
        assert marker is not None
        assert marker.group == {one.txid: digest_of(one.position) for one in tickets}
        for one, rows_of_it in zip(tickets, given, strict=True):
            other = replace(one, fence=one.fence + 1, position={"lines": {"index": 99}})
            with pytest.raises(LedgerBehindStateError, match="old copy"):
                state.apply(other, rows_of_it)
