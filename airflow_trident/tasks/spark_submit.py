"""Submits applications with the official Spark provider's hook, for any master and deploy mode.

A trial of a connection of type ``spark``: a real application of one task.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark import driver_orders, trial_app
from airflow_trident.engine.spark.driver_orders import place_code
from airflow_trident.engine.spark.engine import TrialResult
from airflow_trident.engine.spark.errors import cure_of, from_json, root_cause
from airflow_trident.engine.spark.older_orders import OlderOrder
from airflow_trident.engine.spark.order_takers import Taker
from airflow_trident.engine.spark.sessions.java import jars_version, spark_home
from airflow_trident.engine.spark.shipping import package_zip
from airflow_trident.engine.spark.submit import NO_TAGS, POD_NAME, DriverTags, submit_conf
from airflow_trident.engine.spark.versions import require_master
from airflow_trident.errors import MissingExtraError, SparkJobError, TridentError
from airflow_trident.io.connections import KUBERNETES_PROVIDER, SUBMIT_EXTRA, require_extra
from airflow_trident.io.database_limits import CLUSTERS
from airflow_trident.io.paths import is_object_uri
from airflow_trident.io.places import absolute_root
from airflow_trident.protocol.durable_format import Format
from airflow_trident.tasks.drivers import (
    ClusterKind,
    Driver,
    DriverCluster,
    DriverProcess,
    SparkDriver,
    find_client_driver,
    wait_for_end,
)

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

_log = logging.getLogger(__name__)
PY_FILES = "spark.submit.pyFiles"
_OF_AIRFLOW = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__")
"""Prefixes of environment variables that may hold logins and keys."""
_RUNS_PYTHON = "org.apache.spark.deploy.PythonRunner"
_TRACKS_PODS = "track_driver_via_k8s_api"
"""In the extra of a connection; named as the option of the provider's operator."""
_UPLOADS = "spark.kubernetes.file.upload.path"
_REST_PORT = "rest-port"
_NAMESPACE = "default"
"""Spark's, where none is named."""


