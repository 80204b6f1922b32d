"""A plain DAG loads a small part of the package: Airflow reads DAG files again and again, in new processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fixtures.airflow import PROJECT

MODULES, CODE_LINES = 90, 10_000
"""The most of the package that dags/word_count.py may load."""
LOAD = """
import runpy, sys
import airflow.sdk
runpy.run_path(sys.argv[1])
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "airflow_trident":
        print("loaded", name, module.__file__)
"""


def test_a_plain_dag_loads_what_describes_it_and_nothing_of_what_runs_it(tmp_path: Path) -> None:
    """Code lines: without docstrings, comments and blank lines."""
    lines = {name: sum(1 for _ in code_lines(path)) for name, path in loaded_by("word_count.py", tmp_path).items()}
    largest = sorted(lines.items(), key=lambda counted: -counted[1])
    assert len(lines) <= MODULES, f"{len(lines)} modules: {', '.join(sorted(lines))}"
    assert sum(lines.values()) <= CODE_LINES, f"{sum(lines.values())} code lines: {largest}"
    assert "airflow_trident.task_group" in lines


def loaded_by(dag: str, home: Path) -> dict[str, Path]:
    """Modules of the package, with their files, that a new process has when it has read an example."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(PROJECT / "dags" / dag)],
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = (line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("loaded "))
    return {name: Path(path) for _, name, path in found}


def code_lines(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    documented = {number for node in ast.walk(ast.parse(text)) for number in docstring_of(node)}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.strip().startswith("#") and number not in documented:
            yield line


def docstring_of(node: ast.AST) -> range:
    """The lines of a string that stands by itself: a docstring, or the text below a constant."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)
