"""The border around users' code: calls functions, of rows or of whole columns, and turns their exceptions into
UserCodeError.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.errors import SET_BACK, ConfigurationError, UserCodeError, error_text, is_foreign, is_raised
from airflow_trident.io.arrow import arrow_type, fitted, python_values, single
from airflow_trident.io.values import UnfitValueError, coercer, shown
from airflow_trident.operations.interfaces import OperationContext, VectorFilter, VectorFunction
from airflow_trident.operations.user_functions import lifecycle_of
from airflow_trident.process_settings import Watch
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

ROW_CHARACTERS = 200
"""The longest text of a row in an error."""
_CURE = (
    "Mend the function and replay. Or mend the data and have the transaction take them (`airflow trident "
    "accept-source`), or skip it; nothing of it is committed."
)


@contextmanager
def prepared(function: T, context: OperationContext, border: Border) -> Iterator[T]:
    """A copy of a user's object for one partition of one attempt. Calls its `prepare` before and its `cleanup` after,
    if it has them.

    A copy, because `self` holds data of one transaction and a drain processes several at a time. Plain functions are
    not copied.

    :raises UserCodeError: `prepare` or `cleanup` raised.
    :raises ConfigurationError: the object cannot be copied.
    """
    function_copy = copied(function, border)
    prepare, cleanup = lifecycle_of(function_copy)
    with border.watched(Watch(manners=True)):
        if prepare is not None:
            _live(border, prepare, "prepare", context)
        try:
            yield function_copy
        except BaseException:
            if cleanup is not None:
                with suppress(UserCodeError):  # the first error is the cause
                    _live(border, cleanup, "cleanup")
            raise
        if cleanup is not None:
            _live(border, cleanup, "cleanup")


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


def _live(border: Border, call: Callable[..., Any], method: str, *arguments: Any) -> None:
    with border.watched(Watch(quick=True)):
        try:
            border.require_done((), call(*arguments))
        except BaseException as error:
            border.translate((), error, method)
            raise


_PENDING = (GeneratorType, CoroutineType, AsyncGeneratorType)


def is_pending(outcome: Any) -> bool:
    """Has the function that returned this not run yet?"""
    return isinstance(outcome, _PENDING) or hasattr(type(outcome), "__await__")


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
        outcome = self.one(call, values)
        self.require_iterable(values, outcome)
        outputs = iter(outcome)
        while True:
            try:
                output = next(outputs)
            except StopIteration:
                return
            except BaseException as error:
                self.translate(values, error)
                raise
            yield self._tuple(output, values, arity)

    def truth(self, values: tuple[Any, ...], outcome: Any) -> bool:
        """:raises UserCodeError: a filter returned a coroutine or a function, which is true for each tuple."""
        if is_pending(outcome) or callable(outcome):
            raise self.error(values, f"gave {shown(outcome)}, where true or false is expected: call it, or await it")
        return bool(outcome)

    def require_done(self, values: tuple[Any, ...], outcome: Any) -> None:
        """:raises UserCodeError: a function without a result has not run yet, since it yields or awaits."""
        if is_pending(outcome):
            raise self.error(values, f"gave {shown(outcome)}, so its body never runs: it must not yield or await")

    def require_in_place(self, values: tuple[Any, ...], outcome: Any, state: Any = None) -> None:
        """:raises UserCodeError: a method that changes a state and emits to a collector returned something."""
        if outcome is not None and outcome is not state:
            raise self.error(
                values,
                f"returned {shown(outcome)}, where nothing is expected: change the state in place (a list, a dict, an "
                "object), and emit by the collector",
            )

    def require_iterable(self, values: tuple[Any, ...], outcome: Any) -> None:
        """:raises UserCodeError: not iterable, or a text or a mapping: that gives its letters, or its keys."""
        if outcome is None or isinstance(outcome, str | bytes | Mapping) or not isinstance(outcome, Iterable):
            raise self.error(
                values,
                f"gave {shown(outcome)}, where an iterable of outputs is expected: yield each one, or give list() of "
                "a mapping. Annotate a function that returns a single value, as in `-> str`",
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
        if is_raised(error):
            made = UserCodeError.carrying(error, self._who, method, self._after(values), cure=_CURE, **self._at(values))
            raise made from None

    def error(self, values: tuple[Any, ...], problem: str) -> UserCodeError:
        return UserCodeError(f"{self._who} {problem}{self._after(values)}", _CURE, **self._at(values))

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


def called(
    function: VectorFunction, border: Border, columns: Sequence[pa.Array], rows: int, outputs: Schema
) -> list[pa.Array]:
    """One column of `rows` values for each of `outputs`.

    :raises UserCodeError: the function raised, or returned something else.
    """
    outcome = _call(border, function.execute, columns)
    several = outcome if isinstance(outcome, tuple) else (outcome,)
    if len(several) != len(outputs):
        raise border.error((), f"gave {len(several)} columns, where {len(outputs)} are declared")
    return [_fitting(border, column, rows, field.type, columns) for column, field in zip(several, outputs, strict=True)]


def kept(function: VectorFilter, border: Border, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Which of the tuples are kept: booleans without nulls.

    :raises UserCodeError: as :func:`called`.
    """
    return _fitting(border, _call(border, function.is_keep, columns), rows, "boolean", columns).fill_null(False)


