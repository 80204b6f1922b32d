"""What an asset of a topology, and a trigger for a watcher, are asked for while the DAG is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import TridentBatchTrigger, TridentCommitterOperator, TridentDrainOperator, TridentEmitterOperator
from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.ledger.verbs.announcements import decode_events, encode_events
from airflow_trident.protocol.announcements import AnnouncedEvents, Announcement
from airflow_trident.protocol.records import Claim, Owner, StagedRef, Status, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.tasks import asset_events
from tests.unit.test_provider_tasks import words

GOLDEN = Path(__file__).parents[1] / "golden" / "records" / "v1-events.json"
EVENTS = AnnouncedEvents(
    settled=Txids(((1, 40), (42, 42))),
    announced=(
        Announcement(
            txids=Txids.of(41, 43),
            by=Owner(dag_id="dag", run_id="run-9", task_id="commit", try_number=2, host="w1", pid=77),
            since_ms=1_700_000_000_000,
        ),
    ),
)


def named(asset: Any) -> Any:
    topology = words(name="orders")
    topology.asset = asset
    return topology


def test_tasks_that_commit_declare_the_asset_beside_other_outlets_and_the_others_do_not() -> None:
    topology = named("loaded")
    drain = TridentDrainOperator(task_id="drain", topology=topology)
    commit = TridentCommitterOperator(task_id="commit", topology=topology, txid=1, outlets=drain.outlets)
    emit = TridentEmitterOperator(task_id="emit", topology=topology, txid=1)
    assert [[one.name for one in task.outlets] for task in (drain, commit, emit)] == [["loaded"], ["loaded"], []]


@pytest.mark.parametrize(("asset", "said"), [(7, "is 7"), ("  ", "asset"), ("a" * 2000, "asset")])
def test_what_is_no_name_of_an_asset_is_refused_with_its_topology(asset: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"orders.*{said}|{said}.*orders"):
        TridentDrainOperator(task_id="drain", topology=named(asset))


def test_an_airflow_without_partitions_of_assets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asset_events, "PARTITIONS_ASSETS", False)
    with pytest.raises(ConfigurationError, match="has no partitions of assets"):
        TridentDrainOperator(task_id="drain", topology=named("loaded"))


@pytest.mark.parametrize("long", [False, True])
def test_an_event_leaves_out_a_long_position_alone(long: bool) -> None:
    position = {"lines": {"files": "x" * (asset_events.POSITION_CHARACTERS if long else 1)}}
    staged = StagedRef(manifest="m", rows_read=7, rows={"counts": 3}, bytes=1)
    record = TxRecord(
        txid=4, status=Status.COMMITTED, attempt=2, metadata=position, claim=Claim(key="k"), op="o", staged=staged
    )
    extra = asset_events.event_extra("orders", "abc", 4, record)
    assert ("position" in extra) is not long
    assert (extra["attempt"], extra["rows_read"], extra["rows"]) == (2, 7, {"counts": 3})
    assert asset_events.event_extra("orders", "abc", 4, None)["pruned"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"place": "orders_dag"}, "attribute"), ({"poll_s": 0}, "poll_s"), ({"again_s": -1}, "again_s")],
)
def test_a_trigger_that_cannot_be_meant_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TridentBatchTrigger(**{"topology": "orders", "place": "orders_dag:topology", **arguments})


def test_a_trigger_comes_back_as_it_was() -> None:
    trigger = TridentBatchTrigger("orders", "orders_dag:topology", "zk", 3, 4)
    path, kept = trigger.serialize()
    assert path == "airflow_trident.triggers.batch.TridentBatchTrigger"
    assert TridentBatchTrigger(**kept).serialize() == (path, kept)


def test_what_version_1_wrote_of_the_list_is_read_and_written_alike_and_damage_is_named() -> None:
    data = GOLDEN.read_bytes()
    assert decode_events(data, "/x/events") == EVENTS
    assert encode_events(EVENTS, op="0123456789abcdef") == data
    with pytest.raises(CorruptRecordError, match="/x/events is damaged"):
        decode_events(data.replace(b"40", b'"40"'), "/x/events")
