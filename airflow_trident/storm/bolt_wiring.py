"""Wiring of the components of a transactional topology: the streams of a component as rows of one schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.operations.api import TransactionAttempt
from airflow_trident.types import Schema, names_of, parse_declared

TAG = "to_stream"
"""The field that names a tuple's output stream or its input, where there are several."""


@dataclass(frozen=True, slots=True)
class Output:
    """A declared stream: the name of its first field (the TransactionAttempt), and the other fields."""

    attempt: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class BoltInput:
    """A stream that a component receives. `fields`: all names, that of the TransactionAttempt first."""

    component: str
    stream: str
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.stream!r} of component {self.component!r}"


@dataclass(frozen=True, slots=True)
class _Lane:
    """Where the values of a stream stand in a row: their first position, and what comes before and after them."""

    width: int
    begin: int
    before: tuple[int | None, ...]
    after: tuple[None, ...]


@dataclass(frozen=True)
class Outputs:
    """A component's streams as rows of one schema. Several: a tag, then the fields of all, null for the others."""

    component: str
    streams: Mapping[str, Output]
    _lanes: dict[str, _Lane] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lanes, begin = {}, 1
        all_width = sum(len(output.schema) for output in self.streams.values())
        for place, (name, output) in enumerate(self.streams.items()):
            width = len(output.schema)
            nulls = all_width + 1 - begin - width
            lanes[name] = _Lane(width, begin, (place, *(None,) * (begin - 1)), (None,) * nulls)
            begin += width
        object.__setattr__(self, "_lanes", lanes)

    @property
    def tagged(self) -> bool:
        return len(self.streams) > 1

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        if not self.tagged:
            return next((output.schema for output in self.streams.values()), ())
        return tagged([output.schema for output in self.streams.values()])

    @property
    def plain_width(self) -> int | None:
        """How many values an emit has, with the attempt, if the default stream is the only one."""
        return self._lanes["default"].width + 1 if [*self._lanes] == ["default"] else None

    def row(self, stream: str, values: Any, attempt: TransactionAttempt) -> tuple[Any, ...]:
        """:raises ValueError: the stream is not declared, or the values do not match its fields."""
        lane = self._lanes.get(stream)
        if lane is None:
            known = ", ".join(map(repr, self.streams)) or "nothing"
            raise ValueError(f"emitted to stream {stream!r}: declare_output_fields() declares {known}")
        given = tuple(values)
        # identity first: this is called for each tuple, and comparing attempts costs as much as all the rest
        if not given or (given[0] is not attempt and given[0] != attempt):
            raise ValueError(f"the first value must be the TransactionAttempt of the batch, {attempt}: got {given[:1]}")
        if len(given) != lane.width + 1:
            output = self.streams[stream]
            names = ", ".join((output.attempt, *names_of(output.schema)))
            raise ValueError(f"emitted {len(given)} values to stream {stream!r}, which has ({names})")
        return (*lane.before, *given[1:], *lane.after) if len(self._lanes) > 1 else given[1:]

    def fields_of(self, stream: str) -> tuple[str, ...]:
        """The names of one stream's fields in `schema`."""
        lane = self._lanes[stream]
        return names_of(self.schema)[lane.begin : lane.begin + lane.width] if self.tagged else names_of(self.schema)


def tagged(schemas: Sequence[Schema]) -> Schema:
    """A tag, then the fields of all schemas under distinct names."""
    parts = [f"s{place}_{one.name} {one.type}" for place, schema in enumerate(schemas) for one in schema]
    return parse_declared([f"{TAG} int", *parts])
