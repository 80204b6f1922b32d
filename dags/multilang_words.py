"""Count words. A bolt in another program splits the lines: a component of Storm, unmodified. Each word counts once."""

import os
import sys

from airflow.sdk import DAG

from airflow_trident import Count, FileSpout, SqliteState, Topology, trident_transaction
from airflow_trident.storm import ShellBolt

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))
SPLIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "components", "split_words.py")

topology = Topology("multilang_words")
lines = topology.new_stream("lines", FileSpout(f"{HOME}/input/*", format="text", max_files=1))
words = lines.flat_map(ShellBolt([sys.executable, SPLIT]), "word string").group_by("word")
words.persistent_aggregate(SqliteState(f"{HOME}/multilang_counts.db"), Count(), "count")

with DAG("multilang_words", max_active_runs=3) as dag:
    trident_transaction(topology, engine="local", max_pending=4, retries=2)
