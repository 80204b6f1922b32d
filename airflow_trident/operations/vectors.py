"""Functions of whole columns: vectorised forms of Function and Filter, for work that Arrow or NumPy does at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import arrow_type, fitted, python_values, single
from airflow_trident.io.values import UnfitValueError, shown
from airflow_trident.operations.api import Operation
from airflow_trident.operations.calls.user_code import Border
from airflow_trident.process_settings import Watch
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class VectorFunction(Operation, ABC):
    """Like a Function with one output per tuple, for `each` and `map`, but for many tuples at a time.

    The output for a tuple must not depend on the other tuples: how many come at a time is not defined.
    """

    @abstractmethod
    def execute(self, *columns: pa.Array) -> Any:
        """A pyarrow or NumPy array with a value for every tuple; a tuple of arrays if several fields are declared."""


class VectorFilter(Operation, ABC):
    """Like a Filter, for many tuples at a time."""

    @abstractmethod
    def is_keep(self, *columns: pa.Array) -> Any:
        """A boolean for every tuple; null drops it."""


def called(
    function: VectorFunction, border: Border, columns: Sequence[pa.Array], rows: int, outputs: Schema
) -> list[pa.Array]:
    """One column of `rows` values for each of `outputs`.

    :raises UserCodeError: the function raised, or returned something else.
    """
    given = _call(border, function.execute, columns)
    several = given if isinstance(given, tuple) else (given,)
    if len(several) != len(outputs):
        raise border.error((), f"gave {len(several)} columns, where {len(outputs)} are declared")
    return [_fitting(border, one, rows, field.type, columns) for one, field in zip(several, outputs, strict=True)]


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


def _fitting(border: Border, given: Any, rows: int, type_text: str, read: Sequence[pa.Array]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    try:
        column = pa.array(given) if isinstance(given, np.ndarray) else given
        if not isinstance(column, pa.Array):
            raise border.error((), f"gave {shown(given)}, where a column (a pyarrow or NumPy array) is expected")
        if len(column) != rows:
            raise border.error((), f"gave a column of {len(column)} values for {rows} tuples")
        wanted = arrow_type(type_text)
        if column.type != wanted and not _is_kind(column.type, wanted):
            raise border.error((), f"gave a column of {column.type}, where {type_text} is declared")
        return fitted(single(column) if type_text == "float" else column, type_text)
    except UnfitValueError as error:
        row = () if error.is_of_type else tuple(python_values(one.slice(error.position, 1))[0] for one in read)
        raise border.error(row, f"gave {error}") from error
    except pa.ArrowException as error:
        raise border.error((), f"gave a column that is no {type_text} ({error})") from error


def _is_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """May it be cast? As for single values: whole numbers to real ones, but no real to whole, and no number to text.
    The cast itself refuses values that do not fit."""
    from pyarrow import types

    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _is_kind(given.value_type, wanted)
    if types.is_list(wanted):
        lists = types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
        return lists and (given.value_type == wanted.value_type or _is_kind(given.value_type, wanted.value_type))
    if types.is_floating(wanted):
        return bool(types.is_integer(given) or types.is_floating(given))
    if types.is_decimal(wanted):
        return bool(types.is_integer(given) or types.is_decimal(given))
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
            return bool(alike(given))
    return False


def _is_text(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(given) or types.is_large_string(given) or types.is_string_view(given))


def _is_binary(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(given)
        or types.is_large_binary(given)
        or types.is_fixed_size_binary(given)
        or types.is_binary_view(given)
    )
