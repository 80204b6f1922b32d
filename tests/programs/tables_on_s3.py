"""Runs a batch of each table in a bucket on a Spark that has Hadoop's S3A, then again by Python. Its log and its
result, as JSON, are printed.

Arguments: a folder, the bucket, the folder of the jars.
"""

from __future__ import annotations

import json
import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

from airflow_trident import TableSpout, Topology
from airflow_trident.contracts.spout import Emitter
from airflow_trident.engine.base import Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.run import PlanRun
from airflow_trident.engine.spark.sessions.local import LocalSessions
from tests.contracts.test_tables_on_s3 import FACTORIES
from tests.fixtures.engine import keep, make_job, staged


def as_it_is(frame: Any) -> Any:
    return frame


def main() -> None:
    folder, bucket, jars = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    conf = {"spark.driver.memory": "512m", "spark.driver.extraClassPath": f"{jars}/*", "spark.ui.port": "0"}
    events = folder / "events"
    events.mkdir()
    conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.ui.enabled": "true"}
    conf |= {"spark.eventLog.compress": "false"}
    found: dict[str, Any] = {}
    with SparkEngine(LocalSessions("local[2]", conf=conf)) as engine:
        for kind, factory in FACTORIES.items():
            found[kind] = both(engine, folder / kind, TableSpout(factory(bucket, folder), fields="word string, n long"))
        found["shown"] = shown()
    logs = "".join(one.read_text(errors="replace") for one in events.rglob("*") if one.is_file())
    found["events"] = {"plans": logs.count("[s3a-"), "keys": "secret-key" in logs or "an-access-key" in logs}
    print(json.dumps(found))


def both(engine: SparkEngine, folder: Path, spout: TableSpout) -> dict[str, Any]:
    def build(topology: Topology) -> None:
        keep(topology.new_stream("rows", spout).transform(as_it_is, "word string, n long"))

    job = make_job(build, folder)
    plan, by_spark = planned(engine, job), staged(job, engine.run(job))
    kind = type(spout.emitter())
    kind.data_frame = Emitter.data_frame  # type: ignore[method-assign]
    again = make_job(build, folder)
    by_python = staged(again, engine.run(again))
    return {"plan": plan, "rows": by_spark["rows"], "by_python": by_python["rows"]}


def planned(engine: SparkEngine, job: Job) -> str:
    with engine._attached(job) as attached:
        return " ".join(PlanRun(attached, job, native=True).physical().values())


def shown() -> str:
    """What Spark's page, its configuration and Hadoop's say."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    context = session.sparkContext
    pages = ["environment/", "SQL/", "jobs/", "api/v1/applications"]
    pages.append(f"api/v1/applications/{context.applicationId}/sql?details=true&planDescription=true")
    pages.append(f"api/v1/applications/{context.applicationId}/environment")
    texts = [urllib.request.urlopen(f"{context.uiWebUrl}/{page}").read().decode() for page in pages]
    texts.append(str(context.getConf().getAll()) + str(session.conf.getAll))
    hadoop = context._jsc.hadoopConfiguration()
    texts.append(" ".join(str(entry) for entry in hadoop.iterator()))  # type: ignore[no-untyped-call]
    return " ".join(texts)


if __name__ == "__main__":
    main()
