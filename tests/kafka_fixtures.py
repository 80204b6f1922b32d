"""A real Kafka broker (KRaft, one node) for tests; its jars come from Maven Central, once per machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.java import java_executable
from tests.spark_fixtures import free_port

KAFKA = "4.1.1"
_JARS = 45
"""As many as this version has: a folder with fewer was left by a download that was cut."""
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{KAFKA}</version></dependency></dependencies></project>
"""
_STARTS_IN_S = 60.0


def kafka_jars() -> Path:
    """A folder with the broker's jars, fetched into the user's cache when they are not there.

    :raises ConfigurationError: they cannot be had here.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-trident"
    folder = cache / f"kafka-{KAFKA}"
    if len(list(folder.glob("*.jar"))) >= _JARS:
        return folder
    maven = shutil.which("mvn")
    if not maven:
        raise ConfigurationError("the jars of a Kafka broker are not here, and neither is mvn", "Install Maven.")
    fresh = cache / f"kafka-{uuid.uuid4().hex}"
    fresh.mkdir(parents=True)
    (fresh / "pom.xml").write_text(_POM)
    command = [
        maven,
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={fresh}",
    ]
    done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        shutil.rmtree(fresh)
        raise ConfigurationError(
            f"Maven cannot fetch Kafka {KAFKA}: {done.stdout[-500:]}", "Let it reach a repository."
        )
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run was first
        fresh.rename(folder)
    return folder


@dataclass
class KafkaBroker:
    """One node. `hosts`: what clients are given; `proxied`: the same broker, through the port of a proxy."""

    folder: Path
    proxy_port: int = 0
    port: int = field(default_factory=free_port)
    _controller: int = field(default_factory=free_port)
    inner: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def behind_the_proxy(self) -> str:
        """Where a proxy on `proxy_port` leads to."""
        return f"127.0.0.1:{self.inner}"

    def start(self) -> None:
        """Returns when it answers. The second start goes on with the data of the first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "server.properties"
        if not settings.exists():
            settings.write_text(self._settings())
            self._java("kafka.tools.StorageTool", "format", "-t", "trident-tests-00000000", "-c", str(settings)).wait(
                60
            )
        self._process = self._java("kafka.Kafka", str(settings))
        until = time.monotonic() + _STARTS_IN_S
        while True:
            try:
                AdminClient({"bootstrap.servers": self.hosts, "log_level": 0}).list_topics(timeout=2)
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"the broker did not start:\n{(self.folder / 'log').read_text()[-3000:]}")
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def _java(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [java_executable(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
        command += [f"{kafka_jars()}/*", program, *arguments]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def _settings(self) -> str:
        proxied = self.proxy_port or self.inner
        return f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{self._controller}
controller.listener.names=CONTROLLER
listeners=PLAIN://127.0.0.1:{self.port},CUT://127.0.0.1:{self.inner},CONTROLLER://127.0.0.1:{self._controller}
advertised.listeners=PLAIN://127.0.0.1:{self.port},CUT://127.0.0.1:{proxied}
listener.security.protocol.map=PLAIN:PLAINTEXT,CUT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
log.dirs={self.folder / "data"}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=100
log.segment.delete.delay.ms=100
"""


# ---- short words for tests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Topic:
    """A topic of one test."""

    broker: KafkaBroker
    name: str

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.hosts})

    def create(self, partitions: int = 1, **settings: str) -> Topic:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        topic = NewTopic(self.name, partitions, 1, config=config)
        self._ask("create_topics", [topic])
        self._await(partitions)
        return self

    def delete(self) -> None:
        self._ask("delete_topics", [self.name])

    def grow(self, partitions: int) -> None:
        self._ask("create_partitions", [NewPartitions(self.name, partitions)])
        self._await(partitions)

    def truncate(self, partition: int, before: int) -> None:
        """As retention does: records below the offset are gone."""
        self._ask("delete_records", [TopicPartition(self.name, partition, before)])

    def set(self, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        self._ask("incremental_alter_configs", [ConfigResource("topic", self.name, incremental_configs=[entry])])

    def send(self, rows: Sequence[tuple[Any, Any]], partition: int = 0, **options: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.hosts, "linger.ms": 0, "acks": "all"})
        for key, value in rows:
            producer.produce(self.name, value, key, partition=partition, **options)
        assert producer.flush(30) == 0

    def transaction(self, rows: Sequence[tuple[Any, Any]], partition: int = 0, *, commit: bool) -> None:
        producer = Producer({"bootstrap.servers": self.broker.hosts, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for key, value in rows:
            producer.produce(self.name, value, key, partition=partition)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def watermarks(self, partition: int = 0) -> tuple[int, int]:
        consumer = Consumer({"bootstrap.servers": self.broker.hosts, "group.id": "tests"})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=30)
        finally:
            consumer.close()
        return low, high

    def _ask(self, verb: str, *arguments: Any) -> None:
        admin = self.admin  # it must live as long as its answers are awaited
        for future in getattr(admin, verb)(*arguments).values():
            future.result(30)

    def _await(self, partitions: int) -> None:
        """The broker tells of new partitions a moment after it made them."""
        until = time.monotonic() + 30
        while len(self.admin.list_topics(self.name, timeout=30).topics[self.name].partitions) < partitions:
            assert time.monotonic() < until


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker for all tests; those that kill one start their own."""
    try:
        kafka_jars()
    except ConfigurationError as error:
        pytest.skip(str(error))
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def topic(kafka: KafkaBroker) -> Topic:
    """A name that nobody else uses; not created yet."""
    return Topic(kafka, f"t-{uuid.uuid4().hex[:12]}")
