"""The trigger that starts a run for each batch, in an event loop of its own, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.triggers import batch
from airflow_trident.triggers.batch import TridentBatchTrigger
from tests.fixtures.spark import free_port
from tests.fixtures.spout import OpaqueFolderSpout, append

pytestmark = [pytest.mark.zookeeper]

LIMIT_S = 60.0
TASKS = {"emit": "emit", "commit": "commit"}


class World:
    """An opaque topology with one row a batch; its runs "1", "2", ... are as far as the test says."""

    def __init__(self, folder: Path, ledger: ZNodeLedger) -> None:
        self.folder, self.ledger = folder, ledger
        append(folder / "rows", "part", [(1, "a"), (2, "b")])
        self.topology = Topology("rows")
        rows = self.topology.new_stream("rows", OpaqueFolderSpout(folder / "rows", at_once=1))
        rows.group_by("id").persistent_aggregate(SqliteState(str(folder / "rows.db")), Count(), "n")
        self.states: dict[str, str | None] = {}
        self.trigger = TridentBatchTrigger("rows", "any.module:topology", poll_s=0.02)
        self.trigger._found = self.topology

    def begin(self, run_id: str) -> None:
        claim = Claim(key=run_id, dag_id="rows", run_id=run_id, task_ids=TASKS)
        coordinate(self.ledger, self.topology, [claim], max_pending=9)

    def process(self, txid: int) -> None:
        with LocalEngine() as engine:
            process(self.ledger, self.topology, txid, engine, str(self.folder / "staging"), Attempts(owner="a test"))

    def commit(self, txid: int) -> None:
        staging, attempts = str(self.folder / "staging"), Attempts(owner="a test")
        Committer(
            ledger=self.ledger, topology=self.topology, staging_root=staging, attempts=attempts, engine=LocalEngine
        ).commit(txid)

    def events(self, *changes: Any) -> list[Any]:
        """The payload of the first event, and of the next one after each change."""

        async def play() -> list[Any]:
            found: list[Any] = []
            events = self.trigger.run()
            async with asyncio.timeout(LIMIT_S):
                for change in (None, *changes):
                    if change is not None:
                        await asyncio.to_thread(change)
                    found.append((await anext(events)).payload)
            await events.aclose()  # type: ignore[attr-defined]
            return found

        return asyncio.run(play())


@pytest.fixture
def world(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ledger_root)
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts})
    )
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "rows", root=ledger_root) as ledger:
        made = World(tmp_path, ledger)

        def states(*, dag_id: str, run_ids: list[str], task_ids: list[str]) -> dict[str, dict[str, str | None]]:
            return {run_id: dict.fromkeys(task_ids, made.states[run_id]) for run_id in run_ids}

        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
        yield made


def event(after: int, stream: str | None) -> dict[str, object]:
    return {"topology": "rows", "after": after, "stream": stream}


def test_an_event_comes_for_what_is_left_to_be_committed_also_while_the_last_transaction_has_no_batch(
    world: World,
) -> None:
    for txid in (1, 2):
        world.begin(str(txid))
        world.process(txid)
    world.states = {"1": "failed", "2": "failed"}
    append(world.folder / "rows", "other", [(7, "1 takes it now, too")])
    world.process(1)
    last = world.ledger.view(2).tx
    assert last is not None
    assert last.invalidated

    def more() -> None:
        world.commit(1)
        append(world.folder / "rows", "part", [(3, "c")])

    assert world.events(more) == [event(2, None), event(2, "rows")]


def test_no_event_comes_for_what_a_task_is_to_commit(world: World) -> None:
    for txid in (1, 2):
        world.begin(str(txid))
        world.process(txid)
    world.states = {"1": "deferred", "2": "failed"}
    world.process(1)

    async def play() -> None:
        async with world.trigger.hub() as hub:
            assert await world.trigger._look(hub) is None
            world.states["1"] = "failed"
            assert await world.trigger._look(hub) is not None

    asyncio.run(play())


def test_an_error_of_a_spouts_own_code_does_not_end_the_trigger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    def first_ready(topology: Topology, position: dict[str, Any], notes: object) -> str:
        looks.append(None)
        if len(looks) == 1:
            raise OSError("the share is not mounted")
        return "rows"

    monkeypatch.setattr(batch, "first_ready", first_ready)
    assert world.events() == [event(0, "rows")]
    assert len(looks) == 2


def test_the_trigger_follows_its_connection_to_another_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right = os.environ["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"]
    gone = {"conn_type": "zookeeper", "host": f"127.0.0.1:{free_port()}", "extra": {"connect_deadline_s": 0.2}}
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps(gone))

    def moved(*_: object) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", right)

    monkeypatch.setattr(world.trigger.log, "warning", moved, raising=False)
    assert world.events() == [event(0, "rows")]
