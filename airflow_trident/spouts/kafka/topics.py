"""Which topics of which cluster a KafkaSpout reads, and the options by which its batches are decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_trident.contracts.spout import OnDataLoss
from airflow_trident.errors import ConfigurationError
from airflow_trident.io import connections
from airflow_trident.spouts.kafka.consumer import KafkaCluster, TopicGoneError
from airflow_trident.spouts.kafka.ranges import FirstPoll, KafkaBatch, LogOffsets, TopicPartition, lags

_CALLBACKS = ("error_cb", "throttle_cb", "stats_cb", "log_cb", "oauth_cb", "on_commit")


@dataclass(frozen=True, kw_only=True)
class KafkaTopics:
    """The topics of a cluster. `settings` may contain secrets."""

    topics: tuple[str, ...]
    pattern: str | None
    conn_id: str | None
    settings: Mapping[str, Any] = field(repr=False)
    who: str

    def require_complete(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigurationError(f"{self.who} needs either topics or a pattern", "Give it one of them.")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(f"{self.who} with pattern={self.pattern!r}: {error}", "Mend it.") from error
        if self.conn_id is None and "bootstrap.servers" not in self.settings:
            raise ConfigurationError(
                f"{self.who} does not know its cluster", 'Give it conn_id="kafka_default" or bootstrap_servers.'
            )

    def describe(self) -> str:
        return f"{self.who}({', '.join(self.topics) if self.pattern is None else f'pattern {self.pattern}'})"

    def wants(self, topic: str) -> bool:
        """A pattern leaves out the cluster's own topics."""
        if self.pattern is None:
            return topic in self.topics
        return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None

    def require_group(self) -> None:
        """:raises ConfigurationError: the settings name no consumer group."""
        if "group.id" not in self.settings:
            raise ConfigurationError(
                f'{self.describe()} with first_poll="uncommitted_..." does not know which consumer group is asked',
                'Give it config={"group.id": ...}, or add group.id to the extras of the connection.',
            )

    def resolved(self, *, required: bool = True) -> KafkaTopics:
        """The same with the connection's settings.

        :raises ConfigurationError: `required`, and the connection is unknown; or the connection cannot be used.
        """
        connection = connections.resolve_if(self.conn_id, required=required)
        if connection is None:
            return self
        settings = {**connection.extra, **self.settings}
        if "bootstrap.servers" not in settings:
            raise ConfigurationError(
                f"the connection {self.conn_id!r} does not say bootstrap.servers in its extras", "Add it there."
            )
        if callbacks := [name for name in _CALLBACKS if isinstance(settings.get(name), str)]:
            raise ConfigurationError(
                f"the connection {self.conn_id!r} names a function as {callbacks[0]}, which is not looked up here",
                f"Give the spout the function itself, as in config={{{callbacks[0]!r}: function}}.",
            )
        return replace(self, conn_id=None, settings=settings)

    def logs(self, cluster: KafkaCluster, before: KafkaBatch, *, committed: bool) -> dict[TopicPartition, LogOffsets]:
        """The offsets of all partitions as they are, and not as they were before what is known of them.

        :raises SourceUnavailableError: a topic in `topics` does not exist and never did.
        """
        return cluster.retried(
            lambda: self._answered(cluster, before, committed=committed), lambda logs: not lags(before, logs)
        )

    def _answered(
        self, cluster: KafkaCluster, before: KafkaBatch, *, committed: bool
    ) -> dict[TopicPartition, LogOffsets]:
        topics = {name: count for name, count in cluster.topics().items() if self.wants(name)}
        if missing := [name for name in self.topics if name not in topics and name not in before.ids]:
            raise TopicGoneError(
                f"{self.describe()}: there is no topic {missing[0]!r}", "Make it, or correct its name."
            )
        places = [TopicPartition(name, number) for name in sorted(topics) for number in range(topics[name])]
        return cluster.logs(places, committed=committed)

    def open(self, timeout_s: float) -> KafkaCluster:
        return KafkaCluster(self.resolved().settings, self.describe(), timeout_s)


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options by which batches are decided; see the parameters of :class:`KafkaSpout`."""

    first_poll: FirstPoll
    start_ms: int | None
    max_rows: int
    max_bytes: int | None
    committed: bool
    on_data_loss: OnDataLoss
    timeout_s: float


def milliseconds(moment: datetime) -> int:
    """Since 1970: the first one that is not before `moment`. Brokers take negative numbers for the ends of a log."""
    return max(0, -((datetime.fromtimestamp(0, UTC) - moment) // timedelta(milliseconds=1)))
