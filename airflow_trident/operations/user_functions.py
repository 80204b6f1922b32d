"""A user's function as it describes itself: its method and name, the types of its outputs, and whether there are many.

Types come from return annotations. Nothing here calls the function.
"""

from __future__ import annotations

import collections.abc
import datetime
import inspect
import types
import typing
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from airflow_trident.operations.interfaces import Filter, Function, OperationContext
from airflow_trident.types import INTERVAL


def callable_of(function: Any) -> Callable[..., Any]:
    """The function to call per tuple: `Function.execute`, `Filter.is_keep`, or the function itself."""
    if isinstance(function, Function):
        return function.execute
    if isinstance(function, Filter):
        return function.is_keep
    for method in ("execute", "is_keep", "accept"):
        called = getattr(function, method, None)
        if callable(called):
            return called  # type: ignore[no-any-return]
    return function  # type: ignore[no-any-return]


def lifecycle_of(function: Any) -> tuple[Callable[..., None] | None, Callable[..., None] | None]:
    """`prepare` and `cleanup` of a user's object, each None if it has none. An object need not be an
    :class:`Operation` to have them."""
    methods = (getattr(function, name, None) for name in ("prepare", "cleanup"))
    prepare, cleanup = (method if callable(method) else None for method in methods)
    return prepare, cleanup


def function_name(function: Any) -> str:
    """The name of a function or of an object's class: the same in every process."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]


_SIMPLE: dict[Any, str] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    datetime.date: "date",
    datetime.time: "time",
    datetime.datetime: "timestamp",
    datetime.timedelta: INTERVAL,
}
_MANY = (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator, collections.abc.Sequence, list)


def type_of_annotation(annotation: Any) -> str | None:
    """DDL type of one annotated value; None if the annotation does not say it. ``X | None`` is the type of X."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    arguments = [part for part in typing.get_args(annotation) if part is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is list and arguments:
        inner = type_of_annotation(arguments[0])
        return f"array<{inner}>" if inner else None
    if origin is dict and len(arguments) == 2:
        key, value = map(type_of_annotation, arguments)
        return f"map<{key},{value}>" if key and value else None
    if typing.is_typeddict(annotation):
        return _struct(annotation)
    if origin is not tuple and len(arguments) == 1 and len(typing.get_args(annotation)) == 2:
        return type_of_annotation(arguments[0])
    return None


def _struct(annotation: Any) -> str | None:
    parts = {name: type_of_annotation(part) for name, part in typing.get_type_hints(annotation).items()}
    return None if None in parts.values() else f"struct<{','.join(f'{name}:{part}' for name, part in parts.items())}>"


def returned(function: Callable[..., Any]) -> Any:
    """The return annotation of a callable, resolved; None if there is none or it cannot be resolved."""
    annotated = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(annotated).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def output_types(function: Callable[..., Any], *, many: bool) -> tuple[str | None, ...]:
    """The DDL types of the fields that `function` returns: of each yielded value (`many`) or of the value itself.

    A tuple annotation gives one type per field.
    """
    annotation = returned(function)
    if many:
        if typing.get_origin(annotation) not in _MANY or not typing.get_args(annotation):
            return ()
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is tuple:
        return tuple(type_of_annotation(part) for part in typing.get_args(annotation))
    return (type_of_annotation(annotation),)


class OneOutput(Function):
    """A function that returns its only output, as one that yields it. Its name in plans and errors is that of the
    function."""

    def __init__(self, function: Any, method: str) -> None:
        self.__wrapped__ = function
        self.__qualname__ = function_name(function)
        self._method = method

    def prepare(self, context: OperationContext) -> None:
        prepare, _ = lifecycle_of(self.__wrapped__)
        if prepare is not None:
            prepare(context)

    def cleanup(self) -> None:
        _, cleanup = lifecycle_of(self.__wrapped__)
        if cleanup is not None:
            cleanup()

    def execute(self, *values: Any) -> tuple[Any, ...]:
        return (getattr(self.__wrapped__, self._method, self.__wrapped__)(*values),)


def returns_one_value(function: Callable[..., Any]) -> bool:
    """Whether the annotation says a single value (``-> str``, ``-> Decimal | None``), not an iterable of outputs."""
    parts = {part for part in _alternatives(returned(function)) if part is not type(None)}
    return bool(parts) and all(part in _SIMPLE or part is Decimal or typing.is_typeddict(part) for part in parts)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def takes_context(function: Any) -> bool:
    """Does it have a parameter called `context`?"""
    try:
        return "context" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
