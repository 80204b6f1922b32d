"""Transactional topologies of TransactionalTopologyBuilder as real Airflow tasks, committers among them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.seeds.database import Database
from tests.seeds.global_count import DATA, GLOBAL_COUNT_KEY
from tests.seeds.words import BUCKET_SIZE

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

WORDS = Counter(word for rows in DATA.values() for (word,) in rows)
VERBS = ("coordinate", "emit", "turn", "commit")

DAGS = """
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG
from airflow_trident import FailedException, trident_transaction
from tests.seeds import global_count, words
from tests.seeds.database import Database

FOLDER = Path("FOLDER_HERE")

class Tired(words.BucketCountUpdater):
    \"\"\"The second committer: told to, it gives up once it has written, and before that is known.\"\"\"
    def finish_batch(self):
        super().finish_batch()
        told = FOLDER / f"fail-{self._attempt.txid}"
        if told.exists():
            told.unlink()
            raise FailedException("the bucket database went away", "Try again.")

words.BucketCountUpdater = Tired
two = words.builder(Database(str(FOLDER / "counts.db")), Database(str(FOLDER / "buckets.db")))
one = global_count.builder(Database(str(FOLDER / "global.db")))

with DAG("two", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag_of_two:
    trident_transaction(two.build(), engine="local", **two.config.transaction())

with DAG("one", schedule=None) as dag_of_one:
    trident_transaction(one.build(), spark_conf={"spark.sql.shuffle.partitions": "2"}, **one.config.transaction())
"""
PROGRAM = """
from builders import FOLDER, dag_of_one, dag_of_two
from airflow_trident.hooks.zookeeper import ZooKeeperHook
def play(dag, name):
    done = dag.test()
    return {ti.task_id.removeprefix(name): [ti.state, ti.try_number] for ti in done.get_task_instances()}
"""


@pytest.fixture
def home(airflow_home: AirflowHome) -> AirflowHome:
    airflow_home.write_dag("builders", DAGS.replace("FOLDER_HERE", str(airflow_home.folder)))
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    return airflow_home


def counts(path: Path) -> Counter[str]:
    return Counter({key: value["count"] for key, value in Database(str(path)).all().items()})


def test_two_committers_commit_in_tasks_and_one_that_fails_after_its_write_counts_once(home: AirflowHome) -> None:
    told = home.python(
        PROGRAM
        + """
(FOLDER / "fail-2").touch()
runs = [play(dag_of_two, "top-n-words.") for _ in range(4)]
with ZooKeeperHook().get_ledger("top-n-words") as ledger:
    tell([runs, [[str(tx.status), tx.attempt] for tx in ledger.transactions()]])
"""
    )
    runs, records = told
    assert runs[0] == {verb: ["success", 1] for verb in VERBS}
    assert runs[1] == {**runs[0], "commit": ["success", 2]}
    assert runs[2] == runs[0]
    assert {state for state, _ in runs[3].values()} == {"skipped"}
    assert records == [["COMMITTED", 0]] * 3
    assert counts(home.folder / "counts.db") == WORDS
    buckets = +counts(home.folder / "buckets.db")
    assert buckets == Counter(str(count // BUCKET_SIZE) for count in WORDS.values())
    assert "the bucket database went away" in home.output


@pytest.mark.spark
def test_the_global_count_is_committed_by_tasks_on_spark(home: AirflowHome) -> None:
    told = home.python(PROGRAM + 'tell([play(dag_of_one, "global-count.") for _ in range(3)])')
    assert told == [{verb: ["success", 1] for verb in VERBS}] * 3
    value = Database(str(home.folder / "global.db")).all()
    assert value == {GLOBAL_COUNT_KEY: {"txid": 3, "count": WORDS.total()}}
