"""The application that contender (c) submits for one batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from pyspark.sql import SparkSession

    from benchmarks.peers import counted
    from benchmarks.store import Counts

    task = json.loads(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    store = Counts(task["state"])
    store.write_once(task["batch"], counted(spark.read.text(task["files"])).toArrow())
    store.close()
    spark.stop()


if __name__ == "__main__":
    main()
