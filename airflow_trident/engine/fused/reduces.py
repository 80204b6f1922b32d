"""Multi-reducers over the tagged union of their streams: the same code for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_trident.engine.fused.folds import Emitted, coercers, key_of_groups, shown_key
from airflow_trident.engine.key_limit import NO_LIMIT, KeyLimit
from airflow_trident.operations.api import OperationContext
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.operations.calls.user_code import Border, prepared
from airflow_trident.operations.multireduce import GroupedMultiReducer, MultiReducer
from airflow_trident.operations.queries import Row
from airflow_trident.plan.nodes import MultiReduceStepNode
from airflow_trident.types import Schema, names_of, select


def multi_reduce(
    node: MultiReduceStepNode,
    before: Schema,
    rows: Iterable[Row],
    context: OperationContext,
    max_keys: int = NO_LIMIT,
) -> Iterator[Row]:
    """:param rows: all of one partition, with the schema `before` of the union.
    :raises ConfigurationError: they have more than `max_keys` groups."""
    limit = KeyLimit(node.name, max_keys, context)
    names = names_of(before)
    tag = names.index(node.tag)
    places = [[names.index(name) for name in reads] for reads in node.reads]
    fields = [tuple(name.partition(" ")[2] for name in reads) for reads in node.reads]
    borders = [Border(node.name, function_name(node.reducer), one, context.txid) for one in fields]
    keys = [names.index(name) for name in node.groups]
    key_of, shown = (make(select(before, node.groups, node.name)) for make in (key_of_groups, shown_key))
    groups: dict[Any, tuple[Row, Any]] = {}
    with prepared(node.reducer, context, borders[0]) as reducer:
        calls = _Calls(reducer, Emitted(borders[0], coercers(node.schema)), borders)
        if not keys:
            groups[()] = ((), calls.init(()))
        for row in rows:
            group = tuple(row[place] for place in keys)
            hashed = key_of(group)
            if hashed not in groups:
                group = shown(group)
                groups[hashed] = (group, calls.init(group))
                limit.require(len(groups))
                yield from calls.taken()
            group, state = groups[hashed]
            stream = row[tag]
            calls.execute(state, stream, group, tuple(row[place] for place in places[stream]))
            yield from calls.taken()
        for group, state in groups.values():
            calls.complete(state, group)
            yield from calls.taken()


@dataclass
class _Calls:
    """One reducer, grouped or not."""

    _reducer: MultiReducer[Any] | GroupedMultiReducer[Any]
    _emitted: Emitted
    _borders: Sequence[Border]

    def init(self, group: Row) -> Any:
        if isinstance(self._reducer, GroupedMultiReducer):
            return self._call(0, (), self._reducer.init, group, self._emitted)
        return self._call(0, (), self._reducer.init, self._emitted)

    def execute(self, state: Any, stream: int, group: Row, values: Row) -> None:
        if isinstance(self._reducer, GroupedMultiReducer):
            self._call(stream, values, self._reducer.execute, state, stream, group, self._emitted, *values)
        else:
            self._call(stream, values, self._reducer.execute, state, stream, self._emitted, *values)

    def complete(self, state: Any, group: Row) -> None:
        if isinstance(self._reducer, GroupedMultiReducer):
            self._call(0, (), self._reducer.complete, state, group, self._emitted)
        else:
            self._call(0, (), self._reducer.complete, state, self._emitted)

    def taken(self) -> list[Row]:
        """The outputs emitted since the last call."""
        rows, self._emitted.rows = self._emitted.rows, []
        return rows

    def _call(self, stream: int, values: Row, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            self._borders[stream].translate(values, error)
            raise
