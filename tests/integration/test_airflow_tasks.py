"""The tasks in a real Airflow (``dag.test()``), on a real ledger."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.airflow import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

DAG = '''
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, Asset
from airflow_trident import (
    Count, FailedException, FixedBatchSpout, Function, SqliteState, Topology, TridentBackfillOperator,
    TridentReadySensor, trident_transaction,
)

class Same(Function):
    """Raises on the rows of a transaction while a file says so."""
    def prepare(self, context):
        self.fails = Path(f"FOLDER/fail-{context.txid}").exists()
        if Path("FOLDER/not-today").exists():
            raise FailedException("the rates of today are not there yet", "Wait for them.")
    def execute(self, word):
        if self.fails:
            raise ValueError("told to fail")
        yield word

LINES = [(f"word{number % 3}",) for number in range(10)]
topology = Topology("words")
words = topology.new_stream("lines", FixedBatchSpout("word string", LINES, 4)).each("word", Same(), "same string")
words.group_by("same").persistent_aggregate(SqliteState("FOLDER/words.db"), Count(), "count")

with DAG("words", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:
    trident_transaction(topology, engine="local", ARGUMENTS)

with DAG("again", schedule=None) as again:
    TridentBackfillOperator(task_id="backfill", topology=topology, engine="local", txid="{{ params.txid }}",
        params={"txid": ""})

with DAG("ready", schedule=None) as ready:
    TridentReadySensor(task_id="ready", topology=topology, timeout=0, poke_interval=0, soft_fail=True)
'''
PROGRAM = '''
from pathlib import Path
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.protocol.records import Command
from words import again, dag, ready, topology

HELD = [["word0", 4], ["word1", 3], ["word2", 3]]

def play(dag, conf=None):
    """The states of a run's tasks."""
    run = dag.test(run_conf=conf)
    names = {ti: ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]" for ti in run.get_task_instances()}
    return {name.removeprefix("words."): ti.state for ti, name in names.items()}

def held():
    (spec,) = topology.states.values()
    with spec.factory.make_state(spec) as state:
        return sorted([key[0], value[0]] for key, value in state.items())

def ledger():
    return ZooKeeperHook().get_ledger("words")

def records():
    with ledger() as one:
        return [[str(tx.status), tx.attempt, tx.error] for tx in one.transactions()]
