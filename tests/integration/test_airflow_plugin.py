"""The "Transactions" page and its API, served by a real API server with real users."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident.demo.folder import Folder
from airflow_trident.demo.rest import wait_until
from airflow_trident.demo.services import LocalAirflow
from airflow_trident.ledger.embedded import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.plugin import reading
from airflow_trident.protocol.records import Claim, Definition, SpoutDefinition, StateDefinition

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

ROOT = "/plugin-tests"
SECRET = "the digest password"
EVERY_ROUTE = ("/", "/api/topologies", "/api/topologies/words", "/api/topologies/words/transactions/1")


def begin_two(hosts: str) -> None:
    """Transaction 1 of a DAG that Airflow knows nothing of, and 2 of nobody's."""
    definition = Definition(
        spouts={"lines": SpoutDefinition(text="FixedBatchSpout")}, states={"count": StateDefinition(text="SqliteState")}
    )
    with open_ledger(ZooKeeperSettings(hosts=hosts), "words", root=ROOT) as ledger:
        ledger.register(definition)
        for key, dag_id in (("a", "hidden"), ("b", "")):
            claim = Claim(key=key, dag_id=dag_id, run_id=f"run-{key}")
            ledger.begin(claim, lambda txid, _position: {"lines": {"from": txid}}, max_pending=9)
        attempt = ledger.start_attempt(1, owner="somebody").attempt
        ledger.fail(1, attempt, "ValueError: <script>alert(1)</script>")


@pytest.fixture(scope="module")
def airflow(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    begin_two(zookeeper.hosts)
    folder = Folder(tmp_path_factory.mktemp("plugin"))
    folder.make()
    connection = {"conn_type": "zookeeper", "host": zookeeper.hosts, "login": "airflow", "password": SECRET}
    extra = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "vera:viewer",
        "AIRFLOW__TRIDENT__ROOT": ROOT,
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps(connection),
    }
    local = LocalAirflow(folder, zookeeper.hosts, extra)
    try:
        local.migrate()
        port = local.environment["AIRFLOW__API__PORT"]
        command = local.command("api-server", "--host", "127.0.0.1", "--port", port, "--workers", "1")
        local.processes.start("api-server", command, local.environment)
        assert wait_until(lambda: bool(local.api.health()), timeout_s=180)
        yield local
    finally:
        local.processes.stop()


def get(airflow: LocalAirflow, path: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(airflow.api.url + "/trident" + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def vera(airflow: LocalAirflow) -> str:
    """A viewer's token."""
    (passwords,) = Path(airflow.environment["AIRFLOW_HOME"]).glob("simple_auth_manager_passwords*")
    body = json.dumps({"username": "vera", "password": json.loads(passwords.read_text())["vera"]}).encode()
    request = urllib.request.Request(
        f"{airflow.api.url}/auth/token", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["access_token"])


@pytest.mark.parametrize("route", EVERY_ROUTE)
def test_nobody_sees_anything_without_login(airflow: LocalAirflow, route: str) -> None:
    status, body = get(airflow, route)
    assert status == 401
    assert "words" not in body


@pytest.mark.parametrize("route", ["/docs", "/openapi.json", "/redoc"])
def test_no_generated_documentation_is_open_to_everybody(airflow: LocalAirflow, route: str) -> None:
    assert get(airflow, route)[0] == 404


def test_a_viewer_gets_the_page_and_what_it_asks_for(airflow: LocalAirflow, vera: str) -> None:
    status, page = get(airflow, "/", vera)
    assert status == 200
    assert "<title>Transactions</title>" in page
    (summary,) = json.loads(get(airflow, "/api/topologies", vera)[1])
    assert (summary["name"], summary["begun"], summary["pending"], summary["failed"]) == ("words", 2, 2, [1])
    shown = json.loads(get(airflow, "/api/topologies/words", vera)[1])
    assert [(one["txid"], one["status"], one["attempt"]) for one in shown["transactions"]] == [
        (2, "PROCESSING", None),
        (1, "FAILED", 0),
    ]


def test_what_belongs_to_a_dag_that_the_user_may_not_see_is_left_out(airflow: LocalAirflow, vera: str) -> None:
    hidden = json.loads(get(airflow, "/api/topologies/words/transactions/1", vera)[1])
    assert (hidden["visible"], hidden["metadata"], hidden["error"], hidden["run_id"], hidden["owner"]) == (
        False,
        None,
        "",
        "",
        "",
    )
    free = json.loads(get(airflow, "/api/topologies/words/transactions/2", vera)[1])
    assert (free["visible"], free["metadata"]) == (True, {"lines": {"from": 2}})


def test_what_is_not_there_is_404_and_says_so(airflow: LocalAirflow, vera: str) -> None:
    for path in (
        "/api/topologies/nope",
        "/api/topologies/words/transactions/7",
        "/api/topologies/words/transactions/0",
    ):
        status, body = get(airflow, path, vera)
        assert status == 404
        assert json.loads(body)["detail"]


def test_no_answer_holds_the_ledgers_password(airflow: LocalAirflow, vera: str) -> None:
    assert not [route for route in EVERY_ROUTE if SECRET in get(airflow, route, vera)[1]]
    assert SECRET not in airflow.processes.log("api-server").read_text()


def test_a_user_who_may_see_the_dag_sees_the_error_as_it_was_written(zookeeper: EmbeddedZooKeeper) -> None:
    begin_two(zookeeper.hosts)
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "words", root=ROOT) as ledger:
        record = ledger.view(1).tx
    assert record is not None
    shown = reading.row(record, {"hidden"})
    assert (shown["visible"], shown["error"]) == (True, "ValueError: <script>alert(1)</script>")


def test_the_page_makes_no_markup_of_what_the_ledger_holds() -> None:
    page = Path(reading.__file__).with_name("page.html").read_text(encoding="utf-8")
    assert "innerHTML" not in page
    assert "insertAdjacentHTML" not in page
