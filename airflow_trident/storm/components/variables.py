"""The variables of a qtopology file: each ``${NAME}`` in a text is replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Json

_USE = re.compile(r"\$\{([^{}]*)\}")


class Variables:
    """Names, whose case does not count, and their values. A value may use other variables, in any order.

    (qtopology's TopologyCompiler replaces only the first of several equal uses, and leaves unknown ones as they are.)

    :param declared: ``variables`` of the file.
    :param overrides: values that replace those of the file. An undeclared name may be set, if the file uses it.
    """

    def __init__(self, file: str, declared: Mapping[str, Json], overrides: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._values: dict[str, str] = {}
        for name, value in declared.items():
            if name.lower() in self._values:
                raise self._error(
                    f"the variable {name!r} is declared twice", "Give each a name of its own; case does not count."
                )
            self._values[name.lower()] = self._text(name, value)
        self._set = {name.lower(): name for name in overrides or {}}
        self._unknown = self._set.keys() - self._values.keys()
        self._values.update({name.lower(): value for name, value in (overrides or {}).items()})

    def resolve(self, value: Json, where: str) -> Json:
        """The value with every text in it resolved, at any depth. Numbers and keys stay as they are.

        :param where: for errors: ``bolt 'b', init``.
        :raises ConfigurationError: a variable is unknown, or its value uses the variable itself.
        """
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, list):
            return [self.resolve(one, where) for one in value]
        if isinstance(value, dict):
            return {key: self.resolve(one, where) for key, one in value.items()}
        return value

    def text(self, text: str, where: str, within: tuple[str, ...] = ()) -> str:
        """As :meth:`resolve`. :param within: the variables whose values are being resolved."""

        def value(use: re.Match[str]) -> str:
            name = use[1].strip().lower()
            if name in within:
                circle = " -> ".join((*within[within.index(name) :], name))
                raise self._error(f"the variable {use[1]!r} stands in its own value ({circle})", "Take it out.", where)
            if name not in self._values:
                raise self._error(f"uses the unknown variable {use[0]}", f"{self._known(use[1])} Or set it.", where)
            self._unknown -= {name}
            return self.text(self._values[name], where, (*within, name))

        return _USE.sub(value, text)

    def require_used(self) -> None:
        """:raises ConfigurationError: an override is neither declared nor used in the file."""
        if self._unknown:
            name = self._set[min(self._unknown)]
            raise self._error(f"the variable {name!r} was set, and is not in the file", self._known(name))

    def _text(self, name: str, value: Json) -> str:
        if isinstance(value, dict | list) or value is None:
            raise self._error(f"the variable {name!r} is {json.dumps(value)[:80]}", "Give it a text.")
        return value if isinstance(value, str) else json.dumps(value)

    def _known(self, name: str) -> str:
        near = get_close_matches(name.lower(), self._values.keys() - self._unknown, 1)
        listed = ", ".join(sorted(self._values.keys() - self._unknown)) or "none"
        return f"Did you mean {near[0]!r}?" if near else f"There are: {listed}."

    def _error(self, what: str, cure: str, where: str = "") -> ConfigurationError:
        return ConfigurationError(f"{self._file}: {f'{where} ' if where else ''}{what}", cure)