'''
VERBS = ("coordinate", "emit", "turn", "commit")


def write_words(home: AirflowHome, arguments: str = "") -> None:
    home.write_dag("words", DAG.replace("FOLDER", str(home.folder)).replace("ARGUMENTS", arguments))
    home.options["PYTHONPATH"] = f"{home.dags}:{home.environment['PYTHONPATH']}"


def test_runs_commit_one_transaction_each_until_nothing_is_new(airflow_home: AirflowHome) -> None:
    write_words(airflow_home)
    result = airflow_home.python(
        PROGRAM
        + """
before = play(ready)
runs = [play(dag) for _ in range(3)]
after = play(ready)
xcoms = []
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
with create_session() as session:
    xcoms = [[one.task_id, one.key, one.value] for one in session.query(XComModel).filter_by(dag_id="words")]
tell({"runs": [*runs, play(dag)], "held": held() == HELD, "ready": [before, after], "xcoms": xcoms})
"""
    )
    assert result["runs"][:3] == [dict.fromkeys(VERBS, "success")] * 3
    assert set(result["runs"][3].values()) == {"skipped"}
    assert result["held"]
    assert result["ready"] == [{"ready": "success"}, {"ready": "skipped"}]
    links = [value for _, key, value in result["xcoms"] if key == "_link_TransactionLink"]
    assert links
    assert all("/plugin/transactions/trident/?topology=words&txid=" in link for link in links)
    returned = [value for _, key, value in result["xcoms"] if key == "return_value"]
    assert sorted(returned) == [txid for txid in (1, 2, 3) for _ in VERBS]
    for line in (
        "transaction 1 of topology words is begun (lines)",
        "transaction 1 of topology words, attempt 0: 4 rows read, staged 3 for state count (",
        "the turn of transaction 1 of topology words has come",
        "transaction 1 of topology words, attempt 0, is committed: 3 rows in state count (",
        "nothing new for topology words after transaction 3: no transaction is begun.",
    ):
        assert line in airflow_home.output


def test_a_run_maps_over_several_transactions_and_takes_no_new_ones_when_told_to_pause(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home, "max_transactions=2, turn_wait_s=0")
    result = airflow_home.python(
        PROGRAM
        + """
first = play(dag)
with ledger() as one:
    one.set_command(Command.PAUSE)
paused = play(dag)
with ledger() as one:
    one.set_command(Command.RUN)
tell({"runs": [first, paused, play(dag)], "held": held() == HELD})
""",
        AIRFLOW__TRIDENT__RESCHEDULE_S="0",
    )
    mapped = {f"transaction.{verb}[{index}]": "success" for verb in VERBS[1:] for index in (0, 1)}
    first, paused, last = result["runs"]
    assert first == {"coordinate": "success", **mapped}
    assert set(paused.values()) == {"skipped"}
    assert last == {"coordinate": "success", **{name: state for name, state in mapped.items() if "[0]" in name}}
    assert result["held"]
    assert "topology words: its command is pause, and no new transaction begins" in airflow_home.output


def test_a_transaction_that_uses_its_attempts_up_blocks_the_later_ones_until_it_is_replayed(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home, "max_pending=3")
    result = airflow_home.python(
        PROGRAM
        + """
fails = Path("fail-1")
fails.touch()
runs = [play(dag) for _ in range(4)]
before = records()
still_failing = play(again)
fails.unlink()
replayed = play(again)
tell({"runs": runs, "before": before, "again": [still_failing, replayed, play(again)], "after": records(),
    "held": held() == HELD, "next": play(dag)})
"""
    )
    failed, blocked, also_blocked, full = result["runs"]
    assert failed == {"coordinate": "success", "emit": "failed", "turn": "upstream_failed", "commit": "upstream_failed"}
    assert blocked == {"coordinate": "success", "emit": "success", "turn": "failed", "commit": "upstream_failed"}
    assert also_blocked == blocked
    assert full["coordinate"] == "failed"
    statuses = [record[:2] for record in result["before"]]
    assert statuses == [["FAILED", 1], ["PROCESSED", 0], ["PROCESSED", 0]]
    error = result["before"][0][2]
    assert "told to fail" in error
    assert "each" in error
    assert result["again"] == [{"backfill": "failed"}, {"backfill": "success"}, {"backfill": "skipped"}]
    assert [record[:2] for record in result["after"]] == [["COMMITTED", 3], ["COMMITTED", 0], ["COMMITTED", 0]]
    assert result["held"]
    assert set(result["next"].values()) == {"skipped"}
    assert "airflow trident backfill words --txid 1" in airflow_home.output


def test_a_transaction_that_is_skipped_lets_the_later_ones_pass_and_is_counted_once_when_replayed_late(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home, 'on_failure="skip", turn_sensor=False')
    result = airflow_home.python(
        PROGRAM
        + """
fails = Path("fail-2")
fails.touch()
runs = [play(dag) for _ in range(3)]
before = records()
fails.unlink()
late = [play(again, {"txid": 2}) for _ in range(2)]
tell({"runs": runs, "before": before, "late": late, "after": records(), "held": held() == HELD})
"""
    )
    assert [run["commit"] for run in result["runs"]] == ["success", "upstream_failed", "success"]
    assert [record[0] for record in result["before"]] == ["COMMITTED", "SKIPPED", "COMMITTED"]
    assert result["late"] == [{"backfill": "success"}] * 2
    assert [record[0] for record in result["after"]] == ["COMMITTED"] * 3
    assert result["held"]


def test_an_attempt_that_a_function_failed_is_retried_without_a_stack_trace(airflow_home: AirflowHome) -> None:
    write_words(airflow_home, "attempt_timeout=timedelta(minutes=5)")
    result = airflow_home.python(
        PROGRAM
        + """
missing = Path("not-today")
missing.touch()
first = play(dag)
before = records()
missing.unlink()
tell({"first": first, "before": before, "again": play(again)})
"""
    )
    assert result["first"]["emit"] == "failed"
    text = "the rates of today are not there yet. Wait for them."
    assert result["before"] == [["FAILED", 1, f"FailedException: {text}"]]
    assert result["again"] == {"backfill": "success"}
    assert airflow_home.output.count("Task exited") == 2
    assert text in airflow_home.output
    assert "Traceback" not in airflow_home.output


def test_a_transaction_whose_committer_has_failed_is_shown_as_one_that_nobody_works_on(
    airflow_home: AirflowHome,
) -> None:
    write_words(airflow_home)
    result = airflow_home.python(
        PROGRAM
        + """
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_trident import TridentCommitterOperator
from airflow_trident.plugin import page_data

def fails(self, context):
    raise AirflowFailException("told to fail")

works, TridentCommitterOperator.execute = TridentCommitterOperator.execute, fails
run = play(dag)
TridentCommitterOperator.execute = works
sight = page_data.Sight(frozenset({"words"}), unowned=False)

def shown():
    return [[one["txid"], one["status"], one["diagnosis"]["state"], one["diagnosis"]["detail"]] for one in
        page_data.transactions("words", sight)["transactions"]]

before = shown()
play(dag)
tell({"run": run, "before": before, "after": shown()})
""",
        AIRFLOW__TRIDENT__TURN_WAIT_S="1",
    )
    assert (result["run"]["emit"], result["run"]["commit"]) == ("success", "failed")
    ((txid, status, state, why),) = result["before"]
    assert (txid, status, state) == (1, "PROCESSED", "blocked")
    assert "task 'words.commit' of run" in why
    assert why.endswith("is failed")
    assert [one[:3] for one in result["after"]] == [[2, "COMMITTED", "idle"], [1, "COMMITTED", "idle"]]


def test_what_is_processed_and_whose_run_has_ended_is_committed_by_the_next_run_also_without_new_data(
    airflow_home: AirflowHome,
) -> None:
    """The last batch of a day: its run is red after the emitter, and no run after it has new data."""
    write_words(airflow_home)
    result = airflow_home.python(
        PROGRAM
        + """
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_trident import TridentTurnSensor

def fails(self, context):
    raise AirflowFailException("told to fail")

runs = [play(dag), play(dag)]
works, TridentTurnSensor.execute = TridentTurnSensor.execute, fails
runs.append(play(dag))
TridentTurnSensor.execute = works
before = records()
sensed = play(ready)
runs.append(play(dag))
tell({"runs": runs, "before": before, "after": records(), "held": held() == HELD, "more": play(dag),
    "ready": [sensed, play(ready)]})
"""
    )
    assert result["runs"][2]["emit"] == "success"
    assert [status for status, *_ in result["before"]] == ["COMMITTED", "COMMITTED", "PROCESSED"]
    assert result["runs"][3] == dict.fromkeys(VERBS, "success")
    assert [[status, attempt] for status, attempt, _ in result["after"]] == [["COMMITTED", 0]] * 3
    assert result["held"]
    assert set(result["more"].values()) == {"skipped"}
    assert result["ready"] == [{"ready": "success"}, {"ready": "skipped"}]
    assert "transaction 3 waits to be committed" in airflow_home.output


def test_a_ledger_that_does_not_answer_fails_the_task_with_the_reason(airflow_home: AirflowHome) -> None:
    write_words(airflow_home)
    connection = '{"conn_type": "zookeeper", "host": "127.0.0.1:1", "extra": {"connect_deadline_s": 0.5}}'
    result = airflow_home.python(PROGRAM + "tell(play(dag))", AIRFLOW_CONN_ZOOKEEPER_DEFAULT=connection)
    assert result["coordinate"] == "failed"
    assert "ZooKeeper at 127.0.0.1:1 does not answer" in airflow_home.output
    assert "Connection refused" in airflow_home.output


def test_parsing_a_dag_imports_neither_spark_nor_zookeeper_nor_arrow(airflow_home: AirflowHome) -> None:
    write_words(airflow_home, "max_transactions=3, deferrable=True")
    program = "import sys, words; print(sorted({'pyspark', 'kazoo', 'pyarrow', 'pandas'} & set(sys.modules)))"
    done = airflow_home.run([sys.executable, "-c", program])
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_airflow_lists_the_provider_its_options_and_its_plugin(airflow_home: AirflowHome) -> None:
    assert "airflow-trident" in airflow_home.airflow("providers", "list", "-o", "plain")
    assert "ZooKeeper" in airflow_home.airflow("providers", "get", "airflow-trident", "--full", "-o", "json")
    assert "zookeeper" in airflow_home.airflow("providers", "hooks", "-o", "plain")
    option = airflow_home.airflow("config", "get-value", "trident", "zookeeper_conn_id")
    assert option.strip().splitlines()[-1] == "zookeeper_default"
    assert "trident" in airflow_home.airflow("plugins", "-o", "plain")


def test_a_connection_tests_itself_and_says_what_is_wrong(airflow_home: AirflowHome) -> None:
    program = """
from airflow_trident.hooks.zookeeper import ZooKeeperHook
tell([list(ZooKeeperHook(name).test_connection()) for name in (None, "nobody", "wrong")])
"""
    nobody = '{"conn_type": "zookeeper", "host": "127.0.0.1:1", "extra": {"connect_deadline_s": 0.5}}'
    wrong = '{"conn_type": "zookeeper", "host": "zk:2181", "extra": {"use_tls": true}}'
    well, refused, unknown = airflow_home.python(program, AIRFLOW_CONN_NOBODY=nobody, AIRFLOW_CONN_WRONG=wrong)
    assert well == [True, f"ZooKeeper at {airflow_home.hosts} answers; 0 topologies below {airflow_home.root}."]
    assert refused[0] is False
    assert "Connection refused" in refused[1]
    assert unknown[0] is False
    assert "use_tls" in unknown[1]


def test_a_committer_takes_up_what_an_earlier_try_of_it_began_to_emit_again(airflow_home: AirflowHome) -> None:
    write_words(airflow_home, "turn_sensor=False")
    result = airflow_home.python(
        PROGRAM
        + """
import shutil
from airflow_trident import TridentCommitterOperator
from airflow_trident import settings
fails, tries, execute = Path("fail-1"), [], TridentCommitterOperator.execute

def with_an_accident(self, context):
    tries.append(context["ti"].try_number)
    if len(tries) == 1:
        shutil.rmtree(settings.staging_root(None))
        fails.touch()
    else:
        fails.unlink()
    return execute(self, context)

TridentCommitterOperator.execute = with_an_accident
tell({"run": play(dag), "tries": tries, "records": records()})
""",
        AIRFLOW__TRIDENT__TURN_WAIT_S="1",
        AIRFLOW__TRIDENT__RESCHEDULE_S="0",
    )
    assert result["tries"] == [1, 2]
    assert result["run"]["commit"] == "success"
    assert result["records"] == [["COMMITTED", 2, ""]]
