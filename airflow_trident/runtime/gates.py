"""Gates: the rules of a topology are judged when all numbers of a batch are there, before anything of it is published.

Also at the turn of a transaction: its rules may have other limits than when it was processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_trident.errors import ConfigurationError, GateFailedError
from airflow_trident.operations.rules import Judged, RuleVerdict
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.staging.manifest import Manifest
from airflow_trident.types import Json

_CURE = (
    "Nothing of it is published. Correct the source (`airflow trident accept-source`) or the rule, then replay it with "
    "`airflow trident backfill`; or skip it."
)


def judged(
    manifest: Manifest, plan: Plan, progress: Callable[[str], None], *, enforce: bool = True
) -> dict[int, dict[str, Json]]:
    """The verdicts about each transaction of a pass, as the ledger keeps them.

    :param enforce: raise if a rule does not hold.
    :raises GateFailedError: a rule of severity error does not hold; all such transactions are named.
    :raises ConfigurationError: the engine did not measure a rule.
    """
    verdicts: dict[int, dict[str, Json]] = {}
    errors: dict[int, GateFailedError] = {}
    for member in manifest.members:
        judgement = _judged(manifest.slot.topology, member.txid, plan, member.checks)
        verdicts[member.txid] = judgement.checks
        for line in warnings(judgement.checks):
            progress(f"transaction {member.txid}: {line}")
        if judgement.failed and enforce:
            errors[member.txid] = _error(manifest.slot.topology, member.txid, judgement)
    if errors:
        first = next(iter(errors.values()))
        others = errors if manifest.group else None
        raise GateFailedError(first.message, first.cure, txid=first.txid, checks=first.checks, others=others)
    return verdicts


def _judged(topology: str, txid: int, plan: Plan, numbers: Mapping[str, Any]) -> Judged:
    try:
        return Judged.of(plan.rules, numbers)
    except KeyError as error:
        raise ConfigurationError(
            f"transaction {txid} of topology {topology!r} has no number of the rule {error.args[0]!r}: it cannot pass",
            "Run it on an engine of this package, in the same version everywhere.",
        ) from None


def _error(topology: str, txid: int, judgement: Judged) -> GateFailedError:
    many = f"{len(judgement.failed)} rules" if len(judgement.failed) > 1 else "a rule"
    text = "; ".join(judgement.failed)
    return GateFailedError(
        f"transaction {txid} of topology {topology!r} breaks {many}: {text}", _CURE, txid=txid, checks=judgement.checks
    )


def warnings(checks: Mapping[str, Any]) -> list[str]:
    """A line for each rule that warns."""
    return [
        f"rule {name} warns: {verdict['value']}, expected {verdict['limit']}"
        for name, verdict in checks.items()
        if verdict["verdict"] == RuleVerdict.WARNED
    ]


def broken_at_turn(topology: str, tx: TxRecord, plan: Plan) -> GateFailedError | None:
    """The rules may have other limits than when a transaction was processed: its numbers are judged again at its turn,
    unless a state has it. None: it may commit."""
    if tx.status is not Status.PROCESSED or tx.touched or not tx.checks:
        return None
    numbers: dict[str, Any] = tx.checks
    rules = [rule for rule in plan.rules if rule.name in numbers and numbers[rule.name]["rule"] == rule.uid]
    if all(numbers[rule.name]["limit"] == rule.limit for rule in rules):
        return None
    judgement = Judged.of(rules, numbers)
    return _error(topology, tx.txid, judgement) if judgement.failed else None
