"""The tweets chapter (seed 004), nearly line by line: tweets in one Redis, three hashes in it at the end.

The text's coordinator remembers what it read last in itself, so a restart loses it. Here it takes that from the
metadata of the transaction before, as the chapter's partitioned spouts do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from airflow_trident.storm import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BasicBolt,
    BatchOutputCollector,
    BoltTuple,
    ICommitter,
    OpaquePartitionedTransactionalSpout,
    OutputFieldsDeclarer,
    PartitionedTransactionalSpout,
    TopologyContext,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)

MAX_TRANSACTION_SIZE = 10
NUM_PARTITIONS = 4
LAST_COMMITED_TRANSACTION_FIELD = "LAST_COMMIT"


def connect(conf: Mapping[str, Any]) -> Any:
    return redis.Redis(**conf["redis"], decode_responses=True)


@dataclass
class TransactionMetadata:
    begin: int
    quantity: int


class RQ:
    """Tweets ``prefix1``, ``prefix2`` ... and the number of the next one to write."""

    def __init__(self, conf: Mapping[str, Any], prefix: str = "") -> None:
        self.jedis = connect(conf)
        self.prefix = prefix

    def available_to_read(self, current: int) -> int:
        return self.next_write() - current

    def next_write(self) -> int:
        return int(self.jedis.get(f"{self.prefix}NEXT_WRITE"))

    def messages(self, begin: int, quantity: int) -> list[str]:
        return list(self.jedis.mget([f"{self.prefix}{begin + n}" for n in range(quantity)]))

    def close(self) -> None:
        self.jedis.close()


def behind(last: TransactionMetadata | None, rq: RQ) -> TransactionMetadata:
    """The metadata of the batch after `last`."""
    next_read = 1 if last is None else last.begin + last.quantity
    return TransactionMetadata(next_read, min(rq.available_to_read(next_read), MAX_TRANSACTION_SIZE))


def emit_messages(
    rq: RQ, tx: TransactionAttempt, collector: BatchOutputCollector, meta: TransactionMetadata, prefix: str = ""
) -> None:
    if meta.quantity <= 0:
        return
    for tweet_id, message in enumerate(rq.messages(meta.begin, meta.quantity), meta.begin):
        collector.emit([tx, f"{prefix}{tweet_id}", message])


# ---- the spout -------------------------------------------------------------------------------------------------


class TweetsTransactionalSpoutCoordinator(TransactionalSpout.Coordinator[TransactionMetadata]):
    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.rq = RQ(conf)

    def initialize_transaction(
        self, txid: int, prev_metadata: TransactionMetadata | None
    ) -> TransactionMetadata | None:
        metadata = behind(prev_metadata, self.rq)
        return metadata if metadata.quantity > 0 else None

    def close(self) -> None:
        self.rq.close()


class TweetsTransactionalSpoutEmitter(TransactionalSpout.Emitter[TransactionMetadata]):
    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.rq = RQ(conf)

    def emit_batch(
        self, tx: TransactionAttempt, coordinator_meta: TransactionMetadata, collector: BatchOutputCollector
    ) -> None:
        emit_messages(self.rq, tx, collector, coordinator_meta)

    def close(self) -> None:
        self.rq.close()


class TweetsTransactionalSpout(TransactionalSpout[TransactionMetadata]):
    metadata_class = TransactionMetadata

    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> TweetsTransactionalSpoutCoordinator:
        return TweetsTransactionalSpoutCoordinator(conf)

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> TweetsTransactionalSpoutEmitter:
        return TweetsTransactionalSpoutEmitter(conf)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, tweet_id string, tweet string")


# ---- the bolts -------------------------------------------------------------------------------------------------


class UserSplitterBolt(BasicBolt):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare_stream("users", "txid, tweet_id string, user string")

    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        tweet = tuple.get_string_by_field("tweet")
        tweet_id = tuple.get_string_by_field("tweet_id")
        tx = tuple.get_value_by_field("txid")
        users = set[str]()
        for user in tweet.split():
            # Ensure this is an actual user, and that it's not repeated in the tweet
            if user.startswith("@") and user not in users:
                collector.emit("users", [tx, tweet_id, user])
                users.add(user)


class HashtagSplitterBolt(BasicBolt):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare_stream("hashtags", "txid, tweet_id string, hashtag string")

    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        tweet = tuple.get_string_by_field("tweet")
        tweet_id = tuple.get_string_by_field("tweet_id")
        tx = tuple.get_value_by_field("txid")
        words = set[str]()
        for word in tweet.split():
            if word.startswith("#") and word not in words:
                collector.emit("hashtags", [tx, tweet_id, word])
                words.add(word)


class UserHashtagJoinBolt(BaseBatchBolt[TransactionAttempt]):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, user string, hashtag string, count long")

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.collector = collector
        self.id = id
        self.tweet_hashtags = defaultdict[str, set[str]](set)
        self.user_tweets = defaultdict[str, set[str]](set)

    def execute(self, tuple: BoltTuple) -> None:
        source = tuple.get_source_stream_id()
        tweet_id = tuple.get_string_by_field("tweet_id")
        if source == "hashtags":
            self.tweet_hashtags[tweet_id].add(tuple.get_string_by_field("hashtag"))
        elif source == "users":
            self.user_tweets[tuple.get_string_by_field("user")].add(tweet_id)

    def finish_batch(self) -> None:
        for user, tweets in self.user_tweets.items():
            hashtags_counter = Counter[str]()
            for tweet in tweets:
                hashtags_counter.update(self.tweet_hashtags.get(tweet, ()))
            for hashtag, count in hashtags_counter.items():
                self.collector.emit([self.id, user, hashtag, count])


class RedisCommiterCommiterBolt(BaseTransactionalBolt, ICommitter):
    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.id = id
        self.jedis = connect(conf)
        self.hashtags, self.users, self.users_hashtags = Counter[str](), Counter[str](), Counter[str]()

    def execute(self, tuple: BoltTuple) -> None:
        origin = tuple.get_source_component()
        if origin == "users-splitter":
            self.users[tuple.get_string_by_field("user")] += 1
        elif origin == "hashtag-splitter":
            self.hashtags[tuple.get_string_by_field("hashtag")] += 1
        elif origin == "user-hashtag-merger":
            key = f"{tuple.get_string_by_field('user')}:{tuple.get_string_by_field('hashtag')}"
            self.users_hashtags[key] += tuple.get_integer_by_field("count")

    def finish_batch(self) -> None:
        current = str(self.id.txid)
        with self.jedis:
            if self.jedis.get(LAST_COMMITED_TRANSACTION_FIELD) == current:
                return
            with self.jedis.pipeline(transaction=True) as multi:
                multi.set(LAST_COMMITED_TRANSACTION_FIELD, current)
                for name, counts in self.counted().items():
                    for key, count in counts.items():
                        multi.hincrby(name, key, count)
                multi.execute()

    def counted(self) -> dict[str, Counter[str]]:
        return {"hashtags": self.hashtags, "users": self.users, "users_hashtags": self.users_hashtags}


class OpaqueRedisCommitterBolt(RedisCommiterCommiterBolt):
    """For an opaque spout: it keeps what the last transaction counted, and takes that back if the same transaction
    comes again (previousCount, currentCount and lastTransactionId of the text)."""

    keeps_previous_value = True

    def finish_batch(self) -> None:
        current = str(self.id.txid)
        with self.jedis:
            again = self.jedis.get(LAST_COMMITED_TRANSACTION_FIELD) == current
            last = {name: self.jedis.hgetall(f"{name}:last") if again else {} for name in self.counted()}
            with self.jedis.pipeline(transaction=True) as multi:
                multi.set(LAST_COMMITED_TRANSACTION_FIELD, current)
                for name, counts in self.counted().items():
                    multi.delete(f"{name}:last")
                    for key, count in last[name].items():
                        multi.hincrby(name, key, -int(count))
                    for key, count in counts.items():
                        multi.hincrby(name, key, count)
                        multi.hset(f"{name}:last", key, count)
                multi.execute()


# ---- partitioned and opaque ------------------------------------------------------------------------------------


class TweetsPartitionedTransactionalCoordinator(PartitionedTransactionalSpout.Coordinator):
    def num_partitions(self) -> int:
        return NUM_PARTITIONS

    def is_ready(self) -> bool:
        return True


class TweetsPartitionedTransactionalEmitter(PartitionedTransactionalSpout.Emitter[TransactionMetadata]):
    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.conf = conf

    def emit_partition_batch_new(
        self,
        tx: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_partition_meta: TransactionMetadata | None,
    ) -> TransactionMetadata:
        rq = RQ(self.conf, f"{partition}:")
        metadata = behind(last_partition_meta, rq)
        rq.close()
        self.emit_partition_batch(tx, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        tx: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        partition_meta: TransactionMetadata,
    ) -> None:
        rq = RQ(self.conf, f"{partition}:")
        emit_messages(rq, tx, collector, partition_meta, f"{partition}:")
        rq.close()


class TweetsPartitionedTransactionalSpout(PartitionedTransactionalSpout[TransactionMetadata]):
    metadata_class = TransactionMetadata

    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> TweetsPartitionedTransactionalCoordinator:
        return TweetsPartitionedTransactionalCoordinator()

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> TweetsPartitionedTransactionalEmitter:
        return TweetsPartitionedTransactionalEmitter(conf)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, tweet_id string, tweet string")


class TweetsOpaquePartitionedTransactionalSpoutCoordinator(OpaquePartitionedTransactionalSpout.Coordinator):
    def is_ready(self) -> bool:
        return True


class TweetsOpaquePartitionedTransactionalSpoutEmitter(
    OpaquePartitionedTransactionalSpout.Emitter[TransactionMetadata]
):
    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.conf = conf

    def emit_partition_batch(
        self,
        tx: TransactionAttempt,
        collector: BatchOutputCollector,
        partition: int,
        last_partition_meta: TransactionMetadata | None,
    ) -> TransactionMetadata:
        rq = RQ(self.conf, f"{partition}:")
        metadata = behind(last_partition_meta, rq)
        emit_messages(rq, tx, collector, metadata, f"{partition}:")
        rq.close()
        return metadata

    def num_partitions(self) -> int:
        return NUM_PARTITIONS


class TweetsOpaquePartitionedTransactionalSpout(OpaquePartitionedTransactionalSpout[TransactionMetadata]):
    metadata_class = TransactionMetadata

    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> TweetsOpaquePartitionedTransactionalSpoutCoordinator:
        return TweetsOpaquePartitionedTransactionalSpoutCoordinator()

    def get_emitter(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> TweetsOpaquePartitionedTransactionalSpoutEmitter:
        return TweetsOpaquePartitionedTransactionalSpoutEmitter(conf)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, tweet_id string, tweet string")


FORMS: dict[str, tuple[Any, RedisCommiterCommiterBolt]] = {
    "transactional": (TweetsTransactionalSpout(), RedisCommiterCommiterBolt()),
    "partitioned": (TweetsPartitionedTransactionalSpout(), RedisCommiterCommiterBolt()),
    "opaque": (TweetsOpaquePartitionedTransactionalSpout(), OpaqueRedisCommitterBolt()),
}


def builder(form: str, where: Mapping[str, Any]) -> TransactionalTopologyBuilder:
    spout, committer = FORMS[form]
    builder = TransactionalTopologyBuilder("test", "spout", spout, conf={"redis": dict(where)})
    builder.set_bolt("users-splitter", UserSplitterBolt(), 4).shuffle_grouping("spout")
    builder.set_bolt("hashtag-splitter", HashtagSplitterBolt(), 4).shuffle_grouping("spout")
    (
        builder.set_bolt("user-hashtag-merger", UserHashtagJoinBolt(), 4)
        .fields_grouping("users-splitter", "users", "tweet_id")
        .fields_grouping("hashtag-splitter", "hashtags", "tweet_id")
    )
    (
        builder.set_bolt("redis-committer", committer)
        .global_grouping("users-splitter", "users")
        .global_grouping("hashtag-splitter", "hashtags")
        .global_grouping("user-hashtag-merger")
    )
    return builder


def write_tweets(client: Any, tweets: Sequence[str]) -> None:
    """Write tweets to the single queue and to the partitions."""
    with client.pipeline(transaction=False) as pipe:
        for number, tweet in enumerate(tweets):
            pipe.set(str(number + 1), tweet)
            pipe.set(f"{number % NUM_PARTITIONS}:{number // NUM_PARTITIONS + 1}", tweet)
        pipe.set("NEXT_WRITE", len(tweets) + 1)
        for partition in range(NUM_PARTITIONS):
            pipe.set(f"{partition}:NEXT_WRITE", len(tweets[partition::NUM_PARTITIONS]) + 1)
        pipe.execute()
