"""The border around users' code: calls functions and turns their exceptions into UserCodeError."""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from airflow_trident.errors import USER_ERRORS, ConfigurationError, TridentError, UserCodeError, error_text
from airflow_trident.io.values import UnfitValueError, coercer, shown
from airflow_trident.operations.api import Filter, Function, OperationContext
from airflow_trident.types import Schema

T = TypeVar("T")

ROW_CHARACTERS = 200
"""The longest text of a row in an error."""
_OUR_PARTS = ("/airflow_trident/operations/", "/airflow_trident/engine/", "/airflow_trident/states/")


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


@contextmanager
def prepared(function: T, context: OperationContext, border: Border) -> Iterator[T]:
    """A copy of a user's object for one partition of one attempt. Calls its `prepare` before and its `cleanup` after,
    if it has them.

    A copy, because `self` holds data of one transaction and a drain processes several at a time. Plain functions are
    not copied.

    :raises UserCodeError: `prepare` or `cleanup` raised.
    :raises ConfigurationError: the object cannot be copied.
    """
    own = copied(function, border)
    prepare, cleanup = lifecycle_of(own)
    if prepare is not None:
        _live(border, prepare, "prepare", context)
    try:
        yield own
    except BaseException:
        if cleanup is not None:
            with suppress(*USER_ERRORS):  # the first error is the cause
                cleanup()
        raise
    if cleanup is not None:
        _live(border, cleanup, "cleanup")


def lifecycle_of(function: Any) -> tuple[Callable[..., None] | None, Callable[..., None] | None]:
    """`prepare` and `cleanup` of a user's object, each None if it has none. An object need not be an
    :class:`Operation` to have them."""
    methods = (getattr(function, name, None) for name in ("prepare", "cleanup"))
    prepare, cleanup = (method if callable(method) else None for method in methods)
    return prepare, cleanup


def copied(function: T, border: Border) -> T:
    """A copy of a user's object, so that attempts share nothing; a plain function itself.

    :raises ConfigurationError: the object cannot be copied.
    """
    if isinstance(function, FunctionType):
        return function
    modules: dict[int, Any] = {id(module): module for module in sys.modules.values()}  # not copied
    try:
        return copy.deepcopy(function, modules)
    except Exception as error:  # users' objects may raise anything here
        raise ConfigurationError(
            f"{border.function} in {border.node} cannot be copied for a partition: {error_text(error)}",
            "Open connections, locks and files in prepare(), not in __init__ or at module level.",
        ) from error


def _live(border: Border, call: Callable[..., None], method: str, *arguments: Any) -> None:
    try:
        call(*arguments)
    except TridentError:
        raise
    except USER_ERRORS as error:
        raise border.raised((), error, method) from error


@dataclass(frozen=True, slots=True)
class Border:
    """Calls one user function on rows. Its exceptions become a UserCodeError that names node, fields, row and txid.

    `outputs`: the declared fields, if values are to be checked against them.
    """

    node: str
    function: str
    fields: tuple[str, ...]
    txid: int
    outputs: Schema = ()

    def one(self, call: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """``call(*values)``, unchanged."""
        try:
            return call(*values)
        except TridentError:
            raise
        except USER_ERRORS as error:
            raise self.raised(values, error) from error

    def single(self, call: Callable[..., Any], values: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
        """The one tuple of `arity` values that a map function returns."""
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
        """:raises UserCodeError: not iterable, or a text: iterating over it would give its letters."""
        if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise self.error(
                values,
                f"gave {shown(given)}, where an iterable of outputs is expected: yield each one, or annotate the "
                "function to return a single value, as in `-> str`",
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
        return self.error(values, f"gave {shown(output)}, where {arity} value{'s' * (arity != 1)} are declared")

    def raised(self, values: tuple[Any, ...], error: BaseException, method: str = "") -> UserCodeError:
        """The UserCodeError for a function's exception; it names the innermost line outside of this package."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
        place = f" (line {frames[-1].lineno} of {frames[-1].filename.rsplit('/', 1)[-1]})" if frames else ""
        within = f" in {method}" if method else ""
        kind, _, text = error_text(error).partition(": ")
        made = self.error(values, f"raised {kind}{within}: {text}{place}")
        if frames:  # only the user's frames: those of this package and of Spark would bury them
            made.add_note("".join(traceback.format_list(frames)).rstrip())
        return made

    def error(self, values: tuple[Any, ...], what: str) -> UserCodeError:
        named = zip(self.fields, values, strict=False)
        row = ", ".join(f"{name}={shown(value, ROW_CHARACTERS)}" for name, value in named)
        return UserCodeError(
            f"{self.function} in {self.node} {what}; transaction {self.txid}, row ({row[:ROW_CHARACTERS]})",
            "Mend the function and replay. Or mend the data and have the transaction take them (`airflow trident "
            "accept-source`), or skip it; nothing of it is committed.",
            node=self.node,
            fields=", ".join(self.fields),
            row=row[:ROW_CHARACTERS],
            txid=self.txid,
        )


def as_tuple(output: Any, arity: int) -> tuple[Any, ...] | None:
    """One output as `arity` values; None if their number differs. A single value may come without a tuple."""
    if arity == 1 and not isinstance(output, tuple):
        return (output,)
    return tuple(output) if isinstance(output, tuple | list) and len(output) == arity else None


def _is_ours(path: str) -> bool:
    return any(part in path for part in _OUR_PARTS)
