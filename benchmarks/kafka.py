"""`python -m benchmarks.kafka`: ranges of offsets read by `KafkaSpout` and by Spark's own Kafka connector.

Rows a second of both on one Spark session, and the answers of both about a range in which records were removed by
compaction after it was read first. The broker is the one of the tests; the connector comes from Maven Central, or from
`--jars`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer

from airflow_trident import Count, KafkaSpout, MemoryState, Sum, Topology
from airflow_trident.errors import TridentError
from airflow_trident.operations.expressions import col, length
from benchmarks.peers import session
from benchmarks.ways import compared, staged
from tests.fixtures.kafka import KafkaBroker, Topic

PARTITIONS = 4
VALUE_BYTES = 100
CONNECTOR, SPOUT = "Spark's connector", "KafkaSpout"
PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
Totals = tuple[int, int]
"""Records, and the sum of their lengths."""


def ours(spark: Any, topic: Topic, rows: int) -> Callable[[], Totals]:
    """One batch of all records that the topic has now."""
    topology = Topology("kafka")
    spout = KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, fields="value string", max_rows=rows)
    sized = topology.new_stream("records", spout).each(length(col("value")), "size")
    sized.persistent_aggregate(MemoryState(), (Count(), "records"), ("size", Sum(), "total"), name="totals")
    metadata = {"records": spout.coordinator().initialize_transaction(1, None)}

    def run() -> Totals:
        parts = staged(spark, topology, metadata)
        return sum(part["records"] for part in parts), sum(part["total"] or 0 for part in parts)

    return run


def connector(spark: Any, topic: Topic) -> Callable[[], Totals]:
    """The same range by `spark.read.format("kafka")`, which must fail if data is lost."""
    from pyspark.sql import functions as f

    marks = {str(number): topic.watermarks(number) for number in range(_partitions(topic))}

    def run() -> Totals:
        read = spark.read.format("kafka").option("kafka.bootstrap.servers", topic.broker.hosts)
        read = read.option("subscribe", topic.name).option("failOnDataLoss", "true")
        for name, side in (("startingOffsets", 0), ("endingOffsets", 1)):
            read = read.option(name, json.dumps({topic.name: {number: mark[side] for number, mark in marks.items()}}))
        sizes = read.load().select(f.length(f.col("value").cast("string")).alias("size"))
        (row,) = sizes.agg(f.count("*").alias("records"), f.sum("size").alias("total")).collect()
        return row["records"], row["total"]

    return run


def _partitions(topic: Topic) -> int:
    return len(topic.admin.list_topics(topic.name, timeout=30).topics[topic.name].partitions)


# ---- speed -----------------------------------------------------------------------------------------------------


def speed(spark: Any, broker: KafkaBroker, rows: int, runs: int) -> list[str]:
    topic = Topic(broker, "speed").create(PARTITIONS)
    fill(topic, rows)
    ways = {CONNECTOR: connector(spark, topic), SPOUT: ours(spark, topic, rows)}
    return compared(ways, (rows, rows * VALUE_BYTES), rows=rows, runs=runs, to=CONNECTOR)


def fill(topic: Topic, rows: int) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.hosts, "linger.ms": 50})
    value = "v" * VALUE_BYTES
    for number in range(rows):
        while True:
            try:
                producer.produce(topic.name, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(300) == 0


# ---- what is gone ----------------------------------------------------------------------------------------------


def compacted(spark: Any, broker: KafkaBroker) -> list[str]:
    """The same range twice; in between the broker compacts the topic."""
    topic = Topic(broker, f"compacted-{uuid.uuid4().hex[:6]}")
    topic.create(segment_ms="100", min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="0")
    for number in range(20):
        topic.send([("k", f"old {number}")])
    ways = {CONNECTOR: connector(spark, topic), SPOUT: ours(spark, topic, 1000)}
    first = {name: _said(run) for name, run in ways.items()}
    topic.set("cleanup.policy", "compact")
    until = time.monotonic() + 120
    while _said(ways[CONNECTOR]) == first[CONNECTOR] and time.monotonic() < until:
        topic.send([("k", "newer")])  # rolls the segment
    return [
        "| way | a range, read first | and after compaction |",
        "|---|---|---|",
        *(f"| {name} | {first[name]} | {_said(run)} |" for name, run in ways.items()),
    ]


def _said(run: Callable[[], Totals]) -> str:
    try:
        return f"{run()[0]} records"
    except TridentError as error:
        return f"{type(error).__name__}: {error.message}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jars", help="the connector's jars, with commas; default: fetch them from Maven Central")
    given = parser.parse_args()
    spark = session(conf={"spark.jars": given.jars} if given.jars else {"spark.jars.packages": PACKAGE})
    spark.sparkContext.setLogLevel("OFF")  # the table shows what is refused
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder) / "kafka")
        broker.start()
        try:
            print(f"{given.rows:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, n = {given.runs}\n")
            print("\n".join(speed(spark, broker, given.rows, given.runs)))
            print("\nA range of 20 records of one key:\n")
            print("\n".join(compacted(spark, broker)))
        finally:
            broker.kill()
            spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
