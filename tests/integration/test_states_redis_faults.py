"""States in Redis when connections are cut in the middle, answers are lost or late, and processes die: in the end it is
certain what was applied, and it was applied once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import FencedError, OutcomeUnknownError, StoreUnavailableError
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.redis import RedisStateProvider
from airflow_trident.states.redis.state import RedisState
from tests.faults.redis_proxy import Cut, RedisProxy, once
from tests.fixtures.program import run_code
from tests.fixtures.redis import own_server, shared_server
from tests.fixtures.state import apply, batch, content, counts, product, ticket

SPECS = {"added by the store": counts, "merged by us": product}
ROWS = [(f"w{number}", 1 + number % 3) for number in range(50)]


@pytest.fixture
def proxy() -> Iterator[RedisProxy]:
    with RedisProxy(shared_server().port) as opened:
        yield opened


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest, where: dict[str, Any], proxy: RedisProxy) -> StateSpec:
    """Through the proxy."""
    return SPECS[request.param](RedisState(**{**where, "port": proxy.port}))


def directly(spec: StateSpec, where: dict[str, Any]) -> StateSpec:
    return replace(spec, factory=RedisState(**where))


# ---- the connection is cut -------------------------------------------------------------------------------------

REQUESTS = {"reading the record": b"GET", "staging": b"HSET", "the atomic step": b"EVAL"}


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_connection_that_is_cut_at_any_request_changes_nothing_about_the_end(
    spec: StateSpec, where: dict[str, Any], proxy: RedisProxy, request_: str, cut: Cut
) -> None:
    expected = {(word,): (n * 2 if spec.combiners[0].merge_kind else n * n,) for word, n in ROWS}
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, *ROWS))
        proxy.rule = once(REQUESTS[request_], cut)
        assert state.apply(ticket(2), batch(spec, *ROWS)) is Applied.APPLIED
        assert proxy.cuts == 1
        assert content(state) == expected
        assert state.apply(ticket(2), batch(spec, *ROWS)) is Applied.ALREADY
        assert content(state) == expected
    assert shared_server().client(where["db"]).keys("*before*") == []


def test_a_step_that_arrives_after_its_repetition_changes_nothing(
    spec: StateSpec, where: dict[str, Any], proxy: RedisProxy
) -> None:
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, *ROWS))
        proxy.rule = once(b"EVAL", Cut.HOLD)
        assert state.apply(ticket(2), batch(spec, *ROWS)) is Applied.APPLIED
        before = state.marker(), content(state)
        proxy.release(where["db"])
        assert (state.marker(), content(state)) == before


def test_a_step_that_arrives_after_a_newer_committer_changes_nothing(
    spec: StateSpec, where: dict[str, Any], proxy: RedisProxy
) -> None:
    """The zombie's request is still in the network when the newer committer has done the work."""
    newer = directly(spec, where)
    with spec.factory.make_state(spec) as old, newer.factory.make_state(newer) as new:
        apply(old, ticket(1), batch(spec, *ROWS))

        def rule(request: list[bytes]) -> Cut:
            if request[0] != b"EVAL" or proxy.cuts:
                return Cut.NOT
            apply(new, ticket(2, fence=99), batch(spec, ("a", 7)))
            return Cut.HOLD

        proxy.rule = rule
        with pytest.raises(FencedError, match="newer committer"):
            old.apply(ticket(2), batch(spec, *ROWS))
        before = new.marker(), content(new)
        proxy.release(where["db"])
        assert (new.marker(), content(new)) == before
        assert content(new)[("a",)] == (7,)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_what_cannot_be_found_out_in_time_is_said_to_be_unknown_and_found_out_later(
    where: dict[str, Any], proxy: RedisProxy, cut: Cut
) -> None:
    spec = counts(RedisState(**{**where, "port": proxy.port, "timeout_s": 0.3}))
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, *ROWS))

        def rule(request: list[bytes]) -> Cut:
            if request[0] != b"EVAL":
                return Cut.NOT
            proxy.refusing = True
            return cut

        proxy.rule = rule
        with pytest.raises(OutcomeUnknownError, match=r"transaction 2 of state 'counts' may or may not have happened"):
            state.apply(ticket(2), batch(spec, *ROWS))
        proxy.rule = lambda request: Cut.NOT
        with pytest.raises(StoreUnavailableError, match="does not work now"):
            state.apply(ticket(2), batch(spec, *ROWS))
        proxy.refusing = False
        expected = Applied.ALREADY if cut is Cut.AFTER else Applied.APPLIED
        assert state.apply(ticket(2), batch(spec, *ROWS)) is expected
        assert content(state) == {(word,): (2 * n,) for word, n in ROWS}


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.HOLD])
def test_steps_of_key_value_states_are_found_out_likewise(where: dict[str, Any], proxy: RedisProxy, cut: Cut) -> None:
    with RedisStateProvider(**{**where, "port": proxy.port}).new_state("n") as state:
        steps = [
            lambda: state.prepare_commit(1, fence=1),
            lambda: state.commit(1, fence=1),
            lambda: state.rollback(fence=2),
            lambda: state.commit(fence=2),
        ]
        for number, step in enumerate(steps, 1):
            state.put(f"key{number}", number)
            proxy.rule = once(b"EVAL", cut)
            assert step() in (Step.DONE, None)
            assert proxy.cuts == number
            before = state.marks(), dict(state.committed_items())
            if cut is Cut.HOLD:
                proxy.release(where["db"])
            assert (state.marks(), dict(state.committed_items())) == before
        assert state.marks() == Marks(committed=1, fence=2)
        assert dict(state.iterator()) == {"key1": 1, "key4": 4}


