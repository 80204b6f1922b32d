"""Run two streams to their end in one process, a Kafka topic and a Delta table, into states of one kind:
``python -m tests.programs.lake HOSTS ROOT FOLDER BROKER TOPIC KIND``. The crash tests kill it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from airflow_trident import Count, DeltaSpout, DeltaState, KafkaSpout, OpaqueKafkaSpout, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.plan.states import StateFactory
from airflow_trident.runtime.local import LocalRunner
from tests.postgres_fixtures import postgres_state

KINDS: dict[str, tuple[type[KafkaSpout], Callable[[Path], StateFactory]]] = {
    "transactional, into PostgreSQL": (KafkaSpout, postgres_state),
    "opaque, into Delta Lake": (OpaqueKafkaSpout, lambda folder: DeltaState(str(folder / "states"), fold_at=3)),
}


def topology(folder: Path, broker: str, topic: str, kind: str) -> Topology:
    made = Topology("lake")
    spout, make_states = KINDS[kind]
    states = make_states(folder)
    records = made.new_stream(
        "records", spout(topic, bootstrap_servers=broker, fields="value string", max_rows=30, split_rows=10)
    )
    records.group_by("value").persistent_aggregate(states, Count(), "count")
    orders = DeltaSpout(str(folder / "orders"), fields="customer string, cents long", start=0, max_files=1)
    made.new_stream("orders", orders).group_by("customer").persistent_aggregate(states, "cents", Sum(), "total")
    return made


def main(hosts: str, root: str, folder: str, broker: str, topic: str, kind: str) -> None:
    made = topology(Path(folder), broker, topic, kind)
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
