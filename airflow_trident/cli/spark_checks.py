"""What ``airflow trident doctor --spark-conn-id`` asks of a Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException

from airflow_trident import settings
from airflow_trident.cli.console import text_of
from airflow_trident.cli.doctor_checks import Finding, Level
from airflow_trident.errors import TridentError
from airflow_trident.tasks.engines import EngineKind, make_engine

if TYPE_CHECKING:
    from airflow_trident.engine.spark.trial import TrialResult


def spark_checks(conn_id: str | None, staging_dir: str | None = None) -> Iterator[Finding]:
    """Is Spark reached by the connection, of which version is it, what do its Python workers have, and do they see the
    staging folder? Nothing without a connection."""
    if conn_id is None:
        return
    from airflow_trident.engine.spark.worker import OLDEST_PYARROW

    try:
        found = _tried(conn_id, staging_dir)
    except (TridentError, AirflowException) as error:
        yield Finding(Level.FAIL, "spark", f"{conn_id}: {text_of(error)}")
        return
    yield Finding(Level.OK, "spark", f"{conn_id}: {found.about}")
    if found.pyarrow < OLDEST_PYARROW:
        cure = f"Install pyarrow {OLDEST_PYARROW} or newer where the executors run."
        yield Finding(Level.FAIL, "executors", f"their Python workers have {found.workers}. {cure}")
    else:
        yield Finding(Level.OK, "executors", f"their Python workers have {found.workers}")
    if found.mixes:
        yield Finding(Level.WARN, "spark", found.mixes)
    if not found.sees:
        yield Finding(
            Level.FAIL,
            "executors",
            f"they do not see the staging folder {settings.staging_root(staging_dir)}, which their driver sees. "
            "Mount it there under the same path, or stage in a bucket.",
        )


def _tried(conn_id: str, staging_dir: str | None) -> TrialResult:
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.trial import tried
    from airflow_trident.tasks.submitted_trial import submitted_trial

    engine = make_engine(EngineKind.SPARK, conn_id=conn_id, conf={}, app_name="trident doctor")
    if not isinstance(engine, SparkEngine):
        return submitted_trial(conn_id, settings.staging_root(staging_dir))
    with engine:
        return tried(engine.sessions)
