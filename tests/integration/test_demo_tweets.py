"""The tweets demonstration's input: made once, damaged at one place, repaired, and found again by the next run."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from airflow_trident.errors import DamagedInputError
from airflow_trident.protocol.records import Claim, StagedRef, Status, TxRecord
from airflow_trident.spouts.redis import RedisSpout
from airflow_trident.testing.suites import batch_rows, metadata_of_all
from demo.changes import batch_of, changes
from demo.folder import DemoFolder
from demo.screen import Screen
from demo.tweet_text import TABLES, generated_tweets, plain_counts
from demo.tweets import FORMS, TRANSACTIONS, Tweets

PARTS = {"counter": "{partition}:NEXT_WRITE", "keys": "{partition}:{n}", "num_partitions": 4, "max_rows": 400}


@pytest.fixture
def folder(tmp_path: Path) -> DemoFolder:
    made = DemoFolder(tmp_path)
    made.make()
    return made


def client_of(play: Tweets) -> Any:
    return play._client()


@pytest.mark.parametrize("form", FORMS)
def test_one_tweet_is_damaged_until_it_is_repaired_and_all_become_so_many_transactions(
    folder: DemoFolder, form: str
) -> None:
    play = Tweets(form)
    with ExitStack() as stack:
        assert "generated tweets, which nobody wrote" in play.prepare(folder, stack)
        options = PARTS if form != FORMS[0] else {"max_rows": 400}
        _, _, port = play.environment(folder)["AIRFLOW_CONN_REDIS_DEFAULT"].rpartition(":")
        spout = RedisSpout(host="127.0.0.1", port=int(port.rstrip("/")), **options)
        every = metadata_of_all(spout)
        assert len(every) == TRANSACTIONS
        with pytest.raises(DamagedInputError, match="no UTF-8"):
            [batch_rows(spout, metadata) for metadata in every]
        assert "written again" in str(play.repair(folder))
        assert play.repair(folder) is None
        found = [row[-1] for metadata in every for row in batch_rows(spout, metadata)]
        assert sorted(found) == sorted(generated_tweets(2400))
    with ExitStack() as stack:
        assert play.prepare(folder, stack).endswith("(of the last run)")
        assert play.repair(folder) is None, "it was not damaged again"


def test_a_server_that_a_killed_demonstration_left_is_stopped_before_another_one_starts(folder: DemoFolder) -> None:
    left, play = Tweets(), Tweets()
    with ExitStack() as never_left, ExitStack() as stack:
        left.prepare(folder, never_left)
        assert play.prepare(folder, stack).endswith("(of the last run)")
        with pytest.raises(RedisError), client_of(left) as client:
            client.ping()
        with client_of(play) as client:
            assert client.ping()
        never_left.pop_all()


def test_the_report_compares_every_count(folder: DemoFolder, capsys: pytest.CaptureFixture[str]) -> None:
    play = Tweets()
    plain = plain_counts(generated_tweets(2400))
    with ExitStack() as stack:
        play.prepare(folder, stack)
        with client_of(play) as client:
            for table in TABLES:
                client.hset(f"{{tweets/count}}:data:{table}", mapping=dict(plain[table]))
            assert play.report(Screen(), folder, {})
            client.hincrby("{tweets/count}:data:users", "@user7", 1)
            assert not play.report(Screen(), folder, {})
    said = capsys.readouterr().out
    assert "EQUAL" in said
    assert f"users @user7: {plain['users']['@user7'] + 1} instead of {plain['users']['@user7']}" in said


def test_a_user_or_hashtag_that_is_twice_in_a_tweet_counts_once() -> None:
    counts = plain_counts(["@a #x @a #x #y", "@b nothing", "@b #y"])
    assert counts["users"] == Counter({"@a": 1, "@b": 2})
    assert counts["hashtags"] == Counter({"#x": 1, "#y": 2})
    assert counts["users_hashtags"] == Counter({"@a:#x": 1, "@a:#y": 1, "@b:#y": 1})


def test_batches_of_partitions_are_told_as_ranges() -> None:
    parts = {"0": {"from": 1, "to": 401}, "3": {"from": 201, "to": 202}}
    record = TxRecord(
        txid=1,
        status=Status.PROCESSED,
        attempt=0,
        metadata={"tweets": {"parts": parts, "kept": {}, "behind": "3"}},
        claim=Claim(key="1"),
        op="",
        staged=StagedRef(manifest="m", rows_read=401, rows={"count": 90}, bytes=1),
    )
    assert batch_of(record) == "0: 1-400, 3: 201-201"
    told = [line.text for line in changes({}, {1: record}, read="tweets", staged="counts")]
    assert "PROCESSED  401 tweets -> 90 counts staged" in told
