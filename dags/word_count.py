"""Count words: each file of a folder is one transaction. Whatever is killed or run twice, no word is counted twice."""

import os
import re
from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import Count, FileSpout, Function, SqliteState, Topology, trident_transaction

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))


class Split(Function):
    def execute(self, line: str) -> Iterator[str]:
        yield from re.findall("[a-z]+", line.lower())


topology = Topology("word_count")
lines = topology.new_stream("lines", FileSpout(f"{HOME}/input/*", format="text", max_files=1))
words = lines.each("line", Split(), "word").group_by("word")
words.persistent_aggregate(SqliteState(f"{HOME}/counts.db"), Count(), "count")

# Only registered by the name `dag`: backfill_failed.py imports this file and must not define the DAG again.
with DAG("word_count", max_active_runs=3, auto_register=False) as dag:
    trident_transaction(topology, max_pending=4, retries=2, retry_delay=timedelta(seconds=1))
