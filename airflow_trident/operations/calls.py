"""The border around users' code: how functions are called, and what an exception in one of them becomes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import USER_ERRORS, TridentError, UserCodeError, error_text
from airflow_trident.operations.base import Filter, Function, Operation, OperationContext
from airflow_trident.operations.values import UnfitValueError, coercer
from airflow_trident.types import Schema

ROW_CHARACTERS = 200
"""So much of a row's text comes into an error."""
_OUR_PARTS = ("/airflow_trident/operations/", "/airflow_trident/engine/", "/airflow_trident/states/")


def callable_of(function: Any) -> Callable[..., Any]:
    """What is called per tuple: `Function.execute`, `Filter.is_keep`, or the function itself."""
    if isinstance(function, Function):
        return function.execute
    if isinstance(function, Filter):
        return function.is_keep
    for method in ("execute", "is_keep", "accept"):
        called = getattr(function, method, None)
        if callable(called):
            return called  # type: ignore[no-any-return]
    return function  # type: ignore[no-any-return]


@contextmanager
def prepared(function: Any, context: OperationContext, border: Border | None = None) -> Iterator[None]:
    """Call `prepare` before and `cleanup` after, on operations that have them.

    :raises UserCodeError: one of them raised, and there is a `border` to say where.
    """
    if not isinstance(function, Operation):
        yield
        return
    _live(border, function.prepare, "prepare", context)
    try:
        yield
    finally:
        _live(border, function.cleanup, "cleanup")


def _live(border: Border | None, call: Callable[..., None], method: str, *arguments: Any) -> None:
    try:
        call(*arguments)
    except TridentError:
        raise
    except USER_ERRORS as error:
        if border is None:
            raise
        raise border.raised((), error, method) from error


@dataclass(frozen=True, slots=True)
class Border:
    """Calls one user function on rows; whatever it raises becomes a UserCodeError naming node, fields, row and txid.

    `outputs`: what the function gives, if values are to be held against it.
    """

    node: str
    function: str
    fields: tuple[str, ...]
    txid: int
    outputs: Schema = ()

    def one(self, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """``call(*values)`` as it is."""
        try:
            return call(*values)
        except TridentError:
            raise
        except USER_ERRORS as error:
            raise self.raised(values, error) from error

    def single(self, call: Callable[..., Any], values: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
        """The one tuple of `arity` values that a map function gives."""
        return self._tuple(self.one(call, values), values, arity)

    def many(self, call: Callable[..., Any], values: tuple[Any, ...], arity: int) -> Iterator[tuple[Any, ...]]:
        """The tuples of `arity` values that a function yields."""
        given = self.one(call, values)
        self.require_iterable(values, given)
        outputs = iter(given)
        while True:
            try:
                output = next(outputs)
            except StopIteration:
                return
            except TridentError:
                raise
            except USER_ERRORS as error:
                raise self.raised(values, error) from error
            yield self._tuple(output, values, arity)

    def require_iterable(self, values: tuple[Any, ...], given: Any) -> None:
        """:raises UserCodeError: a text or no iterable at all: iterating over a text would give its letters."""
        if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise self.error(
                values, f"gave {shown(given):.80}, where an iterable of outputs is expected: yield each one"
            )

    def _tuple(self, output: Any, values: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
        whole = as_tuple(output, arity)
        if whole is None:
            raise self.wrong_arity(values, output, arity)
        if not self.outputs:
            return whole
        try:
            return tuple(coercer(field.type)(value) for field, value in zip(self.outputs, whole, strict=True))
        except UnfitValueError as error:
            raise self.error(values, f"gave {error}") from error

    # ---- errors ------------------------------------------------------------------------------------------------

    def wrong_arity(self, values: tuple[Any, ...], output: Any, arity: int) -> UserCodeError:
        return self.error(values, f"gave {shown(output):.80}, where {arity} value{'s' * (arity != 1)} are declared")

    def raised(self, values: tuple[Any, ...], error: BaseException, method: str = "") -> UserCodeError:
        """What the function's exception becomes; names the innermost line that is not ours."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
        place = f" (line {frames[-1].lineno} of {frames[-1].filename.rsplit('/', 1)[-1]})" if frames else ""
        within = f" in {method}" if method else ""
        kind, _, text = error_text(error).partition(": ")
        return self.error(values, f"raised {kind}{within}: {text}{place}")

    def error(self, values: tuple[Any, ...], what: str) -> UserCodeError:
        row = ", ".join(f"{name}={shown(value)}" for name, value in zip(self.fields, values, strict=False))
        return UserCodeError(
            f"{self.function} in {self.node} {what}; transaction {self.txid}, row ({row[:ROW_CHARACTERS]})",
            "Mend the function or the data; the attempt failed and nothing of it is committed.",
            node=self.node,
            fields=", ".join(self.fields),
            row=row[:ROW_CHARACTERS],
        )


def shown(value: Any) -> str:
    """Its ``repr()``, for error texts: also of a value whose own cannot be had."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - users' classes do what they like
        return f"<{type(value).__name__}, whose __repr__ raised {type(error).__name__}>"


def as_tuple(output: Any, arity: int) -> tuple[Any, ...] | None:
    """One output as `arity` values; None if it is not so many. A single field may come bare."""
    if arity == 1 and not isinstance(output, tuple):
        return (output,)
    return tuple(output) if isinstance(output, tuple | list) and len(output) == arity else None


def _is_ours(path: str) -> bool:
    return any(part in path for part in _OUR_PARTS)
