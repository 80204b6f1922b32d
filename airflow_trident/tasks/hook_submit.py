"""Submitting by the official Spark provider's hook, whatever master and deploy mode its connection names."""

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
"""Variables with logins, keys and whatever a person wrote."""
_RUNS_PYTHON = "org.apache.spark.deploy.PythonRunner"


class HookSubmit:
    """Starts an application: the `submit` and `cancel` of a SubmitEngine, which waits for its end.

    :param conn_id: connection of type ``spark``.
    :param conf: settings that win over those which fit one batch.
    :param one_shot: see `submit_conf`.
    :param py_files: the application is not ours: it gets no settings but these, and these modules.
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
        # The hook copies every line of Spark into the task's log: a hundred lines for one that anybody reads.
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
        """That is to run the driver and tells about it; None: the submission lasts to the driver's end."""
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
        """Submit it. Where the cluster tells about the driver that returns at once, else (None) with its end."""
        cluster = self.cluster()
        standalone = cluster is not None and cluster.kind is ClusterKind.STANDALONE
        if not standalone:
            followed = {"yarn_track_via_rm_api": True} if cluster is not None else {}
            self._hook = self._made(tags, application_args=arguments, **followed)
        else:
            # Spark refuses Python there, but not the Java class that runs Python; it wants a jar, which is not used.
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
        elif hook._connection["deploy_mode"] == "cluster":  # the driver is where this package may not be installed
            conf[PY_FILES] = ",".join(filter(None, [package_zip(), conf.get(PY_FILES)]))
        return hook

    def _modules(self) -> str:
        """Of an application that is not ours: what goes onto its driver's path."""
        if self._py_files is None:
            return ""
        return ",".join(filter(None, [self._py_files, self._conf.get(PY_FILES)]))

    @staticmethod
    def _follow(driver: Driver) -> None:
        """On a retry the provider's own operator follows the former try's driver. Nobody may commit its result now."""
        state = wait_for_end(driver)
        if state != "FINISHED":
            raise SparkJobError(f"Spark driver {driver.driver_id} ended as {state}", "See its log on the cluster.")

    def cancel(self) -> None:
        hook = self._hook
        if hook is not None:
            hook.on_kill()


def _resource_manager(hook: SparkSubmitHook) -> str:
    """As the provider reads it from the connection; "" where that does not say."""
    if not hook.get_connection(hook._conn_id).extra_dejson.get(hook._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY):
        return ""
    return str(hook._get_yarn_rm_base_url())


def _for_others() -> dict[str, str]:
    """A standalone cluster hands spark-submit's environment to its driver unprotected, and masters that recover keep
    it: nothing of Airflow's may be in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_AIRFLOW)}


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
