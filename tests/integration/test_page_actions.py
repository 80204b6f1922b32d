"""What is done on the page "Transactions": asked of a real API server by users with different rights, and read from the
ledger, Airflow's database and its audit log."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.protocol.records import Command, Status
from airflow_trident.tasks.mending_order import MENDING_DAG
from tests.fixtures import single
from tests.fixtures.ledger import commit
from tests.fixtures.page import DEFINITION, MENDING, PageServer, begin, empty_dag, fail, page_server
from tests.fixtures.page_actions import (
    TWO_TOPOLOGIES,
    audit,
    claim_again,
    committed_in_two,
    numbers,
    of_two_dags,
    run_of,
    seen,
    start_run,
    state_of_run,
    tx,
    whole,
)
from tests.fixtures.page_days import LONG_AGO, begin_key, put_days
from tests.fixtures.page_ledgers import put_three

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def page(
    zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory, airflow_database: Path
) -> Iterator[PageServer]:
    dags = {name: empty_dag(name) for name in ("words", "others")} | {"mending": MENDING, "two": TWO_TOPOLOGIES}
    folder = tmp_path_factory.mktemp("page")
    with page_server(folder, zookeeper.hosts, "/page-actions", dags, airflow_database) as server:
        yield server


@pytest.fixture
def topology(page: PageServer) -> str:
    return put_three(page, f"topology-{next(numbers)}")


def test_a_file_name_that_is_not_utf_8_hides_no_topology_from_the_page(page: PageServer) -> None:
    name = f"topology-{next(numbers)}"
    with page.ledger(name) as ledger:
        ledger.register(DEFINITION)
        begin(ledger, 1, metadata={"files": [["in/\udcff.txt", 3, 1, 0]]})
        fail(ledger, 1)
    assert name in [one["name"] for one in page.ask("ada", "GET", "/api/topologies").raise_for_status().json()]
    details = page.shown(name, query="?txid=1")["details"]
    assert "\udcff.txt" in details["batch"]["lines"]
    answer = page.act("uwe", name, action="skip", **{**seen(page, name, 1), "reason": "it is\0 empty"})
    assert answer.status_code == 200, answer.text
    assert "it is\\x00 empty (skip by uwe" in tx(page, name, 1).error


# ---- each action, and its effect -----------------------------------------------------------------------------------


def test_a_skip_lets_others_pass_and_keeps_who_and_why(page: PageServer, topology: str) -> None:
    answer = page.act("uwe", topology, action="skip", **seen(page, topology, 1))
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == "transaction 1 is SKIPPED: later ones may pass"
    record = tx(page, topology, 1)
    assert record.status is Status.SKIPPED
    assert record.error == "because (skip by uwe on the page)"
    assert audit(page, topology) == [("trident_skip", "uwe", "words")]


def test_what_was_skipped_and_passed_is_closed(page: PageServer, topology: str) -> None:
    with page.ledger(topology) as ledger:
        ledger.skip(1, "withdrawn")
        commit(ledger, 2)
    assert page.act("ada", topology, action="close", **seen(page, topology, 1)).status_code == 200
    assert tx(page, topology, 1).status is Status.CLOSED


def test_pause_and_resume_are_the_commands_of_the_topology(page: PageServer, topology: str) -> None:
    for action, command in (("pause", Command.PAUSE), ("resume", Command.RUN)):
        offered = page.shown(topology)["diagnosis"]["actions"]
        assert action in offered
        assert page.act("ada", topology, action=action, **seen(page, topology)).status_code == 200
        with page.ledger(topology) as ledger:
            assert ledger.topology().command is command
    assert [event for event, _, _ in audit(page, topology)] == ["trident_pause", "trident_resume"]


@pytest.mark.parametrize("action", ["backfill", "accept-source", "bisect"])
def test_what_needs_code_is_a_run_of_the_mending_dag_that_is_told_what_was_seen(
    page: PageServer, topology: str, action: str
) -> None:
    answer = page.act("uwe", topology, action=action, **seen(page, topology, 1))
    assert answer.status_code == 200, answer.text
    run = run_of(page, answer.json()["run_id"])
    assert (run["state"], run["note"], run["triggering_user_name"]) == ("queued", "because", "uwe")
    assert run["conf"] == {
        "action": action,
        "topology": topology,
        "dag_id": "words",
        "incarnation": page.shown(topology)["incarnation"],
        "reason": "because",
        "by": "uwe",
        "txid": 1,
        "seen_status": "FAILED",
        "seen_attempt": 0,
    }
    (shown,) = page.shown(topology)["mending"]
    assert (shown["action"], shown["state"], shown["by"]) == (action, "queued", "uwe")


@pytest.mark.parametrize("span", [{}, {"first": 1, "last": 3}])
def test_a_backfill_is_of_a_range_or_of_what_is_unfinished(page: PageServer, topology: str, span: Any) -> None:
    answer = page.act("uwe", topology, action="backfill", **seen(page, topology), **span)
    assert answer.status_code == 200, answer.text
    conf = run_of(page, answer.json()["run_id"])["conf"]
    assert {name: conf[name] for name in ("first", "last") if name in conf} == span
    assert "txid" not in conf


def test_failed_runs_of_what_is_committed_are_cleared_and_no_others(page: PageServer, topology: str) -> None:
    runs = {f"{topology}-{name}": number for number, name in enumerate(("green", "red", "half", "waits"), 4)}
    for number, run_id in enumerate(runs):
        start_run(page, run_id, failed=("commit",) if number else ())
    with page.ledger(topology) as ledger:
        for run_id, number in runs.items():
            begin(ledger, number, run_id=run_id)
        ledger.skip(1, "withdrawn")
        for txid in range(2, 7):
            commit(ledger, txid)
    assert page.shown(topology)["red_runs"] == [
        {"dag_id": "words", "run_id": f"{topology}-{name}"} for name in ("half", "red")
    ]
    with page.ledger(topology) as ledger:  # the second transaction of that run
        claim_again(ledger, f"{topology}-half")
    answer = page.act("uwe", topology, action="clear-runs", **seen(page, topology))
    assert answer.json()["text"] == f"1 run is cleared: {topology}-red"
    assert [state_of_run(page, run_id) for run_id in runs] == ["queued", "queued", "failed", "failed"]
    again = page.act("uwe", topology, action="clear-runs", **seen(page, topology))
    assert again.status_code == 409
    assert "no failed run" in again.json()["detail"]
    assert audit(page, topology)[0] == ("trident_clear_runs", "uwe", "words")


@pytest.mark.parametrize("other", ["b_emit", "b_turn", "check"])
def test_a_run_with_another_failed_task_than_the_topologys_is_not_cleared(page: PageServer, other: str) -> None:
    """Another topology's transaction may be SKIPPED: to clear its emitter would process and commit it."""
    name = f"topology-{next(numbers)}"
    run_id = f"{name}-run"
    start_run(page, run_id, "two", failed=("a_commit", other))
    committed_in_two(page, name, "a", run_id)
    with page.ledger(f"{name}-b") as ledger:
        ledger.register(DEFINITION)
        begin(ledger, 7, dag_id="two", run_id=run_id)
        fail(ledger, 1)
        ledger.skip(1, "nobody wants it")
    shown = page.shown(name)
    assert shown["red_runs"] == []
    assert "clear-runs" not in shown["diagnosis"]["actions"]
    answer = page.act("ada", name, action="clear-runs", **seen(page, name))
    assert answer.status_code == 409
    assert "no failed run" in answer.json()["detail"]
    assert state_of_run(page, run_id, "two") == "failed"


