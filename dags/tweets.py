"""Tweets in Redis: users, hashtags, and hashtags by user are counted in three hashes, in one atomic step per batch."""

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import Count, Function, RedisSpout, RedisState, Topology, trident_transaction
from airflow_trident.functions import col, concat, lit

PARTS = {"counter": "{partition}:NEXT_WRITE", "keys": "{partition}:{n}", "num_partitions": 4, "max_rows": 400}


class Words(Function):
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def execute(self, tweet: str) -> Iterator[str]:
        yield from {word for word in tweet.split() if word.startswith(self.mark)}


def count_tweets(name: str, spout: RedisSpout) -> Topology:
    topology = Topology(name)
    tweets = topology.new_stream("tweets", spout)
    *ids, text = tweets.fields  # `ids` identify a tweet
    users = tweets.each(text, Words("@"), "user string").project([*ids, "user"])
    hashtags = tweets.each(text, Words("#"), "hashtag string").project([*ids, "hashtag"])
    both = topology.join([users, hashtags], [ids, ids], [*ids, "user", "hashtag"])
    named = both.each(concat(col("user"), ":", col("hashtag")), "pair")
    tables = [(users, "user", "users"), (hashtags, "hashtag", "hashtags"), (named, "pair", "users_hashtags")]
    counted = [stream.each(lit(table), "counter").project(["counter", word]) for stream, word, table in tables]
    merged = topology.merge(counted, "counter, name").group_by("counter, name")
    merged.persistent_aggregate(RedisState(hash_by="counter"), Count(), "count")
    return topology


forms = {"tweets": RedisSpout(max_rows=400), "tweets_partitioned": RedisSpout(**PARTS)}
for name, spout in {**forms, "tweets_opaque": RedisSpout(**PARTS, opaque=True)}.items():
    with DAG(name, max_active_runs=3):
        trident_transaction(count_tweets(name, spout), max_pending=4, retries=2, retry_delay=timedelta(seconds=1))