# ---- processes die ---------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from airflow_trident.states.redis.state import RedisState
from tests.integration.test_states_redis_faults import ROWS, SPECS
from tests.fixtures.state import batch, ticket

where, kind, die = eval(sys.argv[1]), sys.argv[2], sys.argv[3]
spec = SPECS[kind](RedisState(**where))
state = spec.factory.make_state(spec)
client = state._client
send = client.execute_command


def execute_command(name, *arguments, **options):
    if die == f"before {name}":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = send(name, *arguments, **options)
    if die == f"after {name}":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


client.execute_command = execute_command
print(state.apply(ticket(2), batch(spec, *ROWS)).value)
"""


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("die", ["before UNLINK", "after UNLINK", "before EVAL", "after EVAL"])
def test_a_committer_killed_at_any_request_and_run_again_ends_as_one_that_was_not(
    where: dict[str, Any], kind: str, die: str
) -> None:
    spec = SPECS[kind](RedisState(**where))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS[:20], ("only here", 7)))
        before = state.marker(), content(state)
        killed = run_code(WORKER, repr(where), kind, die)
        assert killed.returncode == -signal.SIGKILL
        if die != "after EVAL":
            assert (state.marker(), content(state)) == before, "all or nothing"
        answer = state.apply(ticket(2), batch(spec, *ROWS))
        assert answer is (Applied.ALREADY if die == "after EVAL" else Applied.APPLIED)
        adds = kind == "added by the store"
        both = {(word,): (2 * n if adds else n * n,) for word, n in ROWS[:20]}
        assert content(state) == {("only here",): (7,), **{(word,): (n,) for word, n in ROWS[20:]}, **both}
    with shared_server().client(where["db"]) as client:
        assert all(client.ttl(name) > 0 for name in client.keys("*stage*")), "what the dead one staged goes by itself"


def test_a_server_killed_while_batches_come_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        spec = counts(RedisState(host="127.0.0.1", port=server.port, timeout_s=60.0))
        kills = threading.Semaphore(0)  # counts: the next one may be wanted while the server is still starting

        def killer() -> None:
            for _ in range(3):
                kills.acquire()
                server.kill()
                server.start()

        thread = threading.Thread(target=killer)
        thread.start()
        with spec.factory.make_state(spec) as state:
            for txid in range(1, 41):
                if txid in (5, 15, 25):
                    kills.release()
                assert state.apply(ticket(txid), batch(spec, *ROWS)) is Applied.APPLIED
            thread.join()
            assert content(state) == {(word,): (40 * n,) for word, n in ROWS}
