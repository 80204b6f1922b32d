"""What ``airflow trident doctor --spark-conn-id`` asks of a Spark."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.providers.common.compat.sdk import AirflowException

from airflow_trident.cli.console import text_of
from airflow_trident.cli.doctor_checks import Finding, Level
from airflow_trident.errors import TridentError
from airflow_trident.tasks.engines import EngineKind, make_engine


def spark_checks(conn_id: str | None) -> Iterator[Finding]:
    """Is Spark reached by the connection, of which version is it, and what do its Python workers have? Nothing without
    a connection."""
    if conn_id is None:
        return
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.trial import tried
    from airflow_trident.engine.spark.worker import OLDEST_PYARROW

    try:
        engine = make_engine(EngineKind.SPARK, conn_id=conn_id, conf={}, app_name="trident doctor")
        if not isinstance(engine, SparkEngine):
            yield Finding(
                Level.OK, "spark", f"{conn_id}: applications are submitted by it. None is submitted for a check."
            )
            return
        with engine:
            about, workers, pyarrow = tried(engine.sessions)
    except (TridentError, AirflowException) as error:
        yield Finding(Level.FAIL, "spark", f"{conn_id}: {text_of(error)}")
        return
    yield Finding(Level.OK, "spark", f"{conn_id}: {about}")
    if pyarrow < OLDEST_PYARROW:
        cure = f"Install pyarrow {OLDEST_PYARROW} or newer where the executors run."
        yield Finding(Level.FAIL, "executors", f"their Python workers have {workers}. {cure}")
    else:
        yield Finding(Level.OK, "executors", f"their Python workers have {workers}")
