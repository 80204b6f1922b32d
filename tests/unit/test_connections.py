"""Connections of states and spouts: from Airflow or from the environment, and never their secrets in a text."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from airflow.sdk import BaseHook
from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import supervisor, task_runner
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.secrets.execution_api import ExecutionAPISecretsBackend

from airflow_trident.errors import ConfigurationError, Outcome, RetryableError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection, resolve, resolve_if
from airflow_trident.names import EngineKind
from airflow_trident.tasks.engines import install_resolver, make_engine
from airflow_trident.tasks.submitted_drain import is_submitted

SECRET = "s3cr/t@:word"


@pytest.fixture(autouse=True)
def nobody_answers() -> Iterator[None]:
    connections.install(None)
    yield
    connections.install(None)


CONNECTIONS = {
    "everything": AirflowConnection(
        conn_id="db",
        conn_type="postgres",
        host="db.example",
        port=5433,
        schema="sa/les",
        login="me & you",
        password=SECRET,
        extra='{"sslmode": "require", "options": {"deep": ["inside"]}, "n": 3}',
    ),
    "extras as text": AirflowConnection(
        conn_id="db", conn_type="redis", host="r", extra='{"db": "3", "ssl": "true"}', schema="s"
    ),
    "type with an underscore": AirflowConnection(conn_id="db", conn_type="google_cloud", host="g", password=SECRET),
    "host alone": AirflowConnection(conn_id="db", conn_type="postgres", host="localhost"),
}


@pytest.mark.parametrize("form", ["uri", "json"])
@pytest.mark.parametrize("which", CONNECTIONS)
def test_what_airflow_writes_into_the_environment_means_the_same_without_airflow(
    which: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = CONNECTIONS[which]
    monkeypatch.setenv("AIRFLOW_CONN_DB", given.get_uri() if form == "uri" else given.as_json())
    assert resolve("db") == Connection(
        conn_id="db",
        conn_type=given.conn_type or "",
        host=given.host or "",
        port=given.port,
        schema=given.schema or "",
        login=given.login or "",
        password=given.password or "",
        extra=given.extra_dejson,
    )


@pytest.mark.parametrize("which", CONNECTIONS)
def test_inside_airflow_the_task_sdk_is_asked(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", CONNECTIONS[which].as_json())
    alone = resolve("db")
    install_resolver()
    monkeypatch.setenv("AIRFLOW_CONN_DB", "")
    asked = []

    def get_connection(conn_id: str) -> AirflowConnection:
        asked.append(conn_id)
        return CONNECTIONS[which]

    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", get_connection)
    assert resolve("db") == alone
    assert asked == ["db"]


def test_threads_ask_airflow_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    install_resolver()
    two, met = threading.Barrier(2), list[str]()

    def get_connection(conn_id: str) -> AirflowConnection:
        with suppress(threading.BrokenBarrierError):
            two.wait(0.5)
            met.append(conn_id)
        return AirflowConnection(conn_id=conn_id, conn_type="redis")

    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", get_connection)
    with ThreadPoolExecutor(2) as pool:
        assert [one.conn_id for one in pool.map(resolve, ["one", "other"])] == ["one", "other"]
    assert met == []


@pytest.mark.parametrize("installed", [True, False])
def test_an_unknown_connection_is_one_error_that_says_where_to_add_it(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        install_resolver()
    assert resolve_if("nobody_knows", required=False) is None
    expected = RetryableError if installed else ConfigurationError
    with pytest.raises(expected, match=r"no connection 'nobody_knows'.*AIRFLOW_CONN_NOBODY_KNOWS"):
        resolve("nobody_knows")


@pytest.mark.parametrize(
    "written",
    [
        f"no scheme {SECRET}",
        f"postgres://me:{SECRET}x@host:port/db",
        f'{{"password": "{SECRET}"',
        f'{{"password": "{SECRET}", "port": "many"}}',
        f'{{"extra": "[\\"{SECRET}\\"]"}}',
    ],
)
def test_a_connection_that_cannot_be_read_is_an_error_without_what_is_written(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", written)
    with pytest.raises(ConfigurationError, match=r"'db' cannot be read: AIRFLOW_CONN_DB") as caught:
        resolve("db")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_extras_that_are_not_an_object_are_an_error_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install_resolver()
    given = AirflowConnection(conn_id="db", conn_type="postgres", extra=f'["{SECRET}"]')
    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", lambda conn_id: given)
    with pytest.raises(ConfigurationError, match="extras of the connection 'db'") as caught:
        resolve("db")
    assert SECRET not in str(caught.value)


def test_secrets_are_in_no_text_and_taken_out_of_what_drivers_say() -> None:
    connection = Connection(
        conn_id="db",
        conn_type="postgres",
        host="db.example",
        port=5433,
        schema="sales",
        login="me",
        password=SECRET,
        extra={"token": "in extras", "deep": [{"key": "at the bottom"}], "n": 3, "short": "on"},
    )
    assert connection.describe() == "postgres://db.example:5433/sales"
    said = f"refused: {connection!r} password={SECRET} in extras, at the bottom, on and on"
    for text in (repr(connection), str(connection), connection.conceal(said)):
        assert not any(secret in text for secret in (SECRET, "in extras", "at the bottom"))
    assert connection.conceal(said).endswith("password=*** ***, ***, on and on")
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert hash(connection) == hash(pickle.loads(pickle.dumps(connection)))


def test_without_a_host_a_connection_is_still_described() -> None:
    assert Connection().describe() == "connection://"


def of_airflow(kind: ErrorType) -> AirflowRuntimeError:
    return AirflowRuntimeError(ErrorResponse(error=kind))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (of_airflow(ErrorType.API_SERVER_ERROR), Outcome.RETRY),
        (of_airflow(ErrorType.GENERIC_ERROR), Outcome.RETRY),
        (ConnectionRefusedError(111, "Connection refused"), Outcome.RETRY),
        (of_airflow(ErrorType.PERMISSION_DENIED), Outcome.FAIL),
        (PermissionError("Access denied for connection 'mine' by Execution API"), Outcome.FAIL),
        (ValueError(f"no URI: postgres://user:{SECRET}@h"), Outcome.FAIL),
    ],
    ids=lambda one: str(one)[:20],
)
def test_what_airflow_or_its_secrets_backend_raises_names_the_connection_and_not_its_secrets(
    error: Exception, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_connection(_conn_id: str) -> AirflowConnection:
        raise error

    monkeypatch.setattr(BaseHook, "get_connection", get_connection)
    install_resolver()
    with pytest.raises(RetryableError if expected is Outcome.RETRY else ConfigurationError) as caught:
        resolve("mine")
    assert "'mine'" in str(caught.value)
    assert caught.value.outcome is expected
    assert caught.value.cure
    assert SECRET not in str(caught.value)


class Silent:
    """A secrets backend that fails, and the answers of Airflow's API server to a task."""

    def __init__(self, answer: ErrorType) -> None:
        self.answer = answer

    def get_connection(self, **_which: str) -> None:
        raise TimeoutError

    def send(self, _asked: object) -> ErrorResponse:
        return ErrorResponse(error=self.answer)


@pytest.mark.parametrize(
    "answer", [ErrorType.CONNECTION_NOT_FOUND, ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR]
)
def test_a_connection_that_airflow_calls_undefined_without_an_answer_is_retried(
    answer: ErrorType, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent(answer)
    monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: [silent, ExecutionAPISecretsBackend()])
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", silent, raising=False)
    install_resolver()
    for ask in (
        lambda: resolve("mine"),
        lambda: make_engine(EngineKind.SPARK, conn_id="mine", conf={}, app_name="words"),
        lambda: is_submitted("spark", "mine"),
        lambda: ZooKeeperHook("mine").get_ledger("words"),
    ):
        with pytest.raises(RetryableError, match=r"mine.*[Aa]dd") as caught:
            ask()
        asks_for_zookeeper = "type zookeeper" in caught.value.cure
        assert asks_for_zookeeper == ("isn't defined" in str(caught.value))
