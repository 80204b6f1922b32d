"""Base classes and types for states of your own.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.public_names import public_name, public_names

if TYPE_CHECKING:
    from airflow_trident.contracts.state import Applied as Applied
    from airflow_trident.contracts.state import Capabilities as Capabilities
    from airflow_trident.contracts.state import State as State
    from airflow_trident.contracts.state import StateFactory as StateFactory
    from airflow_trident.contracts.state import StateSpec as StateSpec
    from airflow_trident.contracts.state import Verdict as Verdict
    from airflow_trident.contracts.updater import MapState as MapState
    from airflow_trident.states.core.marker import AdmittingState as AdmittingState
    from airflow_trident.states.core.marker import admit as admit
    from airflow_trident.states.core.merge import canonical_key as canonical_key
    from airflow_trident.states.core.merge import merge as merge
    from airflow_trident.states.redis.state import NonTransactionalRedisState as NonTransactionalRedisState


def __getattr__(name: str) -> Any:
    return [*public_names(__name__)] if name == "__all__" else public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *public_names(__name__)])
