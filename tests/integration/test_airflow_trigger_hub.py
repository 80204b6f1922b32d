"""The turn trigger in an event loop of its own, against a real ZooKeeper: many waits, one session, no polling."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.serde import deserialize, serialize
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from kazoo.client import KazooClient

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, TridentTurnSensor, trident_transaction
from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.diagnose import four_letters
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim, Owner, StagedRef, Status
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from airflow_trident.tasks import liveness
from airflow_trident.tasks.waits import Until
from airflow_trident.triggers import shared_watch as hub
from airflow_trident.triggers.transaction import TridentTurnTrigger
from tests.fixtures import single
from tests.fixtures.spark import free_port

pytestmark = [pytest.mark.zookeeper]

LIMIT_S = 120.0


@pytest.fixture
def ledger(zookeeper: EmbeddedZooKeeper, ledger_root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZNodeLedger]:
    """Topology "words" with transactions 1 to 3, all staged; Airflow knows where it is."""
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ledger_root)
    yield from staged(zookeeper.hosts, ledger_root, monkeypatch)


def staged(hosts: str, root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZNodeLedger]:
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps({"conn_type": "zookeeper", "host": hosts}))
    with open_ledger(ZooKeeperSettings(hosts=hosts), "words", root=root) as made:
        made.register(Definition(spouts={"lines": SpoutDefinition(text="FixedBatchSpout")}, states={}))
        for number in range(1, 4):
            single.begin(made, Claim(key=str(number)), lambda txid, _position: {"lines": {"from": txid}}, max_pending=3)
            attempt = single.attempt(made, number, owner="a test").attempt
            single.processed(made, number, attempt, StagedRef(manifest="m", rows_read=1, rows={"count": 1}, bytes=1))
        yield made


def commit(ledger: ZNodeLedger, txid: int) -> None:
    single.committed(ledger, single.gate(ledger, txid, owner="a test"))


def trigger(txid: int, **arguments: Any) -> TridentTurnTrigger:
    """One that looks on its own so rarely that only the watch can wake it in time."""
    return TridentTurnTrigger(topology="words", txid=txid, **{"poll_s": 3600, "ends_task": True, **arguments})


async def event_of(one: TridentTurnTrigger) -> TriggerEvent:
    async for event in one.run():
        return event
    raise AssertionError("the trigger ended without an event")


async def until_waiting(count: int) -> None:
    """Return when so many waits have armed their watch."""

    async with asyncio.timeout(LIMIT_S):
        while sum(one.waiting for one in hub._hubs.values()) < count:
            await asyncio.sleep(0.02)


def sessions(zookeeper: EmbeddedZooKeeper) -> int:
    host, port = zookeeper.hosts.split(":")
    (line,) = [one for one in four_letters(host, int(port), "mntr").splitlines() if "zk_num_alive_connections" in one]
    return int(line.split()[1])


def test_hundreds_of_waits_share_one_session_and_few_threads_and_all_end_with_the_commit(
    ledger: ZNodeLedger, zookeeper: EmbeddedZooKeeper
) -> None:
    async def play() -> tuple[int, int, list[TriggerEvent]]:
        waits = [asyncio.create_task(event_of(trigger(2))) for _ in range(300)]
        await until_waiting(300)
        used, threads = sessions(zookeeper) - before, threading.active_count()
        await asyncio.to_thread(commit, ledger, 1)
        async with asyncio.timeout(LIMIT_S):
            return used, threads, await asyncio.gather(*waits)

    ledger.topology()
    before, threads_before = sessions(zookeeper), threading.active_count()
    used, threads, events = asyncio.run(play())
    assert used == 1
    assert threads - threads_before < 12
    assert [type(event) for event in events] == [TaskSuccessEvent] * 300
    assert not hub._hubs


def test_a_wait_of_a_topology_that_was_created_again_is_for_its_new_life_or_refused(
    ledger: ZNodeLedger, zookeeper: EmbeddedZooKeeper, ledger_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> list[TriggerEvent]:
        async with hub.shared_hub(ZooKeeperSettings(hosts=zookeeper.hosts), ledger_root):  # as another wait keeps it
            await event_of(trigger(1))  # a wait of the former life, long over
            await asyncio.to_thread(delete_topology, zookeeper, ledger_root)
            with contextmanager(staged)(zookeeper.hosts, ledger_root, monkeypatch) as again:
                now = again.topology().incarnation
                lives = (None, now, before)
                return [await event_of(trigger(1, incarnation=life)) for life in lives]

    before = ledger.topology().incarnation
    events = asyncio.run(play())
    assert [type(event) for event in events] == [TaskSuccessEvent, TaskSuccessEvent, TaskFailedEvent]


def delete_topology(zookeeper: EmbeddedZooKeeper, root: str) -> None:
    client = KazooClient(hosts=zookeeper.hosts)
    client.start()
    try:
        client.delete(f"{root}/v1/words", recursive=True)
    finally:
        client.stop()
        client.close()


def test_a_wait_ends_at_once_when_a_lower_transaction_fails(ledger: ZNodeLedger) -> None:
    async def play() -> TriggerEvent:
        wait = asyncio.create_task(event_of(trigger(3)))
        await until_waiting(1)
        await asyncio.to_thread(ledger.fail, 1, 0, "it cannot be")
        async with asyncio.timeout(LIMIT_S):
            return await wait

    assert isinstance(asyncio.run(play()), TaskFailedEvent)


@pytest.mark.parametrize(("until", "committed"), [(Until.TURN, 1), (Until.READY, 1), (Until.PASSED, 2)])
def test_each_kind_of_wait_ends_when_what_it_is_for_has_come(ledger: ZNodeLedger, until: Until, committed: int) -> None:
    async def play() -> TriggerEvent:
        wait = asyncio.create_task(event_of(trigger(2, until=until, ends_task=False)))
        await until_waiting(1)
        for txid in range(1, committed + 1):
            await asyncio.to_thread(commit, ledger, txid)
        async with asyncio.timeout(LIMIT_S):
            return await wait

    assert asyncio.run(play()).payload["well"] is True


def test_a_cancelled_wait_leaves_nothing_behind(ledger: ZNodeLedger) -> None:
    async def play() -> None:
        wait = asyncio.create_task(event_of(trigger(2)))
        await until_waiting(1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(play())
    assert not hub._hubs


def test_a_wait_outlives_a_restart_of_the_server(
    tmp_path: Path, ledger_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ledger_root)
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    server.start()

    async def play(ledger: ZNodeLedger) -> TriggerEvent:
        wait = asyncio.create_task(event_of(trigger(2, poll_s=1)))
        await until_waiting(1)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(commit, ledger, 1)
        async with asyncio.timeout(LIMIT_S):
            return await wait

    try:
        for ledger in staged(server.hosts, ledger_root, monkeypatch):
            assert isinstance(asyncio.run(play(ledger)), TaskSuccessEvent)
    finally:
        server.stop()


@pytest.mark.parametrize("fails", ["_ask", "note_gone"])
def test_a_look_that_fails_is_no_news_and_ends_no_wait(
    ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The Execution API does not answer, or the answer to what was written about a killed task is lost."""
    looked = threading.Event()

    async def deleted_run(*_: object) -> dict[tuple[str, str], dict[str, str]]:
        if fails == "_ask":
            looked.set()
            raise ConnectionError("the API server is restarting")
        return {}

    def note(*_: object, **__: object) -> None:
        looked.set()
        raise OutcomeUnknownError("the answer was lost", "Run the same step again.")

    monkeypatch.setattr(TridentTurnTrigger, "_ask", deleted_run)
    monkeypatch.setattr(liveness, "note_gone", note)

    async def play() -> TriggerEvent:
        wait = asyncio.create_task(event_of(trigger(2, poll_s=0.05)))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(looked.wait, LIMIT_S)
            await asyncio.to_thread(commit, ledger, 1)
            return await wait

    assert isinstance(asyncio.run(play()), TaskSuccessEvent)


