"""``airflow trident`` as a person runs it: real processes, a real ledger, an Airflow home of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import UserCodeError
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.topology.topology import Topology
from tests.airflow_fixtures import AirflowHome

MODULE = """
from collections.abc import Iterator
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, Function, SqliteState, Topology

FOLDER = Path(__file__).parent.parent
LINES = ["a b a", "a", "a bad line", "b", "c c", "a"]


class Split(Function):
    def execute(self, line: str) -> Iterator[str]:
        if "bad" in line and not (FOLDER / "mended").exists():
            raise ValueError("this line is bad")
        extra = (FOLDER / "changed").exists()
        yield from line.split() + ["extra"] * extra


def build(name: str, state: str = "counts") -> Topology:
    topology = Topology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line string", LINES, 2)).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(SqliteState(str(FOLDER / "words.db")), Count(), "count", name=state)
    return topology


topology = build("words")
"""
DAG_FILE = """
from airflow.sdk import DAG
from words_topology import topology

from airflow_trident import trident_transaction

with DAG("words_dag"):
    trident_transaction(topology, engine="local")
"""
MANY = """
import io, json, shlex, sys
from contextlib import redirect_stderr, redirect_stdout

from airflow.__main__ import main

results = []
for line in sys.argv[1:]:
    sys.argv = ["airflow", "trident", *shlex.split(line)]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
COUNTS = {"a": 5, "b": 2, "bad": 1, "c": 2, "line": 1}
"""Of all six lines."""


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that a failed command says."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0]


@dataclass
class Site:
    """An Airflow whose DAGs folder has the topology ``words``: transactions of two lines, of which 2 is bad."""

    home: AirflowHome
    module: ModuleType

    @property
    def topology(self) -> Topology:
        built: Topology = self.module.topology
        return built

    @property
    def staging(self) -> str:
        return str(self.home.folder / "trident" / "staging")

    def trident(self, *arguments: str, **options: str) -> Result:
        """One command in a process of its own."""
        return self._run([str(Path(sys.executable).parent / "airflow"), "trident", *arguments], options)

    def tridents(self, *lines: str) -> list[Result]:
        """Several commands, one after the other in one process: starting Airflow is what takes long."""
        done = self._run([sys.executable, "-c", MANY, *lines], {})
        assert done.code == 0, done.err
        return [Result(*result) for result in json.loads(done.out)]

    def _run(self, command: list[str], options: dict[str, str]) -> Result:
        done = subprocess.run(
            command,
            env=self.home.environment | options,
            cwd=self.home.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        with open_ledger(ZooKeeperSettings(hosts=self.home.hosts), "words", root=self.home.root) as ledger:
            yield ledger

    def run_all(self) -> None:
        """1 is committed, 2 is FAILED, 3 is PROCESSED and waits for it."""
        attempts = Attempts(owner="the test", last_try=True)
        with self.ledger() as ledger, LocalEngine() as engine:
            for txid in (1, 2, 3):
                coordinate(ledger, self.topology, Claim(key=f"run {txid}"), max_pending=5)
                expected = pytest.raises(UserCodeError) if txid == 2 else contextlib.nullcontext()
                with expected:
                    process(ledger, self.topology, txid, engine, self.staging, attempts)
            Committer(
                ledger=ledger,
                topology=self.topology,
                staging_root=self.staging,
                attempts=attempts,
                engine=lambda: engine,
            ).commit(1)

    def mend(self) -> None:
        (self.home.folder / "mended").touch()

    def statuses(self) -> list[Status]:
        with self.ledger() as ledger:
            return [record.status for record in ledger.transactions()]

    def counts(self) -> dict[str, int]:
        (spec,) = self.topology.states.values()
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}


@pytest.fixture
def site(airflow_home: AirflowHome) -> Site:
    path = airflow_home.dags / "words_topology.py"
    airflow_home.write_dag("words_topology", MODULE)
    airflow_home.write_dag("words_dag", DAG_FILE)
    spec = importlib.util.spec_from_file_location("words_topology", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Site(airflow_home, module)
