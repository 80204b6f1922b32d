"""Clusters that refuse to say something, and drivers that ended before they did anything: nothing is guessed, no second
driver is submitted beside one that may run, and no order with logins stays."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, TridentDrainOperator
from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.older_orders import OlderOrder
from airflow_trident.engine.spark.order_takers import Taker, take
from airflow_trident.engine.spark.script import HELPER, script_folder
from airflow_trident.engine.spark.submit import NO_TAGS
from airflow_trident.errors import ConfigurationError, MissingExtraError, SparkJobError, TridentError
from airflow_trident.operators.drain import SUBMISSION_KEY, TRY_KEY
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Slot
from airflow_trident.tasks import drivers
from airflow_trident.tasks.drivers import ClusterKind, YarnApplication, find_application
from airflow_trident.tasks.spark_submit import HookSubmit
from airflow_trident.tasks.submitted_drain import Submission, SubmittedDrain
from airflow_trident.triggers import driver as driver_trigger
from airflow_trident.triggers.driver import TridentDriverTrigger

APPLICATION = "application_1_1"
REFUSALS = [(500, "NullPointerException"), (403, "not for you"), (401, "who are you")]


class ResourceManager:
    """Answers each request of YARN's REST interface with `status` and `answer`; `kills`: the status for one that ends
    an application, if it is another."""

    def __init__(self) -> None:
        self.status, self.kills = 404, 0
        self.answer: dict[str, Any] = {"RemoteException": {"message": "no such app"}}
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                content = json.dumps(manager.answer).encode()
                self.send_response_only(manager.kills or manager.status if self.command == "PUT" else manager.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PUT = do_GET  # noqa: N815 - the name that http.server calls

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def refuses(self, status: int, message: str) -> None:
        self.status, self.answer = status, {"RemoteException": {"message": message}}

    def says(self, state: str) -> None:
        self.status, self.answer = 200, {"app": {"state": state, "finalStatus": "UNDEFINED"}}


@pytest.fixture
def manager() -> Iterator[ResourceManager]:
    made = ResourceManager()
    thread = Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def test_a_resource_manager_that_refuses_says_nothing_about_an_application(manager: ResourceManager) -> None:
    application = YarnApplication(resource_manager=manager.url, driver_id=APPLICATION)
    for status in (404, 400):  # it knows no such application; there cannot be one of that name
        manager.refuses(status, "no such application")
        assert (application.state(), application.active()) == ("", False)
    for status, message in REFUSALS:
        manager.refuses(status, message)
        for ask in (
            application.state,
            application.active,
            application.kill,
            lambda: find_application(manager.url, "t"),
        ):
            with pytest.raises(SparkJobError, match=rf"gives no answer at .*status {status}: {message}"):
                ask()


def test_a_trigger_without_an_answer_leaves_the_question_to_the_task(
    manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_trigger, "SETTLE_S", 0.0)
    manager.refuses(403, "not for a triggerer")
    trigger = TridentDriverTrigger("words", APPLICATION, [manager.url], "no_such_connection", 0.0, ClusterKind.YARN)

    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    assert asyncio.run(events()) == [{"driver_id": APPLICATION}]


@pytest.mark.parametrize("lacks", [MissingExtraError("no client", "Install it."), ConfigurationError("no cluster")])
def test_a_trigger_that_lacks_what_the_task_has_leaves_the_question_and_the_kill_to_it(
    lacks: TridentError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(*_: str) -> NoReturn:
        raise lacks

    monkeypatch.setattr(driver_trigger, "SETTLE_S", 0.0)
    monkeypatch.setattr(drivers, "require_extra", require)
    trigger = TridentDriverTrigger("words", "pod-1", ["jobs"], "no_such_connection", 0.0, ClusterKind.KUBERNETES)

    async def events() -> list[Any]:
        found = [event.payload async for event in trigger.run()]
        await trigger.on_kill()  # raises nothing
        return found

    assert asyncio.run(events()) == [{"driver_id": "pod-1"}]


# ---- submitted drains ------------------------------------------------------------------------------------------


@pytest.fixture
def drain(manager: ResourceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedDrain:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": manager.url}
    monkeypatch.setenv("AIRFLOW_CONN_A_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_A_LEDGER", json.dumps({"conn_type": "zookeeper", "host": "127.0.0.1", "port": 1}))
    topology = Topology("words")
    words = topology.new_stream("lines", FixedBatchSpout("word string", ["a"])).group_by("word")
    words.persistent_aggregate(SqliteState(str(tmp_path / "words.db")), Count(), "count")
    return SubmittedDrain(
        topology=topology,
        conn_id="a_yarn",
        conf={},
        app_name="drain",
        zookeeper_conn_id="a_ledger",
        staging_root=str(tmp_path / "staging"),
        say=lambda _: None,
    )


def test_after_a_failed_submission_that_nobody_can_explain_the_next_try_looks_again(
    drain: SubmittedDrain, manager: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: HookSubmit, application: str, arguments: list[str], tags: Any) -> None:
        """YARN has it, its driver takes the order, and spark-submit hears nothing of it."""
        take(arguments[0], Taker.this_process(APPLICATION))
        manager.refuses(500, "busy")
        raise RuntimeError("spark-submit ended with 1")

    monkeypatch.setattr(HookSubmit, "start", lost)
    told: list[Submission] = []
    with pytest.raises(SparkJobError, match="status 500: busy"):
        drain.start(Attempts(owner="me"), Claim(key="first"), DrainLimits(tries=1, group=1), 50, told.append)
    assert not drain.ended, "it is remembered"
    assert os.path.exists(told[-1].order)
    manager.says("RUNNING")
    found = drain.looked_up(told[-1])
    assert found is not None
    assert found.driver_id == APPLICATION


@pytest.mark.parametrize("taken", [True, False], ids=["it had the order", "it never began"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "found by its order"])
def test_of_a_driver_that_ended_before_it_read_its_order_no_login_stays(
    taken: bool, known: bool, drain: SubmittedDrain, manager: ResourceManager, tmp_path: Path
) -> None:
    folder = tmp_path / "staging" / "drains"
    order = driver_orders.place(str(folder), "one", ".order", b"a password")
    if taken:
        take(order, Taker.this_process(APPLICATION))
    manager.says("KILLED")
    submission = Submission(
        order=order,
        result=f"{folder}/one.result",
        driver_id=APPLICATION if known else "",
        masters=(manager.url,),
        cluster=ClusterKind.YARN,
    )
    assert drain.looked_up(submission) is None
    # nobody begins an order that was taken back, though its driver may come late
    assert sorted(os.listdir(folder)) == ([] if taken else ["one.order.taken"])


def test_a_driver_of_an_older_attempt_that_nobody_may_end_stops_no_newer_one(
    drain: SubmittedDrain, manager: ResourceManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Its attempt is fenced, so it can do no harm."""
    manager.says("RUNNING")
    submit = HookSubmit("a_yarn", {}, "an attempt")
    order = OlderOrder(address="/nowhere/one.order", name="one")
    manager.kills = 403
    assert submit.end(order, Taker.this_process(APPLICATION)) == ""
    assert "goes on" in caplog.text


