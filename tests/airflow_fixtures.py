"""A real Airflow in a home of its own: programs run in processes of their own, because Airflow reads its home once."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.ledger.embedded import EmbeddedZooKeeper

# The tests' own process imports Airflow too, which then makes folders in its home.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-trident-tests-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

PROJECT = Path(__file__).parent.parent
MARK = "RESULT "
"""Before the one line of a program's output that is its result, as JSON."""
_PROGRAM = """\
import json, sys
def tell(result):
    print({mark!r} + json.dumps(result), flush=True)
from airflow.utils import db
db.initdb()
{body}
"""


@dataclass
class AirflowHome:
    """`folder`: AIRFLOW_HOME; DAG files go to `dags`. `root`: of the ledgers, nobody else's."""

    folder: Path
    hosts: str
    root: str
    options: dict[str, str] = field(default_factory=dict)
    output: str = ""
    """What the last program printed, the logs of its tasks included."""

    @property
    def dags(self) -> Path:
        return self.folder / "dags"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        connection = {"conn_type": "zookeeper", "host": self.hosts}
        return {
            **kept,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "AIRFLOW__TRIDENT__ROOT": self.root,
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps(connection),
            "PYTHONPATH": str(PROJECT),
            **self.options,
        }

    def write_dag(self, name: str, text: str) -> None:
        (self.dags / f"{name}.py").write_text(text, encoding="utf-8")

    def python(self, body: str, **options: str) -> Any:
        """Run a program with a metadata database; what it gave to ``tell(...)`` last."""
        done = self.run([sys.executable, "-c", _PROGRAM.format(mark=MARK, body=body)], **options)
        self.output = done.stdout
        results = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
        assert results, f"the program told nothing\n{done.stdout}\n{done.stderr}"
        return json.loads(results[-1])

    def airflow(self, *arguments: str, **options: str) -> str:
        """The standard output of an ``airflow`` command that succeeds."""
        return self.run([str(Path(sys.executable).parent / "airflow"), *arguments], **options).stdout

    def run(self, command: list[str], **options: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | options
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture
def airflow_home(tmp_path: Path, zookeeper: EmbeddedZooKeeper, ledger_root: str) -> AirflowHome:
    home = AirflowHome(folder=tmp_path / "airflow", hosts=zookeeper.hosts, root=ledger_root)
    home.dags.mkdir(parents=True)
    return home
