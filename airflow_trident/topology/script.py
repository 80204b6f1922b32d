"""An existing PySpark script as a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.names import require_name
from airflow_trident.plan.script_node import ScriptOutputNode, require_script
from airflow_trident.topology.stream import Stream
from airflow_trident.topology.topology import Topology
from airflow_trident.types import INTERVAL, FieldSpec, has_times, names_of, parse_declared

ScriptOutput: TypeAlias = tuple[FieldSpec, StateFactory | Callable[[Stream], Any]]
_AS = 'As in outputs={"daily": ("day date, cents long", FileSink("/lake/daily"))}.'


@dataclass(frozen=True, kw_only=True)
class ScriptApplication:
    """What spark-submit gets: the application's main file, its arguments, and settings."""

    application: str
    arguments: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class Script(Topology):
    """A topology of one step, a PySpark script. The script reads a batch of each input, and its outputs go into states
    exactly once. `TridentSparkSubmitOperator` runs it.

    :param name: as for any topology.
    :param inputs: name -> spout. The script gets each batch by ``inputs(spark, name)``. The spout must be able to
        describe a batch without reading it, as FileSpout of a folder can.
    :param outputs: name -> the fields that the script writes, and a sink or a table that appends them, or a function
        that takes their stream and ends it in a state. The script learns where to write by ``output(spark, name)``.
    :raises PlanError: there are no inputs or no outputs, or an output ends in no state.
    :raises ConfigurationError: Spark cannot read the type of a field from Parquet files.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, Spout],
        outputs: Mapping[str, ScriptOutput],
        exactly_once: bool = True,
    ) -> None:
        super().__init__(name, exactly_once=exactly_once)
        self.application: ScriptApplication | None = None
        if not inputs or not outputs:
            missing = "outputs" if inputs else "inputs"
            raise PlanError(f"script {name!r} has no {missing}", f"Name what it {'writes' if inputs else 'reads'}.")
        for input_name, spout in inputs.items():
            self._require_readable(input_name, self.add_source(input_name, spout).spout)
        for output_name, output in outputs.items():
            self._end(output_name, output)
        require_script(self.compile())

    def runs(self, application: ScriptApplication) -> None:
        """Set what spark-submit starts; the operator calls this.

        :raises PlanError: another task has set another application.
        """
        if self.application not in (None, application):
            raise PlanError(
                f"script {self.name!r} is the application {self.application} in one task and {application} in another",
                "Make a Script with a name of its own for each.",
            )
        self.application = application

    def _require_readable(self, name: str, spout: Spout) -> None:
        if spout.spark_read is not None:
            raise ConfigurationError(
                f"input {name!r} of script {self.name!r} is a {spout.describe()}, which a function reads",
                "Read in the script what that function reads; or use the function's stream, without a script.",
            )
        if spout.gives_files:
            return  # the script's own readers know the types
        for column in spout.schema:
            if has_times(column.type) or INTERVAL in column.type:
                raise ConfigurationError(
                    f"input {name!r} of script {self.name!r} has the field {column.name!r} of type {column.type}, "
                    "which Spark does not read from Parquet files",
                    "Keep a long of microseconds, or a text, in the source; or use transform() with this spout.",
                )

    def _end(self, name: str, output: ScriptOutput) -> None:
        require_name("output", name)
        if not isinstance(output, tuple) or len(output) != 2:
            raise PlanError(f"output {name!r} of script {self.name!r} is {output!r}", _AS)
        fields, into = output
        schema = parse_declared(fields)
        if name in self._sources:
            raise PlanError(f"{name!r} is an input and an output of script {self.name!r}", "Name them apart.")
        node = ScriptOutputNode(name=f"script.{name}", output=name, schema=schema, inputs=tuple(self._sources.values()))
        stream, ends = Stream(self, node), len(self._sinks)
        if isinstance(into, StateFactory):
            if not into.capabilities.appends:
                raise PlanError(
                    f"output {name!r} of script {self.name!r} goes into a {into.describe()}, which has keys",
                    f'Say which: ("...", lambda rows: rows.partition_persist(state, "{", ".join(names_of(schema))}", '
                    f'keys="{schema[0].name}")).',
                )
            stream.partition_persist(into, names_of(schema), name=name)
        elif callable(into):
            into(stream)
        if len(self._sinks) == ends:
            raise PlanError(f"output {name!r} of script {self.name!r} ends in no state", _AS)


def application_of(topology: Topology) -> ScriptApplication | None:
    """What spark-submit starts for a script; None for other topologies.

    :raises ConfigurationError: no task has set it, or it has a template that only a running task can fill.
    """
    if not isinstance(topology, Script):
        return None
    application = topology.application
    if application is None:
        raise ConfigurationError(
            f"topology {topology.name!r} is a script, and nothing says which application it is",
            "Let a TridentSparkSubmitOperator of the DAG run it, and name the DAG by --dag.",
        )
    texts = (application.application, *application.arguments, *(value for _, value in application.conf))
    if template := next((text for text in texts if "{{" in text or "{%" in text), None):
        raise ConfigurationError(
            f"the application of script {topology.name!r} has the template {template!r}, which only its task can fill",
            "Clear the task instead, or give a value without a template.",
        )
    return application
