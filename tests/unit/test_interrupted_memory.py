"""Ctrl-C at every line of the states in memory: a batch is there as a whole with its marker, or not at all."""

from __future__ import annotations

import linecache
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from airflow_trident.contracts.state import State
from airflow_trident.protocol.checkpoint import Marks
from airflow_trident.states.keyvalue import memory as memory_of_keyvalue
from airflow_trident.states.keyvalue.base import KeyValueState
from airflow_trident.states.keyvalue.memory import MemoryStateProvider
from airflow_trident.states.memory import MemoryState, _Store
from tests.fixtures.state import batch, content, counts, ticket

FILES = {sys.modules[_Store.__module__].__file__, memory_of_keyvalue.__file__}


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt when this number of lines of the states has been run; gives a list that then has one
    element."""
    passed, raised = iter(range(line)), []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # The interpreter takes no signal between the end of a block and the release of its lock; a trace could.
        if event == "line" and not source.startswith("with ") and next(passed, None) is None and not raised:
            raised.append(line)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield raised
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def at_every_line(check: Callable[[int], bool]) -> None:
    """:param check: tells whether the interrupt came before the end."""
    lines = next(line for line in range(1000) if not check(line))
    assert lines > 10


Acts = dict[str, Callable[[Any, State], None]]
ACTS: Acts = {
    "one": lambda spec, state: state.apply(ticket(2), batch(spec, ("a", 1), ("b", 1), ("c", 1))),
    "again": lambda spec, state: state.apply(replace(ticket(1, fence=11), attempt=1), batch(spec, ("a", 5), ("c", 1))),
    "late": lambda spec, state: state.apply(ticket(1, fence=30, late=True), batch(spec, ("a", 1), ("c", 1))),
    "group": lambda spec, state: state.apply_group(
        [ticket(2, fence=20), ticket(3, fence=20)], [batch(spec, ("a", 1)), batch(spec, ("a", 1), ("c", 1))]
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_an_interrupted_step_is_whole_or_did_not_happen(act: str) -> None:
    def state_before(spec: Any) -> State:
        state: State = spec.factory.make_state(spec)
        state.apply(ticket(2 if act == "late" else 1), batch(spec, ("a", 1), ("b", 1)))
        return state

    def spec_of() -> Any:
        return replace(counts(MemoryState(uuid.uuid4().hex)), opaque=act != "group")

    with state_before(spec := spec_of()) as state:
        ends = [(state.marker(), content(state))]
        ACTS[act](spec, state)
        ends.append((state.marker(), content(state)))

    def check(line: int) -> bool:
        with state_before(spec := spec_of()) as state:
            with interrupted_at(line) as raised:
                ACTS[act](spec, state)
            assert (state.marker(), content(state)) in ends
            ACTS[act](spec, state)
            assert content(state) == ends[1][1]
            return bool(raised)

    at_every_line(check)


Steps = list[Callable[[KeyValueState[Any, Any]], Any]]
STEPS: dict[str, Steps] = {
    "prepared and committed": [
        lambda state: state.prepare_commit(2, fence=1),
        lambda state: state.commit(2, fence=1),
    ],
    "committed at once": [lambda state: state.commit(fence=1)],
    "rolled back": [lambda state: state.prepare_commit(2, fence=1), lambda state: state.rollback(fence=1)],
}


@pytest.mark.parametrize("kind", STEPS)
def test_an_interrupted_step_of_a_namespace_is_whole_or_did_not_happen(kind: str) -> None:
    def new() -> KeyValueState[Any, Any]:
        state = MemoryStateProvider(uuid.uuid4().hex).new_state("n")
        for txid, writes in ((1, {"a": 1, "b": 1}), (2, {"a": 2, "c": 2})):
            for key, value in writes.items():
                state.put(key, value)
            if txid == 1:
                state.prepare_commit(1, fence=1)
                state.commit(1, fence=1)
        state.delete("b")
        return state

    def seen(state: KeyValueState[Any, Any]) -> tuple[Marks, Any]:
        return state.marks(), dict(state.committed_items())

    whole = new()
    ends = [seen(whole)]
    for step in STEPS[kind]:
        step(whole)
        ends.append(seen(whole))

    def check(line: int) -> bool:
        state = new()
        with interrupted_at(line) as raised:
            for step in STEPS[kind]:
                step(state)
        assert seen(state) in ends
        return bool(raised)

    at_every_line(check)