def _call(border: Border, call: Any, columns: Sequence[pa.Array]) -> Any:
    with border.watched(Watch(quick=True)):
        try:
            return call(*columns)
        except BaseException as error:
            border.translate((), error)
            raise


def _fitting(border: Border, returned_column: Any, rows: int, type_text: str, read: Sequence[pa.Array]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if isinstance(returned_column, pa.ChunkedArray):
        returned_column = returned_column.combine_chunks()
    try:
        column = pa.array(returned_column) if isinstance(returned_column, np.ndarray) else returned_column
        if not isinstance(column, pa.Array):
            raise border.error(
                (), f"gave {shown(returned_column)}, where a column (a pyarrow or NumPy array) is expected"
            )
        if len(column) != rows:
            raise border.error((), f"gave a column of {len(column)} values for {rows} tuples")
        wanted = arrow_type(type_text)
        if column.type != wanted and not _is_kind(column.type, wanted):
            raise border.error((), f"gave a column of {column.type}, where {type_text} is declared")
        return fitted(single(column) if type_text == "float" else column, type_text)
    except UnfitValueError as error:
        row = (
            () if error.is_of_type else tuple(python_values(argument.slice(error.position, 1))[0] for argument in read)
        )
        raise border.error(row, f"gave {error}") from error
    except pa.ArrowException as error:
        raise border.error((), f"gave a column that is no {type_text} ({error})") from error


def _is_kind(column_type: pa.DataType, wanted: pa.DataType) -> bool:
    """May it be cast? As for single values: whole numbers to real ones, but no real to whole, and no number to text.
    The cast itself refuses values that do not fit."""
    from pyarrow import types

    if types.is_null(column_type):
        return True
    if types.is_dictionary(column_type):
        return _is_kind(column_type.value_type, wanted)
    if types.is_list(wanted):
        lists = types.is_list(column_type) or types.is_large_list(column_type) or types.is_fixed_size_list(column_type)
        return lists and (
            column_type.value_type == wanted.value_type or _is_kind(column_type.value_type, wanted.value_type)
        )
    if types.is_floating(wanted):
        return bool(types.is_integer(column_type) or types.is_floating(column_type))
    if types.is_decimal(wanted):
        return bool(types.is_integer(column_type) or types.is_decimal(column_type))
    for alike in (
        types.is_integer,
        types.is_timestamp,
        types.is_date,
        types.is_time,
        types.is_duration,
        _is_text,
        _is_binary,
        types.is_boolean,
    ):
        if alike(wanted):
            return bool(alike(column_type))
    return False


def _is_text(column_type: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(column_type) or types.is_large_string(column_type) or types.is_string_view(column_type))


def _is_binary(column_type: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(column_type)
        or types.is_large_binary(column_type)
        or types.is_fixed_size_binary(column_type)
        or types.is_binary_view(column_type)
    )
