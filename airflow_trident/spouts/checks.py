"""Checks of spouts' parameters, made when a spout is built."""

from __future__ import annotations

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Schema, is_nested


def require_at_least(least: int, what: str, **limits: float | None) -> None:
    """
    :param what: the spout, for the error text.
    :param limits: name -> limit; None: no limit.
    :raises ConfigurationError: a limit is lower than `least`.
    """
    for name, limit in limits.items():
        if limit is not None and limit < least:
            raise ConfigurationError(f"{what} with {name}={limit}", f"It must be at least {least}.")


def one_of(what: str, name: str, value: str, allowed: tuple[str, ...]) -> str:
    """
    :param what: the spout or source, for the error text.
    :return: `value`.
    :raises ConfigurationError: it is not allowed.
    """
    if value not in allowed:
        raise ConfigurationError(f"{what} with {name}={value!r}", f"Use one of {', '.join(allowed)}.")
    return value


def require_simple_types(what: str, schema: Schema) -> None:
    """
    :param what: a source that holds only texts, for the error text.
    :raises ConfigurationError: a field is an array, a map or a struct.
    """
    for field in schema:
        if is_nested(field.type):
            raise ConfigurationError(
                f"{what} cannot hold the field {field.name!r} of type {field.type}",
                "Declare it as a string and take it apart with each().",
            )
