"""Reads tables in a bucket of Google Cloud Storage on a Spark whose session has a file system for ``gs://``: one of
Hadoop's, which is told that the bucket is a folder. Its log and its result, as JSON, are printed.

Arguments: a folder, the bucket, the folder with the same objects, Spark's master, the kinds of tables.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from airflow_trident import FileSpout, TableSpout
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.contracts.test_tables_on_gcs import FACTORIES
from tests.fixtures.gcs import CONN_ID
from tests.programs.tables_on_s3 import both


def main() -> None:
    folder, bucket, same, master = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.hadoop.fs.gs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "spark.hadoop.fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"spark.hadoop.fs.viewfs.mounttable.{bucket}.linkFallback": same.as_uri(),
    }
    found: dict[str, Any] = {}
    with SparkEngine(LocalSessions(master, conf=conf)) as engine:
        for kind in sys.argv[5:]:
            spout = TableSpout(FACTORIES[kind](bucket), fields="word string, n long")
            found[kind] = both(engine, folder / kind, spout)
        rows = FileSpout(f"gs://{CONN_ID}@{bucket}/in", format="parquet", fields="word string, n long")
        found["files"] = both(engine, folder / "files", rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
