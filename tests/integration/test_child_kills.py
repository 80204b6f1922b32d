"""A child is killed at every step of its partition: the attempt fails, or is whole; the next one is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_trident import Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ChildError
from airflow_trident.storm import NodeBolt, ShellBolt
from airflow_trident.storm.components.bolt import ChildBolt
from tests.fixtures.child import COMPONENTS, needs_node
from tests.fixtures.engine import JobOf, run
from tests.fixtures.pieces import keep, lines

LINES = ["snow white", "the seven dwarfs", *(f"w{number} v{number}" for number in range(50)), "the last one"]
WORDS = sorted(f"('{word}',)" for line in LINES for word in line.split())
BEFORE_ALL_IS_ACKNOWLEDGED = ("init", "row", "emit", "ack")


def shell(step: str, mark: Path) -> ChildBolt:
    return ShellBolt([sys.executable, "-I", "-S", os.path.join(COMPONENTS, "shell.py"), "KilledAt", step, str(mark)])


def program(step: str, mark: Path) -> ChildBolt:
    return NodeBolt("program.js", working_dir=COMPONENTS, args=("killed", step, str(mark)), type="subproc")


def module(step: str, mark: Path) -> ChildBolt:
    return NodeBolt("splitter.js", working_dir=COMPONENTS, init={"mode": "killed", "step": step, "mark": str(mark)})


STEPS = [
    *(pytest.param(shell, step, id=f"multilang-{step}") for step in (*BEFORE_ALL_IS_ACKNOWLEDGED, "last ack", "end")),
    *(
        pytest.param(program, step, id=f"0.7-{step}", marks=needs_node)
        for step in (*BEFORE_ALL_IS_ACKNOWLEDGED, "last ack", "heartbeat", "shutdown")
    ),
    *(
        pytest.param(module, step, id=f"module-{step}", marks=needs_node)
        for step in ("init", "row", "emit", "last ack", "heartbeat", "shutdown")
    ),
]


@pytest.mark.parametrize(("bolt", "step"), STEPS)
def test_a_child_that_is_killed_at_any_step_loses_and_doubles_nothing(
    bolt: Callable[[str, Path], ChildBolt], step: str, tmp_path: Path, job_of: JobOf
) -> None:
    mark = tmp_path / "killed"

    def build(topology: Topology) -> None:
        keep(lines(topology, LINES).flat_map(bolt(step, mark), "word string"))

    found, errors = {}, list[str]()
    for attempt in range(2):
        try:
            found = run(LocalEngine(), job_of(build, attempt=attempt))
            break
        except ChildError as error:
            errors.append(str(error))
    assert mark.exists()
    assert found == {"rows": WORDS}
    assert all("SIGKILL" in error for error in errors)
    assert errors or step not in BEFORE_ALL_IS_ACKNOWLEDGED