@pytest.mark.parametrize("failed", ["a_begin", "a_emit", "a_turn", "a_commit"])
def test_a_run_with_any_failed_task_of_the_topology_is_cleared(page: PageServer, failed: str) -> None:
    name = f"topology-{next(numbers)}"
    run_id = f"{name}-run"
    start_run(page, run_id, "two", failed=(failed,))
    committed_in_two(page, name, "a", run_id)
    assert page.shown(name)["red_runs"] == [{"dag_id": "two", "run_id": run_id}]
    answer = page.act("ada", name, action="clear-runs", **seen(page, name))
    assert answer.json()["text"] == f"1 run is cleared: {run_id}"
    assert state_of_run(page, run_id, "two") == "queued"


# ---- partitions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def days(page: PageServer) -> str:
    name = f"days-{next(numbers)}"
    with page.ledger(name) as ledger:
        put_days(ledger)
    return name


def test_a_bound_topology_has_a_grid_for_all_who_log_in_and_its_transactions_their_partitions(
    page: PageServer, days: str
) -> None:
    for user in ("ada", "vera", "paul_of_others"):
        grid = page.shown(days, user, f"/partitions?period={LONG_AGO}")
        assert [cell["status"] for cell in grid["cells"][:6]] == [
            *("COMMITTED", "COMMITTED", "FAILED", "MISSING", "SKIPPED", "FAILED"),
        ]
        assert "row 7" not in str(grid)
    assert page.ask("", "GET", f"/api/topologies/{days}/partitions").status_code == 401
    shown = page.shown(days, query="?partition=2020-02-02&txid=2")
    assert [(row["txid"], row["partition"]["n"]) for row in shown["transactions"]] == [(4, 3), (3, 2), (2, 1)]
    assert shown["details"]["partition_now"] == {"n": 3, "txid": 4, "committed_txid": 4}
    assert shown["partitions"] == {"step": "day", "timezone": "Europe/Berlin", "begin": "2020-01-30"}


