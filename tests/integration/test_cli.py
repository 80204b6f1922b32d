"""``airflow trident`` as a person runs it: real processes, a real ledger, an Airflow home of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
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
from airflow_trident.ledger.znodes import Set
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.topology.topology import Topology
from tests.airflow_fixtures import AirflowHome, airflow_home

__all__ = ["airflow_home"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]

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


# ---- ledger ----------------------------------------------------------------------------------------------------


def test_a_new_site_has_no_topologies_and_an_unknown_one_is_one_line_that_names_the_cure(site: Site) -> None:
    everything, as_json, unknown = site.tridents("ledger list", "ledger list -o json", "ledger list wrods")
    assert (everything.code, everything.out) == (0, "no topology has a ledger yet\n")
    assert as_json.json() == []
    assert unknown.code == 1
    assert "no ledger of a topology 'wrods'" in unknown.error
    assert "Known topologies: none" in unknown.error


def test_the_ledger_is_shown_as_it_is_in_tables_and_as_json(site: Site) -> None:
    site.run_all()
    every, as_json, as_table = site.tridents("ledger list -o json", "ledger list words -o json", "ledger list words")
    assert every.json() == [
        {
            "topology": "words",
            "command": "run",
            "next": 4,
            "committed": 1,
            "pending": 2,
            "failed": "2",
            "skipped": None,
            "problem": None,
        }
    ]
    rows = as_json.json()
    assert [(row["txid"], row["status"], row["attempt"]) for row in rows] == [
        (1, "COMMITTED", 0),
        (2, "FAILED", 0),
        (3, "PROCESSED", 0),
    ]
    assert [row["rows_read"] for row in rows] == [2, None, 2]
    assert "this line is bad" in rows[1]["error"]
    assert [line.split("|")[1].strip() for line in as_table.out.splitlines() if line[:1].isdigit()] == [
        "COMMITTED",
        "FAILED",
        "PROCESSED",
    ]


def test_a_damaged_record_is_named_and_the_other_topologies_are_shown_all_the_same(site: Site) -> None:
    site.run_all()
    with open_ledger(ZooKeeperSettings(hosts=site.home.hosts), "damaged", root=site.home.root) as ledger:
        ledger.register(site.topology.definition())
        path = f"{site.home.root}/v1/damaged"
        node = ledger.znodes.read([path]).nodes[path]
        assert node is not None
        ledger.znodes.multi([Set(path, b"{not json", node.version)])
    every, one, healthy = site.tridents("ledger list -o json", "ledger list damaged", "ledger list words")
    assert every.code == 1
    assert [row["topology"] for row in every.json()] == ["damaged", "words"]
    assert path in every.json()[0]["problem"]
    assert (one.code, healthy.code) == (1, 0)
    assert path in one.error


def test_show_says_what_a_transaction_waits_for(site: Site) -> None:
    site.run_all()
    text, as_json, never = site.tridents("ledger show words 3", "ledger show words 2 -o json", "ledger show words 9")
    assert text.code == 0
    assert "for transaction 2, which is FAILED" in text.out
    record = as_json.json()
    assert (record["topology"], record["txid"], record["status"]) == ("words", 2, "FAILED")
    assert never.code == 1
    assert "never began transaction 9; the next one is 4" in never.error


def test_export_writes_the_whole_ledger_to_a_file_or_to_standard_output(site: Site) -> None:
    site.run_all()
    with site.ledger() as ledger:
        expected = ledger.export()
    shown, written, nowhere = site.tridents(
        "ledger export words",
        "ledger export words --output words.json",
        "ledger export words --output words.json/below_a_file.json",
    )
    assert shown.json() == expected
    assert written.code == 0
    assert json.loads((site.home.folder / "words.json").read_text()) == expected
    assert nowhere.code == 1
    assert "cannot be written" in nowhere.error
    over, unreadable = site.tridents("ledger import words words.json", "ledger import words nothing.json")
    assert (over.code, unreadable.code) == (1, 1)
    assert "importing would lose it" in over.error
    assert "cannot be read" in unreadable.error
    site.home.options["AIRFLOW__TRIDENT__ROOT"] = f"{site.home.root}/elsewhere"
    imported, again = site.tridents("ledger import words words.json", "ledger export words")
    assert imported.code == 0, imported.err
    assert imported.out == f"topology words: imported; the next transaction is {expected['next_txid']}\n"
    assert again.json() == expected


def test_a_changed_definition_is_accepted_only_by_a_person_who_is_shown_the_change(site: Site) -> None:
    with site.ledger() as ledger:
        ledger.register(site.module.build("words", state="former_name").definition())
    accepted, again = site.tridents(*["ledger accept words --dag words_dag"] * 2)
    assert accepted.code == 0
    assert "state former_name: " in accepted.out
    assert "-> absent" in accepted.out
    with site.ledger() as ledger:
        assert ledger.topology().definition == site.topology.definition()
    assert "nothing to accept" in again.out


# ---- replaying -------------------------------------------------------------------------------------------------


def test_backfill_of_the_failed_transaction_commits_it_and_those_that_waited_once_each(site: Site) -> None:
    site.run_all()
    failing = site.trident("backfill", "words", "--failed", "--engine", "local")
    assert failing.code == 1
    assert "transaction 2: failed" in failing.out
    assert "this line is bad" in failing.out
    assert site.statuses() == [Status.COMMITTED, Status.FAILED, Status.PROCESSED]
    site.mend()
    mended, again = site.tridents(
        "backfill words --failed --engine local", "backfill words --from 1 --to 3 --engine local --dag words_dag"
    )
    assert mended.code == 0, mended.err
    assert "transaction 2: committed, and with it [3]" in mended.out
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS
    assert again.code == 0
    assert again.out.count("already committed") == 3
    assert site.counts() == COUNTS


def test_a_skipped_transaction_lets_others_pass_and_is_backfilled_late_exactly_once(site: Site) -> None:
    site.run_all()
    site.mend()
    skipped, listed, later = site.tridents(
        "skip words 2 --reason 'it was withdrawn'",
        "ledger list words -o json",
        "backfill words --txid 3 --engine local --dag-file dags/words_dag.py",
    )
    assert (skipped.code, later.code) == (0, 0), later.err
    assert listed.json()[1]["error"].startswith("it was withdrawn (skipped by ")
    assert site.statuses() == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED]
    late = site.trident("backfill", "words", "--txid", "2", "--engine", "local", "--dag-file", "dags/words_dag.py")
    assert late.code == 0, late.err
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS


def test_a_dry_replay_compares_with_what_was_staged_and_changes_nothing(site: Site) -> None:
    site.run_all()
    equal = site.trident("replay", "words", "--txid", "1", "--dry-run", "--engine", "local")
    assert equal.code == 0, equal.err
    assert "state counts: equal (2 rows were staged, 2 replayed)" in equal.out
    before = site.counts()
    (site.home.folder / "changed").touch()
    different = site.trident("replay", "words", "--txid", "1", "--dry-run", "--engine", "local")
    assert different.code == 1
    assert "state counts: DIFFERENT (2 rows were staged, 3 replayed; 0 missing, 1 extra)" in different.out
    assert "+ ('extra', 2)" in different.out
    assert site.counts() == before
    assert site.statuses() == [Status.COMMITTED, Status.FAILED, Status.PROCESSED]


def test_a_topology_without_a_dag_is_an_error_that_lists_what_was_found(site: Site) -> None:
    site.home.write_dag("broken", "from airflow.sdk import DAG\nraise ValueError('this file is broken')\n")
    missing, no_dag = site.tridents("backfill other --failed", "backfill words --failed --dag nothing_dag")
    assert missing.code == 1
    assert "no topology 'other'" in missing.error
    assert "words (DAG words_dag)" in missing.error
    assert "this file is broken" in missing.error
    assert "there is no DAG 'nothing_dag'; found: words_dag" in no_dag.error


def test_two_different_topologies_of_one_name_are_refused_until_the_dag_is_named(site: Site) -> None:
    site.run_all()
    site.mend()
    rival = (
        DAG_FILE.replace("words_dag", "rival_dag")
        .replace("import topology", "import build")
        .replace("(topology", '(build("words", "x")')
    )
    site.home.write_dag("rival_dag", rival)
    refused, named = site.tridents(
        "backfill words --failed --engine local", "backfill words --failed --engine local --dag words_dag"
    )
    assert refused.code == 1
    assert "topology 'words' is one thing in DAG" in refused.error
    assert named.code == 0, named.err
    assert site.counts() == COUNTS


@pytest.mark.spark
def test_backfill_runs_on_spark_unless_told_otherwise(site: Site) -> None:
    site.run_all()
    site.mend()
    conf = ("--spark-conf", "spark.master=local[2]", "--spark-conf", "spark.sql.shuffle.partitions=2")
    mended = site.trident("backfill", "words", "--failed", *conf)
    assert mended.code == 0, mended.err
    assert site.statuses() == [Status.COMMITTED] * 3
    assert site.counts() == COUNTS


# ---- lifecycle -------------------------------------------------------------------------------------------------


def test_pause_and_resume_are_obeyed_by_coordinators(site: Site) -> None:
    site.run_all()
    (paused,) = site.tridents("pause words")
    assert (paused.code, "begins no new transactions" in paused.out) == (0, True)
    with site.ledger() as ledger:
        assert str(ledger.topology().command) == "pause"
    assert site.trident("resume", "words").code == 0
    with site.ledger() as ledger:
        assert (str(ledger.topology().command), ledger.topology().epoch) == ("run", 2)


# ---- plan ------------------------------------------------------------------------------------------------------


def test_plan_finds_a_topology_by_dag_id_by_file_and_by_module_and_attribute(site: Site) -> None:
    by_id, by_file, by_attribute, mermaid = site.tridents(
        "plan words_dag",
        "plan dags/words_dag.py",
        "plan dags/words_topology.py:topology",
        "plan dags/words_topology.py:topology --format mermaid",
    )
    assert by_id.code == 0, by_id.err
    assert by_id.out.startswith("topology words\n")
    assert "compiled plan: 2 stages" in by_id.out
    assert by_file.out == by_id.out
    assert by_attribute.out == by_id.out
    assert mermaid.out.startswith("flowchart TD\n")


def test_a_plan_of_something_else_is_one_clear_line(site: Site) -> None:
    expected = {
        "nothing_dag": "there is no DAG 'nothing_dag'; found: words_dag",
        "dags/nothing.py": "there is no DAG file dags/nothing.py",
        "dags/words_topology.py": "dags/words_topology.py has no task with a topology",
        "dags/words_topology.py:nothing": "has no 'nothing'",
        "dags/words_topology.py:LINES": "is a list, no Topology",
        "nothing.at.all:topology": "nothing.at.all cannot be imported",
    }
    results = site.tridents(*(f"plan {what}" for what in expected))
    for text, result in zip(expected.values(), results, strict=True):
        assert result.code == 1
        assert text in result.error


# ---- doctor ----------------------------------------------------------------------------------------------------


def levels(result: Result) -> dict[str, str]:
    lines = [line.split(maxsplit=2) for line in result.out.splitlines()[:-1]]
    return {subject: level for level, subject, _ in lines}


def test_the_doctor_finds_a_sound_site_sound_and_warns_of_what_everybody_may_change(site: Site) -> None:
    site.run_all()
    result = site.trident("doctor")
    assert result.code == 0, result.out
    found = levels(result)
    assert {found[name] for name in ("java", "pyspark", "pandas", "config", "staging", "connection", "server")} == {
        "ok"
    }
    assert (found["session"], found["access"]) == ("ok", "warn")
    assert "ZooKeeper 3.9.5, standalone" in result.out
    assert "topology words: FAILED transactions 2 hold up later ones" in result.out


def test_the_doctor_fails_with_the_cure_when_zookeeper_does_not_answer(site: Site) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        connection = {
            "conn_type": "zookeeper",
            "host": f"127.0.0.1:{nobody.getsockname()[1]}",
            "extra": {"connect_deadline_s": 1},
        }
        result = site.trident("doctor", AIRFLOW_CONN_ZOOKEEPER_DEFAULT=json.dumps(connection))
    assert result.code == 1
    assert levels(result)["server"] == "warn"
    assert levels(result)["write"] == "fail"
    assert "does not answer" in result.out
    assert "refused" in result.out


def test_the_doctor_is_content_with_a_ledger_that_only_its_user_may_change(site: Site) -> None:
    mine = {"conn_type": "zookeeper", "host": site.home.hosts, "login": "trident", "password": "of the test"}
    others = {**mine, "password": "another"}
    first = site.trident("doctor", AIRFLOW_CONN_ZOOKEEPER_DEFAULT=json.dumps(mine))
    assert (first.code, levels(first)["access"]) == (0, "ok"), first.out
    second = site.trident("doctor", AIRFLOW_CONN_ZOOKEEPER_DEFAULT=json.dumps(others))
    assert (second.code, levels(second)["write"]) == (1, "fail"), second.out
    assert "of the test" not in first.out + second.out


def test_the_doctor_names_a_wrong_setting_and_a_folder_that_cannot_be_written(site: Site) -> None:
    blocked = site.home.folder / "a_file"
    blocked.touch()
    result = site.trident("doctor", "--staging-dir", str(blocked / "below"), AIRFLOW__TRIDENT__MAX_PENDING="many")
    assert result.code == 1
    assert levels(result)["staging"] == "fail"
    assert "[trident] max_pending = 'many'" in result.out
    assert "Set [trident] staging_dir" in result.out


def test_a_connection_that_does_not_exist_is_one_line_with_the_cure(site: Site) -> None:
    result = site.trident("ledger", "list", "--zookeeper-conn-id", "nobody")
    assert result.code == 1
    assert "`nobody` isn't defined" in result.error
    assert "Add a connection of type zookeeper" in result.error


# ---- the server ------------------------------------------------------------------------------------------------


def test_a_server_is_started_once_survives_its_starter_and_is_stopped(site: Site) -> None:
    folder = str(site.home.folder / "zk")
    assert site.trident("zookeeper", "status", "--data-dir", folder).code == 1
    started = site.trident("zookeeper", "start", "--data-dir", folder, "--port", "0")
    try:
        assert started.code == 0, started.err
        again, running = site.tridents(f"zookeeper start --data-dir {folder}", f"zookeeper status --data-dir {folder}")
        assert (again.code, "runs already at 127.0.0.1:" in again.out) == (0, True)
        assert running.code == 0
        assert f"data: {folder}" in running.out
    finally:
        stopped, nothing = site.tridents(*[f"zookeeper stop --data-dir {folder}"] * 2)
    assert (stopped.code, "ZooKeeper stopped" in stopped.out) == (0, True)
    assert "nothing to stop" in nothing.out


def test_a_port_that_another_program_has_is_one_line(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = site.trident("zookeeper", "start", "--data-dir", str(site.home.folder / "zk"), "--port", port)
    assert result.code == 1
    assert f"port {port} on 127.0.0.1 is in use" in result.error


# ---- usage -----------------------------------------------------------------------------------------------------


def test_command_lines_that_cannot_be_meant_end_with_code_2(site: Site) -> None:
    lines = (
        "ledger show words 0",
        "ledger show words first",
        "backfill words",
        "backfill words --failed --txid 1",
        "backfill words --from 2",
        "replay words --txid 1",
        "skip words",
        "backfill words --failed --dag-file dags/words_dag.py --spark-conf spark.ui.enabled",
        "plan words_dag --format png",
        "ledger accept words --dag a --dag-file b",
    )
    assert [result.code for result in site.tridents(*lines)] == [2] * len(lines)
