"""The "Transactions" page and its API, served by a real API server with real users."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from airflow_trident.cli.commands.doctor import ledger_checks
from airflow_trident.cli.commands.ledger import _list_topologies as list_topologies
from airflow_trident.errors import UnknownTopologyError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import Ledgers, open_ledger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.plugin import page_data, rows, web_app
from airflow_trident.plugin.rows import Sight
from airflow_trident.protocol.diagnosis import Evidence
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.topologies import Definition, SpoutDefinition, StateDefinition
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.storm.workers.deployment import Acknowledgement, Registration, WorkerStatus
from airflow_trident.storm.workers.deployments import Deployments, deploy, undeploy
from tests.fixtures import single
from tests.fixtures.airflow import give_database
from tools.local_airflow.folder import Folder
from tools.local_airflow.rest import wait_until
from tools.local_airflow.services import LocalAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

ROOT = "/plugin-tests"
ONE_STREAM = Definition(spouts={"lines": SpoutDefinition(text="FixedBatchSpout")}, states={})
LARGE = 2**60
"""Browsers cannot count so far."""
SECRET = "the digest password"
EVERY_ROUTE = (
    "/",
    "/page/any/page.js",
    "/page/any/page.css",
    "/api/names",
    "/api/topologies",
    "/api/topologies/words",
    "/api/topologies/words?txid=1",
    "/api/topologies/words/transactions/1",
)
SECRETS_OF_THE_DAG = ("SqliteState", "FixedBatchSpout", "run-a", "alert(1)", "no such folder")
"""What the ledger below has that only those may see who may see its DAG."""


def begin_two(hosts: str) -> None:
    """Transaction 1 of a DAG that Airflow knows nothing of, and 2 of nobody's."""
    definition = Definition(
        spouts={"lines": SpoutDefinition(text="FixedBatchSpout")}, states={"count": StateDefinition(text="SqliteState")}
    )
    with open_ledger(ZooKeeperSettings(hosts=hosts), "words", root=ROOT) as ledger:
        ledger.register(definition)
        for key, dag_id in (("a", "hidden"), ("b", "")):
            claim = Claim(key=key, dag_id=dag_id, run_id=f"run-{key}")
            single.begin(ledger, claim, lambda txid, _position: {"lines": {"from": LARGE + txid}}, max_pending=9)
        attempt = single.attempt(ledger, 1, owner="somebody").attempt
        ledger.fail(1, attempt, "ValueError: <script>alert(1)</script>")
        error = "SourceUnavailableError: there is no such folder"
        ledger.note_coordinator(
            CoordinatorOutcome(
                kind=OutcomeKind.ERROR, dag_id="hidden", run_id="run-a", error=error, lag={"lines": {"files": 3}}
            )
        )


@pytest.fixture(scope="module")
def airflow(
    zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory, airflow_database: Path
) -> Iterator[LocalAirflow]:
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
    give_database(folder, airflow_database)
    local = LocalAirflow(folder, zookeeper.hosts, extra)
    try:
        port = local.environment["AIRFLOW__API__PORT"]
        command = local.command("api-server", "--host", "127.0.0.1", "--port", port, "--workers", "1", "--apps", "core")
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
    assert json.loads(get(airflow, "/api/names", vera)[1]) == {"names": ["words"], "of_dag": []}
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
    of_nobody = json.loads(get(airflow, "/api/topologies/words/transactions/2", vera)[1])
    assert (of_nobody["visible"], of_nobody["metadata"]) == (False, None)


@pytest.mark.parametrize("route", [route for route in EVERY_ROUTE if "/api/" in route])
def test_states_sources_hosts_and_errors_are_left_out_too(airflow: LocalAirflow, vera: str, route: str) -> None:
    status, body = get(airflow, f"{route}{'&' if '?' in route else '?'}dag_id=hidden", vera)
    assert status == 200
    assert not [secret for secret in SECRETS_OF_THE_DAG if secret in body]


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
    shown = rows.row(record, OF_HIDDEN, visible=True)
    assert (shown["visible"], shown["error"]) == (True, "ValueError: <script>alert(1)</script>")


def test_the_page_makes_no_markup_of_what_the_ledger_holds() -> None:
    files = sorted(Path(page_data.__file__).with_name("page").iterdir())
    assert len(files) > 5
    page = "".join(file.read_text(encoding="utf-8") for file in files)
    assert "innerHTML" not in page
    assert "insertAdjacentHTML" not in page


# ---- what the page reads, without a server in between --------------------------------------------------------------

OF_HIDDEN = Sight(frozenset({"hidden"}), unowned=False)
OF_ANOTHER = Sight(frozenset({"another"}), unowned=True)


