"""Storm's TransactionalGlobalCount (storm-starter), nearly line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_trident.storm import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BatchOutputCollector,
    BoltTuple,
    ICommitter,
    OutputFieldsDeclarer,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.testing import MemoryTransactionalSpout
from tests.seeds.database import Database

PARTITION_TAKE_PER_BATCH = 3
DATA = {
    0: [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    1: [("cat",), ("dog",), ("apple",), ("banana",)],
    2: [("cat",), ("cat",), ("cat",), ("cat",), ("cat",), ("dog",), ("dog",), ("dog",), ("dog",)],
}
GLOBAL_COUNT_KEY = "GLOBAL-COUNT"


class BatchCount(BaseBatchBolt[Any]):
    _count = 0

    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: BatchOutputCollector, id: Any
    ) -> None:
        self._collector = collector
        self._id = id

    def execute(self, tuple: BoltTuple) -> None:
        self._count += 1

    def finish_batch(self) -> None:
        self._collector.emit([self._id, self._count])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, count long")


class UpdateGlobalCount(BaseTransactionalBolt, ICommitter):
    _sum = 0

    def __init__(self, database: Database) -> None:
        self.database = database

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self._collector = collector
        self._attempt = id

    def execute(self, tuple: BoltTuple) -> None:
        self._sum += tuple.get_integer(1)

    def finish_batch(self) -> None:
        val = self.database.get(GLOBAL_COUNT_KEY)
        if val is None or val["txid"] != self._attempt.txid:
            count = self._sum if val is None else self._sum + val["count"]
            newval = {"txid": self._attempt.txid, "count": count}
            self.database.put({GLOBAL_COUNT_KEY: newval})
        else:
            newval = val
        self._collector.emit([self._attempt, newval["count"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, sum long")


def builder(database: Database) -> TransactionalTopologyBuilder:
    spout = MemoryTransactionalSpout(DATA, "word", PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("global-count", "spout", spout, 3)
    builder.set_bolt("partial-count", BatchCount(), 5).shuffle_grouping("spout")
    builder.set_bolt("sum", UpdateGlobalCount(database)).global_grouping("partial-count")
    return builder
