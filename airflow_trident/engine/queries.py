"""How engines run a query of a state over the tuples of a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_trident.operations.base import OperationContext
from airflow_trident.operations.calls import Border, prepared
from airflow_trident.plan.commit_nodes import StateQueryNode
from airflow_trident.plan.describe import function_name
from airflow_trident.plan.states import State, StateSpec

Row = tuple[Any, ...]


class Reading:
    """A state as queries see it: see :class:`airflow_trident.operations.queries.ReadableState`."""

    def __init__(self, state: State, spec: StateSpec) -> None:
        self._state = state
        self.keys = spec.keys
        self.values = spec.values

    def multi_get(self, keys: Sequence[Row]) -> list[Row | None]:
        for key in keys:
            if len(key) != len(self.keys):
                raise ValueError(f"a key has {len(self.keys)} fields, and {key!r} was asked for")
        return self._state.get_many(keys)

    def get(self) -> Row | None:
        (found,) = self.multi_get([()])
        return found

    def get_tuples(self) -> Iterator[Row]:
        return ((*key, *value) for key, value in self._state.items())


def state_query(node: StateQueryNode, rows: Sequence[Row], context: OperationContext) -> Iterator[Row]:
    """Every tuple with what the query gives for it (Trident: StateQueryProcessor).

    :raises UserCodeError: the query raised, or gave another number of results than it was asked for.
    """
    if not rows:
        return
    places = [node.input.fields.index(name) for name in node.reads]
    args = [tuple(row[place] for place in places) for row in rows]
    name = function_name(node.function)
    border = Border(node.name, name, node.reads, context.txid, node.outputs)
    with (
        prepared(node.function, context, border),
        node.state.factory.make_state(node.state) as state,
    ):
        reading = Reading(state, node.state)
        results = border.one(lambda *_: list(node.function.batch_retrieve(reading, args)), ())
        if len(results) != len(args):
            raise border.error((), f"gave {len(results)} results for {len(args)} tuples")
        for row, arg, result in zip(rows, args, results, strict=True):
            for values in border.many(_execute(node, result), arg, len(node.outputs)):
                yield (*row, *values)


def _execute(node: StateQueryNode, result: Any) -> Any:
    return lambda *values: node.function.execute(values, result)
