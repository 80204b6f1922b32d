"""The border around users' code: how functions are called, and what an exception in one of them becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import TridentError, UserCodeError
from airflow_trident.operations.base import Filter, Function, Operation, OperationContext

ROW_CHARACTERS = 200
"""So much of a row's text comes into an error."""


def callable_of(function: Any) -> Callable[..., Any]:
    """What is called per tuple: `Function.execute`, `Filter.is_keep`, or the function itself."""
    if isinstance(function, Function):
        return function.execute
    if isinstance(function, Filter):
        return function.is_keep
    for method in ("execute", "is_keep"):
        called = getattr(function, method, None)
        if callable(called):
            return called  # type: ignore[no-any-return]
    return function  # type: ignore[no-any-return]


@contextmanager
def prepared(function: Any, context: OperationContext) -> Iterator[None]:
    """Call `prepare` before and `cleanup` after, on operations that have them."""
    if not isinstance(function, Operation):
        yield
        return
    function.prepare(context)
    try:
        yield
    finally:
        function.cleanup()


@dataclass(frozen=True, slots=True)
class Border:
    """Calls one user function on rows; whatever it raises becomes a UserCodeError naming node, fields, row and txid."""

    node: str
    function: str
    fields: tuple[str, ...]
    txid: int

    def one(self, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """``call(*values)`` as it is."""
        try:
            return call(*values)
        except TridentError:
            raise
        except Exception as error:
            raise self.error(values, f"raised {type(error).__name__}: {error}") from error

    def single(self, call: Callable[..., Any], values: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
        """The one tuple of `arity` values that a map function gives."""
        return self._tuple(self.one(call, values), values, arity)

    def many(self, call: Callable[..., Any], values: tuple[Any, ...], arity: int) -> Iterator[tuple[Any, ...]]:
        """The tuples of `arity` values that a function yields."""
        given = self.one(call, values)
        if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise self.error(values, f"gave {given!r:.80}, where an iterable of outputs is expected: yield each one")
        outputs = iter(given)
        while True:
            try:
                output = next(outputs)
            except StopIteration:
                return
            except TridentError:
                raise
            except Exception as error:
                raise self.error(values, f"raised {type(error).__name__}: {error}") from error
            yield self._tuple(output, values, arity)

    def _tuple(self, output: Any, values: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
        if arity == 1 and not isinstance(output, tuple):
            return (output,)
        if not isinstance(output, tuple | list) or len(output) != arity:
            raise self.error(values, f"gave {output!r:.80}, where {arity} values are declared")
        return tuple(output)

    def error(self, values: tuple[Any, ...], what: str) -> UserCodeError:
        row = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, values, strict=False))[:ROW_CHARACTERS]
        return UserCodeError(
            f"{self.function} in {self.node} {what}; transaction {self.txid}, row ({row})",
            "Mend the function or the data; the attempt failed and nothing of it is committed.",
            node=self.node,
            fields=", ".join(self.fields),
            row=row,
        )