def turn_of_a_run(task_id: str = "t.turn") -> TridentTurnTrigger:
    """As the triggerer makes it for a turn sensor that begins there: with the DAG as Airflow keeps it."""
    topology = Topology("words")
    words = topology.new_stream("lines", FixedBatchSpout("word string", ["a"], 1))
    words.group_by("word").persistent_aggregate(SqliteState("/nowhere/words.db"), Count(), "count")
    with DAG("words", schedule=None, max_active_runs=3) as dag:
        trident_transaction(topology, engine="local", group_id="t", deferrable=True)
        TridentTurnSensor(task_id="gate", topology=topology, txid=2, deferrable=True)
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task(task_id)
    arguments = smart_decode_trigger_kwargs(task.start_trigger_args.trigger_kwargs)
    rendered = {"txid": 2, "incarnation": None}
    made = TridentTurnTrigger(**{**arguments, **rendered, "poll_s": 0.05})
    made.task_instance = SimpleNamespace(  # type: ignore[assignment]
        dag_id="words", run_id="cleared", task_id=task_id, map_index=-1, task=task
    )
    return made


def test_a_wait_for_what_the_committer_behind_it_has_left_ends_the_task_well(
    ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was cleared whose committer was emitting 1 again: that task begins again only behind the turn sensor."""
    me = Owner(dag_id="words", run_id="cleared", task_id="t.commit", try_number=1)
    single.attempt(ledger, single.gate(ledger, 1, owner=me), owner=me)
    state: list[str | None] = ["running"]
    looked = threading.Event()

    async def states(*_: object) -> liveness.Answers:
        looked.set()
        return {("words", "cleared"): {"t.commit": state[0]}}

    monkeypatch.setattr(TridentTurnTrigger, "_ask", states)

    async def play() -> TriggerEvent:
        wait = asyncio.create_task(event_of(turn_of_a_run()))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(looked.wait, LIMIT_S)
            assert not wait.done()  # while it is at work it is waited for
            state[0] = None
            return await wait

    assert isinstance(asyncio.run(play()), TaskSuccessEvent)
    assert [one.status for one in ledger.transactions()] == [Status.PROCESSING, Status.PROCESSED, Status.PROCESSED]


def test_a_wait_for_a_run_that_is_queued_behind_this_one_ends_the_task_well(
    ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was killed at 1, and cleared when as many runs as may be were active."""
    me = Owner(dag_id="words", run_id="queued", task_id="t.commit", try_number=1)
    single.attempt(ledger, single.gate(ledger, 1, owner=me), owner=me)
    active, asked = [2], threading.Event()

    def count(*, dag_id: str, states: list[str], run_ids: list[str] | None = None) -> int:
        if run_ids is None:
            asked.set()
            return active[0]
        return int((dag_id, run_ids, states) == ("words", ["queued"], ["queued"]))

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: {"queued": {"t.commit": None}})
    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)

    async def play() -> TriggerEvent:
        wait = asyncio.create_task(event_of(turn_of_a_run()))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(asked.wait, LIMIT_S)
            assert not wait.done()  # there is room for it
            active[0] = 3
            return await wait

    assert isinstance(asyncio.run(play()), TaskSuccessEvent)
    assert ledger.view(1).tx.status is Status.PROCESSING  # type: ignore[union-attr]


