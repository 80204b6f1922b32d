"""The import contracts of pyproject.toml hold, and would not hold if they were violated."""

from __future__ import annotations

import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-logo", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy_of_the_package(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "airflow_trident", tmp_path / "airflow_trident", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def test_every_floor_imports_only_floors_below_it_and_libraries_only_where_they_belong() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("airflow_trident", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError, also for imports in functions and for type checkers


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("protocol/bad.py", "import airflow_trident.ledger.ledger", "each floor imports only floors below it"),
        ("states/bad.py", "import airflow_trident.engine.engine", "each floor imports only floors below it"),
        ("protocol/bad.py", "import airflow_trident.operations.interfaces", "each floor imports only floors below it"),
        (
            "ledger/bad.py",
            "def f():\n    import airflow_trident.storm.bolts",
            "each floor imports only floors below it",
        ),
        ("cli/bad.py", "import airflow_trident.storm", "each floor imports only floors below it"),
        ("newroom/__init__.py", "", "each floor imports only floors below it"),
        ("runtime/bad.py", "def f():\n    from airflow.sdk import DAG", "only the Airflow shell imports airflow"),
        ("runtime/bad.py", "def f():\n    import kazoo.client", "only ledger.zookeeper imports kazoo"),
        ("cli/bad.py", "def f():\n    import kazoo.client", "only ledger.zookeeper imports kazoo"),
        ("operators/bad.py", "def f():\n    import pyspark", "only engine.spark imports pyspark"),
        ("states/core/bad.py", "import airflow_trident.states.sql.sqlite", "no circle in the whole house"),
    ],
)
def test_a_violation_breaks_the_contract(copy_of_the_package: Path, module: str, line: str, contract: str) -> None:
    file = copy_of_the_package / "airflow_trident" / module
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{line}\n")
    result = lint_imports(copy_of_the_package)
    assert result.returncode == 1
    assert f"{contract} BROKEN" in " ".join(result.stdout.split())
