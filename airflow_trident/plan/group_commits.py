"""May waiting transactions of a plan go into its states together, in one step of each? Pure."""

from __future__ import annotations

from airflow_trident.contracts.state import StateSpec
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.spout_kinds import SpoutKind


def commits_alone(plan: Plan) -> str:
    """Why each transaction is committed by itself; "" where a group of them may be one step.

    What follows from a state's new values, and what users' code makes of a batch beside the values before it, is
    that of one transaction at a time. So is a batch that another attempt may bring with other rows.
    """
    for source in plan.sources:
        if source.spout.kind is not SpoutKind.TRANSACTIONAL:
            return f"stream {source.name!r} is {source.spout.kind}, so another attempt may bring another batch"
    if plan.commit:
        return "its commit phase goes on with what one transaction changes in a state"
    return next(filter(None, (_state_alone(sink.name, sink.state) for sink in plan.sinks)), "")


def _state_alone(name: str, spec: StateSpec) -> str:
    if not spec.takes_groups:
        return f"state {name!r} ({type(spec.factory).__name__}) takes one transaction in a step"
    if spec.in_order or not (spec.combiners or spec.factory.capabilities.appends):
        return f"state {name!r} takes the batches of its transactions one after the other"
    return ""
