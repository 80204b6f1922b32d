"""States in PostgreSQL and committers that are killed or cut off: run again, they end as if nothing had happened."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import OutcomeUnknownError, StoreUnavailableError
from airflow_trident.states.sql.postgres import PostgresState
from airflow_trident.states.sql.store import SqlStore
from tests.faults.postgres_proxy import PostgresProxy
from tests.fixtures.postgres import PASSWORD, PostgresServer, postgres_state
from tests.fixtures.program import Waiting
from tests.fixtures.state import Product, batch, combined, content, ticket
from tests.integration.test_states_postgres import OPAQUE, ROWS, SPECS, spec_of

pytestmark = pytest.mark.usefixtures("postgres")

# ---- killed ----------------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from airflow_trident.states.sql import postgres
from tests.integration.test_states_postgres import ROWS, spec_of
from tests.fixtures.state import batch, ticket

folder, kind, where, txid, attempt = sys.argv[1:]
spec = spec_of(kind, folder)
state = spec.factory.make_state(spec)
run = postgres.run


def watched(connection, statement, parameters=None):
    if statement.startswith(where):
        os.kill(os.getpid(), signal.SIGKILL)
    return run(connection, statement, parameters)


postgres.run = watched
print("ready", flush=True)
sys.stdin.read()
answer = state.apply(ticket(int(txid), attempt=int(attempt)), batch(spec, *ROWS))
if where == "after":
    os.kill(os.getpid(), signal.SIGKILL)
print(answer.value, flush=True)
"""


def start(folder: Path, kind: str, where: str, txid: int, attempt: int = 0) -> Waiting:
    """A process that has opened the state and waits for its turn; it dies before the statement `where`."""
    return Waiting(WORKER, folder, kind, where, txid, attempt)


@pytest.mark.parametrize("kind", [*SPECS, *OPAQUE])
@pytest.mark.parametrize("where", ["INSERT INTO", "COMMIT", "after"])
def test_a_committer_killed_at_any_statement_and_run_again_ends_as_one_that_was_not(
    tmp_path: Path, kind: str, where: str
) -> None:
    spec = spec_of(kind, tmp_path)
    undisturbed = replace(spec, name="undisturbed")
    for one in (spec, undisturbed):
        with one.factory.make_state(one) as state:
            state.apply(ticket(1), batch(one, *ROWS[:300], ("only here", 7)))
            if spec.opaque:
                state.apply(ticket(2), batch(one, *ROWS[200:400], ("to be taken back", 3)))
            before = state.marker(), content(state)
    attempt = 1 if spec.opaque else 0
    assert start(tmp_path, kind, where, 2, attempt).ended()[0] == -signal.SIGKILL
    with spec.factory.make_state(spec) as state:
        if where != "after":
            assert (state.marker(), content(state)) == before, "all or nothing"
        answer = state.apply(ticket(2, attempt=attempt), batch(spec, *ROWS))
        assert answer is (Applied.ALREADY if where == "after" else Applied.APPLIED)
        found = content(state)
    with undisturbed.factory.make_state(undisturbed) as state:
        state.apply(ticket(2, attempt=attempt), batch(spec, *ROWS))
        assert content(state) == found


def test_of_many_processes_at_once_exactly_one_applies_a_txid(tmp_path: Path) -> None:
    spec = spec_of("merged by us", tmp_path)
    workers = [start(tmp_path, "merged by us", "nowhere", 1) for _ in range(3)]
    for worker in workers:
        worker.go_on()
    ends = [worker.ended() for worker in workers]
    assert [code for code, _ in ends] == [0] * len(workers)
    assert sorted(said for _, said in ends) == ["already applied", "already applied", "applied"]
    with spec.factory.make_state(spec) as state:
        assert content(state) == {(word,): (n,) for word, n in ROWS}


# ---- cut off ---------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.port) as running:
        yield running


def through(proxy: PostgresProxy, postgres: PostgresServer, spec: StateSpec) -> SqlStore:
    where = replace(postgres.connection, port=proxy.port, extra={"sslmode": "disable", "gssencmode": "disable"})
    assert isinstance(spec.factory, PostgresState)
    return replace(spec.factory, connection=where).make_state(spec)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("statement", [b"BEGIN", b"FOR UPDATE", b"UPDATE ", b"COMMIT\0"])
def test_a_connection_cut_before_a_statement_arrives_leaves_nothing_and_says_so(
    postgres: PostgresServer, proxy: PostgresProxy, tmp_path: Path, kind: str, statement: bytes
) -> None:
    spec = spec_of(kind, tmp_path)
    with through(proxy, postgres, spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:100]))
        before = state.marker(), content(state)
        proxy.cut_before = statement
        # Of a COMMIT that did not arrive nobody on this side can know that.
        expected = OutcomeUnknownError if statement == b"COMMIT\0" else StoreUnavailableError
        with pytest.raises(expected, match=r"postgres://127.0.0.1") as caught:
            state.apply(ticket(2), batch(spec, *ROWS))
        assert PASSWORD not in str(caught.value)
        assert proxy.cuts == 1
    proxy.cut_before = None
    with spec.factory.make_state(spec) as state:
        assert (state.marker(), content(state)) == before
        assert state.apply(ticket(2), batch(spec, *ROWS)) is Applied.APPLIED


@pytest.mark.parametrize("kind", SPECS)
def test_a_commit_whose_answer_is_lost_is_unknown_and_run_again_it_is_already_there(
    postgres: PostgresServer, proxy: PostgresProxy, tmp_path: Path, kind: str
) -> None:
    spec = spec_of(kind, tmp_path)
    with through(proxy, postgres, spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:100]))
        proxy.cut_answer_of = b"COMMIT\0"
        with pytest.raises(OutcomeUnknownError, match="knows what is applied"):
            state.apply(ticket(2), batch(spec, *ROWS))
        with pytest.raises(StoreUnavailableError):
            state.marker()
    proxy.cut_answer_of = None
    assert proxy.cuts == 1
    with through(proxy, postgres, spec) as state:
        assert state.apply(ticket(2), batch(spec, *ROWS)) is Applied.ALREADY
        assert len(content(state)) == 500


def test_a_backend_that_is_terminated_before_the_commit_applied_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    class Terminating(Product):
        def combine(self, left: int, right: int) -> int:
            with postgres.connect() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
                    ["airflow-trident terminated/%"],
                )
            return left * right

    spec = combined(postgres_state(tmp_path), "word string", "n long", Terminating(), topology="terminated")
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1, topology="terminated"), batch(spec, ("a", 2)))
        with pytest.raises(StoreUnavailableError, match="Nothing was applied"):
            state.apply(ticket(2, topology="terminated"), batch(spec, ("a", 3)))
    with spec.factory.make_state(spec) as state:
        assert content(state) == {("a",): (2,)}
