"""Every client of a server has deadlines: of one that is silent there is one error, which names it and can be retried.

All clients ask at the same time, since they only wait. A client without a deadline fails the wait for its answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from airflow_trident import IcebergTable, TableSpout
from airflow_trident.engine.spark import versions
from airflow_trident.errors import (
    LedgerUnavailableError,
    Outcome,
    OutcomeUnknownError,
    SourceUnavailableError,
    SparkJobError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io import iceberg
from airflow_trident.io.database_limits import CLUSTERS, EVERY, REST_CATALOGS
from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.hdfs_place import WebHdfsPlace
from airflow_trident.io.object_arrow import open_object
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import Place, sizes
from airflow_trident.ledger.znodes import Create
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.spouts.kafka.consumer import KafkaCluster
from airflow_trident.spouts.kafka.ranges import LogPosition, TopicPartition
from airflow_trident.spouts.kafka.spout import KafkaSpout
from airflow_trident.spouts.redis import RedisSpout, RedisStreamSpout
from airflow_trident.states.keyvalue.redis import RedisStateProvider
from airflow_trident.states.redis.state import RedisState
from airflow_trident.tasks import drivers
from tests.faults.silent import Silence, SilentProxy, SilentServer
from tests.fixtures.azurite import account_url
from tests.fixtures.azurite import connection as azure_connection
from tests.fixtures.gcs import connection as gcs_connection
from tests.fixtures.hdfs import connection as hdfs_connection
from tests.fixtures.object_store import Bucket
from tests.fixtures.object_store import connection as s3_connection
from tests.fixtures.redis import shared_server
from tests.fixtures.state import apply, batch, counts, ticket

WAIT_S = 0.5
"""The deadline of each client here."""
LONGEST_S = 90.0
"""Until then each has given up, on a busy machine, with its tries."""
Calls = dict[str, Callable[[], object]]


def redis_calls(hosts: str) -> Calls:
    host, _, port = hosts.rpartition(":")
    where: dict[str, Any] = {"host": host, "port": int(port), "timeout_s": WAIT_S}
    state, in_cluster = RedisState(**where), RedisState(**where, cluster=True)
    stream = RedisStreamSpout(**where, streams="s", fields="n long")
    return {
        "state": lambda: state.make_state(counts(state)),
        "state in a cluster": lambda: in_cluster.make_state(counts(in_cluster)),
        "provider": lambda: RedisStateProvider(**where).new_state("n"),
        "numbered keys": lambda: RedisSpout(**where).coordinator().is_ready(None),
        "stream": lambda: stream.coordinator().is_ready(None),
        "stream's lag": lambda: stream.coordinator().lag(None),
        "stream in a cluster": lambda: replace(stream, cluster=True).coordinator().is_ready(None),
    }


def kafka_calls(hosts: str) -> Calls:
    spout, place = KafkaSpout("t", bootstrap_servers=hosts, timeout_s=WAIT_S), TopicPartition("t", 0)
    metadata = {"topics": {"t": {"id": "T", "partitions": {"0": [0, 5]}, "epochs": {"0": 1}}}}

    def read() -> None:
        for split in spout.emitter().splits(metadata):
            list(spout.emitter().read(split))

    def asked(verb: str, *arguments: Any, **options: Any) -> None:
        with KafkaCluster({"bootstrap.servers": hosts}, "KafkaSpout(t)", WAIT_S) as cluster:
            getattr(cluster, verb)(*arguments, **options)

    return {
        "coordinator": lambda: spout.coordinator().initialize_transaction(2, metadata),
        "lag": lambda: spout.coordinator().lag(metadata),
        "accepting": lambda: spout.coordinator().accept_source(metadata),
        "emitter": read,
        "ids": partial(asked, "topic_ids", ["t"]),
        "offsets": partial(asked, "logs", [place], committed=True),
        "offsets of a time": partial(asked, "offsets_of_time", [place], 5),
        "offsets of a group": partial(asked, "offsets_of_group", [place]),
        "settings": partial(asked, "is_compacted", "t"),
        "cuts": partial(asked, "cuts", {place: LogPosition(3, 1)}),
    }


def storage_calls(storage: Place) -> Calls:
    return {
        "read": lambda: storage.read("a"),
        "range": lambda: storage.read("a", 1, 2),
        "list": lambda: list(storage.list("")),
        "put": lambda: storage.put("a", lambda file: file.write(b"x")),
        "put_once": lambda: storage.put_once("a", b"x"),
        "sizes": lambda: sizes(storage, "", ["a"]),
        "open": lambda: storage.open("a").read(1),
        "check": storage.check,
    }


def object_calls(uri: str) -> Calls:
    place = ObjectAddress.parse("staging", uri).resolved()
    storage = ObstorePlace(place)
    return {
        **storage_calls(storage),
        "delete": lambda: storage.delete(["a", "b"]),
        "open parts": lambda: open_object(place, "a").read(1),
    }


def zookeeper_calls(hosts: str) -> Calls:
    def asked(verb: str, *arguments: Any) -> None:
        settings = ZooKeeperSettings(hosts=hosts, op_deadline_s=WAIT_S, connect_deadline_s=WAIT_S)
        znodes = ZooKeeperZNodes(settings)
        try:
            getattr(znodes, verb)(*arguments)
        finally:
            znodes.close()

    return {
        "read": partial(asked, "read", ["/a"]),
        "multi": partial(asked, "multi", [Create("/a")]),
        "post": partial(asked, "post", [Create("/a")]),
        "ensure": partial(asked, "ensure", "/a"),
        "wait_for_change": partial(asked, "wait_for_change", {"/a": 1}, WAIT_S),
    }


def cluster_calls(hosts: str) -> Calls:
    driver = drivers.DriverCluster(kind=drivers.ClusterKind.STANDALONE, addresses=(f"http://{hosts}",))
    return {
        "standalone": driver.driver("driver-1").state,
        "standalone kill": driver.driver("driver-1").kill,
        "yarn": drivers.YarnApplication(resource_manager=f"http://{hosts}", driver_id="a").state,
        "yarn kill": drivers.YarnApplication(resource_manager=f"http://{hosts}", driver_id="a").kill,
        "yarn find": lambda: drivers.find_application(f"http://{hosts}", "tag"),
    }


def iceberg_calls(hosts: str) -> Calls:
    fields, properties = "word string, n long", {"type": "rest", "uri": f"http://{hosts}"}
    with_login = {**properties, "credential": "user:word"}
    of_sql = {"uri": f"postgresql+psycopg://user:word@{hosts}/d", "warehouse": "/w"}
    table = IcebergTable("sales.orders", properties=properties)
    spout = TableSpout(table, fields=fields)
    return {
        "state": lambda: table.make_state(counts(table)),
        "login": lambda: IcebergTable("sales.orders", properties=with_login).make_state(counts(table)),
        "SQL": lambda: IcebergTable("sales.orders", properties=of_sql).make_state(counts(table)),
        "coordinator": lambda: spout.coordinator().initialize_transaction(1, None),
    }


def calls_of(kind: str, hosts: str) -> Calls:
    match kind:
        case "redis":
            return redis_calls(hosts)
        case "kafka":
            return kafka_calls(hosts)
        case "zookeeper":
            return zookeeper_calls(hosts)
        case "cluster":
            return cluster_calls(hosts)
        case "iceberg":
            return iceberg_calls(hosts)
        case "hdfs":
            return storage_calls(WebHdfsPlace(HdfsAddress.parse("staging", "hdfs://silenthdfs@/p").resolved()))
        case _:
            return object_calls({"s3": "s3", "azure": "abfs", "gcs": "gs"}[kind] + f"://silent{kind}@bucket/p")


ERRORS: dict[str, type[TridentError] | tuple[type[TridentError], ...]] = {
    "redis": (StoreUnavailableError, SourceUnavailableError),
    "kafka": SourceUnavailableError,
    "zookeeper": LedgerUnavailableError,
    "cluster": SparkJobError,
    "iceberg": (StoreUnavailableError, SourceUnavailableError),
    "hdfs": StoreUnavailableError,
    "s3": StoreUnavailableError,
    "azure": StoreUnavailableError,
    "gcs": StoreUnavailableError,
}
Outcomes = dict[tuple[str, str], Future[object]]


@pytest.fixture(scope="module", params=list(Silence), ids=lambda silence: silence.name.lower())
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Outcomes]]:
    """Kind of server -> the answers of all calls."""
    server = SilentServer(request.param)
    with pytest.MonkeyPatch.context() as patch:
        url = f"http://{server.hosts}"
        config = {"connect_timeout": WAIT_S, "read_timeout": WAIT_S, "retries": {"max_attempts": 1}}
        patch.setenv("AIRFLOW_CONN_SILENTS3", s3_connection(url, config_kwargs=config))
        azure = azure_connection(account_url(server.hosts), read_timeout=WAIT_S, connection_timeout=WAIT_S)
        patch.setenv("AIRFLOW_CONN_SILENTAZURE", azure)
        patch.setenv("AIRFLOW_CONN_SILENTGCS", gcs_connection(url, num_retries=1, connect_timeout=WAIT_S))
        patch.setenv(
            "AIRFLOW_CONN_SILENTHDFS",
            hdfs_connection(url, read_timeout_s=WAIT_S, connect_timeout=WAIT_S, max_retries=1),
        )
        patch.setattr(drivers, "CLUSTERS", replace(CLUSTERS, answer_s=WAIT_S))
        patch.setattr(iceberg, "REST_CATALOGS", replace(REST_CATALOGS, connect_s=WAIT_S, answer_s=WAIT_S))
        calls = {kind: calls_of(kind, server.hosts) for kind in ERRORS}
        pool = ThreadPoolExecutor(sum(map(len, calls.values())))
        yield {
            kind: {(kind, name): pool.submit(call) for name, call in of_kind.items()} for kind, of_kind in calls.items()
        }
        server.close()
        pool.shutdown(wait=False)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_server_that_is_silent_from_the_beginning_is_one_error_to_retry(
    kind: str, outcomes: dict[str, Outcomes]
) -> None:
    for call, outcome in outcomes[kind].items():
        error = outcome.exception(timeout=LONGEST_S)
        assert isinstance(error, ERRORS[kind]), (call, error)
        assert error.outcome is Outcome.RETRY, call
        assert error.cure


# ---- behind the gate: servers that answered before ---------------------------------------------------------------


def given_up(call: Callable[[], object], *expected: type[TridentError]) -> None:
    """:param call: ends with one of these errors, in time."""
    pool = ThreadPoolExecutor(1)
    error = pool.submit(call).exception(timeout=LONGEST_S)
    pool.shutdown(wait=False)
    assert isinstance(error, expected), error


def test_a_redis_that_falls_silent_leaves_the_outcome_of_a_commit_open_and_ends_each_read(tmp_path: Path) -> None:
    with SilentProxy(shared_server().hosts) as proxy:
        factory = RedisState(host="127.0.0.1", port=proxy.port, timeout_s=WAIT_S, key=tmp_path.name)
        spec = counts(factory)
        with factory.make_state(spec) as state:
            apply(state, ticket(1), batch(spec, ("a", 1)))
            proxy.hush()
            given_up(state.marker, StoreUnavailableError)
            given_up(lambda: state.get_many([("a",)]), StoreUnavailableError)
            given_up(lambda: list(state.items()), StoreUnavailableError)
            given_up(lambda: state.apply(ticket(2), batch(spec, ("a", 1))), StoreUnavailableError, OutcomeUnknownError)


def test_an_object_store_that_falls_silent_ends_each_verb(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with SilentProxy(bucket.direct.removeprefix("http://")) as proxy:
        monkeypatch.setenv("AIRFLOW_CONN_HUSHED", s3_connection(f"http://{proxy.hosts}", read_timeout_s=1))
        storage = ObstorePlace(ObjectAddress.parse("staging", f"s3://hushed@{bucket.name}"))
        content = b"x" * (8 << 20)
        storage.put("a", lambda file: file.write(content))
        assert storage.read("a") == content
        opened = open_object(storage.address, "a")
        proxy.hush()
        with ThreadPoolExecutor(4) as pool:
            calls: list[Callable[[], object]] = [
                lambda: storage.read("a"),
                opened.read,
                lambda: storage.put("b", lambda file: file.write(content)),
                lambda: list(storage.list("")),
            ]
            list(pool.map(lambda call: given_up(call, StoreUnavailableError), calls))


@pytest.mark.rare
def test_a_spark_connect_server_that_falls_silent_ends_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute: the client waits for two pings."""

    class Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _call: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)

    options = [(name, value and 1_000) for name, value in versions._ALIVE]
    monkeypatch.setattr(versions, "_ALIVE", options)
    server = grpc.server(ThreadPoolExecutor(2), handlers=(Answers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with SilentProxy(f"127.0.0.1:{port}") as proxy:
        channel = versions.channel_of(f"sc://{proxy.hosts}", str(uuid.uuid4())).toChannel()
        call = channel.unary_unary("/spark.connect.SparkConnectService/Any")
        assert call(b"x") == b"x"
        proxy.hush()
        with pytest.raises(grpc.RpcError) as ended:
            call(b"x", timeout=LONGEST_S)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        channel.close()
    server.stop(None)


# ---- the table of the documents ------------------------------------------------------------------------------------


def test_the_documents_have_every_deadline() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
    table = page.partition("## Deadlines")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in table.splitlines() if "|" in line]
    assert rows[2:] == [
        [name, f"{each.connect_s:g}", f"{each.answer_s:g}", f"{each.retry_s:g}" if each.retry_s else "", each.where]
        for name, each in EVERY.items()
    ]
