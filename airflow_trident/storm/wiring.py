"""Checks, when a topology is built, that every bolt has input and leads to a committer or a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeAlias

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.storm.bolt_wiring import Output
from airflow_trident.storm.declarer import BoltDeclarer, GroupingKind, Subscription
from airflow_trident.types import names_of

Declared: TypeAlias = Mapping[str, Mapping[str, Output]]
"""Component -> stream -> its declared output."""


def require_wired(
    topology: str, declared: Declared, bolts: Mapping[str, BoltDeclarer], ends: Iterable[tuple[str, str, str]]
) -> list[BoltDeclarer]:
    """The bolts, each after its inputs.

    :param ends: component, stream and reader, for readers that are no bolts.
    :raises PlanError: a component or stream is unknown, a bolt has no input or is in a cycle, or its tuples lead to no
        committer and no state.
    :raises FieldError: a grouping names a field that the stream does not have.
    """
    ends = list(ends)
    for bolt in bolts.values():
        if not bolt.inputs:
            raise PlanError(
                f"bolt {bolt.id!r} of topology {topology!r} has no input",
                'Say what it reads, as in set_bolt(...).shuffle_grouping("spout").',
            )
        for one in bolt.inputs:
            _require_stream(f"bolt {bolt.id!r}", one.component, one.stream, declared)
            _require_fields(bolt, one, declared[one.component][one.stream])
    for component, stream, who in ends:
        _require_stream(who, component, stream, declared)
    order = _ordered(topology, bolts)
    _require_useful(topology, order, {component for component, _, _ in ends})
    return order


def with_cure(committer: str) -> str:
    """The cure in errors: how a committer can be exactly once."""
    return (
        "Take the attempt in prepare(), keep its txid beside what you write in one step, and write nothing for a txid "
        f"that is not higher. Or let a state do it: end_stream({committer!r}, lambda stream: "
        "stream.group_by(...).persistent_aggregate(...)). Or say that it need not be: exactly_once=False."
    )


def _require_stream(who: str, component: str, stream: str, declared: Declared) -> None:
    if component not in declared:
        raise PlanError(f"{who} reads component {component!r}, which does not exist", _near(component, declared))
    if stream not in declared[component]:
        raise PlanError(
            f"{who} reads stream {stream!r} of component {component!r}, which does not declare it",
            f"{_near(stream, declared[component])} Streams are declared in declare_output_fields().",
        )


def _near(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"There {'are' if known else 'is'} {', '.join(map(repr, known)) or 'none'}."


def _require_fields(bolt: BoltDeclarer, one: Subscription, output: Output) -> None:
    names = (output.attempt, *names_of(output.schema))
    for name in one.fields:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise FieldError(
                f"fields_grouping of bolt {bolt.id!r}: no field {name!r} in stream {one.stream!r} of component "
                f"{one.component!r}, which has ({', '.join(names)})",
                f"Did you mean {near[0]!r}?" if near else "Use one of these.",
            )
    if one.kind is GroupingKind.CUSTOM and bolt.committer:
        raise PlanError(
            f"committer {bolt.id!r} has a custom grouping",
            "A committer takes all other groupings: use fields_grouping.",
        )


def _ordered(topology: str, bolts: Mapping[str, BoltDeclarer]) -> list[BoltDeclarer]:
    order: dict[str, BoltDeclarer] = {}
    path: list[str] = []

    def visit(id: str) -> None:
        if id in order or id not in bolts:
            return
        if id in path:
            circle = " > ".join([*path[path.index(id) :], id])
            raise PlanError(
                f"the bolts of topology {topology!r} go round in a circle: {circle}",
                "A batch passes each bolt once: take one of these inputs away.",
            )
        path.append(id)
        for one in bolts[id].inputs:
            visit(one.component)
        path.pop()
        order[id] = bolts[id]

    for id in bolts:
        visit(id)
    return list(order.values())


def _require_useful(topology: str, order: list[BoltDeclarer], ends: set[str]) -> None:
    useful = {*ends, *(bolt.id for bolt in order if bolt.committer)}
    for bolt in reversed(order):
        if bolt.id in useful:
            useful.update(one.component for one in bolt.inputs)
    if not useful:
        raise PlanError(
            f"topology {topology!r} has no committer: nothing would ever be committed",
            "Add one with set_committer_bolt(), or end a stream in a state with end_stream().",
        )
    for bolt in order:
        if bolt.id not in useful:
            raise PlanError(
                f"what bolt {bolt.id!r} of topology {topology!r} emits comes to no committer and no state, so it would "
                "never be run",
                "Make it a committer with set_committer_bolt(), or let one read it, or take it away.",
            )
