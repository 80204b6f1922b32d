"""Stateful functions: the recovery table with its hooks, errors of the function, and the ledger around them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, KeyValueStates, StatefulFunction, Topology
from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    CorruptRecordError,
    DefinitionChangedError,
    UserCodeError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.checkpoint import Action, CheckpointState
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, process
from airflow_trident.runtime.query import checkpoints
from airflow_trident.states.keyvalue.stateful import partition_of
from tests.fixtures import single
from tests.fixtures.checkpoint import opened, undisturbed
from tests.fixtures.state import ticket
from tests.programs import stateful_trails as trails

# ---- the recovery table, with hooks ----------------------------------------------------------------------------


class Witness(StatefulFunction[str, int]):
    """Counts, tells what it is called for, and raises in a hook of partition 1 as long as `broken` names it."""

    calls: list[tuple[Any, ...]] = []  # noqa: RUF012 - shared by the copies on purpose
    broken = ""

    def prepare(self, context: Any) -> None:
        self.part = context.partition_index
        self._tell("prepare")

    def init_state(self, state: Any) -> None:
        self.state = state
        self._tell("init_state", state.get("n", 0))

    def execute(self, word: str) -> None:
        self.state.put("n", self.state.get("n", 0) + 1)

    def pre_prepare(self, txid: int) -> None:
        self._tell("pre_prepare", txid)

    def pre_commit(self, txid: int) -> None:
        self._tell("pre_commit", txid)

    def pre_rollback(self) -> None:
        self._tell("pre_rollback")

    def cleanup(self) -> None:
        self._tell("cleanup")

    def _tell(self, what: str, *more: Any) -> None:
        Witness.calls.append((self.part, what, *more))
        if what == Witness.broken and self.part == 1:
            raise RuntimeError("it is broken")


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Topology]:
    Witness.calls, Witness.broken = [], ""
    made = Topology("witness")
    stream = made.new_stream("words", FixedBatchSpout("word string", [("one",), ("three",)] * 3, 2))
    provider = KeyValueStates("sqlite", {"path": str(tmp_path / "witness.db")})
    stream.stateful("word", Witness(), provider=provider, keys="word", partitions=2)
    yield made
    Witness.broken = ""


def commit_witness(topology: Topology, txid: int, fence: int) -> tuple[Applied, list[tuple[Any, ...]]]:
    spec = topology.states["Witness"]
    Witness.calls = []
    with opened(spec) as state:
        rows = rows_to_table(spec.staged, [("one",), ("three",)])
        return state.apply(ticket(txid, fence=fence, topology="witness"), rows), Witness.calls


def counts(topology: Topology) -> list[int]:
    with opened(topology.states["Witness"]) as state:
        return [value for _, (value,) in state.items()]


def of_both(*call: Any) -> list[tuple[Any, ...]]:
    return [(0, *call), (1, *call)]


def test_hooks_come_in_storms_order_around_every_step(witness: Topology) -> None:
    assert {partition_of((word,), 2) for word in ("one", "three")} == {0, 1}
    commit_witness(witness, 1, 1)
    _, calls = commit_witness(witness, 2, 2)
    assert calls == [
        *of_both("prepare"),
        *of_both("init_state", 1),
        *of_both("pre_prepare", 2),
        *of_both("pre_commit", 2),
        (1, "cleanup"),
        (0, "cleanup"),
    ]


def test_recovery_from_preparing_rolls_back_what_was_prepared_and_starts_from_the_committed_state(
    witness: Topology,
) -> None:
    commit_witness(witness, 1, 1)
    Witness.broken = "pre_prepare"
    with pytest.raises(UserCodeError, match="Witness in state Witness raised RuntimeError in pre_prepare") as raised:
        commit_witness(witness, 2, 2)
    assert "line" in str(raised.value)
    (view,) = checkpoints(witness)
    assert (view.record.state, view.record.txid, view.recovery) == (CheckpointState.PREPARING, 2, Action.ROLLBACK)
    assert [marks.prepared for marks in view.partitions.values()] == [2, None]
    assert view.marker is not None
    assert (view.marker.high, counts(witness)) == (1, [1, 1])
    Witness.broken = ""
    applied, calls = commit_witness(witness, 2, 3)
    assert applied is Applied.APPLIED
    assert calls[2:6] == [*of_both("pre_rollback"), *of_both("init_state", 1)]
    assert counts(witness) == [2, 2]


def test_recovery_from_committing_commits_what_was_prepared_and_runs_no_tuple_again(witness: Topology) -> None:
    commit_witness(witness, 1, 1)
    Witness.broken = "pre_commit"
    with pytest.raises(UserCodeError, match="pre_commit"):
        commit_witness(witness, 2, 2)
    (view,) = checkpoints(witness)
    assert (view.record.state, view.record.txid, view.recovery) == (CheckpointState.COMMITTING, 2, Action.COMMIT)
    assert [(marks.prepared, marks.committed) for marks in view.partitions.values()] == [(None, 2), (2, 1)]
    assert view.marker is not None
    assert (view.marker.high, counts(witness)) == (2, [2, 2])
    Witness.broken = ""
    applied, calls = commit_witness(witness, 2, 3)
    assert applied is Applied.ALREADY
    assert calls[2:] == [*of_both("pre_commit", 2), *of_both("init_state", 2), (1, "cleanup"), (0, "cleanup")]
    assert counts(witness) == [2, 2]


def test_recovery_from_committed_only_initialises(witness: Topology) -> None:
    commit_witness(witness, 1, 1)
    (view,) = checkpoints(witness)
    assert (view.record.state, view.recovery) == (CheckpointState.COMMITTED, Action.INITSTATE)
    applied, calls = commit_witness(witness, 1, 2)
    assert applied is Applied.ALREADY
    assert calls[2:4] == of_both("init_state", 1)


def test_a_partition_that_was_lost_or_restored_alone_is_noticed(witness: Topology, tmp_path: Path) -> None:
    import sqlite3

    commit_witness(witness, 1, 1)
    commit_witness(witness, 2, 2)
    connection = sqlite3.connect(tmp_path / "witness.db")
    connection.execute("UPDATE trident_keyvalue_marks SET committed = 1 WHERE namespace = 'witness/Witness-1'")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptRecordError, match="'witness/Witness-1' holds transaction 1"):
        commit_witness(witness, 3, 3)


def test_a_damaged_checkpoint_record_is_not_guessed_at(witness: Topology, tmp_path: Path) -> None:
    import sqlite3

    commit_witness(witness, 1, 1)
    good = sqlite3.connect(tmp_path / "witness.db")
    where = "WHERE namespace = 'witness/Witness-$checkpoint'"
    (text,) = good.execute(f"SELECT value FROM trident_keyvalue_committed {where}").fetchone()
    for part in ("checkpoint", "marker"):
        value = json.dumps({**json.loads(text), part: {"v": 1}})
        good.execute(f"UPDATE trident_keyvalue_committed SET value = ? {where}", (value,))
        good.commit()
        with pytest.raises(CorruptRecordError, match=r"witness/Witness-\$checkpoint"):
            commit_witness(witness, 2, 2)
    good.close()


# ---- the user's function ---------------------------------------------------------------------------------------


class Moody(StatefulFunction[str, Any]):
    """Does what the word says."""

    remembered = 0

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, word: str) -> Any:
        self.remembered += 1
        self.state.put("n", self.state.get("n", 0) + 1)
        self.state.put("remembered", self.remembered)
        if word == "raise":
            raise ValueError("it says so")
        if word == "bytes":
            self.state.put("n", b"1")
        if word == "commit":
            self.state.commit(1, fence=99)
        return "something" if word == "return" else None

    def pre_commit(self, txid: int) -> None:
        if self.state.get("late"):
            self.state.put("n", -1)


def moody(tmp_path: Path, function: StatefulFunction[Any, Any] | None = None) -> StateSpec:
    made = Topology("moody")
    stream = made.new_stream("words", FixedBatchSpout("word string", [("a",)], 1))
    provider = KeyValueStates("sqlite", {"path": str(tmp_path / "moody.db")})
    return stream.stateful("word", function or Moody(), provider=provider).spec


def say(state: State, txid: int, *words: str, fence: int | None = None) -> Applied:
    spec = moody(Path())
    return state.apply(ticket(txid, fence=fence, topology="moody"), rows_to_table(spec.staged, [(w,) for w in words]))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("raise", "raised ValueError: it says so"),
        ("bytes", "cannot be written as JSON"),
        ("return", "returned 'something', where nothing is expected"),
        ("commit", "has no attribute 'commit'"),
    ],
)
def test_a_function_that_fails_on_a_tuple_leaves_nothing_and_is_named_with_the_row(
    word: str, says: str, tmp_path: Path
) -> None:
    with opened(moody(tmp_path)) as state:
        say(state, 1, "a")
        with pytest.raises(UserCodeError, match=says) as raised:
            say(state, 2, "a", "a", word)
        assert str(raised.value).startswith("Moody in state Moody ")
        assert f"transaction 2, row (word='{word}')" in str(raised.value)
        assert dict(state.items())[("n",)] == (1,)
        assert say(state, 2, "a", fence=21) is Applied.APPLIED, "the same open state goes on"
        assert dict(state.items())[("n",)] == (2,)


def test_attributes_of_the_function_do_not_outlive_the_transaction(tmp_path: Path) -> None:
    function = Moody()
    with opened(moody(tmp_path, function)) as state:
        say(state, 1, "a", "a", "a")
        say(state, 2, "a")
        assert dict(state.items()) == {("n",): (4,), ("remembered",): (1,)}
    assert function.remembered == 0


def test_writing_to_the_state_after_it_was_prepared_is_refused(tmp_path: Path) -> None:
    with opened(moody(tmp_path)) as state:
        state._states[0].put("late", True)
        state._states[0].commit(fence=1)
        with pytest.raises(UserCodeError, match="from init_state to pre_prepare"):
            say(state, 1, "a")


# ---- with the ledger: attempts, replays, definitions -----------------------------------------------------------


class World:
    def __init__(self, folder: Path, factory: StateFactory, function: StatefulFunction[Any, Any]) -> None:
        self.topology = Topology("world")
        stream = self.topology.new_stream("words", FixedBatchSpout("word string", trails.ROWS, trails.BATCH))
        self.spec = stream.stateful("word", function, provider=factory, keys="word", partitions=2, name="trails").spec
        self.ledger = MemoryLedger("world")
        self.staging = str(folder / "staging")

    def process(self, txid: int) -> None:
        begun = single.coordinate(self.ledger, self.topology, Claim(key=str(txid)), max_pending=10)
        assert isinstance(begun, Begun)
        process(self.ledger, self.topology, txid, LocalEngine(), self.staging, Attempts(owner="test"))

    def committer(self) -> Committer:
        return Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=Attempts(owner="test"),
            engine=LocalEngine,
            retention=50,
        )

    def contents(self) -> list[str]:
        with opened(self.spec) as state:
            return trails.contents(state)


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    config = {"memory": {"name": str(tmp_path)}, "sqlite": {"path": str(tmp_path / "world.db")}}[request.param]
    return World(tmp_path, KeyValueStates(request.param, config), trails.Trails())


def test_attempts_that_were_processed_twice_are_committed_once_and_a_sweep_takes_all_in_order(
    world: World, tmp_path: Path
) -> None:
    for txid in (1, 2, 3):
        world.process(txid)
    process(world.ledger, world.topology, 2, LocalEngine(), world.staging, Attempts(owner="again"))
    assert world.committer().commit(3).committed == (1, 2, 3)
    assert world.contents() == undisturbed()
    assert world.committer().commit(2).committed == ()
    runner = LocalRunner(ledger=world.ledger, topology=world.topology, engine=LocalEngine(), staging_root=world.staging)
    assert runner.run() == []
    assert world.contents() == undisturbed()


def test_a_commit_that_failed_in_the_function_goes_on_where_it_was_when_it_is_mended(tmp_path: Path) -> None:
    Witness.calls, Witness.broken = [], "pre_commit"
    world = World(tmp_path, KeyValueStates("sqlite", {"path": str(tmp_path / "world.db")}), Witness())
    world.process(1)
    world.process(2)
    with pytest.raises(UserCodeError):
        world.committer().commit(2)
    Witness.broken = ""
    assert world.committer().commit(2, take_over=True).committed == (1, 2)
    with opened(world.spec) as state:
        assert sum(value for _, (value,) in state.items()) == 6


def test_a_partition_that_lost_what_it_prepared_before_a_decided_commit_is_an_error_in_the_ledger(
    tmp_path: Path,
) -> None:
    import sqlite3

    Witness.calls, Witness.broken = [], "pre_commit"
    world = World(tmp_path, KeyValueStates("sqlite", {"path": str(tmp_path / "world.db")}), Witness())
    world.process(1)
    with pytest.raises(UserCodeError):
        world.committer().commit(1)
    Witness.broken = ""
    connection = sqlite3.connect(tmp_path / "world.db")
    for table in ("prepared", "marks"):  # as a replica has it that nobody waited for
        connection.execute(f"DELETE FROM trident_keyvalue_{table} WHERE namespace = 'world/trails-1'")
    connection.commit()
    connection.close()
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"'world/trails-1' holds transaction 0.* 1 is prepared or commit"):
            world.committer().commit(1, take_over=True)
        (record,) = world.ledger.transactions()
        assert record.status is Status.COMMITTING
        assert "Restore the whole store from one copy" in record.error


def test_another_number_of_partitions_is_another_definition(world: World) -> None:
    world.ledger.register(world.topology.definition())
    other = Topology("world")
    stream = other.new_stream("words", FixedBatchSpout("word string", trails.ROWS, trails.BATCH))
    stream.stateful("word", trails.Trails(), provider=world.spec.factory, keys="word", partitions=3, name="trails")
    with pytest.raises(DefinitionChangedError, match=r"in 2 partitions .*-> .* in 3 partitions"):
        world.ledger.register(other.definition())


def test_the_place_of_a_key_never_changes() -> None:
    import datetime
    from decimal import Decimal

    day = datetime.date(2026, 1, 2)
    keys = [("a",), ("ä", 1), (None,), (1.0,), (-0.0,), (0.0,), (True,), (day,), (Decimal("1.50"),), (b"\xff",), ()]
    assert [partition_of(key, 1000) for key in keys] == [428, 309, 283, 827, 230, 230, 767, 661, 571, 511, 457]


def test_the_factory_travels_between_processes() -> None:
    factory = KeyValueStates("sqlite", {"path": "x.db"})
    back = pickle.loads(pickle.dumps(factory))
    assert back == factory
    assert back.capabilities == factory.capabilities
    assert back.capabilities.keyvalue
    assert back.capabilities.durable
    assert not KeyValueStates("memory").capabilities.durable