@pytest.fixture
def here(zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch) -> EmbeddedZooKeeper:
    """This process reads the ledgers that the server serves."""
    begin_two(zookeeper.hosts)
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ROOT)
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts})
    )
    return zookeeper


def test_who_may_see_the_dag_sees_how_its_coordinator_ended_what_it_reads_and_what_is_left(
    here: EmbeddedZooKeeper,
) -> None:
    shown = page_data.transactions("words", OF_HIDDEN)
    assert shown["visible"]
    assert shown["states"] == {"count": "SqliteState"}
    outcome = shown["coordinator"]
    assert (outcome["kind"], outcome["is_bad"], outcome["run_id"]) == ("error", True, "run-a")
    assert outcome["error"] == "SourceUnavailableError: there is no such folder"
    assert outcome["lag"] == {"lines": {"files": 3}}


def test_who_may_see_only_other_dags_sees_numbers(here: EmbeddedZooKeeper) -> None:
    shown = page_data.transactions("words", OF_ANOTHER, txid=2)
    assert (shown["visible"], shown["begun"], shown["failed"]) == (False, 2, [1])
    assert (shown["coordinator"]["kind"], shown["coordinator"]["error"]) == ("error", "")
    assert not [secret for secret in SECRETS_OF_THE_DAG if secret in json.dumps(shown, default=str)]


def test_what_belongs_to_no_dag_is_for_those_who_may_see_connections(here: EmbeddedZooKeeper) -> None:
    with open_ledger(ZooKeeperSettings(hosts=here.hosts), "by-hand", root=f"{ROOT}-own") as ledger:
        ledger.register(ONE_STREAM)
        view = ledger.view(0)
    assert Sight(frozenset(), unowned=True).may_see([""])
    assert not Sight(frozenset({"hidden"}), unowned=False).may_see([""])
    assert rows.summary(Evidence(view=view), visible=True)["streams"] == {"lines": "FixedBatchSpout transactional"}


