"""Storm's TransactionalWords (storm-starter), nearly line by line: how many words there are of each count, by tens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_trident.storm import (
    BaseTransactionalBolt,
    BasicBolt,
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
from tests.seeds.global_count import DATA, PARTITION_TAKE_PER_BATCH

BUCKET_SIZE = 3


class KeyedCountUpdater(BaseTransactionalBolt, ICommitter):
    def __init__(self, database: Database) -> None:
        self.database = database
        self._counts = Counter[str]()

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self._collector = collector
        self._id = id

    def execute(self, tuple: BoltTuple) -> None:
        self._counts[tuple.get_string(1)] += 1

    def finish_batch(self) -> None:
        for key, count in self._counts.items():
            val = self.database.get(key)
            if val is None or val["txid"] != self._id.txid:
                prev = None if val is None else val["count"]
                val = {"txid": self._id.txid, "prev_count": prev, "count": count + (prev or 0)}
                self.database.put({key: val})
            self._collector.emit([self._id, key, val["count"], val["prev_count"]])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, key string, count long, prev_count long")


class Bucketize(BasicBolt):
    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        attempt, _, current, previous = tuple
        curr_bucket = current // BUCKET_SIZE
        prev_bucket = None if previous is None else previous // BUCKET_SIZE
        if prev_bucket is None:
            collector.emit([attempt, curr_bucket, 1])
        elif curr_bucket != prev_bucket:
            collector.emit([attempt, curr_bucket, 1])
            collector.emit([attempt, prev_bucket, -1])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("attempt, bucket long, delta long")


class BucketCountUpdater(BaseTransactionalBolt):
    def __init__(self, database: Database) -> None:
        self.database = database
        self._accum = Counter[int]()

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self._attempt = id

    def execute(self, tuple: BoltTuple) -> None:
        self._accum[tuple.get_integer(1)] += tuple.get_integer(2)

    def finish_batch(self) -> None:
        for bucket, delta in self._accum.items():
            val = self.database.get(str(bucket))
            if val is None or val["txid"] != self._attempt.txid:
                count = delta + (0 if val is None else val["count"])
                self.database.put({str(bucket): {"txid": self._attempt.txid, "count": count}})


def builder(counts: Database, buckets: Database) -> TransactionalTopologyBuilder:
    spout = MemoryTransactionalSpout(DATA, "word", PARTITION_TAKE_PER_BATCH)
    builder = TransactionalTopologyBuilder("top-n-words", "spout", spout, 2)
    builder.set_bolt("count", KeyedCountUpdater(counts), 5).fields_grouping("spout", "word")
    builder.set_bolt("bucketize", Bucketize()).none_grouping("count")
    builder.set_committer_bolt("buckets", BucketCountUpdater(buckets), 5).fields_grouping("bucketize", "bucket")
    return builder
