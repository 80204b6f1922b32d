"""Submitting by the official Spark provider's hook, whatever master and deploy mode its connection names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_trident.engine.spark_submit import submit_conf
from airflow_trident.errors import SparkJobError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


class HookSubmit:
    """Starts an application and waits for its end: the `submit` and `cancel` of a SubmitEngine.

    :param conn_id: connection of type ``spark``.
    :param conf: settings that win over those which fit one batch.
    """

    def __init__(self, conn_id: str, conf: Mapping[str, str], app_name: str) -> None:
        self._conn_id = conn_id
        # The hook copies every line of Spark into the task's log: a hundred lines for one that anybody reads.
        self._conf = {**submit_conf(), "spark.log.level": "WARN", **conf}
        self._app_name = app_name
        self._hook: SparkSubmitHook | None = None

    def __call__(self, application: str, arguments: list[str]) -> None:
        """:raises SparkJobError: the driver ended on the cluster without success."""
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        hook = self._hook = SparkSubmitHook(
            conf=self._conf, conn_id=self._conn_id, application_args=arguments, name=self._app_name
        )
        try:
            with _our_python_first():
                driver_id = hook.submit(application)
                if driver_id is not None:
                    self._follow(hook, driver_id)
        finally:
            self._hook = None

    @staticmethod
    def _follow(hook: SparkSubmitHook, driver_id: str) -> None:
        """In a standalone cluster's cluster mode the submission returns at once.

        The provider's own operator follows the driver like this, but on a retry it would take up the driver of the
        former attempt, whose result nobody may commit any more.
        """
        hook._start_driver_status_tracking()
        if hook._driver_status != "FINISHED":
            raise SparkJobError(
                f"Spark driver {driver_id} ended as {hook._driver_status}", "See its log on the cluster."
            )

    def cancel(self) -> None:
        hook = self._hook
        if hook is not None:
            hook.on_kill()


@contextmanager
def _our_python_first() -> Iterator[None]:
    """spark-submit finds its home, and its Python, by whatever comes first on the path."""
    before = os.environ.get("PATH", "")
    own = os.path.dirname(sys.executable)
    os.environ["PATH"] = os.pathsep.join([own, before]) if before else own
    try:
        yield
    finally:
        os.environ["PATH"] = before