def test_a_wait_of_a_task_without_a_committer_behind_it_goes_on_until_what_is_left_is_committed(
    ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 is staged, and no task of Airflow is to commit it: the sensor before a committer ends, another one does not."""
    looks: list[None] = []

    async def nothing(*_: object) -> liveness.Answers:
        looks.append(None)
        return {}

    monkeypatch.setattr(TridentTurnTrigger, "_ask", nothing)

    async def play() -> tuple[TriggerEvent, TriggerEvent]:
        wait = asyncio.create_task(event_of(turn_of_a_run("gate")))
        async with asyncio.timeout(LIMIT_S):
            while len(looks) < 2:
                await asyncio.sleep(0.02)
            assert not wait.done()
            before = await event_of(turn_of_a_run())
            await asyncio.to_thread(commit, ledger, 1)
            return before, await wait

    assert [type(event) for event in asyncio.run(play())] == [TaskSuccessEvent] * 2


@pytest.mark.parametrize(
    ("txid", "topology", "says"),
    [("none", "words", "txid"), (9, "words", "never begun"), (1, "nothing", "no ledger")],
)
def test_a_wait_for_what_cannot_be_ends_and_says_why(ledger: ZNodeLedger, txid: Any, topology: str, says: str) -> None:
    one = TridentTurnTrigger(topology=topology, txid=txid)
    event = asyncio.run(event_of(one))
    assert event.payload["well"] is False
    assert says in event.payload["story"]


def test_a_trigger_survives_its_way_through_the_database() -> None:
    one = TridentTurnTrigger("words", 7, Until.READY, "zk", True, True, 123, 4.5, "a-life", ["t.emit"], 3, False)
    path, arguments = one.serialize()
    assert path == "airflow_trident.triggers.transaction.TridentTurnTrigger"
    again = TridentTurnTrigger(**deserialize(serialize(arguments)))  # type: ignore[arg-type]
    assert again.serialize() == one.serialize()


# ---- the connection --------------------------------------------------------------------------------------------


@pytest.fixture
def hidden(ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch) -> str:
    """The connection's text, while Airflow does not find it."""
    monkeypatch.setenv("AIRFLOW__TRIDENT__POLL_S", "0.1")
    text = os.environ["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"]
    monkeypatch.delenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT")
    return text


def test_a_trigger_that_cannot_read_its_connection_waits_until_it_can(
    ledger: ZNodeLedger, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(ledger, 1)
    one = trigger(2)

    said: list[str] = []

    def back(text: str, *arguments: object) -> None:
        said.append(text % arguments)
        monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", hidden)

    monkeypatch.setattr(one.log, "warning", back, raising=False)
    assert isinstance(asyncio.run(event_of(one)), TaskSuccessEvent)
    assert "the connection 'zookeeper_default' cannot be read (AirflowNotFoundException" in said[0]


def test_a_wait_follows_its_connection_to_another_address_and_keeps_the_last_one_that_it_could_read(
    ledger: ZNodeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper has moved while hundreds of tasks wait: nobody clears them all when the connection is corrected."""
    right = os.environ["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"]
    gone = {"conn_type": "zookeeper", "host": f"127.0.0.1:{free_port()}", "extra": {"connect_deadline_s": 0.2}}
    later = iter(["no JSON", right])
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps(gone))
    commit(ledger, 1)
    one, said = trigger(2, poll_s=0.05), list[str]()

    def next_one(text: str, *arguments: object) -> None:
        said.append(text % arguments)
        if "goes on waiting" in text:
            monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", next(later))

    monkeypatch.setattr(one.log, "warning", next_one, raising=False)
    assert isinstance(asyncio.run(asyncio.wait_for(event_of(one), LIMIT_S)), TaskSuccessEvent)
    assert "The former connection is used." in said[1]
    assert not hub._hubs


@pytest.mark.parametrize("ends_task", [True, False])
def test_a_trigger_that_can_never_read_its_connection_names_it_and_the_cure(hidden: str, ends_task: bool) -> None:
    one = trigger(2, ends_task=ends_task)
    one.connection_tries = 3
    event = asyncio.run(event_of(one))
    if ends_task:
        assert isinstance(event, TaskFailedEvent)
        return
    assert event.payload["well"] is False
    for words in ("the connection 'zookeeper_default'", "tried 3 times", "airflow connections add zookeeper_default"):
        assert words in event.payload["story"]
