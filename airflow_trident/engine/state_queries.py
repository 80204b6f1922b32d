"""How engines run a query of a state over the tuples of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from airflow_trident.contracts.state import State, StateSpec
from airflow_trident.errors import ConfigurationError, state_code
from airflow_trident.operations.equality import stored_keys
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.state_functions import QueryFunction, Row
from airflow_trident.operations.user_code import Border, prepared
from airflow_trident.operations.user_functions import function_name
from airflow_trident.plan.nodes import StateQueryNode
from airflow_trident.plan.stages import Plan
from airflow_trident.types import WHOLE_TYPES


class Reading:
    """A state as queries see it: see :class:`airflow_trident.operations.state_functions.ReadableState`."""

    def __init__(self, state: State, spec: StateSpec) -> None:
        self._state = state
        self.keys = spec.keys
        self.values = spec.values
        self._limits = [
            (place, WHOLE_TYPES[field.type]) for place, field in enumerate(spec.keys) if field.type in WHOLE_TYPES
        ]

    def multi_get(self, keys: Sequence[Row]) -> list[Row | None]:
        for key in keys:
            if len(key) != len(self.keys):
                raise ValueError(f"a key has {len(self.keys)} fields, and {key!r} was asked for")
        wanted = self._wanted(keys)
        rows: list[Row | None] = [None] * len(keys)
        if wanted:
            for place, value in zip(wanted, self._state.get_many(list(wanted.values())), strict=True):
                rows[place] = value
        return rows

    def _wanted(self, keys: Sequence[Row]) -> dict[int, Row]:
        """The keys as the store has them, by their places; without those that do not fit the fields. They are in no
        state, and some stores cannot even be asked for them."""
        suitable = {place: key for place, key in enumerate(keys) if self._may_be(key)}
        try:
            return dict(zip(suitable, stored_keys(self.keys, list(suitable.values())), strict=True))
        except ValueError:
            return {place: stored_key for place, key in suitable.items() for stored_key in self._fitting(key)}

    def _fitting(self, key: Row) -> list[Row]:
        try:
            return stored_keys(self.keys, [key])
        except ValueError:
            return []

    def _may_be(self, key: Row) -> bool:
        parts = ((key[place], limit) for place, limit in self._limits)
        return all(not isinstance(part, int) or -limit <= part < limit for part, limit in parts)

    def get(self) -> Row | None:
        (row,) = self.multi_get([()])
        return row

    def get_tuples(self) -> Iterator[Row]:
        return ((*key, *value) for key, value in self._state.items())


def state_query(
    node: StateQueryNode, before: tuple[str, ...], chunks: Iterable[Sequence[Row]], context: OperationContext
) -> Iterator[list[Row]]:
    """The tuples of each chunk with the query's results appended (Trident: StateQueryProcessor).

    :param before: the fields of the input tuples.
    :raises UserCodeError: the query raised, or returned a wrong number of results.
    """
    places = [before.index(name) for name in node.reads]
    border = Border(node.name, function_name(node.function), node.reads, context.txid, node.outputs)
    with prepared(node.function, context, border) as function, ExitStack() as opened:
        reading: Reading | None = None
        for rows in chunks:
            if not rows:
                continue
            if reading is None:  # opened only if there is something to ask
                with state_code(node.state.name, context.txid):
                    reading = Reading(opened.enter_context(node.state.factory.make_state(node.state)), node.state)
            yield list(_answered(node, function, border, reading, places, rows))


def _answered(
    node: StateQueryNode,
    function: QueryFunction,
    border: Border,
    reading: Reading,
    places: list[int],
    rows: Sequence[Row],
) -> Iterator[Row]:
    args = [tuple(row[place] for place in places) for row in rows]
    results = border.one(lambda *_: list(function.batch_retrieve(reading, args)), ())
    if len(results) != len(args):
        raise border.error((), f"gave {len(results)} results for {len(args)} tuples")
    for row, arg, answer in zip(rows, args, results, strict=True):
        for values in border.many(_execute(function, answer), arg, len(node.outputs)):
            yield (*row, *values)


def _execute(function: QueryFunction, answer: Any) -> Any:
    return lambda *values: function.execute(values, answer)


def require_reachable(plan: Plan) -> None:
    """:raises ConfigurationError: a query needs a state in this process's memory, and the engine works in others."""
    for stage in plan.stages:
        for node in stage.nodes:
            if isinstance(node, StateQueryNode) and not node.state.factory.capabilities.durable:
                raise ConfigurationError(
                    f"{node.name} asks {node.state.factory.describe()}, which no Spark worker can see",
                    "Keep the state in a SqliteState or another durable state.",
                )
