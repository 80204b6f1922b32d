"""Drains an opaque source to its end: ``python -m tests.programs.opaque_records HOSTS ROOT FOLDER MAX_PENDING``.

Numbered records in two partitions. Each attempt takes another number of them, and now and then a partition is lost and
comes back. There are three states in two databases, one of them in the commit phase: each must have each record once.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.spouts import PartitionedSpout
from airflow_trident.types import Json, Schema, parse_declared
from tools import kills

PARTITIONS = {"even": range(0, 40, 2), "odd": range(1, 40, 2)}
TRIES = 12


@dataclass(frozen=True)
class RestlessSpout(PartitionedSpout):
    """:param folder: counts in a file how often the spout was asked; its next answer depends on that."""

    folder: Path
    opaque = True

    @property
    def schema(self) -> Schema:
        return parse_declared("record long, partition string")

    def describe(self) -> str:
        return "RestlessSpout"

    def partitions(self) -> list[str]:
        return list(PARTITIONS)[: 1 if self._chance().random() < 0.25 else 2]

    def next_part(self, partition: str, last: Json) -> Json:
        begin = last[1] if isinstance(last, list) else 0
        assert isinstance(begin, int)
        end = min(begin + self._chance().randint(1, 4), len(PARTITIONS[partition]))
        return [begin, end] if end > begin else None

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, list)
        rows = [(record, partition) for record in PARTITIONS[partition][slice(*part)]]
        yield from rows_to_table(self.schema, rows).to_batches()

    def _chance(self) -> random.Random:
        with (self.folder / "asked").open("ab") as file:
            file.write(b".")
            return random.Random(file.tell())


def topology(folder: Path) -> Topology:
    made = Topology("opaque_records")
    records = made.new_stream("records", RestlessSpout(folder))
    store = SqliteState(str(folder / "records.db"))
    once = records.group_by("record").persistent_aggregate(store, Count(), "times")
    records.group_by("partition").persistent_aggregate(SqliteState(str(folder / "parts.db")), Count(), "records")
    once.new_values_stream().group_by("record").persistent_aggregate(store, Count(), "batches")
    return made


def contents(folder: Path) -> list[dict[object, object]]:
    """The content of the states, in the order of the topology."""
    found: list[dict[object, object]] = []
    for spec in topology(folder).states.values():
        with spec.factory.make_state(spec) as state:
            found.append({key: value for (key,), (value,) in state.items()})
    return found


def expected() -> list[dict[object, object]]:
    once = dict.fromkeys(range(40), 1)
    return [dict(once), dict.fromkeys(PARTITIONS, 20), dict(once)]


def main(hosts: str, root: str, folder: str, max_pending: str) -> None:
    made = topology(Path(folder))
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        for _ in range(3):  # the last look may have come while a partition was lost
            Drain(
                ledger=ledger,
                topology=made,
                engine=engine,
                staging_root=f"{folder}/staging",
                attempts=Attempts(owner="drain"),
                claim=Claim(key="drain"),
                limits=DrainLimits(max_pending=int(max_pending), tries=TRIES),
            ).run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
