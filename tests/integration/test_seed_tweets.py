"""The tweets chapter with a real Redis: all three forms of its spout, its bolts, and its committer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from demo.tweet_text import TABLES, generated_tweets, plain_counts
from tests.seeds import tweets

ALL = list(generated_tweets(100))


def counts(client: Any) -> dict[str, Counter[str]]:
    return {
        table: Counter({name: int(count) for name, count in client.hgetall(table).items() if int(count)})
        for table in TABLES
    }


def run(
    form: str, where: dict[str, Any], folder: Path, ledger: MemoryLedger, engine: Engine | None = None
) -> list[int]:
    topology = tweets.builder(form, where).build()
    with engine or LocalEngine() as runs:
        return LocalRunner(ledger=ledger, topology=topology, engine=runs, staging_root=str(folder)).run()


@pytest.mark.parametrize("form", tweets.FORMS)
def test_the_three_hashes_are_those_of_a_plain_loop_also_when_more_tweets_come(
    form: str, where: dict[str, Any], client: Any, tmp_path: Path
) -> None:
    with MemoryLedger("test") as ledger:
        tweets.write_tweets(client, ALL[:70])
        assert run(form, where, tmp_path, ledger)
        assert counts(client) == plain_counts(ALL[:70])
        tweets.write_tweets(client, ALL)
        assert run(form, where, tmp_path, ledger)
        assert counts(client) == plain_counts(ALL)
        assert run(form, where, tmp_path, ledger) == []


@pytest.mark.parametrize("form", tweets.FORMS)
def test_processed_out_of_order_and_in_several_attempts_they_are_committed_once(
    form: str, where: dict[str, Any], client: Any, tmp_path: Path
) -> None:
    tweets.write_tweets(client, ALL)
    topology = tweets.builder(form, where).build()
    attempts = Attempts(owner="test")
    with MemoryLedger("test") as ledger, LocalEngine() as engine:
        ledger.register(topology.definition())
        for number in (1, 2):
            coordinate(ledger, topology, [Claim(key=f"run {number}")], max_pending=5)
        for txid in (1, 2, 1, 2):
            process(ledger, topology, txid, engine, str(tmp_path), attempts)
        committer = Committer(
            ledger=ledger, topology=topology, staging_root=str(tmp_path), attempts=attempts, engine=LocalEngine
        )
        committer.commit(2)
    size = tweets.MAX_TRANSACTION_SIZE * (1 if form == "transactional" else tweets.NUM_PARTITIONS)
    assert counts(client) == plain_counts(ALL[: 2 * size])
    assert client.get(tweets.LAST_COMMITED_TRANSACTION_FIELD) == "2"


@pytest.mark.spark
@pytest.mark.parametrize("form", tweets.FORMS)
def test_on_spark_the_three_hashes_are_the_same(
    form: str, where: dict[str, Any], client: Any, tmp_path: Path, spark_engine: Engine
) -> None:
    tweets.write_tweets(client, ALL[:20])
    topology = tweets.builder(form, where).build()
    with MemoryLedger("test") as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=spark_engine, staging_root=str(tmp_path)).run()
    assert counts(client) == plain_counts(ALL[:20])