def test_a_grid_is_asked_for_in_vain_of_no_period_of_unbound_and_of_unknown_topologies(
    page: PageServer, days: str, topology: str
) -> None:
    assert page.ask("ada", "GET", f"/api/topologies/{days}/partitions?period=2020").status_code == 422
    assert page.ask("ada", "GET", "/api/topologies/nope/partitions").status_code == 404
    assert page.shown(topology, query="/partitions") is None
    assert page.shown(topology)["partitions"] is None
    assert page.ask("ada", "GET", f"/api/topologies/{days}?partition=2020-02-30").status_code == 422


REDO = {"action": "backfill", "partition": "2020-02-02", "to": "2020-02-04", "choice": "missing", "empty": "take"}


def test_a_redo_of_partitions_is_a_run_of_the_mending_dag_and_only_one(page: PageServer, days: str) -> None:
    asked = {**seen(page, days), **REDO}
    answer = page.act("uwe", days, **asked)
    assert answer.status_code == 200, answer.text
    run_id = answer.json()["run_id"]
    assert run_id.startswith(f"page__backfill__{days}__2020-02-02_2020-02-04_missing__")
    conf = run_of(page, run_id)["conf"]
    assert {name: conf.get(name) for name in REDO} == REDO
    assert "gone" not in conf
    again = page.act("ada", days, **asked)
    assert again.status_code == 409
    assert run_id in again.json()["detail"]
    (shown,) = page.shown(days)["mending"]
    assert shown["partitions"] == "2020-02-02 to 2020-02-04, missing ones"
    assert audit(page, days) == [("trident_backfill", user, "words") for user in ("uwe", "ada")]


