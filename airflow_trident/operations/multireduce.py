"""Reducers over several streams at once, and the joining reducer (Trident: MultiReducer, JoinerMultiReducer)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Generic, TypeVar

from airflow_trident.operations.api import Collector, Operation

S = TypeVar("S")


class MultiReducer(Operation, ABC, Generic[S]):
    """Takes the tuples of several streams, partition by partition. There is no order between streams or tuples."""

    @abstractmethod
    def init(self, collector: Collector) -> S:
        """The state of a partition without tuples. It must be mutable: `execute` changes it."""

    @abstractmethod
    def execute(self, state: S, stream_index: int, collector: Collector, *values: Any) -> None:
        """Process one tuple of the stream at `stream_index`."""

    @abstractmethod
    def complete(self, state: S, collector: Collector) -> None:
        """Called after the last tuple."""


class GroupedMultiReducer(Operation, ABC, Generic[S]):
    """Takes the tuples of several streams, group by group; `group` holds the values of the group fields."""

    @abstractmethod
    def init(self, group: tuple[Any, ...], collector: Collector) -> S: ...

    @abstractmethod
    def execute(
        self, state: S, stream_index: int, group: tuple[Any, ...], collector: Collector, *values: Any
    ) -> None: ...

    @abstractmethod
    def complete(self, state: S, group: tuple[Any, ...], collector: Collector) -> None: ...


class JoinType(StrEnum):
    """What a join asks of a side. INNER: it must have a tuple. OUTER: the tuple may be missing; its fields are then
    null.

    Trident's convention: a left outer join is ``[JoinType.INNER, JoinType.OUTER]``.
    """

    INNER = "inner"
    OUTER = "outer"


class JoinOutFieldsMode(StrEnum):
    """COMPACT: the join fields once, then the others of every stream. PRESERVE: all fields of every stream."""

    COMPACT = "compact"
    PRESERVE = "preserve"


@dataclass(frozen=True)
class Joiner(GroupedMultiReducer[tuple[list[tuple[Any, ...]], ...]]):
    """Joins the tuples of one group. `values`: the fields of a side without the join fields.

    `layout`, for PRESERVE: the fields of each side in order, as ``(is a join field, place among those or the others)``.
    """

    types: tuple[JoinType, ...]
    widths: tuple[int, ...]
    mode: JoinOutFieldsMode
    layout: tuple[tuple[tuple[bool, int], ...], ...]

    def describe(self) -> str:
        return f"{' '.join(self.types)} {self.mode}"

    def init(self, group: tuple[Any, ...], collector: Collector) -> tuple[list[tuple[Any, ...]], ...]:
        return tuple([] for _ in self.types)

    def execute(
        self,
        state: tuple[list[tuple[Any, ...]], ...],
        stream_index: int,
        group: tuple[Any, ...],
        collector: Collector,
        *values: Any,
    ) -> None:
        state[stream_index].append(values)

    def complete(self, state: tuple[list[tuple[Any, ...]], ...], group: tuple[Any, ...], collector: Collector) -> None:
        if any(not rows and kind is JoinType.INNER for rows, kind in zip(state, self.types, strict=True)):
            return
        nothing: list[tuple[Any, ...] | None] = [None]
        for rows in product(*(side or nothing for side in state)):
            collector.emit(*self._joined(group, rows))

    def _joined(self, group: tuple[Any, ...], rows: tuple[tuple[Any, ...] | None, ...]) -> tuple[Any, ...]:
        result: list[Any] = []
        if self.mode is JoinOutFieldsMode.COMPACT:
            result.extend(group)
            for width, row in zip(self.widths, rows, strict=True):
                result.extend((None,) * width if row is None else row)
            return tuple(result)
        for places, row in zip(self.layout, rows, strict=True):
            for is_key, place in places:
                result.append(None if row is None else (group if is_key else row)[place])
        return tuple(result)
