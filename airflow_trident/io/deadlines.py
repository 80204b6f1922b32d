"""How long this package waits for others. Every client of a server takes its deadlines from here, so that a silent one
(stopped, or behind a network that drops what is sent) is an error that names it, and never holds a task for ever.

Clients of databases have theirs as parameters with the same purpose (:mod:`airflow_trident.io.database_limits`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Of one kind of server, in seconds.

    :param connect_s: until a connection is there.
    :param answer_s: until a request is answered; for object stores with the content, otherwise until something comes.
    :param retry_s: how long a request without an answer is begun anew, by the client itself.
    :param where: what a user sets instead, for the table in the documents.
    """

    connect_s: float
    answer_s: float
    retry_s: float = 0
    where: str


REDIS = Deadlines(connect_s=10, answer_s=30, retry_s=30, where="`timeout_s` of the state or spout")
KAFKA = Deadlines(connect_s=30, answer_s=30, where="`timeout_s` of the spout")
OBJECT_STORES = Deadlines(
    connect_s=5,
    answer_s=60,
    retry_s=60,
    where="the connection's extras for time-outs and retries, as its type has them",
)
HDFS = Deadlines(
    connect_s=5, answer_s=60, retry_s=60, where="the extras `connect_timeout`, `read_timeout`, `max_retries`"
)
ZOOKEEPER = Deadlines(connect_s=15, answer_s=20, where="the extras `connect_deadline_s`, `op_deadline_s`")
CLUSTERS = Deadlines(connect_s=10, answer_s=10, where="no setting: the next look asks again")
"""Spark's masters, YARN's resource manager and the API server of Kubernetes, asked about drivers."""

EVERY = {
    "Redis, Valkey": REDIS,
    "Kafka": KAFKA,
    "S3, Azure, Google Cloud Storage": OBJECT_STORES,
    "HDFS (WebHDFS)": HDFS,
    "ZooKeeper": ZOOKEEPER,
    "Spark master, YARN, Kubernetes": CLUSTERS,
}
"""Name in the documents -> its deadlines."""
