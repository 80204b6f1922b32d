"""dags/tweets.py as it is: through Airflow and Spark, and every form of it against plain loops over the same tweets."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest

from demo.tweet_text import TABLES, generated_tweets, plain_counts
from tests.fixtures.airflow import PROJECT, AirflowHome
from tests.fixtures.redis import shared_server

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

TWEETS = list(generated_tweets(600))
PROGRAM = """
import tweets
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner


spouts = {**tweets.forms, "tweets_opaque": tweets.RedisSpout(**tweets.PARTS, opaque=True)}
ran = []
for form in ("tweets_partitioned", "tweets_opaque"):
    topology = tweets.count_tweets(form, spouts[form])
    with MemoryLedger(form) as ledger, LocalEngine() as engine:
        ran.append(LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=form).run())
from airflow.dag_processing.dagbag import DagBag
bag = DagBag()
for _ in range(3):
    done = bag.dags["tweets"].test()
    ran.append({ti.task_id: ti.state for ti in done.get_task_instances()}["tweets.commit"])
tell({"ran": ran, "dags": sorted(bag.dags)})
"""


def tables_in_redis(where: dict[str, Any], form: str) -> dict[str, Counter[str]]:
    with shared_server().client(where["db"], decode_responses=True) as client:
        found = {table: client.hgetall(f"{{{form}/count}}:data:{table}") for table in TABLES}
    return {table: Counter({name: int(count) for name, count in rows.items()}) for table, rows in found.items()}


def test_three_counts_of_all_forms_are_those_of_a_plain_loop(airflow_home: AirflowHome, where: dict[str, Any]) -> None:
    with shared_server().client(where["db"]) as client, client.pipeline(transaction=False) as pipe:
        for number, tweet in enumerate(TWEETS, 1):
            pipe.set(str(number), tweet)
            pipe.set(f"{number % 4}:{(number + 3) // 4}", tweet)
        pipe.set("NEXT_WRITE", len(TWEETS))
        for partition in range(4):
            pipe.set(f"{partition}:NEXT_WRITE", len(TWEETS) // 4)
        pipe.execute()
    shutil.copy(PROJECT / "dags" / "tweets.py", airflow_home.dags)
    airflow_home.options |= {
        "AIRFLOW_CONN_REDIS_DEFAULT": f"redis://127.0.0.1:{where['port']}/?db={where['db']}",
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
    }
    told = airflow_home.python(PROGRAM)
    assert told["ran"] == [[1, 2], [1, 2], "success", "success", "skipped"]
    assert told["dags"] == ["tweets", "tweets_opaque", "tweets_partitioned"]
    plain = plain_counts(TWEETS)
    for form in told["dags"]:
        assert tables_in_redis(where, form) == plain, form