class HookSubmit:
    """Starts an application and waits for its end: the `submit` and `cancel` of a SubmitEngine.

    :param conn_id: connection of type ``spark``.
    :param conf: settings; they replace the defaults for one batch.
    :param one_shot: see `submit_conf`.
    :param py_files: modules of an application that is not ours. It gets no default settings.
    :param on_driver_id: is told the id of the driver as soon as the cluster has said it.
    """

    def __init__(
        self,
        conn_id: str,
        conf: Mapping[str, str],
        app_name: str,
        *,
        one_shot: bool = True,
        py_files: str | None = None,
        on_driver_id: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._conn_id = conn_id
        self._py_files = py_files
        self._on_driver_id = on_driver_id
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
                self._on_driver_id(driver.driver_id)
                self._follow(driver)
        except BaseException as error:
            if not isinstance(error, Exception):  # a time-out of the task, whose `on_kill` comes when all is forgotten
                self.cancel()
            raise
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
        if hook._is_kubernetes:
            tracked = hook.get_connection(hook._conn_id).extra_dejson.get(_TRACKS_PODS)
            return DriverCluster(kind=ClusterKind.KUBERNETES, addresses=(place["namespace"],)) if tracked else None
        if not str(place["master"]).startswith("spark://"):
            return None
        return DriverCluster(kind=ClusterKind.STANDALONE, addresses=_masters(hook))

    def rpc_addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each master of a standalone cluster; none of another one."""
        master = str(self._made(NO_TAGS)._connection["master"])
        if not master.startswith("spark://"):
            return ()
        pairs = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
        return tuple((host, int(port)) for host, _, port in pairs if host and port.isdecimal())

    def start(self, application: str, arguments: list[str], tags: DriverTags) -> Driver | None:
        """Submit the application. Returns the driver at once if the cluster can be asked about it; else None, after the
        end of the driver."""
        cluster = self.cluster()
        standalone = cluster is not None and cluster.kind is ClusterKind.STANDALONE
        self._require_release()
        if not standalone:
            followed = {_FOLLOWED[cluster.kind]: True} if cluster is not None else {}
            self._hook = self._made(tags, application_args=arguments, **followed)
            if POD_NAME in self._hook._conf:
                application = self._in_pod(self._hook, application, arguments)
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
        driver_id = self._hook.submit(application, env=_our_python_first(_for_others() if standalone else os.environ))
        driver_id = driver_id or self._hook._yarn_application_id or self._hook._conf.get(POD_NAME)
        return cluster.driver(driver_id) if cluster is not None and driver_id else None

    def _require_release(self) -> None:
        """:raises ConfigurationError: the masters of a standalone cluster say that they are of another release."""
        hook = self._made(NO_TAGS)
        if not str(hook._connection["master"]).startswith("spark://"):
            return
        if (
            hook._connection["deploy_mode"] != "cluster"
            and _REST_PORT not in hook.get_connection(hook._conn_id).extra_dejson
        ):
            return  # nothing else needs their REST interface
        with suppress(SparkJobError):  # whoever needs an answer asks again
            master, client = SparkDriver(masters=_masters(hook), driver_id="none").release(), jars_version()
            if master and client:
                require_master(master, client)

    def _in_pod(self, hook: SparkSubmitHook, application: str, arguments: list[str]) -> str:
        """The application as the driver's pod sees it. Spark copies files of this machine to a named place only:
        without one, our own are copied beside the order."""
        # known before there is a pod, so that a killed task deletes it, whatever spark-submit has printed
        hook._kubernetes_driver_pod = hook._conf[POD_NAME]
        if _UPLOADS in hook._conf or self._py_files is not None:
            return application
        application, package = place_code(arguments[0], application, package_zip())
        py_files = self._conf.get(PY_FILES)
        hook._conf[PY_FILES] = ",".join(filter(None, [f"local://{package}", py_files]))
        return f"local://{application}"

    def _made(self, tags: DriverTags, **options: Any) -> SparkSubmitHook:
        hooks = require_extra("airflow.providers.apache.spark.hooks.spark_submit", SUBMIT_EXTRA)
        conf = {**self._conf, **tags.conf(self._conf)}
        name = f"{self._app_name}{tags.about}"
        try:
            hook: SparkSubmitHook = hooks.SparkSubmitHook(conf=conf, conn_id=self._conn_id, name=name, **options)
        except NameError as error:  # the provider has not imported what it uses for masters of Kubernetes
            raise MissingExtraError(
                f"connection {self._conn_id!r} names a master of Kubernetes, and its client is not installed here",
                f"Install it: pip install {KUBERNETES_PROVIDER}.",
            ) from error
        if hook._is_kubernetes:
            hook._connection["namespace"] = hook._connection["namespace"] or _NAMESPACE
            if hook._connection["deploy_mode"] == "cluster":  # else the name is that of the pod that submits
                conf |= tags.pod(conf)
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

    def end(self, order: OlderOrder, holder: Taker | None) -> str:
        """End the driver of an order, if one waits or runs. Returns its name, for people; or "".

        :param holder: who has the order; None: no driver begins it any more.
        :raises SparkJobError: the cluster does not answer.
        """
        cluster = self.cluster()
        tags = DriverTags(topology="", order=order.name)
        driver_id = (cluster.find(tags.yarn_tag) if cluster is not None else "") or (holder.driver_id if holder else "")
        driver: Driver | None = None
        if cluster is not None and driver_id:
            driver = cluster.driver(driver_id)
        elif not driver_id:
            driver = find_client_driver(tags.order_setting) if self._is_client() else None
            if driver is None and holder is not None:
                driver = DriverProcess(host=holder.host, pid=holder.pid, order=order.address, workers=tuple)
        if driver is None or not driver.active():
            return ""
        try:
            driver.kill()
        except SparkJobError as error:  # YARN without security lets nobody end an application by REST, as delivered
            _log.warning(
                "driver %s of an older attempt goes on; what it does counts no more: %s", driver.driver_id, error
            )
            return ""
        return driver.driver_id

    def _is_client(self) -> bool:
        """Is the driver a child of spark-submit?"""
        return bool(self._made(NO_TAGS)._connection["deploy_mode"] != "cluster")

    def cancel(self) -> None:
        hook = self._hook
        if hook is not None:
            hook.on_kill()


def _masters(hook: SparkSubmitHook) -> tuple[str, ...]:
    """The REST addresses of a standalone cluster's masters."""
    place = hook._connection
    hosts = str(place["master"]).removeprefix("spark://").split(",")
    return tuple(f"{place['rest_scheme']}://{host.rpartition(':')[0] or host}:{place['rest_port']}" for host in hosts)


_FOLLOWED = {ClusterKind.YARN: "yarn_track_via_rm_api", ClusterKind.KUBERNETES: _TRACKS_PODS}
"""The hook's option by which spark-submit ends as soon as the driver is there."""


def _resource_manager(hook: SparkSubmitHook) -> str:
    """The address of YARN's resource manager in the connection; "" if it has none."""
    if not hook.get_connection(hook._conn_id).extra_dejson.get(hook._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY):
        return ""
    return str(hook._get_yarn_rm_base_url())


def _for_others() -> dict[str, str]:
    """The environment without Airflow's variables: a standalone cluster passes spark-submit's environment to the driver
    unprotected, and masters store it for recovery."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_AIRFLOW)}


def _our_python_first(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child with this Python first on its path, where spark-submit looks for its home and its
    Python. The process's own stays: others submit at the same time."""
    python_folder, path = os.path.dirname(sys.executable), environment.get("PATH", "")
    return {**environment, "PATH": os.pathsep.join([python_folder, path]) if path else python_folder}


TRIAL_APPLICATION = os.path.abspath(trial_app.__file__)
_RESULT = Format(noun="the result of the trial", version=1, cure="See the driver's log.", error=SparkJobError)


def submitted_trial(conn_id: str, staging_root: str) -> TrialResult:
    """Submit one task, and wait for its end. `TrialResult.sees`: do executors see the staging folder? True without one.

    :raises SparkJobError, ConfigurationError: no master answers, or the application failed.
    :raises AirflowException: there is no such connection.
    """
    submit = HookSubmit(conn_id, {}, "trident doctor")
    _require_reached(submit.rpc_addresses())
    folder, name = f"{absolute_root(staging_root)}/.doctor-{uuid.uuid4().hex}", uuid.uuid4().hex
    order, result_file = driver_orders.place(folder, name, ".trial", b"doctor"), f"{folder}/{name}.result"
    try:
        error_of_job: TridentError | None = None
        try:
            submit(TRIAL_APPLICATION, [order, result_file], DriverTags(topology="doctor", order=name))
        except TridentError as error:
            error_of_job = error
        except Exception as error:  # noqa: BLE001 - the hook raises what it likes
            text = str(error)
            error_of_job = SparkJobError(
                f"the application failed: {root_cause(text) or type(error).__name__}", cure_of(text)
            )
        return _found(result_file, error_of_job)
    finally:
        driver_orders.forget(order, result_file)
        if not is_object_uri(folder):
            with suppress(OSError):
                os.rmdir(folder)


def _found(result_file: str, error_of_job: TridentError | None) -> TrialResult:
    """What the application answered.

    :param error_of_job: how it ended, if not well. What it answered itself says more.
    """
    content = driver_orders.collect(result_file)
    if content is None:
        raise error_of_job or SparkJobError(
            f"the application ended and left no result: its driver does not see the staging folder {result_file!r}",
            "Name a staging folder that the driver's machine sees under the same path.",
        )
    answer = _RESULT.mapping(_RESULT.parsed(content, result_file), result_file)
    if "error" in answer:
        raise from_json(answer["error"])
    return _RESULT.build(TrialResult, answer, result_file)


def _require_reached(masters: tuple[tuple[str, int], ...]) -> None:
    """Spark asks a standalone cluster's masters for a minute before it gives up.

    :raises SparkJobError: none of them takes a connection.
    """
    reason = ""
    for address in masters:
        try:
            socket.create_connection(address, CLUSTERS.connect_s).close()
        except OSError as error:
            reason = str(error)
        else:
            return
    if masters:
        addresses = ", ".join(f"spark://{host}:{port}" for host, port in masters)
        raise SparkJobError(
            f"no Spark master takes connections at {addresses} ({reason})", "Start it, or correct the host."
        )
