"""The node kind for the outputs of a user's application, which spark-submit starts unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.errors import PlanError
from airflow_trident.plan.graph import BeginNode
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.stages import Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class ScriptOutputNode(BeginNode):
    """One output of the script. One run makes all outputs of a batch, from the batches of all its inputs.

    :param output: its name, by which the script asks where to write it.
    """

    batch_as = "a run of its own"
    cure = "Run it by TridentSparkSubmitOperator, with a connection of type spark."
    output: str

    @property
    def what(self) -> str:
        inputs = f" of {', '.join(node.name for node in self.inputs)}" if self.inputs else ""
        return f"output {self.output} of the script{inputs}"


def require_script(plan: Plan) -> None:
    """
    :raises PlanError: the plan has more than streams, a script that reads them, and states that take its output
        unchanged.
    """
    for stage in plan.stages:
        begins = isinstance(stage.begin, SourceNode | ScriptOutputNode)
        if not begins or stage.exchange is not None or stage.nodes:
            made = ", ".join(node.name for node in stage.nodes) or stage.name
            raise PlanError(
                f"topology {plan.topology!r} works on what its script writes: {made}",
                "Do that in the script, and let its outputs go into states as they are, with all fields.",
            )