def test_a_redo_is_for_those_who_may_change_the_dags_of_its_partitions(page: PageServer, days: str) -> None:
    with page.ledger(days) as ledger:
        for txid in (7, begin_key(ledger, "2020-02-07", dag_id="others")):
            ledger.skip(txid, "withdrawn")
        for _ in range(25):  # the latest transactions are of one DAG
            commit(ledger, begin_key(ledger, "2020-02-01"))
    asked = {**seen(page, days), "action": "backfill"}
    assert page.act("vera", days, **asked, partition="2020-02-01").status_code == 403
    assert page.act("paul_of_words", days, **asked, partition="2020-02-01", to="2020-02-08").status_code == 403
    assert page.act("paul_of_words", days, **asked, partition="2020-02-01", to="2020-02-06").status_code == 200


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"revision": 2}, 409, "is at revision 3 now"),
        ({"partition": "2020-02-30"}, 422, "no key of a day"),
        ({"partition": "2020-02-05"}, 422, "Give the earlier one first"),
        ({"to": "9000-01-01"}, 422, "Ask for it then"),
        ({"choice": "all"}, 422, "Input should be"),
        ({"gone": "yes"}, 422, "Input should be"),
        ({"partition": ""}, 422, "the first partition is missing"),
        ({"first": 1, "last": 2}, 422, "exclude each other"),
        ({"action": "pause"}, 422, "is about no partition"),
        ({"reason": " "}, 422, "wants a reason"),
        ({"incarnation": "another-life"}, 409, "another"),
    ],
)
def test_a_redo_that_cannot_be_meant_starts_nothing(
    page: PageServer, days: str, changed: dict[str, Any], status: int, said: str
) -> None:
    answer = page.act("ada", days, **{**seen(page, days), **REDO, **changed})
    assert answer.status_code == status, answer.text
    assert said in str(answer.json()["detail"])
    assert page.shown(days)["mending"] == []


def test_a_redo_of_an_unbound_topology_is_refused(page: PageServer, topology: str) -> None:
    answer = page.act("ada", topology, **{**seen(page, topology), **REDO})
    assert answer.status_code == 422
    assert "not bound to partitions" in answer.json()["detail"]


# ---- who may -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "status"), [("", 401), ("vera", 403), ("paul_of_others", 403), ("paul_of_words", 200), ("uwe", 200)]
)
def test_who_may_edit_task_instances_of_the_dag_may_act_and_nobody_else(
    page: PageServer, topology: str, user: str, status: int
) -> None:
    asked = seen(page, topology, 1)
    before = whole(page, topology)
    answer = page.act(user, topology, action="skip", **asked)
    assert answer.status_code == status
    assert answer.json()["detail" if status != 200 else "text"]
    if user:
        assert page.shown(topology, user)["may_act"] is (status == 200)
    if status != 200:
        assert whole(page, topology) == before
        assert not audit(page, topology)


def test_a_topology_of_two_dags_is_for_those_who_may_edit_both(page: PageServer, topology: str) -> None:
    with page.ledger(topology) as ledger:
        begin(ledger, 4, dag_id="others")
    answer = page.act("paul_of_words", topology, action="pause", **seen(page, topology))
    assert answer.status_code == 403
    assert "all its DAGs" in answer.json()["detail"]
    assert page.act("uwe", topology, action="pause", **seen(page, topology)).status_code == 200


def test_runs_of_a_dag_that_the_user_may_not_change_are_not_cleared(page: PageServer) -> None:
    name, run_id = of_two_dags(page, fails=False)
    answer = page.act("paul_of_words", name, action="clear-runs", **seen(page, name))
    assert answer.status_code == 403
    assert "may not clear" in answer.json()["detail"]
    assert state_of_run(page, run_id, "others") == "failed"
    start_run(page, f"{name}-own", failed=("commit",))
    with page.ledger(name) as ledger:
        begin(ledger, 27, run_id=f"{name}-own")
        for txid in range(2, 28):
            commit(ledger, txid)
    answer = page.act("paul_of_words", name, action="clear-runs", **seen(page, name))
    assert answer.json()["text"] == (f"1 run is cleared: {name}-own; 1 of DAGs that you may not change stays as it is")
    assert state_of_run(page, run_id, "others") == "failed"
    assert page.act("uwe", name, action="clear-runs", **seen(page, name)).status_code == 200
    assert state_of_run(page, run_id, "others") == "queued"


