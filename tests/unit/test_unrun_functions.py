"""Functions whose work would be lost without a word: they yield or await where that runs nothing, or return what is not
taken. They are refused when the topology is built, or else when they return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from airflow_trident import Aggregator, FixedBatchSpout, MemoryState, MultiReducer, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import PlanError, UserCodeError
from airflow_trident.functions import lit
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.testing import MemoryLedger
from airflow_trident.topology.stream import Stream


async def awaits(*_: Any) -> bool:
    return True


def yields(*_: Any) -> Any:
    yield True


class Counted(Aggregator[list[int]]):
    output_types = "long"

    def init(self, batch: Any, collector: Any) -> list[int]:
        return [0]

    def aggregate(self, state: list[int], collector: Any, *values: Any) -> Any:
        state[0] += 1

    def complete(self, state: list[int], collector: Any) -> Any:
        collector.emit(state[0])


class Reduced(MultiReducer[list[int]]):
    output_types = "long"

    def init(self, collector: Any) -> list[int]:
        return [0]

    def execute(self, state: list[int], stream_index: int, collector: Any, *values: Any) -> Any:
        state[0] += 1

    def complete(self, state: list[int], collector: Any) -> Any:
        collector.emit(state[0])


def counting(**methods: Any) -> Callable[[Stream], Stream]:
    return lambda stream: stream.aggregate("word", type("Own", (Counted,), methods)(), "n")


def reducing(**methods: Any) -> Callable[[Stream], Stream]:
    own = type("Own", (Reduced,), methods)
    return lambda stream: cast("Topology", stream.topology).multi_reduce(["word"], [stream], own(), "n")


def keeping(function: Any) -> Callable[[Stream], Stream]:
    return lambda stream: stream.filter("word", function)


def run(build: Callable[[Stream], Stream], folder: Path) -> list[Any]:
    topology = Topology("t")
    built = build(topology.new_stream("words", FixedBatchSpout("word string", ["a", "b"])))
    built.each(lit(1), "times long").partition_persist(
        MemoryState(str(folder)), (*built.fields, "times"), keys=built.fields[:1], name="kept"
    )
    runner = LocalRunner(topology=topology, ledger=MemoryLedger("t"), engine=LocalEngine(2), staging_root=str(folder))
    return runner.run()


@pytest.mark.parametrize(
    "build",
    [
        keeping(awaits), keeping(yields), keeping(partial(yields, 1)), keeping(type("F", (), {"is_keep": yields})()),
        lambda stream: stream.peek("word", awaits), lambda stream: stream.peek("word", yields),
        lambda stream: stream.each("word", awaits, "n long"), lambda stream: stream.map(yields, "n long"),
        lambda stream: stream.flat_map(awaits, "n long"),
        lambda stream: stream.each("word", type("E", (), {"execute": len, "prepare": awaits})(), "n long"),
        *(counting(**{name: function}) for name in ("init", "aggregate", "complete") for function in (awaits, yields)),
        *(reducing(**{name: function}) for name in ("init", "execute", "complete") for function in (awaits, yields)),
    ],
)  # fmt: skip
def test_a_function_whose_body_would_never_run_is_refused_when_the_topology_is_built(
    build: Callable[[Stream], Stream], tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=r"its body would never run. Write a plain function"):
        run(build, tmp_path)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (keeping(lambda word: yields(word, 1)), "where true or false is expected"),
        (keeping(lambda word: word.islower), "where true or false is expected"),
        (keeping(lambda word: np.array([1, 2])), "raised ValueError"),
        (keeping(lambda word: type("Exits", (), {"__bool__": lambda self: exit(4)})()), "raised SystemExit: 4"),
        (keeping(lambda word: yields().throw(GeneratorExit)), "raised GeneratorExit"),
        (lambda stream: stream.peek("word", lambda word: yields(word, 1)), "its body never runs"),
        (lambda stream: stream.each("word", lambda word: {"n": 1}, "n string"), "an iterable of outputs is expected"),
        (counting(init=lambda self, *_: 0, aggregate=lambda self, state, *_: state + 1), "returned 1, where nothing"),
        (counting(complete=lambda self, state, _: state), r"returned \[2\], where nothing"),
        (counting(prepare=lambda self, _: yields()), "its body never runs"),
        (reducing(complete=lambda self, state, _: [state]), r"returned \[\[1\]\], where nothing"),
        (reducing(execute=lambda self, *_: 1), "returned 1, where nothing"),
    ],
)
def test_what_a_function_returns_and_nothing_takes_is_an_error(
    build: Callable[[Stream], Stream], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserCodeError, match=rf"^(Own|<lambda>)\S* in .*{says}.*transaction 1"):
        run(build, tmp_path)


def test_an_updater_that_yields_changes_nothing_and_is_an_error(tmp_path: Path) -> None:
    topology = Topology("t")
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1)]))
    words.partition_persist(
        MemoryState(str(tmp_path)), "word, n", keys="word", updater=lambda state, rows: yields(), name="kept"
    )
    runner = LocalRunner(topology=topology, ledger=MemoryLedger("t"), engine=LocalEngine(2), staging_root=str(tmp_path))
    with pytest.raises(UserCodeError, match="of state 'kept' yields or awaits, so its body never runs"):
        runner.run()


def test_functions_that_run_pass(tmp_path: Path) -> None:
    for number, build in enumerate((counting(), reducing(), keeping(lambda word: "x"))):
        assert run(build, tmp_path / str(number))
