"""Runs a batch of each table in a bucket on a Spark that has Hadoop's S3A, then again by Python. Its log and its
result, as JSON, are printed.

Then objects of a FileSpout, one of which is replaced after Spark was told of it, and put back.

Arguments: a folder, the bucket, the folder of the jars, Spark's master.
"""

from __future__ import annotations

import json
import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

from airflow_trident import FileSpout, TableSpout, Topology
from airflow_trident.contracts.spout import Emitter
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.run import PlanRun
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.errors import SourceUnavailableError
from airflow_trident.io.object_stores import ObjectAddress
from tests.contracts.test_tables_on_s3 import FACTORIES
from tests.fixtures.engine import keep, make_job, staged
from tests.fixtures.object_store import CONN_ID


def as_it_is(frame: Any) -> Any:
    return frame


def main() -> None:
    folder, bucket, jars, master = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    conf = {"spark.driver.memory": "512m", "spark.driver.extraClassPath": f"{jars}/*", "spark.ui.port": "0"}
    conf |= {"spark.executor.memory": "512m", "spark.executor.extraClassPath": f"{jars}/*"}
    events = folder / "events"
    events.mkdir()
    conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.ui.enabled": "true"}
    conf |= {"spark.eventLog.compress": "false"}
    found: dict[str, Any] = {}
    with SparkEngine(LocalSessions(master, conf=conf)) as engine:
        for kind, factory in FACTORIES.items():
            found[kind] = both(engine, folder / kind, TableSpout(factory(bucket, folder), fields="word string, n long"))
        found["files"] = files(engine, folder / "files", bucket)
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


def files(engine: SparkEngine, folder: Path, bucket: str) -> dict[str, Any]:
    spout = FileSpout(f"s3://{CONN_ID}@{bucket}/in/*.parquet", format="parquet", fields="word string, n long")
    emitter, metadata = spout.emitter(), spout.coordinator().initialize_transaction(1, None)
    place = ObjectAddress.parse("in", f"s3://{CONN_ID}@{bucket}/in").resolved()
    name = metadata["files"][0][0]
    old = bytes(place.obstore().get(place.store(), name).bytes())
    with engine._attached(make_job(lambda topology: keep(topology.new_stream("rows", spout)), folder)) as attached:
        frame = emitter.data_frame(attached.session, metadata)
        assert frame is not None
        given: dict[str, Any] = {"rows_of_frame": frame.frame.count()}
        frame.require_same()
        place.obstore().put(place.store(), name, old + b" ")
        try:
            frame.require_same()
        except SourceUnavailableError as error:
            given["replaced"] = error.message
        given["refused"] = emitter.data_frame(attached.session, metadata) is None
        place.obstore().put(place.store(), name, old)
    return {**both(engine, folder, spout), **given}


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