@pytest.mark.parametrize("span", [{}, {"first": 1, "last": 3}])
def test_a_backfill_is_for_those_who_may_change_the_dags_of_what_it_replays(page: PageServer, span: Any) -> None:
    name, _ = of_two_dags(page, fails=True)
    answer = page.act("paul_of_words", name, action="backfill", **seen(page, name), **span)
    assert answer.status_code == 403
    assert page.shown(name)["mending"] == []
    own = page.act("paul_of_words", name, action="backfill", **seen(page, name), first=2, last=3)
    assert own.status_code == 200, own.text
    assert page.act("uwe", name, action="backfill", **seen(page, name), **span).status_code == 200


def test_what_belongs_to_no_dag_is_for_those_who_may_edit_connections(page: PageServer) -> None:
    name = f"topology-{next(numbers)}"
    with page.ledger(name) as ledger:
        ledger.register(DEFINITION)
        begin(ledger, 1, dag_id="")
    assert page.act("uwe", name, action="skip", **seen(page, name, 1)).status_code == 403
    assert page.act("olga", name, action="skip", **seen(page, name, 1)).status_code == 200


def test_what_needs_code_and_is_of_no_dag_is_refused_with_the_command_that_does_it(page: PageServer) -> None:
    name = f"topology-{next(numbers)}"
    with page.ledger(name) as ledger:
        ledger.register(DEFINITION)
        begin(ledger, 1, dag_id="")
        fail(ledger, 1)
    answer = page.act("ada", name, action="backfill", **seen(page, name, 1))
    assert answer.status_code == 422
    assert f"airflow trident backfill {name}" in answer.json()["detail"]


def test_what_a_mending_run_found_and_why_it_was_asked_for_is_for_those_who_may_see_its_dag(page: PageServer) -> None:
    name, _ = of_two_dags(page, fails=True)
    asked = {**seen(page, name), "txid": 1, "status": "FAILED", "attempt": 0, "reason": "the row of Ms Smith"}
    run_id = page.act("ada", name, action="bisect", **asked).raise_for_status().json()["run_id"]
    run = f"/api/v2/dags/{MENDING_DAG}/dagRuns/{run_id}/taskInstances"
    (task,) = page.ask("ada", "GET", run, below="").raise_for_status().json()["task_instances"]
    entry = {"key": "return_value", "value": ["1 row from row 7", "('Smith',)"]}
    page.ask("ada", "POST", f"{run}/{task['task_id']}/xcomEntries", entry, below="").raise_for_status()
    for user, dag_id, reason, said in (
        ("paul_of_others", "others", "the row of Ms Smith", entry["value"]),
        ("paul_of_words", "words", "", []),
    ):
        shown = page.shown(name, user)
        assert (shown["visible"], shown["dags"]) == (True, [dag_id])
        (one,) = shown["mending"]
        assert (one["run_id"], one["reason"], one["said"]) == (run_id, reason, said)


# ---- bad input: one clear answer, nothing changed ------------------------------------------------------------------


@pytest.mark.parametrize("action", ["skip", "backfill", "accept-source", "bisect"])
def test_an_action_on_another_life_of_the_topology_changes_nothing(
    page: PageServer, topology: str, action: str
) -> None:
    before = whole(page, topology)
    asked = {**seen(page, topology, 1), "incarnation": "another-life"}
    answer = page.act("ada", topology, action=action, **asked)
    assert answer.status_code == 409
    assert "another" in answer.json()["detail"]
    assert whole(page, topology) == before
    assert page.shown(topology)["mending"] == []


