"""``airflow trident``: plans, the doctor, the server, command lines that cannot be meant."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess

import pytest

from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from tests.fixtures.airflow import airflow_home
from tests.fixtures.cli import COUNTS, Result, Site, site

__all__ = ["airflow_home", "site"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]


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
    assert "topology words: transaction 2 is FAILED, and nothing above it may commit before it: UserCode" in result.out


def test_a_coordinator_that_fails_is_seen_by_the_doctor_its_exit_code_and_the_list(site: Site) -> None:
    site.run_all()
    error = "SourceChangedError: the file '001.json' was consumed by an earlier transaction and changed since"
    with site.ledger() as ledger:
        ledger.note_coordinator(CoordinatorOutcome(kind=OutcomeKind.ERROR, dag_id="d", run_id="run-4", error=error))
    doctor, table, listed, one = site.tridents("doctor", "ledger list", "ledger list -o json", "ledger list words")
    assert doctor.code == 1
    assert "fail topology" in " ".join(doctor.out.split())
    assert "topology words: the coordinator failed, and begins nothing: error at " in doctor.out
    assert f"UTC in run run-4 of DAG d: {error}" in doctor.out
    assert (table.code, "error" in table.out) == (0, True)
    (row,) = listed.json()
    assert row["coordinator"] == "error"
    assert f"UTC in run run-4 of DAG d: {error}" in row["problem"]
    assert row["coordinated"].startswith("20")
    assert f"the coordinator failed, and begins nothing: error at {row['coordinated']} UTC in run run-4" in one.out


def test_a_transaction_that_nobody_will_commit_is_named_with_the_command_that_does(site: Site) -> None:
    site.run_all()
    site.mend()
    told = site.trident("doctor").out
    assert "no task works on transaction 3, which is PROCESSED: no task of Airflow is to commit it" in told
    (command,) = re.findall(r"Type `airflow trident (backfill words --txid 3)`", told)
    site.tridents("backfill words --failed --engine local", f"{command} --engine local")
    assert site.counts() == COUNTS


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
    named = {"AIRFLOW__TRIDENT__ZOOKEEPER_CONN_ID": "embedded"}
    started = site.executable("zookeeper", "start", "--data-dir", folder, "--port", "0", **named)
    try:
        assert started.code == 0, started.err
        again, running = site.tridents(f"zookeeper start --data-dir {folder}", f"zookeeper status --data-dir {folder}")
        assert (again.code, "runs already at 127.0.0.1:" in again.out) == (0, True)
        assert running.code == 0
        assert f"data: {folder}" in running.out
        printed = next(line for line in started.out.splitlines() if "AIRFLOW_CONN" in line)
        variable, connection = shlex.split(printed)[-1].split("=", 1)
        doctor = site.trident("doctor", **named, **{variable: connection})
        assert "(no TLS, user trident)" in doctor.out
        assert "access      /" in doctor.out, doctor.out
        assert "world:anyone" not in doctor.out
    finally:
        stopped, nothing = site.tridents(*[f"zookeeper stop --data-dir {folder}"] * 2)
    assert (stopped.code, "ZooKeeper stopped" in stopped.out) == (0, True)
    assert "nothing to stop" in nothing.out


def test_the_connection_to_a_server_is_put_into_the_database_of_airflow_and_follows_its_port(site: Site) -> None:
    unset = site.home.environment | {"AIRFLOW__TRIDENT__ROOT": "/airflow-trident"}
    del unset["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        play = site.home.executable if "start" in words else site.home.command
        return play(*words, environment=unset)

    start = ("trident", "zookeeper", "start", "--add-connection", "--port")
    database = site.home.folder / "airflow.db"
    aside = database.rename(site.home.folder / "aside.db")
    early = run(*start, "0")
    assert (early.returncode, early.stderr.count("\n")) == (1, 1)
    assert "Create it with `airflow db migrate`" in early.stderr
    assert run("trident", "zookeeper", "status").returncode == 1
    aside.replace(database)
    try:
        for _ in range(2):
            started = run(*start, "0")
            assert (started.returncode, "Airflow has it as connection zookeeper_default" in started.stdout) == (0, True)
            assert "world:anyone" not in run("trident", "doctor").stdout
            assert (run("trident", "ledger", "list").returncode, run("trident", "zookeeper", "stop").returncode) == (
                0,
                0,
            )
        run("connections", "delete", "zookeeper_default")
        run("connections", "add", "zookeeper_default", "--conn-type", "zookeeper", "--conn-host", "zk1")
        refused = run(*start, "0")
        assert (refused.returncode, "airflow connections delete zookeeper_default" in refused.stderr) == (1, True)
        assert run("trident", "zookeeper", "status").returncode == 1
    finally:
        run("trident", "zookeeper", "stop")


def test_a_connection_of_the_environment_comes_first_so_none_is_put_into_the_database(site: Site) -> None:
    result = site.executable("zookeeper", "start", "--add-connection", "--port", "0")
    assert result.code == 1
    assert "Unset AIRFLOW_CONN_ZOOKEEPER_DEFAULT first" in result.error
    assert site.trident("zookeeper", "status").code == 1


def test_a_port_that_another_program_has_is_one_line(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = site.executable("zookeeper", "start", "--data-dir", str(site.home.folder / "zk"), "--port", port)
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
