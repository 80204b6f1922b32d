"""What every store asks of a state's fields."""

from __future__ import annotations

from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.states import StateSpec
from airflow_trident.types import is_nested


def require_plain_keys(spec: StateSpec) -> None:
    """:raises ConfigurationError: a key field has parts: it has no canonical text that every store keeps apart."""
    for field in spec.keys:
        if is_nested(field.type):
            raise ConfigurationError(
                f"state {spec.name!r} has the key field {field.name!r} of type {field.type}",
                "Group by fields of simple types.",
            )
