"""The task that runs a user's script as the provider's SparkSubmitOperator does, but exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import is_template, require_local_path
from airflow_trident.operators.drain import TridentDrainOperator
from airflow_trident.tasks.engines import require_submitted, script_engine
from airflow_trident.topology.script import Script, ScriptApplication

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.base import Engine

_SETTINGS = {
    "py_files": "spark.submit.pyFiles",
    "files": "spark.files",
    "jars": "spark.jars",
    "packages": "spark.jars.packages",
}


class TridentSparkSubmitOperator(TridentDrainOperator):
    """Runs a PySpark script by spark-submit over new data, and puts its output into the states exactly once.

    The script runs once for each transaction, one after the other, until nothing is new. It asks the module
    ``airflow_trident_script``, which is sent with it, what to read and where to write. Skips when nothing is new.

    :param topology: the Script.
    :param application: its main file (templated).
    :param application_args: its arguments (templated). They are not part of a transaction: a replay in another run
        gets the arguments of that run.
    :param py_files, files, jars, packages: as in SparkSubmitOperator, separated by commas (templated).
    :param spark_conn_id: connection of type ``spark`` (templated).
    :param max_pending: how many transactions are uncommitted at once; above 1, this number of applications run at a
        time.
    """

    template_fields: Sequence[str] = (
        "application",
        "application_args",
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
        jars: str | None = None,
        packages: str | None = None,
        spark_conn_id: str | None = "spark_default",
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
            require_local_path("staging_dir of TridentSparkSubmitOperator", staging_dir)
        super().__init__(topology=topology, spark_conn_id=spark_conn_id, max_pending=max_pending, **kwargs)
        require_submitted(self.engine, self.spark_conn_id)
        self.application = application
        self.application_args = list(application_args or ())
        self.py_files = py_files
        self.files = files
        self.jars = jars
        self.packages = packages
        topology.runs(self._application())  # committers and commands that run it again need it

    def open_engine(self, context: Context) -> Engine:
        self._running = script_engine(
            self.engine,
            conn_id=self.spark_conn_id,
            conf=self.conf_of_run(context),
            app_name=f"trident {self.topology_name}",
            application=self._application(),
        )
        return self._running

    def _is_submitted(self) -> bool:
        return False

    def _application(self) -> ScriptApplication:
        """The application with the present arguments: Airflow fills templates only when the task runs."""
        given: Mapping[str, str | None] = {setting: getattr(self, name) for name, setting in _SETTINGS.items()}
        return ScriptApplication(
            application=self.application,
            arguments=tuple(map(str, self.application_args)),
            conf=tuple((setting, value) for setting, value in given.items() if value),
        )
