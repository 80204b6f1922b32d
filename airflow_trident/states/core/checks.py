"""What every store requires of a state's fields."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.names import Composed
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


_LONGEST_FILE_NAME = 255
"""In bytes, on every file system in use."""
_APPLICATIONS = Composed(joint="/", longest=500)


def file_names(joint: str, *, beside: int = 0) -> Composed:
    """The rules for names of files and folders: some file systems do not tell cases apart.

    :param beside: this many characters are added to a name.
    """
    return Composed(joint=joint, longest=_LONGEST_FILE_NAME - beside, has_case=False)


def application_of(spec: StateSpec, *more: str) -> str:
    """The name under which a state writes into a table or a server that others use, too."""
    return _APPLICATIONS.of("airflow-trident", spec.topology, spec.name, *more)


def key_of(spec: StateSpec) -> str:
    """The name of a state in a server of its own kind: ``<topology>/<state>``."""
    return _APPLICATIONS.of(spec.topology, spec.name)
