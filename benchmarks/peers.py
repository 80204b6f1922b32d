"""Other ways that people use today, and our own floor, each as a careful user would write it. All write to the same
store.

Every function gets the task (see `benchmarks.contender`) and returns its results; `work_s` begins when Spark is up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.data import FILES_PER_BATCH, file_name
from benchmarks.store import PUT, Counts

CORES = 2
HEAP = "2g"


def session(*, conf: dict[str, str] | None = None) -> Any:
    """A local Spark with as many shuffle partitions as cores, which is kinder to small batches than the default 200."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").appName("benchmark")
    settings = {**common_conf(), **(conf or {})}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def common_conf() -> dict[str, str]:
    return {
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def submitted_to(task: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Master and settings of a contender that submits applications: to YARN, with the driver in the cluster, if the
    task says so."""
    if not task.get("yarn"):
        return f"local[{CORES}]", common_conf()
    from airflow_trident.engine.spark.sessions.java import spark_home

    there = {name: value for name, value in common_conf().items() if not name.startswith("spark.driver.")}
    return "yarn", {
        **there,
        **dict.fromkeys(("spark.driver.memory", "spark.executor.memory"), "512m"),
        "spark.submit.deployMode": "cluster",
        "spark.executor.instances": "1",
        "spark.executor.cores": str(CORES),
        "spark.yarn.jars": f"local:{spark_home() / 'jars'}/*",
        "spark.yarn.submit.file.replication": "1",
        "spark.yarn.appMasterEnv.PYTHONPATH": str(Path(__file__).parents[1]),
    }


def counted(lines: Any) -> Any:
    from pyspark.sql import functions as f

    return worded(lines).groupBy("word").agg(f.count("*").alias("count"))


def worded(lines: Any) -> Any:
    from pyspark.sql import functions as f

    return lines.select(f.explode(f.split("value", " ")).alias("word"))


def _url(path: str) -> str:
    """So that a cluster does not look for it in its HDFS."""
    return f"file://{path}"


def files_of(task: dict[str, Any], batch: int) -> list[str]:
    return [os.path.join(task["data"], file_name(batch, part)) for part in range(FILES_PER_BATCH)]


# ---- (a) -------------------------------------------------------------------------------------------------------


def plain(task: dict[str, Any]) -> dict[str, Any]:
    """(a) One Spark batch job over all the data: the limit."""
    spark = session()
    began = time.perf_counter()
    store = Counts(task["state"])
    reader = spark.read.schema("value string")
    lines = reader.parquet(task["data"]) if task.get("parquet") else spark.read.text(task["data"])
    store.write(counted(lines).toArrow())
    store.close()
    work_s = time.perf_counter() - began
    spark.stop()
    return {"work_s": work_s}


# ---- (b) -------------------------------------------------------------------------------------------------------


def available_now(task: dict[str, Any]) -> dict[str, Any]:
    """(b) Structured Streaming, AvailableNow + foreachBatch with an upsert that knows its batches."""
    spark = session()
    began = time.perf_counter()
    store = Counts(task["state"])

    def upsert(batch: Any, number: int) -> None:
        store.write_once(number, counted(batch).toArrow())

    lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_BATCH).text(task["data"])
    _available(lines.writeStream.foreachBatch(upsert), task)
    store.close()
    work_s = time.perf_counter() - began
    spark.stop()
    return {"work_s": work_s}


def _available(writer: Any, task: dict[str, Any]) -> None:
    query = writer.option("checkpointLocation", task["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


# ---- (c) -------------------------------------------------------------------------------------------------------


def submit_per_batch(task: dict[str, Any]) -> dict[str, Any]:
    """(c) One stock spark-submit for each batch."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    master, conf = submitted_to(task)
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    began = time.perf_counter()
    for batch in range(1, task["batches"] + 1):
        subprocess.run(
            [
                os.path.join(home, "bin", "spark-submit"),
                *("--master", master, *settings),
                str(Path(__file__).with_name("submitted.py")),
                json.dumps({"files": list(map(_url, files_of(task, batch))), "batch": batch, "state": task["state"]}),
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home},
            check=True,
        )
    return {"process_s": (time.perf_counter() - began) / task["batches"]}


# ---- (d) -------------------------------------------------------------------------------------------------------


def stateful(task: dict[str, Any]) -> dict[str, Any]:
    """(d) Structured Streaming's own stateful groupBy; changed counts are put into the store."""
    spark = session()
    began = time.perf_counter()
    store = Counts(task["state"])

    def put(batch: Any, number: int) -> None:
        store.write_once(number, batch.toArrow(), PUT)

    lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_BATCH).text(task["data"])
    _available(counted(lines).writeStream.outputMode("update").foreachBatch(put), task)
    store.close()
    work_s = time.perf_counter() - began
    spark.stop()
    return {"work_s": work_s}


# ---- (e) -------------------------------------------------------------------------------------------------------


def loop(task: dict[str, Any]) -> dict[str, Any]:
    """(e) A bare driver loop with ordered commits and no protocol: our own floor.

    With `threads` 2 the next batch is processed while the one before is committed.
    """
    spark = session(conf={"spark.sql.adaptive.enabled": "false"})
    began = time.perf_counter()
    store = Counts(task["state"])
    with ThreadPoolExecutor(task.get("threads", 1)) as pool:
        pending = [
            pool.submit(lambda paths: counted(spark.read.text(paths)).toArrow(), files_of(task, batch))
            for batch in range(1, task["batches"] + 1)
        ]
        for place, future in enumerate(pending):
            store.write(future.result())
            pending[place] = None  # type: ignore[call-overload]
    store.close()
    work_s = time.perf_counter() - began
    spark.stop()
    return {"work_s": work_s}
