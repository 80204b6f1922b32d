"""The border around users' code: calls functions and turns their exceptions into UserCodeError."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from airflow_trident.errors import SET_BACK, ConfigurationError, UserCodeError, error_text, is_foreign
from airflow_trident.io.values import UnfitValueError, coercer, shown
from airflow_trident.operations.api import Filter, Function, OperationContext
from airflow_trident.process_settings import Watch
from airflow_trident.types import Schema

T = TypeVar("T")

ROW_CHARACTERS = 200
"""The longest text of a row in an error."""
_CURE = (
    "Mend the function and replay. Or mend the data and have the transaction take them (`airflow trident "
    "accept-source`), or skip it; nothing of it is committed."
)


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
    with border.watched(Watch(manners=True)):
        if prepare is not None:
            _live(border, prepare, "prepare", context)
        try:
            yield own
        except BaseException:
            if cleanup is not None:
                with suppress(UserCodeError):  # the first error is the cause
                    _live(border, cleanup, "cleanup")
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
    modules: dict[int, Any] = {id(module): module for module in list(sys.modules.values())}  # not copied; others import
    try:
        return copy.deepcopy(function, modules)
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise ConfigurationError(
            f"{border.function} in {border.node} cannot be copied for a partition: {error_text(error)}",
            "Open connections, locks and files in prepare(), not in __init__ or at module level.",
        ) from None


def _live(border: Border, call: Callable[..., None], method: str, *arguments: Any) -> None:
    with border.watched(Watch(quick=True)):
        try:
            call(*arguments)
        except BaseException as error:
            border.translate((), error, method)
            raise


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
        except BaseException as error:
            self.translate(values, error)
            raise

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
            except BaseException as error:
                self.translate(values, error)
                raise
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

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """The border around calls of the function.

        :raises UserCodeError: the function changed settings of the process.
        """
        with watch:
            yield
        self.require_unchanged(watch)

    def require_unchanged(self, watch: Watch) -> None:
        """:raises UserCodeError: the function changed settings of the process."""
        if watch.trouble:
            raise UserCodeError(f"{self._who} {watch.trouble}; transaction {self.txid}", SET_BACK, **self._at(()))

    def wrong_arity(self, values: tuple[Any, ...], output: Any, arity: int) -> UserCodeError:
        declared = "1 value is" if arity == 1 else f"{arity} values are"
        return self.error(values, f"gave {shown(output)}, where {declared} declared")

    def translate(self, values: tuple[Any, ...], error: BaseException, method: str = "") -> None:
        """For an ``except`` clause, before its bare ``raise``: nothing, if the error is not the function's.

        :raises UserCodeError: carries what a function raised, and names the innermost line outside of this package.
        """
        if is_foreign(error):
            made = UserCodeError.carrying(error, self._who, method, self._after(values), cure=_CURE, **self._at(values))
            raise made from None

    def error(self, values: tuple[Any, ...], what: str) -> UserCodeError:
        return UserCodeError(f"{self._who} {what}{self._after(values)}", _CURE, **self._at(values))

    @property
    def _who(self) -> str:
        return f"{self.function} in {self.node}"

    def _after(self, values: tuple[Any, ...]) -> str:
        return f"; transaction {self.txid}, row ({self._row(values)})"

    def _row(self, values: tuple[Any, ...]) -> str:
        named = zip(self.fields, values, strict=False)
        return ", ".join(f"{name}={shown(value, ROW_CHARACTERS)}" for name, value in named)[:ROW_CHARACTERS]

    def _at(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return {"node": self.node, "fields": ", ".join(self.fields), "row": self._row(values), "txid": self.txid}


def as_tuple(output: Any, arity: int) -> tuple[Any, ...] | None:
    """One output as `arity` values; None if their number differs. A single value may come without a tuple."""
    if arity == 1 and not isinstance(output, tuple):
        return (output,)
    return tuple(output) if isinstance(output, tuple | list) and len(output) == arity else None
