"""Nodes that belong to states: what a state gives to streams, and what is passed from one phase to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.plan.graph import Node, ProcessorNode, SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.contracts.state import StateSpec
    from airflow_trident.operations.queries import QueryFunction


@dataclass(frozen=True, kw_only=True, eq=False)
class NewValuesNode(Node):
    """What the batch changed in a state, read from it after the batch was applied (Trident: newValuesStream). Its input
    is the state's PersistNode. Everything downstream belongs to the commit phase, where this node is a source."""

    @property
    def what(self) -> str:
        return f"of state {self.persist.name}"

    @property
    def persist(self) -> PersistNode:
        persist = self.input
        assert isinstance(persist, PersistNode)
        return persist


@dataclass(frozen=True, kw_only=True, eq=False)
class StateQueryNode(ProcessorNode):
    """Appends to every tuple what `function` finds in a state (Trident: stateQuery).

    `after_commit`: the state belongs to this topology, and the query runs in the commit phase, after the batch is
    applied to the state.
    """

    reads: tuple[str, ...]
    outputs: Schema
    function: QueryFunction
    state: StateSpec
    after_commit: bool = False

    @property
    def what(self) -> str:
        when = ", after the commit" if self.after_commit else ""
        return f"{function_name(self.function)}({', '.join(self.reads)}) of state {self.state.name}{when}"


@dataclass(frozen=True, kw_only=True, eq=False)
class CarriedNode(SinkNode):
    """A stream that is handed on: from the processing phase to the commit phase as a staged batch, from one part of the
    commit phase to a later one, or to the caller of a query. `name` begins with ``~``; no state's name does."""

    @property
    def what(self) -> str:
        return ""

    @property
    def end(self) -> str:
        return f"handed on as {self.name}"


# ---- the beginning of a part of the commit phase ---------------------------------------------------------------


@dataclass(frozen=True)
class GivenTuples(Spout):
    """The source of tuples that are already in this process. `table` is None in a plan, and set when the plan is
    run."""

    fields: Schema
    what: str
    table: pa.Table | None = None

    @property
    def schema(self) -> Schema:
        return self.fields

    def coordinator(self) -> Coordinator:
        raise NotImplementedError("given tuples are no source of transactions")

    def emitter(self) -> GivenEmitter:
        assert self.table is not None, "no tuples were given"
        return GivenEmitter(self.table)

    def describe(self) -> str:
        return self.what


@dataclass(frozen=True)
class GivenEmitter(Emitter):
    table: Any

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, None)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches()
