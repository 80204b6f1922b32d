"""A spout whose batches a user's function reads by Spark. Another function, in the coordinator, finds the next one, or
says whether a partition has changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_trident.contracts.bound_spout import KeyedCoordinator
from airflow_trident.contracts.spout import Coordinator, Emitter, PartitionChange, SparkRead, Split, Spout
from airflow_trident.errors import ConfigurationError, PlanError, UserCodeError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.names import require_flags
from airflow_trident.operations.user_functions import function_name
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.spouts.metadata import as_json, read_back
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION: Schema = parse_declared("position string")
_CURE = "Mend the function: it gives the position of the next batch, of texts, numbers, lists and dicts, or None."
_CURE_OF_VERSION = "Correct it: a version is made of texts, numbers, lists and dicts. None: the partition has no data."


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
    :param version: in a topology that is bound to partitions, without `next_position`: ``read(session, partition)``
        gives all rows of a partition, which has `key`, `start` and `end`. ``version(partition)`` gives another value if
        they have changed, and None if there are none. It runs in the coordinator, without Spark. Without it a partition
        has data and never changes.
    :raises ConfigurationError: an argument is not callable, or they contradict each other.
    """

    schema = _POSITION

    def __init__(
        self,
        read: Callable[[Any, Any], Any],
        next_position: Callable[[Any], Any] | None = None,
        *,
        fields: FieldSpec,
        opaque: bool = False,
        version: Callable[[Partition], Any] | None = None,
    ) -> None:
        functions = {"read": read, "next_position": next_position, "version": version}
        for name, function in functions.items():
            if not callable(function) and (function is not None or name == "read"):
                raise ConfigurationError(f"DataFrameSpout with {name}={function!r}", "Give it a function.")
        if next_position is not None and version is not None:
            raise ConfigurationError(
                "DataFrameSpout with next_position and version",
                "next_position finds what is new; version belongs to topologies that are bound to partitions.",
            )
        self.needs_partitions, self._version = next_position is None, version
        require_flags("DataFrameSpout", opaque=opaque)
        self.opaque = opaque
        self._read = read
        self._next_position = next_position
        self._fields = parse_declared(fields, [])

    @property
    def spark_read(self) -> SparkRead:
        return SparkRead(function=self._read, fields=self._fields, position_of=_position_of)

    def bound(self, partitions: Partitions) -> BoundFrames:
        """
        :raises PlanError: the functions are those of positions.
        """
        if self._next_position is not None:
            raise PlanError(
                f"{self.describe()} in a bound topology: next_position says what is new",
                f"Leave it out: read(session, partition) gives all rows of a {partitions.step}.",
            )
        return BoundFrames(self, self._version)

    def coordinator(self) -> PositionCoordinator:
        assert self._next_position is not None
        return PositionCoordinator(self._next_position)

    def emitter(self) -> PositionEmitter:
        return PositionEmitter()

    def describe(self) -> str:
        beside = [function_name(function) for function in (self._next_position, self._version) if function is not None]
        return f"DataFrameSpout({' from '.join([function_name(self._read), *beside])})"


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
        position = _answer(self.next_position, deepcopy(before), _CURE)
        if position is None:
            return None
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


def _answer(function: Callable[[Any], Any], argument: Any, cure: str) -> Json:
    """:raises UserCodeError: the function raised, or gave a value that is not JSON."""
    name = function_name(function)
    try:
        value: Json = function(argument)
    except Exception as error:
        raise UserCodeError(f"{name} raised {type(error).__name__}: {error}", cure) from error
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise UserCodeError(f"{name} gave {value!r:.200}, which JSON cannot keep as it is", cure)
    return value


def _position_of(metadata: Json) -> Json:
    position: Json = read_back(_At, metadata, "a DataFrameSpout").position
    return position


# ---- bound to partitions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundFrames(Spout):
    """`follower`: the spout with its function `read`."""

    follower: DataFrameSpout
    version: Callable[[Partition], Any] | None

    @property
    def schema(self) -> Schema:
        return self.follower.schema

    @property
    def spark_read(self) -> SparkRead:
        return self.follower.spark_read

    def coordinator(self) -> VersionCoordinator:
        return VersionCoordinator(self.version)

    def emitter(self) -> VersionEmitter:
        return VersionEmitter()

    @property
    def adapts(self) -> str:
        return "DataFrameSpout"

    def describe(self) -> str:
        return self.follower.describe()


class _AtVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Any


@dataclass(frozen=True)
class VersionCoordinator(KeyedCoordinator):
    """Metadata: ``{"version": value of version}``; None without such a function."""

    version: Callable[[Partition], Any] | None

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """:raises UserCodeError: the function raised, or gave a value that is not JSON."""
        if self.version is None:
            return as_json(_AtVersion(None))
        version = _answer(self.version, partition, _CURE_OF_VERSION)
        return None if version is None else as_json(_AtVersion(version))

    def compared(self, before: Json, now: Json) -> PartitionChange:
        former, present = (read_back(_AtVersion, metadata, _OF_PARTITION).version for metadata in (before, now))
        if former == present:
            return PartitionChange()
        return PartitionChange(other=(f"version {former!r:.100} then, {present!r:.100} now",))


_OF_PARTITION = "a DataFrameSpout of a partition"


@dataclass(frozen=True)
class VersionEmitter(Emitter):
    """One split, with one row."""

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, json.dumps(read_back(_AtVersion, metadata, _OF_PARTITION).version))]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from rows_to_table(_POSITION, [(split.body,)]).to_batches()
