"""What every store requires of a state's fields."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.types import is_nested


def require_plain_keys(spec: StateSpec) -> None:
    """:raises ConfigurationError: a key field is nested: it has no canonical text that all stores tell apart."""
    for field in spec.keys:
        if is_nested(field.type):
            raise ConfigurationError(
                f"state {spec.name!r} has the key field {field.name!r} of type {field.type}",
                "Group by fields of simple types.",
            )


def require_columns(spec: StateSpec, taken: Iterable[str], cannot: str) -> None:
    """:param taken: names of other columns.
    :param cannot: who cannot tell two columns apart, for the error.
    :raises ConfigurationError: the fields cannot be columns together, or together with `taken`.
    """
    seen = set(taken)
    for field in (*spec.keys, *spec.values):
        if field.name.lower() in seen:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {field.name!r}, which {cannot} (names of columns have no case)",
                "Rename the field.",
            )
        seen.add(field.name.lower())


LONGEST_NAME = 255
"""Longest name of a file or folder, in bytes, on every file system in use."""


def require_short_name(spec: StateSpec, name: str, *, beside: int = 0) -> None:
    """:param beside: this many characters are added to the name.
    :raises ConfigurationError: the name is too long for a file system.
    """
    most = LONGEST_NAME - beside
    if len(name.encode()) > most:
        raise ConfigurationError(
            f"state {spec.name[:40]!r}... of topology {spec.topology[:40]!r}... would have files named "
            f"{name[:60]!r}..., which has {len(name.encode())} characters where {most} are possible",
            "Shorten the name of the topology or of the state.",
        )
