"""Small pieces to build topologies with, without a store or a source behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_trident import CombinerAggregator, Filter, Function, ReducerAggregator, Spout
from airflow_trident.plan.states import Capabilities, State, StateFactory, StateSpec
from airflow_trident.protocol.spouts import Coordinator, Emitter
from airflow_trident.types import Schema, parse_declared


@dataclass(frozen=True)
class PaperSpout(Spout):
    """A spout that can be planned with and not read."""

    fields: str = "line string"

    @property
    def schema(self) -> Schema:
        return parse_declared(self.fields)

    def coordinator(self) -> Coordinator:
        raise NotImplementedError

    def emitter(self) -> Emitter:
        raise NotImplementedError

    def describe(self) -> str:
        return "PaperSpout"


@dataclass(frozen=True)
class PaperState(StateFactory):
    """A state that can be planned with and not opened."""

    capabilities = Capabilities(durable=True, atomic=True)

    def make_state(self, spec: StateSpec) -> State:
        raise NotImplementedError

    def describe(self) -> str:
        return "PaperState"


class Split(Function):
    def execute(self, line: str) -> Iterator[str]:
        yield from line.split()


class Longer(Filter):
    def is_keep(self, word: str) -> bool:
        return len(word) > 3


class Longest(CombinerAggregator[str]):
    def init(self, *values: Any) -> str:
        return str(values[0])

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda word: (len(word), word))

    def zero(self) -> str:
        return ""


class Joined(ReducerAggregator[str]):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: Any) -> str:
        return f"{current}{values[0]}"


def shout(word: str) -> str:
    return word.upper()


def letters(line: str) -> Iterator[str]:
    yield from line
