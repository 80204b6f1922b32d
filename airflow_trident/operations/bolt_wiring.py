"""How the components of a transactional topology are wired: their streams as rows of one schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.operations.api import TransactionAttempt
from airflow_trident.types import Schema, names_of, parse_declared

TAG = "to_stream"
"""The field that says to which of several streams a tuple was emitted, or from which of several inputs it comes."""


@dataclass(frozen=True, slots=True)
class Output:
    """A declared stream: the name of its first field, and the others."""

    attempt: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class BoltInput:
    """A stream that a component gets. `fields`: all of its names, that of the TransactionAttempt first."""

    component: str
    stream: str
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.stream!r} of component {self.component!r}"


@dataclass(frozen=True)
class Outputs:
    """The streams that a component emits, as rows of one schema. Several streams: a tag, and then the fields of each;
    those of the others are null."""

    component: str
    streams: Mapping[str, Output]
    _places: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places, begin = {}, 1
        for name, output in self.streams.items():
            places[name] = (begin, begin + len(output.schema))
            begin += len(output.schema)
        object.__setattr__(self, "_places", places)

    @property
    def tagged(self) -> bool:
        return len(self.streams) > 1

    @property
    def schema(self) -> Schema:
        """Of the rows."""
        if not self.tagged:
            return next((output.schema for output in self.streams.values()), ())
        return tagged([output.schema for output in self.streams.values()])

    def row(self, stream: str, values: Any, attempt: TransactionAttempt) -> tuple[Any, ...]:
        """:raises ValueError: the stream is not declared, or the values are not those of its fields."""
        output = self.streams.get(stream)
        if output is None:
            known = ", ".join(map(repr, self.streams)) or "nothing"
            raise ValueError(f"emitted to stream {stream!r}: declare_output_fields() declares {known}")
        given = tuple(values)
        if given[:1] != (attempt,):
            raise ValueError(f"the first value must be the TransactionAttempt of the batch, {attempt}: got {given[:1]}")
        if len(given) != len(output.schema) + 1:
            names = ", ".join((output.attempt, *names_of(output.schema)))
            raise ValueError(f"emitted {len(given)} values to stream {stream!r}, which has ({names})")
        if not self.tagged:
            return given[1:]
        begin, end = self._places[stream]
        width = max(last for _, last in self._places.values())
        place = list(self.streams).index(stream)
        return (place, *(None,) * (begin - 1), *given[1:], *(None,) * (width - end))

    def fields_of(self, stream: str) -> tuple[str, ...]:
        """The names in `schema` of the fields of one stream."""
        begin, end = self._places[stream]
        return names_of(self.schema)[begin:end] if self.tagged else names_of(self.schema)


def tagged(schemas: Sequence[Schema]) -> Schema:
    """A tag, and the fields of each, under names of their own."""
    parts = [f"s{place}_{one.name} {one.type}" for place, schema in enumerate(schemas) for one in schema]
    return parse_declared([f"{TAG} int", *parts])