@pytest.mark.parametrize("action", ["skip", "backfill", "accept-source", "bisect"])
def test_an_action_on_a_transaction_that_moved_meanwhile_changes_nothing(
    page: PageServer, topology: str, action: str
) -> None:
    asked = seen(page, topology, 1)
    with page.ledger(topology) as ledger:
        single.attempt(ledger, 1, owner="another")
    before = whole(page, topology)
    answer = page.act("ada", topology, action=action, **asked)
    assert answer.status_code == 409
    assert "transaction 1 has moved: it is PROCESSING, attempt 1 now" in answer.json()["detail"]
    assert whole(page, topology) == before
    assert page.shown(topology)["mending"] == []


def test_of_two_who_pause_at_once_one_does_it_and_the_other_is_told(page: PageServer, topology: str) -> None:
    asked = seen(page, topology)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda user: page.act(user, topology, action="pause", **asked), ("ada", "uwe")))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (refused,) = [answer for answer in answers if answer.status_code == 409]
    assert "was given another command meanwhile" in refused.json()["detail"]
    assert page.shown(topology)["epoch"] == asked["epoch"] + 1


def test_of_two_who_replay_at_once_one_run_is_started_and_the_other_is_told_of_it(
    page: PageServer, topology: str
) -> None:
    asked = seen(page, topology, 1)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda user: page.act(user, topology, action="backfill", **asked), ("ada", "uwe")))
    assert sorted(answer.status_code for answer in answers) == [200, 409], [answer.text for answer in answers]
    assert f"page__backfill__{topology}__1__1" in next(a.json()["detail"] for a in answers if a.status_code == 409)
    assert len(page.shown(topology)["mending"]) == 1


def test_an_unknown_topology_and_an_unknown_transaction_are_404_and_409(page: PageServer, topology: str) -> None:
    asked = seen(page, topology, 1)
    assert page.act("ada", "nope", action="skip", **asked).status_code == 404
    answer = page.act("ada", topology, action="skip", **{**asked, "txid": 77})
    assert answer.status_code == 409
    assert "77" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reason": "  "}, "wants a reason"),
        ({"reason": "x" * 501}, "at most 500 characters"),
        ({"incarnation": ""}, "Load the page again"),
        ({"txid": None}, "about one transaction"),
        ({"txid": 0}, "Give a txid from 1"),
        ({"status": None}, "Give txid and status"),
        ({"first": 1, "last": 2}, "exclude each other"),
        ({"action": "backfill", "txid": None, "first": 1}, "a range has two ends"),
        ({"action": "backfill", "txid": None, "first": 3, "last": 2}, "Give the lower one first"),
        ({"action": "pause", "txid": None, "status": None}, "Give its epoch"),
        ({"action": "pause", "epoch": 0}, "is about a topology"),
        ({"action": "explode"}, "Input should be"),
        ({"attempt": "many"}, "valid integer"),
    ],
)
def test_what_cannot_be_meant_is_422_and_says_what_to_give(
    page: PageServer, topology: str, changed: dict[str, Any], said: str
) -> None:
    before = whole(page, topology)
    asked = {"action": "skip", **seen(page, topology, 1), **changed}
    answer = page.act("ada", topology, **{name: value for name, value in asked.items() if value is not None})
    assert answer.status_code == 422
    assert said in str(answer.json()["detail"])
    assert whole(page, topology) == before


def test_a_paused_mending_dag_is_told_of_before_anything_is_asked_of_it(page: PageServer, topology: str) -> None:
    def paused(value: bool) -> None:
        path = f"/api/v2/dags/{MENDING_DAG}"
        page.ask("ada", "PATCH", path, {"is_paused": value}, below="").raise_for_status()

    paused(True)
    try:
        answer = page.act("ada", topology, action="backfill", **seen(page, topology, 1))
    finally:
        paused(False)
    assert answer.status_code == 422
    assert "is paused" in answer.json()["detail"]
    assert page.shown(topology)["mending"] == []


def test_nothing_is_done_by_a_link(page: PageServer, topology: str) -> None:
    before = whole(page, topology)
    assert page.ask("ada", "GET", f"/api/topologies/{topology}/actions").status_code == 405
    assert whole(page, topology) == before
