"""A spout whose batches a user's function reads by Spark. Another function, in the coordinator, finds the next one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_trident.contracts.spout import Coordinator, Emitter, SparkRead, Split, Spout
from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.operations.user_functions import function_name
from airflow_trident.spouts.metadata import as_json, read_back
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION: Schema = parse_declared("position string")
_CURE = "Mend the function: it gives the position of the next batch, of texts, numbers, lists and dicts, or None."


class DataFrameSpout(Spout):
    """Reads anything that Spark can read. The spout's own tuples are positions; the tuples of its stream are the rows
    that `read` gives for a position.

    :param read: ``read(session, position)`` gives a DataFrame, lazily, under the rules of `Stream.transform`. For the
        same position it must always give the same rows.
    :param next_position: ``next_position(previous)`` gives the position of the batch after the one at `previous`
        (None: the first one), or None if nothing is new. It runs in the coordinator, without Spark.
    :param fields: the columns that `read` gives, with their types.
    :param opaque: `read` may give other rows the next time: each attempt asks for the position anew, and only the rows
        that the committed attempt read count.
    :raises ConfigurationError: `read` or `next_position` is not callable.
    """

    schema = _POSITION

    def __init__(
        self,
        read: Callable[[Any, Any], Any],
        next_position: Callable[[Any], Any],
        *,
        fields: FieldSpec,
        opaque: bool = False,
    ) -> None:
        for name, function in (("read", read), ("next_position", next_position)):
            if not callable(function):
                raise ConfigurationError(f"DataFrameSpout with {name}={function!r}", "Give it a function.")
        self.opaque = opaque
        self._read = read
        self._next_position = next_position
        self._fields = parse_declared(fields, [])

    @property
    def spark_read(self) -> SparkRead:
        return SparkRead(function=self._read, fields=self._fields, position_of=_position_of)

    def coordinator(self) -> PositionCoordinator:
        return PositionCoordinator(self._next_position)

    def emitter(self) -> PositionEmitter:
        return PositionEmitter()

    def describe(self) -> str:
        return f"DataFrameSpout({function_name(self._read)} from {function_name(self._next_position)})"


class _At(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    position: Any


@dataclass(frozen=True)
class PositionCoordinator(Coordinator):
    """Metadata: ``{"position": value of next_position}``."""

    next_position: Callable[[Any], Any]

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises UserCodeError: the function raised, gave the same position again, or gave a value that is not JSON.
        """
        before = None if previous is None else _position_of(previous)
        name = function_name(self.next_position)
        try:
            position = self.next_position(deepcopy(before))
        except Exception as error:
            raise UserCodeError(f"{name} raised {type(error).__name__}: {error}", _CURE) from error
        if position is None:
            return None
        try:
            same = json.loads(json.dumps(position, allow_nan=False)) == position
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise UserCodeError(f"{name} gave {position!r:.200}, which JSON cannot keep as it is", _CURE)
        if position == before:
            raise UserCodeError(f"{name} gave {position!r:.200} again, which the last batch had", _CURE)
        return as_json(_At(position))


@dataclass(frozen=True)
class PositionEmitter(Emitter):
    """One split, with one row."""

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, json.dumps(_position_of(metadata)))]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from rows_to_table(_POSITION, [(split.body,)]).to_batches()


def _position_of(metadata: Json) -> Json:
    position: Json = read_back(_At, metadata, "a DataFrameSpout").position
    return position
