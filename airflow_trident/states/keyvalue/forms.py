"""Keys and values of a key-value state beyond plain JSON: objects of classes, or bytes of a serializer (Storm:
keyClass, valueClass, keySerializerClass, valueSerializerClass). The store holds JSON texts in any case."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import msgspec

from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.types import Json

OPTIONS = ("key_class", "value_class", "key_serializer", "value_serializer")
"""Options of every provider, each the name of a class: ``package.module:Class``."""


class Serializer(Protocol):
    """Converts objects to bytes and back (Storm: Serializer). Equal keys must give equal bytes."""

    def serialize(self, value: Any) -> bytes: ...

    def deserialize(self, data: bytes) -> Any: ...


class Form:
    """How the keys or the values are represented in JSON.

    :param kind: their class: a dataclass, or any type that JSON can be converted to; None: whatever JSON holds.
    :param serializer: converts them to bytes, stored as base64; None: JSON.
    """

    def __init__(self, what: str, kind: type | None = None, serializer: Serializer | None = None) -> None:
        self._what, self._kind, self._serializer = what, kind, serializer

    def plain(self, given: Any) -> Any:
        """The JSON value to store.

        :raises ValueError: not an object of the class, or it would come back changed.
        """
        kind = self._kind
        if kind is not None and type(given) is not kind:
            raise ValueError(f"the {self._what} {given!r:.80} of a state is no {kind.__qualname__}")
        if self._serializer is not None:
            data = self._serializer.serialize(given)
            if not isinstance(data, bytes):
                raise ValueError(f"the serializer of a state's {self._what}s gave {data!r:.80}, which is no bytes")
            return base64.b64encode(data).decode()
        if kind is None:
            return given
        plain = msgspec.to_builtins(given)
        if self._converted(plain) != given:
            raise ValueError(f"the {self._what} {given!r:.80} of a state would come back from JSON as another one")
        return plain

    def given(self, plain: Any) -> Any:
        """The object of a stored JSON value.

        :raises CorruptRecordError: the stored value is no such object.
        """
        try:
            if self._serializer is not None:
                return self._serializer.deserialize(base64.b64decode(plain, validate=True))
            return plain if self._kind is None else self._converted(plain)
        except (msgspec.ValidationError, binascii.Error, TypeError) as error:
            raise CorruptRecordError(
                f"a {self._what} of a state is {plain!r:.80}: {error}",
                "It was written with another class or serializer: use that, or a new state.",
            ) from error

    def _converted(self, plain: Any) -> Any:
        return msgspec.convert(plain, self._kind)


@dataclass(frozen=True)
class Forms:
    """The forms of keys and of values."""

    key: Form
    value: Form

    @classmethod
    def of(cls, config: Mapping[str, Json]) -> Forms:
        """:param config: may have any of `OPTIONS`; other names are ignored.
        :raises ConfigurationError: a class does not exist or does not fit.
        """
        return cls(_form("key", config), _form("value", config))


AS_THEY_ARE = Forms(Form("key"), Form("value"))


def split_config(config: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """The options for keys and values, and the rest, which belongs to the provider."""
    forms = {name: config[name] for name in OPTIONS if name in config}
    return forms, {name: value for name, value in config.items() if name not in forms}


def _form(what: str, config: Mapping[str, Json]) -> Form:
    kind = _class(f"{what}_class", config)
    serializer = _class(f"{what}_serializer", config)
    if serializer is None:
        return Form(what, kind)
    try:
        made = serializer()
    except TypeError as error:
        raise ConfigurationError(f"{what}_serializer: {error}", "It is made without arguments.") from error
    for method in ("serialize", "deserialize"):
        if not callable(getattr(made, method, None)):
            raise ConfigurationError(
                f"{what}_serializer {config[f'{what}_serializer']!r} has no {method}()",
                "It needs serialize(value) -> bytes and deserialize(data).",
            )
    return Form(what, kind, made)


def _class(option: str, config: Mapping[str, Json]) -> type | None:
    name = config.get(option)
    if name is None:
        return None
    module, _, attribute = str(name).replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module or "builtins"), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{option} {name!r}: there is no module {error.name!r}",
            "Check the spelling, and that it is installed where this runs.",
        ) from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{option} {name!r} is no class", "Name one as in 'package.module:Class'.")
    return found
