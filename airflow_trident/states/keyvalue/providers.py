"""State providers by name (Storm: topology.state.provider): built-in, from an entry point, or by dotted path."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from airflow_trident.errors import ConfigurationError, MissingExtraError
from airflow_trident.states.keyvalue.base import ProviderConfig, StateProvider

GROUP = "airflow_trident.state_providers"
"""Entry points of other packages: a name, and the ``module:Class`` of a StateProvider."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Location of a provider of this package. `extra`: what to install for its driver, empty if nothing."""

    target: str
    extra: str = ""


BUILT_IN: dict[str, BuiltIn] = {
    "memory": BuiltIn("airflow_trident.states.keyvalue.memory:MemoryStateProvider"),
    "sqlite": BuiltIn("airflow_trident.states.keyvalue.sqlite:SqliteStateProvider"),
    "redis": BuiltIn("airflow_trident.states.keyvalue.redis:RedisStateProvider", "redis"),
}
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[:.]([A-Za-z_]\w*)\Z")


def make_provider(name: str, config: ProviderConfig, built_in: Mapping[str, BuiltIn] = BUILT_IN) -> StateProvider:
    """The provider with its configuration as keyword arguments; opens nothing.

    :raises ConfigurationError: no or several providers of that name, not a provider, or wrong configuration.
    :raises MissingExtraError: its driver is not installed.
    """
    kind = provider_class(name, built_in)
    try:
        return kind(**config)
    except TypeError as error:
        raise ConfigurationError(
            f"the state provider {name!r} cannot be made with the configuration {sorted(config)}: {error}",
            f"See the parameters of {kind.__module__}.{kind.__qualname__}.",
        ) from error


def provider_class(name: str, built_in: Mapping[str, BuiltIn] = BUILT_IN) -> type[StateProvider]:
    """See :func:`make_provider`."""
    found: list[tuple[str, str, EntryPoint | BuiltIn]] = []
    if name in built_in:
        found.append(("airflow-trident", built_in[name].target, built_in[name]))
    named = {(_owner(point), point.value): point for point in _registered(tuple(sys.path)).select(name=name)}
    found += [(owner, target, point) for (owner, target), point in named.items()]
    if len(found) > 1:
        whose = ", ".join(f"{target} of {owner}" for owner, target, _ in found)
        raise ConfigurationError(
            f"several state providers are named {name!r}: {whose}", "Uninstall one, or name its class by dotted path."
        )
    if found:
        owner, target, origin = found[0]
        extra = f"airflow-trident[{origin.extra}]" if isinstance(origin, BuiltIn) and origin.extra else ""
        return _load(name, target, extra or f"what {owner} needs for it")
    if _PATH.match(name):
        return _load(name, name, "")
    known = sorted({*built_in, *_registered(tuple(sys.path)).names})
    raise ConfigurationError(
        f"no state provider is named {name!r}",
        f"Known are {', '.join(known)}, or give a class as 'package.module:Class'.",
    )


@lru_cache(maxsize=1)
def _registered(_search_path: tuple[str, ...]) -> EntryPoints:
    """Python reads the metadata of everything that is installed each time: 0.05 s, for each state of each DAG file."""
    return entry_points(group=GROUP)


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _load(name: str, target: str, needs: str) -> type[StateProvider]:
    """:param needs: what to install if a module is missing; empty if the user named the class."""
    match = _PATH.match(target)
    if match is None:
        raise ConfigurationError(
            f"the state provider {name!r} is registered as {target!r}", "An entry point says 'package.module:Class'."
        )
    try:
        module = import_module(match[1])
    except ModuleNotFoundError as error:
        if needs:
            raise MissingExtraError(
                f"the state provider {name!r} needs the module {error.name!r}, which is not installed",
                f"Install {needs}.",
            ) from error
        raise ConfigurationError(
            f"the state provider {name!r} cannot be imported: no module {error.name!r}",
            "Check the spelling, and that the module is installed where this runs.",
        ) from error
    found: Any = getattr(module, match[2], None)
    if not (isinstance(found, type) and issubclass(found, StateProvider)):
        what = "does not exist" if found is None else "is no StateProvider"
        raise ConfigurationError(
            f"the state provider {name!r}: {match[2]!r} in {match[1]!r} {what}",
            "It should be a subclass of airflow_trident.states.keyvalue.base.StateProvider.",
        )
    return found
