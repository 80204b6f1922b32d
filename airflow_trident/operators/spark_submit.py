"""The task that runs a user's script as the provider's SparkSubmitOperator does, but exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.hadoop import require_s3a_place
from airflow_trident.io.paths import is_template
from airflow_trident.operators.drain import TridentDrainOperator
from airflow_trident.tasks.engines import require_submitted, script_engine
from airflow_trident.topology.script import Script, ScriptApplication

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.engine import Engine

_SETTINGS = {
    "py_files": "spark.submit.pyFiles",
    "files": "spark.files",
    "archives": "spark.archives",
    "jars": "spark.jars",
    "packages": "spark.jars.packages",
    "exclude_packages": "spark.jars.excludes",
    "repositories": "spark.jars.repositories",
    "driver_class_path": "spark.driver.extraClassPath",
    "driver_memory": "spark.driver.memory",
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
    "num_executors": "spark.executor.instances",
    "total_executor_cores": "spark.cores.max",
}
"""Argument of SparkSubmitOperator -> the setting of Spark that it is."""


class TridentSparkSubmitOperator(TridentDrainOperator):
    """Runs a PySpark script by spark-submit over new data, and puts its output into the states exactly once.

    The script runs once for each transaction, one after the other, until nothing is new. It asks the module
    ``airflow_trident_script``, which is sent with it, what to read and where to write. Skips when nothing is new.

    :param topology: the Script.
    :param application: its main file (templated).
    :param application_args: its arguments (templated). They are not part of a transaction: a replay in another run
        gets the arguments of that run.
    :param py_files, files, archives, jars, packages, exclude_packages, repositories, driver_class_path, driver_memory,
        executor_memory, executor_cores, num_executors, total_executor_cores: as in SparkSubmitOperator (templated).
    :param name: of the application; None: the topology's (templated).
    :param spark_conn_id: connection of type ``spark`` (templated). SparkSubmitOperator calls it `conn_id`, which is
        taken as well, and so is its `conf` for `spark_conf`.
    :param staging_dir: a folder that driver and executors share, or ``s3://[connection@]bucket/prefix`` where Spark has
        Hadoop's S3A; None: ``[trident] staging_dir`` (templated).
    :param max_pending: how many transactions are uncommitted at once; above 1, this number of applications run at a
        time.
    """

    template_fields: Sequence[str] = (
        "application",
        "application_args",
        "name",
        *_SETTINGS,
        *TridentDrainOperator.template_fields,
    )

    def __init__(
        self,
        *,
        topology: Script,
        application: str,
        application_args: Sequence[Any] | None = None,
        py_files: str | None = None,
        files: str | None = None,
        archives: str | None = None,
        jars: str | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        driver_class_path: str | None = None,
        driver_memory: str | None = None,
        executor_memory: str | None = None,
        executor_cores: int | str | None = None,
        num_executors: int | str | None = None,
        total_executor_cores: int | str | None = None,
        name: str | None = None,
        spark_conn_id: str | None = "spark_default",
        conn_id: str | None = None,
        conf: Mapping[str, str] | None = None,
        max_pending: int | str | None = 1,
        **kwargs: Any,
    ) -> None:
        if not isinstance(topology, Script):
            raise ConfigurationError(
                f"{topology!r} is no Script, and this task runs a script",
                "Give it Script(name, inputs=..., outputs=...), or use TridentDrainOperator.",
            )
        staging_dir = kwargs.get("staging_dir")
        if staging_dir is not None and not is_template(staging_dir):
            require_s3a_place("staging_dir of TridentSparkSubmitOperator", staging_dir)
        kwargs["spark_conf"] = {**(conf or {}), **(kwargs.get("spark_conf") or {})}
        super().__init__(topology=topology, spark_conn_id=conn_id or spark_conn_id, max_pending=max_pending, **kwargs)
        require_submitted(self.engine, self.spark_conn_id)
        self.name = name
        self.application = application
        self.application_args = list(application_args or ())
        self.py_files = py_files
        self.files = files
        self.archives = archives
        self.jars = jars
        self.packages = packages
        self.exclude_packages = exclude_packages
        self.repositories = repositories
        self.driver_class_path = driver_class_path
        self.driver_memory = driver_memory
        self.executor_memory = executor_memory
        self.executor_cores = executor_cores
        self.num_executors = num_executors
        self.total_executor_cores = total_executor_cores
        topology.runs(self._application())  # committers and commands that run it again need it

    def open_engine(self, context: Context) -> Engine:
        self._running = script_engine(
            self.engine,
            conn_id=self.spark_conn_id,
            conf=self.conf_of_run(context),
            app_name=self.name or f"trident {self.topology_name}",
            application=self._application(),
        )
        return self._running

    def _is_submitted(self) -> bool:
        return False

    def _application(self) -> ScriptApplication:
        """The application with the present arguments: Airflow fills templates only when the task runs."""
        spark_settings: dict[str, Any] = {setting: getattr(self, name) for name, setting in _SETTINGS.items()}
        return ScriptApplication(
            application=self.application,
            arguments=tuple(map(str, self.application_args)),
            conf=tuple((setting, str(value)) for setting, value in spark_settings.items() if value),
        )