@pytest.mark.parametrize("route", ["names", "topologies", "topologies/words", "topologies/words/transactions/1"])
def test_without_the_connection_the_page_says_how_to_add_it(
    here: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT")
    monkeypatch.setattr(web_app, "_sight", lambda _user: OF_HIDDEN)
    monkeypatch.setitem(web_app.app.dependency_overrides, get_user, lambda: None)
    answer = TestClient(web_app.app, raise_server_exceptions=False).get(f"/api/{route}")
    assert answer.status_code == 503
    said = answer.json()["detail"]
    assert "`zookeeper_default`" in said
    assert "`airflow trident zookeeper start --add-connection`" in said


def test_numbers_that_browsers_round_are_shown_as_text(here: EmbeddedZooKeeper) -> None:
    details = page_data.transactions("words", OF_HIDDEN, txid=1)["details"]
    assert str(LARGE + 1) in details["metadata_text"]
    assert details["metadata"] == {"lines": {"from": LARGE + 1}}


def test_the_topologies_of_a_dag_are_found_by_it_for_those_who_may_see_it(here: EmbeddedZooKeeper) -> None:
    assert page_data.names(OF_HIDDEN, "hidden", "run-a") == {"names": ["words"], "of_dag": ["words"]}
    assert page_data.names(OF_HIDDEN, "other") == {"names": ["words"], "of_dag": []}
    assert page_data.names(OF_ANOTHER, "hidden") == {"names": ["words"], "of_dag": []}


def test_a_transaction_says_which_code_staged_it_and_where_that_changed(
    here: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__STAGING_DIR", str(tmp_path))
    area = StagingArea(str(tmp_path))
    with open_ledger(ZooKeeperSettings(hosts=here.hosts), "coded", root=ROOT) as ledger:
        ledger.register(ONE_STREAM)
        for txid, digest in ((1, "a1"), (2, "a1"), (3, "b2")):
            single.begin(ledger, Claim(key=str(txid), dag_id="hidden"), lambda *_: {"lines": {}}, max_pending=9)
            attempt = single.attempt(ledger, txid, owner="it").attempt
            slot = Slot(topology="coded", incarnation="one", txid=txid, attempt=attempt)
            made = Manifest(
                slot=slot, files=(), rows_read=0, sinks={}, code={"transform-1": digest, "transform-2": "c"}
            )
            single.processed(ledger, txid, attempt, area.publish(made))

    def code(txid: int, sight: Sight = OF_HIDDEN) -> str:
        said: str = page_data.transactions("coded", sight, txid=txid)["details"]["code"]
        return said

    assert code(2) == "transform-1 a1; transform-2 c"
    assert code(3) == "transform-1 b2: it changed with this transaction; transform-2 c"
    assert code(3, OF_ANOTHER) == ""
    shutil.rmtree(tmp_path)
    assert code(3) == "", "nobody can see what was staged"


def test_the_workers_of_a_topology_are_shown_with_status_and_epoch_and_to_strangers_without_place_and_error(
    here: EmbeddedZooKeeper,
) -> None:
    with Ledgers(ZooKeeperSettings(hosts=here.hosts), root=ROOT) as ledgers:
        ledger, deployments = ledgers.ledger("words"), Deployments(ledgers.znodes, ledgers.root)
        deployments.ensure_folder()
        deploy(ledger, ["w1", "w2"])
        deployments.register(Registration(worker="w1", session="s", host="secret-host", pid=7))
        roster = deployments.roster("words")
        assert roster is not None
        failed = WorkerStatus.INIT_FAILED
        epoch = roster.deployment.epoch
        deployments.acknowledge(
            roster, Acknowledgement(worker="w1", session="s", epoch=epoch, status=failed, error="no secret folder")
        )
        shown = page_data.transactions("words", OF_HIDDEN)["named_workers"]
        hidden = page_data.transactions("words", OF_ANOTHER)["named_workers"]
        page = page_data.transactions("words", OF_ANOTHER)
        [overview] = [one for one in page_data.topologies(OF_ANOTHER) if one["name"] == "words"]
        undeploy(ledger)
    told = f"introduce {epoch}"
    assert [(one["worker"], one["status"], one["epoch"], one["told"]) for one in shown] == [
        ("w1", "init_failed", epoch, told),
        ("w2", "missing", None, told),
    ]
    assert (shown[0]["host"], shown[0]["pid"], shown[0]["error"]) == ("secret-host", 7, "no secret folder")
    assert [one["status"] for one in hidden] == ["init_failed", "missing"]
    assert "secret" not in json.dumps([hidden, overview])
    assert overview["diagnosis"]["text"] == page["diagnosis"]["text"]
    assert any("w2 is not there and w1 cannot load it" in one["why"] for one in page["troubles"])


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per session that this process opens."""
    opened: list[int] = []
    made = ZooKeeperZNodes._new_client

    def counting(znodes: ZooKeeperZNodes) -> object:
        opened.append(1)
        return made(znodes)

    monkeypatch.setattr(ZooKeeperZNodes, "_new_client", counting)
    return opened


def _registered(hosts: str, root: str) -> None:
    with Ledgers(ZooKeeperSettings(hosts=hosts), root=root) as ledgers:
        for number in range(7):
            ledgers.ledger(f"topology-{number}").register(ONE_STREAM)


@pytest.mark.parametrize(
    "look",
    [
        lambda: list_topologies(Namespace(zookeeper_conn_id=None, output="json", check=False)),
        lambda: list(ledger_checks(ZooKeeperHook())),
    ],
)
def test_a_look_opens_one_session_whatever_the_number_of_topologies(
    here: EmbeddedZooKeeper,
    ledger_root: str,
    monkeypatch: pytest.MonkeyPatch,
    sessions: list[int],
    look: Callable[[], object],
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ledger_root)
    _registered(here.hosts, ledger_root)
    sessions.clear()
    look()
    assert sessions == [1]


def test_all_requests_of_the_page_one_after_the_other_use_one_session(
    here: EmbeddedZooKeeper, ledger_root: str, monkeypatch: pytest.MonkeyPatch, sessions: list[int]
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIDENT__ROOT", ledger_root)
    _registered(here.hosts, ledger_root)
    sessions.clear()
    page_data.names(OF_HIDDEN)
    page_data.names(OF_HIDDEN, "hidden")
    page_data.topologies(OF_HIDDEN)
    page_data.transactions("topology-3", OF_HIDDEN, txid=1)
    page_data.transaction("topology-3", 1, OF_HIDDEN)
    with pytest.raises(UnknownTopologyError):
        page_data.transaction("no-such", 1, OF_HIDDEN)
    assert len(page_data.topologies(OF_HIDDEN)) == 7
    assert sessions == [1]


def test_the_page_gives_up_soon_where_tasks_wait_for_zookeeper(here: EmbeddedZooKeeper) -> None:
    with page_data.open_ledgers() as ledgers:
        where = ledgers.znodes.settings
    assert (where.op_deadline_s, where.connect_deadline_s) == (page_data.DEADLINE_S, page_data.DEADLINE_S)
    with ZooKeeperHook().get_ledgers() as ledgers:
        assert ledgers.znodes.settings.op_deadline_s == ZooKeeperSettings(hosts=here.hosts).op_deadline_s
