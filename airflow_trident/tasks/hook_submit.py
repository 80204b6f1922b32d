"""Submits applications with the official Spark provider's hook, for any master and deploy mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.driver_tags import NO_TAGS, DriverTags
from airflow_trident.engine.spark.package_zip import package_zip
from airflow_trident.engine.spark.sessions.java import spark_home
from airflow_trident.engine.spark.submit import submit_conf
from airflow_trident.errors import SparkJobError
from airflow_trident.io.extras import SUBMIT_EXTRA, require_extra
from airflow_trident.tasks.spark_driver import ClusterKind, Driver, DriverCluster, wait_for_end

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

PY_FILES = "spark.submit.pyFiles"
_OF_AIRFLOW = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__")
"""Prefixes of environment variables that may hold logins and keys."""
_RUNS_PYTHON = "org.apache.spark.deploy.PythonRunner"


class HookSubmit:
    """Starts an application and waits for its end: the `submit` and `cancel` of a SubmitEngine.

    :param conn_id: connection of type ``spark``.
    :param conf: settings; they replace the defaults for one batch.
    :param one_shot: see `submit_conf`.
    :param py_files: modules of an application that is not ours. It gets no default settings.
    """

    def __init__(
        self,
        conn_id: str,
        conf: Mapping[str, str],
        app_name: str,
        *,
        one_shot: bool = True,
        py_files: str | None = None,
    ) -> None:
        self._conn_id = conn_id
        self._py_files = py_files
        # The hook copies every line of Spark's log into the task's log, so Spark only logs warnings.
        ours = {**submit_conf(one_shot=one_shot), "spark.log.level": "WARN"} if py_files is None else {}
        self._conf = {**ours, **conf}
        self._app_name = app_name
        self._hook: SparkSubmitHook | None = None

    def __call__(self, application: str, arguments: list[str], tags: DriverTags) -> None:
        """:raises SparkJobError: the driver ended on the cluster without success."""
        try:
            driver = self.start(application, arguments, tags)
            if driver is not None:
                self._follow(driver)
        finally:
            self._hook = None

    def cluster(self) -> DriverCluster | None:
        """The cluster that runs the driver and can be asked about it. None: spark-submit lasts until the driver's
        end."""
        hook = self._made(NO_TAGS)
        place = hook._connection
        if place["deploy_mode"] != "cluster":
            return None
        if hook._is_yarn:
            manager = _resource_manager(hook)
            return DriverCluster(kind=ClusterKind.YARN, addresses=(manager,)) if manager else None
        if not str(place["master"]).startswith("spark://"):
            return None
        hosts = str(place["master"]).removeprefix("spark://").split(",")
        masters = (f"{place['rest_scheme']}://{host.rpartition(':')[0] or host}:{place['rest_port']}" for host in hosts)
        return DriverCluster(kind=ClusterKind.STANDALONE, addresses=tuple(masters))

    def start(self, application: str, arguments: list[str], tags: DriverTags) -> Driver | None:
        """Submit the application. Returns the driver at once if the cluster can be asked about it; else None, after the
        end of the driver."""
        cluster = self.cluster()
        standalone = cluster is not None and cluster.kind is ClusterKind.STANDALONE
        if not standalone:
            followed = {"yarn_track_via_rm_api": True} if cluster is not None else {}
            self._hook = self._made(tags, application_args=arguments, **followed)
        else:
            # Spark refuses Python applications there, but accepts the Java class that runs Python. It requires a jar,
            # which is not used.
            jar, arguments = (
                next((spark_home() / "jars").glob("spark-tags_*.jar")),
                [
                    application,
                    self._modules(),
                    *arguments,
                ],
            )
            application = str(jar)
            self._hook = self._made(tags, application_args=arguments, java_class=_RUNS_PYTHON)
        with _our_python_first():
            driver_id = self._hook.submit(application, **({"env": _for_others()} if standalone else {}))
        driver_id = driver_id or self._hook._yarn_application_id
        return cluster.driver(driver_id) if cluster is not None and driver_id else None

    def _made(self, tags: DriverTags, **options: Any) -> SparkSubmitHook:
        hooks = require_extra("airflow.providers.apache.spark.hooks.spark_submit", SUBMIT_EXTRA)
        conf = {**self._conf, **tags.conf(self._conf)}
        name = f"{self._app_name}{tags.about}"
        hook: SparkSubmitHook = hooks.SparkSubmitHook(conf=conf, conn_id=self._conn_id, name=name, **options)
        if self._py_files is not None:
            conf[PY_FILES] = self._modules()
        elif hook._connection["deploy_mode"] == "cluster":  # the driver's machine may not have this package
            conf[PY_FILES] = ",".join(filter(None, [package_zip(), conf.get(PY_FILES)]))
        return hook

    def _modules(self) -> str:
        """The Python path of the driver, for an application that is not ours."""
        if self._py_files is None:
            return ""
        return ",".join(filter(None, [self._py_files, self._conf.get(PY_FILES)]))

    @staticmethod
    def _follow(driver: Driver) -> None:
        """Wait for the driver's end.

        :raises SparkJobError: it ended without success.
        """
        state = wait_for_end(driver)
        if state != "FINISHED":
            raise SparkJobError(f"Spark driver {driver.driver_id} ended as {state}", "See its log on the cluster.")

    def cancel(self) -> None:
        hook = self._hook
        if hook is not None:
            hook.on_kill()


def _resource_manager(hook: SparkSubmitHook) -> str:
    """The address of YARN's resource manager in the connection; "" if it has none."""
    if not hook.get_connection(hook._conn_id).extra_dejson.get(hook._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY):
        return ""
    return str(hook._get_yarn_rm_base_url())


def _for_others() -> dict[str, str]:
    """The environment without Airflow's variables: a standalone cluster passes spark-submit's environment to the driver
    unprotected, and masters store it for recovery."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_AIRFLOW)}


@contextmanager
def _our_python_first() -> Iterator[None]:
    """Put this Python first on the path, where spark-submit looks for its home and its Python."""
    before = os.environ.get("PATH", "")
    own = os.path.dirname(sys.executable)
    os.environ["PATH"] = os.pathsep.join([own, before]) if before else own
    try:
        yield
    finally:
        os.environ["PATH"] = before
