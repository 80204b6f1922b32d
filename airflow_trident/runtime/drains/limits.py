"""When a drain ends, and how much it processes at a time; and what the states of a topology allow of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.statuses import OnFailure

AUTO: Final = "auto"
MOST_IN_GROUP = 200
"""The most transactions of one pass, however small they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain begins no more transactions: after `max_transactions`, after `max_time_s` seconds, or (always)
    without new data.

    `group`: the most transactions that are begun, processed and committed together; ``auto``: chosen by how much
    there is to read and how long that takes; 1: each alone. `max_pending`: how many are uncommitted at once; None:
    twice the group, and three where each goes alone. `tries`: attempts of one transaction by itself before it is
    FAILED or SKIPPED. `wait_s`: how long the drain waits at its end for transactions that other workers hold.

    :raises ConfigurationError: a number is below 1, `max_time_s` is below 0, or `max_pending` has no room for the
        group.
    """

    max_transactions: int | None = None
    max_time_s: float | None = None
    max_pending: int | None = None
    group: int | str = AUTO
    tries: int = 3
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", parse_group(self.group))
        for name in ("max_transactions", "max_pending", "tries"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigurationError(f"a drain with {name}={number}", "It must be at least 1.")
        if self.max_time_s is not None and not self.max_time_s >= 0:  # nan is not, either
            raise ConfigurationError(
                f"a drain with max_time_s={self.max_time_s}", "Give 0 or more seconds, or leave it out."
            )
        if isinstance(self.group, int) and self.max_pending is not None and self.group > self.max_pending:
            raise ConfigurationError(
                f"a drain with group={self.group} and max_pending={self.max_pending}: {self.group} transactions are "
                "uncommitted at once when they are processed together",
                "Leave out max_pending (it is twice the group then), or make it no smaller than the group.",
            )


def parse_group(value: Any) -> int | str:
    """``auto``, or a number of transactions, which may be given as a text.

    :raises ConfigurationError: the value is neither, or below 1 or too large.
    """
    text = str(value).strip()
    if text == AUTO:
        return AUTO
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= MOST_IN_GROUP:
        raise ConfigurationError(
            f"group={value!r} is no size of a group",
            f'It is "{AUTO}", or a number of transactions from 1 to {MOST_IN_GROUP}.',
        )
    return int(text)


def pending_of(states: Mapping[str, StateSpec], given: int | None) -> int | None:
    """How many transactions of a topology with these states may be uncommitted at once: what is given, but only one if
    a batch is processed against what the transaction before it committed.

    :param given: None: nobody says.
    :raises ConfigurationError: more than one is given there.
    """
    rewritten = _rewritten(states)
    if rewritten is None:
        return given
    if given is not None and given > 1:
        raise ConfigurationError(
            f"{given} transactions at once, and state {rewritten!r} has mode='rewrite': each transaction is processed "
            "against the table that the one before it has committed",
            "Leave out max_pending and max_transactions, which are 1 then.",
        )
    return 1


def on_failure_of(states: Mapping[str, StateSpec], given: OnFailure | str) -> OnFailure:
    """What happens to a transaction of a topology with these states when its tries are used up.

    :raises ConfigurationError: it is to be skipped, and never could come in later.
    """
    wanted, rewritten = OnFailure(given), _rewritten(states)
    if wanted is OnFailure.SKIP and rewritten is not None:
        raise ConfigurationError(
            f"on_failure='skip', and state {rewritten!r} has mode='rewrite': what a skipped transaction has would be "
            "missing in the table for good, as it cannot replace rows when later ones have done so",
            "Leave out on_failure, so that later ones wait until it is replayed. A person may still skip one: "
            "`airflow trident skip`.",
        )
    return wanted


def _rewritten(states: Mapping[str, StateSpec]) -> str | None:
    return next((name for name, spec in states.items() if spec.rewrites), None)


def require_groups(plan: Plan, group: int | str) -> None:
    """If a person sets the size of groups, the topology must be able to run groups. With ``auto``, a topology that
    cannot takes one transaction at a time.

    :raises ConfigurationError: the topology takes transactions one by one.
    """
    if group in (AUTO, 1):
        return
    lacking = next((sink.state for sink in plan.sinks if not sink.state.takes_groups), None)
    if lacking is not None:
        why = f"state {lacking.name!r} ({type(lacking.factory).__name__}) takes one transaction at a time"
    elif not plan.coalesces.passes:
        why = plan.coalesces.why
    else:
        return
    raise ConfigurationError(
        f"topology {plan.topology!r} with group={group}: {why}",
        f'Leave group at "{AUTO}", which takes one at a time there; `airflow trident plan {plan.topology}` says why.',
    )
