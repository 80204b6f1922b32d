"""Run two streams to their end in one process, a Kafka topic and a Delta table, each into a Delta state:
``python -m tests.programs.kafka_to_delta HOSTS ROOT FOLDER BROKER TOPIC KIND``. The crash tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_trident import Count, DeltaSpout, DeltaState, KafkaSpout, OpaqueKafkaSpout, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner

KINDS = {"transactional": KafkaSpout, "opaque": OpaqueKafkaSpout}


def topology(folder: Path, broker: str, topic: str, kind: str) -> Topology:
    made = Topology("kafka_to_delta")
    states = DeltaState(str(folder / "states"), fold_at=3)
    records = made.new_stream(
        "records", KINDS[kind](topic, bootstrap_servers=broker, fields="value string", max_rows=30, split_rows=10)
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