def test_an_order_that_airflow_does_not_remember_leaves_no_login_and_begins_nothing(
    drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forgets(_: Submission) -> NoReturn:
        raise ConnectionError("no API server")

    monkeypatch.setattr(HookSubmit, "start", lambda *_: pytest.fail("submitted"))
    with pytest.raises(ConnectionError):
        drain.start(Attempts(owner="me"), Claim(key="first"), DrainLimits(tries=1, group=1), 50, forgets)
    assert os.listdir(tmp_path / "staging" / "drains") == []


class StateStore(dict[str, Any]):
    """A task's own state store; `told` is called when the task notes a driver."""

    def __init__(self, told: Callable[[], None], **known: Any) -> None:
        super().__init__(known)
        self.told = told

    def set(self, key: str, value: Any, retention: Any) -> None:
        self[key] = value
        if key == SUBMISSION_KEY:
            self.told()

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.mark.parametrize(
    ("state", "resumed", "by_try", "submits"),
    [
        ("RUNNING", False, 1, True),  # a person has cleared the task, and the trigger of its former try is late
        ("KILLED", True, 1, True),  # that trigger was even later, and this try waits in the triggerer by then
        ("KILLED", True, 2, False),  # its own
        ("KILLED", True, None, False),  # an older version deferred it
    ],
)
def test_a_drain_of_another_try_that_is_killed_after_it_was_taken_up_is_replaced(
    state: str,
    resumed: bool,
    by_try: int | None,
    submits: bool,
    drain: SubmittedDrain,
    manager: ResourceManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SubmittedError(Exception):
        pass

    def submitted(*_: Any) -> NoReturn:
        raise SubmittedError

    monkeypatch.setattr(SubmittedDrain, "start", submitted)
    folder = tmp_path / "staging" / "drains"
    order = driver_orders.place(str(folder), "one", ".order", b"a password")
    take(order, Taker.this_process(APPLICATION))
    known = Submission(
        order=order,
        result=f"{folder}/one.result",
        driver_id=APPLICATION,
        masters=(manager.url,),
        cluster=ClusterKind.YARN,
    )
    store = StateStore(lambda: manager.says("KILLED"), **{SUBMISSION_KEY: known.as_json(), TRY_KEY: by_try})
    task = TridentDrainOperator(task_id="drain", topology=drain.topology, spark_conn_id="a_yarn")
    context: Any = {"ti": SimpleNamespace(try_number=2), "task_state_store": store}
    monkeypatch.setattr(task, "attempts", lambda _: None)
    monkeypatch.setattr("airflow_trident.operators.drain.claim_of", lambda *_: None)
    manager.says(state)
    with pytest.raises(SubmittedError if submits else SparkJobError):
        task._drain_submitted(context, resumed=resumed)
    assert os.listdir(folder) == [], "no login stays"
    assert store.get(TRY_KEY) == (2 if submits else by_try)


# ---- attempts --------------------------------------------------------------------------------------------------


def test_the_time_out_of_a_task_ends_what_it_has_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow calls `on_kill` only after the task's `execute` has ended."""
    ended: list[str] = []

    class Hook:
        def on_kill(self) -> None:
            ended.append("driver")

    def waits(self: Any, *_: Any) -> None:
        self._hook = Hook()
        raise AirflowTaskTimeout("execution_timeout")

    monkeypatch.setattr(HookSubmit, "start", waits)
    with pytest.raises(AirflowTaskTimeout):
        HookSubmit("a_yarn", {}, "an attempt")("app.py", [], NO_TAGS)
    assert ended == ["driver"]


def test_the_module_of_a_script_is_never_one_that_somebody_else_put_there(tmp_path: Path) -> None:
    slot = Slot(topology="words", incarnation="i", txid=1, attempt=0)
    planted = tmp_path / slot.path / os.path.basename(HELPER)
    planted.parent.mkdir(parents=True)
    planted.write_text("raise SystemExit('of somebody else')")
    with script_folder(str(tmp_path), slot) as folder:
        offered = Path(folder.helper())
        assert offered.name == planted.name
        assert offered.read_bytes() == Path(HELPER).read_bytes()
        assert offered.parent.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("shared", [".", "words", "words/i/0000000000000000001"])
def test_no_module_of_a_script_lies_where_others_can_put_another_folder_in_its_place(
    shared: str, tmp_path: Path
) -> None:
    slot = Slot(topology="words", incarnation="i", txid=1, attempt=0)
    (tmp_path / slot.path).mkdir(parents=True)
    (tmp_path / shared).chmod(0o775)
    with script_folder(str(tmp_path), slot) as folder:
        assert folder.helper() == HELPER
