"""Upkeep of one state, started by a person or a schedule."""

from __future__ import annotations

from collections.abc import Callable

from airflow_trident.contracts.state import StateSpec, Upkeep
from airflow_trident.errors import ConfigurationError, state_code


def require_upkeep(spec: StateSpec, act: Upkeep) -> None:
    """Opens nothing.

    :raises ConfigurationError: the state has no such upkeep.
    """
    if act not in spec.factory.upkeep(spec):
        raise ConfigurationError(
            f"there is no `{act}` of state {spec.name!r} of topology {spec.topology!r}, {spec.describe()}",
            f"`{act}` is for a DeltaState.",
        )


def keep_up(spec: StateSpec, act: Upkeep, progress: Callable[[str], object]) -> bool:
    """Does the upkeep.

    :return: was there anything to do?
    :raises ConfigurationError: the state has no such upkeep, or its store cannot be used.
    :raises StoreUnavailableError: the store does not answer, or others are always faster; nothing was changed.
    :raises OutcomeUnknownError: the store did not answer the commit; doing it again finds out.
    """
    require_upkeep(spec, act)
    with state_code(spec.name), spec.factory.make_state(spec) as state:
        done: bool = getattr(state, act)(progress=progress)
    return done
