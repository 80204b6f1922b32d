"""Storm's TridentWordCount over Kafka (storm-kafka), nearly line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_trident import Count, Function, Topology
from airflow_trident.contracts.state import StateFactory
from airflow_trident.spouts.kafka.spout import KafkaSpout


class WordSplit(Function):
    def execute(self, *values: Any) -> Iterator[tuple[str]]:
        for word in values[0].split(" "):
            yield (word,)


def topology(spout: KafkaSpout, state: StateFactory) -> Topology:
    trident = Topology("wordcount")
    (
        trident.new_stream("wordcount", spout)
        .each("value", WordSplit(), "word string")
        .group_by("word")
        .persistent_aggregate(state, Count(), "count")
    )
    return trident
