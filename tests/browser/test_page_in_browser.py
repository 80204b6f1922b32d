"""The page "Transactions" in a real browser: 50 topologies, one of them with 10,000 transactions, users of every role.
Each action is clicked, and its effect read from the ledger."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from airflow_trident.ledger.open import Ledgers
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.partitions import Partitions
from airflow_trident.protocol.records import Command, Status
from airflow_trident.storm.workers.deployments import Deployments, deploy
from airflow_trident.tasks.mending_order import MENDING_DAG
from tests.fixtures import single
from tests.fixtures.browser import (
    Login,
    asked_files,
    browser,
    confirm,
    held,
    login,
    open_row,
    page,
    picture,
    small,
    status,
    tab_to,
)
from tests.fixtures.ledger import commit
from tests.fixtures.page import PageServer, begin, fail
from tests.fixtures.page_actions import numbers
from tests.fixtures.page_days import LONG_AGO, begin_key, definition_of, put_days
from tests.fixtures.page_ledgers import OTHERS

__all__ = ["browser", "login", "page", "small"]
pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.browser]

# ---- seeing --------------------------------------------------------------------------------------------------------


def test_the_overview_shows_at_first_sight_which_topology_stands_still_and_why(login: Login) -> None:
    window = login("ada")
    first = window.locator("#overview-rows tr")
    expect(first.nth(OTHERS)).to_be_visible()
    states = window.locator("#overview-rows .badge").all_inner_texts()
    still = [state for state in states if state == "blocked"]
    assert len(still) >= 3
    assert states[: len(still)] == still
    expect(window.locator("#overview-count")).to_contain_text(f"{len(still)} blocked")
    why = window.locator("#overview-rows tr").filter(has_text="orders")
    expect(why).to_contain_text("transaction 10001 is FAILED, and nothing above it may commit before it: UserCodeError")
    picture(window, "page-overview")
    window.get_by_label("Find").first.fill("sourceunavail")
    expect(window.locator("#overview-rows tr")).to_have_count(1)
    window.locator("#overview-rows a").click()
    expect(window.locator("h1")).to_have_text(re.compile("pipeline-"))
    expect(window.locator("#notice")).to_contain_text("the coordinator failed, and begins nothing: error at")
    window.get_by_role("link", name="All topologies").click()
    expect(window.locator("#overview")).to_be_visible()


def test_a_second_visit_asks_for_none_of_the_pages_files(login: Login) -> None:
    window = login("ada")
    expect(window.locator("#overview-rows tr").nth(OTHERS)).to_be_visible()
    asked_from_now_on = asked_files(window)
    window.goto(window.url)
    expect(window.locator("#overview-rows tr").nth(OTHERS)).to_be_visible()
    asked = asked_from_now_on()
    assert len(asked) > 8
    assert [url for url, from_cache in asked.items() if not from_cache] == []


def test_ten_thousand_transactions_are_paged_filtered_searched_and_sorted(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders", height=1400)
    expect(window.locator("#rows button.txid").first).to_have_text("10003")
    expect(window.locator("#range-shown")).to_contain_text("10,003 kept")
    expect(window.locator("figure")).to_have_count(4)
    picture(window, "page-topology")
    window.get_by_role("button", name="Further").click()
    expect(window.locator("#rows button.txid").first).to_have_text("9953")
    window.get_by_role("button", name="Back").click()
    expect(window.locator("#rows button.txid").first).to_have_text("10003")
    window.get_by_role("button", name="Txid", exact=True).click()
    expect(window.locator("#rows button.txid").first).to_have_text("1")
    window.get_by_label("Status").select_option("FAILED")
    expect(window.locator("#rows button.txid")).to_have_text(["10001"])
    window.get_by_label("Status").select_option("")
    window.get_by_label("Find").last.fill("scheduled__00042")
    expect(window.locator("#rows button.txid")).to_have_text(["42"])
    window.get_by_label("Find").last.fill("77")
    expect(window.locator("#rows button.txid").first).to_have_text("77")
    window.get_by_role("button", name="Clear").click()
    expect(window.locator("#rows button.txid").first).to_have_text("1")
    with window.expect_response(re.compile("/api/topologies/orders")) as answer:
        window.get_by_role("button", name="Rows read").click()
    assert "oldest_first=true" in answer.value.url  # the page stays where it is: the latest three have read nothing
    texts = window.locator("#rows td[data-label='Rows read']").all_inner_texts()
    read = [int(text.replace(",", "")) for text in texts if text[0].isdigit()]
    assert len(read) == 50
    assert read == sorted(read, reverse=True)


def test_a_row_opens_to_its_batch_in_words_why_it_waits_and_its_error_as_text(login: Login, small: str) -> None:
    window = login("ada", f"/trident/?topology={small}")
    open_row(window, 1)
    inside = window.locator("tr.open td.wide")
    expect(inside).to_contain_text("lines: 3 files, 11.4 MB: hour-00001-0.json to hour-00001-2.json")
    expect(inside).to_contain_text("ValueError: <b>row 7</b>")
    expect(inside.locator("b")).to_have_count(0)
    open_row(window, 2)
    expect(inside).to_contain_text("transaction 1 is FAILED, and nothing above it may commit before it: ValueError")
    expect(window.locator("#pipeline li")).to_have_count(3)


@pytest.mark.parametrize("by", ["mouse", "space bar"])
def test_a_click_counts_although_its_row_changes_while_the_button_is_held(
    login: Login, page: PageServer, small: str, by: str
) -> None:
    """A reading of the ledger may end between press and release: it is drawn after the click."""
    window = login("ada", f"/trident/?topology={small}")
    open_row(window, 1)
    expect(window.locator("tr.open td.wide")).to_contain_text("Metadata")  # it moves no more
    button = window.get_by_role("button", name="Replay, transaction 1")
    with held(window, button, by):
        with page.ledger(small) as ledger:
            single.attempt(ledger, 1, owner="the second one")
            fail(ledger, 1, "ValueError: another")
        with window.expect_response(re.compile(f"/api/topologies/{small}")):
            window.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        window.evaluate("new Promise(requestAnimationFrame)")
    expect(window.get_by_role("dialog")).to_be_visible()
    window.locator("#cancel").click()
    expect(window.locator("#rows tr.row").last).to_contain_text("ValueError: another")


def test_each_attempt_is_kept_with_its_error_and_who_made_it(login: Login, page: PageServer, small: str) -> None:
    with page.ledger(small) as ledger:
        single.attempt(ledger, 1, owner="the second one")
        fail(ledger, 1, "ValueError: another")
        single.attempt(ledger, 1, owner="the last one")
    window = login("ada", f"/trident/?topology={small}&txid=1")
    past = window.locator("table.attempts tbody tr")
    expect(past).to_have_count(3)
    expect(past.nth(0)).to_contain_text("somebodyValueError: another")
    expect(past.nth(1)).to_contain_text("the second onekilled, or given up for the next one")
    expect(past.nth(2)).to_contain_text("somebodyValueError: <b>row 7</b>")


def test_the_workers_that_it_is_deployed_on_are_shown(login: Login, page: PageServer, small: str) -> None:
    with Ledgers(ZooKeeperSettings(hosts=page.hosts), root=page.root) as ledgers:
        Deployments(ledgers.znodes, ledgers.root).ensure_folder()
        deploy(ledgers.ledger(small), ["w1", "w2"])
    window = login("ada", f"/trident/?topology={small}")
    expect(window.locator("#named tr")).to_have_count(2)
    expect(window.locator("#named tr").first).to_contain_text("w1missing")
    expect(window.get_by_role("alert").first).to_contain_text("is blocked: no worker runs it: w1, w2 are not there")
    with page.ledger(small) as ledger:
        ledger.skip(1, "else that comes first")
    window.goto(window.url.partition("?")[0])
    mine = window.locator("#overview-rows tr").filter(has_text=small)
    expect(mine).to_contain_text("blocked")
    expect(mine).to_contain_text("no worker runs it")


def test_at_1400_pixels_the_last_column_is_in_the_window(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders")
    window.set_viewport_size({"width": 1400, "height": 800})
    expect(window.locator("#rows tr.row").first).to_be_visible()
    last = window.locator("#list thead th").last
    assert last.inner_text() == "Phases"
    box = last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1400


def test_an_unknown_topology_in_a_link_is_said_and_no_other_is_shown(login: Login) -> None:
    window = login("ada", "/trident/?topology=nope&txid=3")
    expect(window.get_by_role("alert").first).to_contain_text("nope")
    expect(window.locator("#rows tr")).to_have_count(0)
    assert window.locator("h1").inner_text() == "nope"


def test_a_link_to_those_of_one_task_shows_them_alone_until_the_filters_are_cleared(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders&find=41+to+43")
    expect(window.locator("#rows button.txid")).to_have_text(["43", "42", "41"])
    expect(window.get_by_label("Find").last).to_have_value("41 to 43")
    window.get_by_role("button", name="Clear").click()
    expect(window.locator("#rows button.txid").first).to_have_text("10003")


def test_a_link_to_a_transaction_far_back_finds_its_page_and_opens_it(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders&txid=4711")
    expect(window.locator("tr.asked button.txid")).to_have_text("4711")
    expect(window.locator("tr.open td.wide")).to_contain_text("hour-04711-0.json")


# ---- a page that is read while it refreshes ------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1440, 360])
def test_the_plan_is_a_picture_for_eyes_and_a_list_for_ears(login: Login, width: int) -> None:
    window = login("ada", "/trident/?topology=orders", width=width, height=1000, dark=width == 360)
    summary = window.locator("#plan-summary")
    expect(summary).to_have_text(re.compile(r"The plan: 2 spouts, \d+ operations, \d+ groupings, 2 states"))
    summary.focus()
    window.keyboard.press("Enter")
    drawing = window.get_by_role("img", name="The plan: 2 spouts")
    expect(drawing).to_be_visible()
    expect(drawing.locator("text.name").filter(has_text="totals")).to_be_visible()
    boxes, arrows = drawing.locator("rect").count(), drawing.locator("path.arrow").count()
    assert arrows >= boxes - 2  # each box but the spouts has one that comes in
    placed = [one.bounding_box() for one in drawing.locator("rect").all()]
    assert len({(one["x"], one["y"]) for one in placed if one}) == boxes
    down = max(one["y"] for one in placed if one) - min(one["y"] for one in placed if one)
    across = max(one["x"] for one in placed if one) - min(one["x"] for one in placed if one)
    assert (down > across) == (width == 360)
    window.get_by_text("The plan as a list").click()
    items = window.locator("#plan li")
    expect(items).to_have_count(boxes)
    expect(items.filter(has_text="state totals: SqliteState(/data/sums.db); from ")).to_have_count(1)
    assert window.evaluate("document.scrollingElement.scrollWidth") <= width
    if width > 640:
        window.get_by_text("The plan as a list").click()
        picture(window, "page-plan")


def test_a_refresh_keeps_focus_selection_scroll_and_what_is_open(login: Login, page: PageServer, small: str) -> None:
    window = login("ada", f"/trident/?topology={small}", height=500)
    open_row(window, 2)
    window.get_by_role("button", name="Transaction 2, details").focus()
    window.evaluate("scrollTo(0, 300)")
    window.evaluate("getSelection().selectAllChildren(document.querySelector('tr.open td.wide'))")
    chosen = window.evaluate("String(getSelection())")
    before = window.evaluate("scrollY")
    with page.ledger(small) as ledger:
        begin(ledger, 4)
    expect(window.get_by_role("button", name="Transaction 4, details")).to_be_visible()
    assert window.evaluate("document.activeElement.getAttribute('aria-label')") == "Transaction 2, details"
    assert window.evaluate("String(getSelection())") == chosen
    assert abs(window.evaluate("scrollY") - before) < 60  # one row came above
    expect(window.locator("tr.open td.wide")).to_be_visible()


def test_what_is_shown_is_called_stale_when_the_server_does_not_answer_and_fresh_when_it_does(
    login: Login, small: str
) -> None:
    window = login("ada", f"/trident/?topology={small}")
    expect(window.locator("#rows button.txid")).to_have_count(3)
    window.context.route("**/api/**", lambda route: route.abort())
    expect(window.locator("#notice")).to_contain_text("fetch")
    expect(window.locator("#fresh")).to_contain_text("STALE")
    expect(window.locator("#rows button.txid")).to_have_count(3)
    window.context.unroute("**/api/**")
    expect(window.locator("#fresh")).not_to_contain_text("STALE")
    expect(window.locator("#notice")).not_to_contain_text("fetch")


# ---- acting --------------------------------------------------------------------------------------------------------


def test_a_skip_and_a_close_are_clicked(login: Login, page: PageServer, small: str) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    open_row(window, 1)
    window.get_by_role("button", name="Skip, transaction 1").click()
    expect(window.get_by_role("dialog")).to_contain_text("is left out, and later ones pass it")
    picture(window, "page-skip")
    confirm(window)
    expect(window.locator("#done")).to_have_text("transaction 1 is SKIPPED: later ones may pass")
    assert status(page, small, 1) is Status.SKIPPED
    with page.ledger(small) as ledger:
        commit(ledger, 2)
    window.get_by_role("button", name="Close, transaction 1").click()
    confirm(window)
    expect(window.locator("#done")).to_contain_text("is CLOSED")
    assert status(page, small, 1) is Status.CLOSED


def test_pause_and_resume_are_clicked(login: Login, page: PageServer, small: str) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    badges = (("Pause", Command.PAUSE, "blocked, pause"), ("Resume", Command.RUN, "blocked"))  # 1 is FAILED
    for name, command, badge in badges:
        window.get_by_role("button", name=f"{name}, topology").click()
        confirm(window)
        expect(window.locator("#command")).to_have_text(badge)
        with page.ledger(small) as ledger:
            assert ledger.topology().command is command


@pytest.mark.parametrize(
    ("button", "txid", "action"),
    [
        ("Replay", 1, "backfill"),
        ("Find the bad row", 1, "bisect"),
        ("Accept source", 1, "accept-source"),
        ("Replay", None, "backfill"),
        ("Accept definition", None, "accept"),
    ],
)
def test_what_needs_code_is_clicked_and_its_run_is_shown(
    login: Login, page: PageServer, small: str, button: str, txid: int | None, action: str
) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    about = f"transaction {txid}" if txid else f"topology {small}"
    if txid:
        open_row(window, txid)
    window.get_by_role("button", name=f"{button}, {about}").click()
    if button == "Replay" and not txid:
        window.get_by_label("From", exact=True).fill("1")
        window.get_by_label("to", exact=True).last.fill("2")
    confirm(window)
    expect(window.locator("#mending")).to_contain_text(f"{action}{f' of transaction {txid}' if txid else ''} by uwe")
    (run,) = page.shown(small)["mending"]
    conf = page.ask("ada", "GET", f"/api/v2/dags/{MENDING_DAG}/dagRuns/{run['run_id']}", below="").json()["conf"]
    assert (conf["action"], conf["topology"], conf.get("txid"), conf["reason"]) == (action, small, txid, "because")
    if button == "Replay" and not txid:
        assert (conf["first"], conf["last"]) == (1, 2)


def test_nothing_is_done_without_a_reason_or_after_cancel(login: Login, page: PageServer, small: str) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    open_row(window, 1)
    window.get_by_role("button", name="Skip, transaction 1").click()
    window.locator("#confirm").click()
    expect(window.locator("#dialog-error")).to_contain_text("Say why")
    window.keyboard.press("Escape")
    expect(window.get_by_role("dialog")).to_have_count(0)
    assert status(page, small, 1) is Status.FAILED


def test_what_moved_while_the_dialog_was_open_is_said_in_it_and_not_touched(
    login: Login, page: PageServer, small: str
) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    open_row(window, 1)
    window.get_by_role("button", name="Skip, transaction 1").click()
    with page.ledger(small) as ledger:
        single.attempt(ledger, 1, owner="another")
    confirm(window)
    expect(window.locator("#dialog-error")).to_contain_text("has moved: it is PROCESSING, attempt 1 now")
    assert status(page, small, 1) is Status.PROCESSING


@pytest.mark.parametrize(
    ("user", "buttons"),
    [("ada", True), ("uwe", True), ("paul_of_words", True), ("vera", False), ("paul_of_others", False)],
)
def test_buttons_are_there_for_those_who_may_press_them(login: Login, small: str, user: str, buttons: bool) -> None:
    window = login(user, f"/trident/?topology={small}")
    expect(window.locator("#rows button.txid")).to_have_count(3)
    open_row(window, 1)
    expect(window.locator("tr.open td.wide")).to_be_visible()
    acts = window.locator("button.act")
    if buttons:
        expect(acts.first).to_be_visible()
    else:
        expect(acts).to_have_count(0)


def test_nobody_sees_anything_without_login(login: Login) -> None:
    window = login("", "/trident/?topology=orders")
    expect(window.locator("body")).to_contain_text("Not authenticated")
    expect(window.locator("#rows")).to_have_count(0)


# ---- partitions ----------------------------------------------------------------------------------------------------

WEEKS = Partitions("week", begin="2020-W01")
HOURS = Partitions("hour", begin="2020-02-01T00:00:00")


@pytest.fixture
def days(page: PageServer) -> str:
    name = f"days-{next(numbers)}"
    with page.ledger(name) as ledger:
        put_days(ledger)
    return name


def of_month(name: str, period: str = LONG_AGO) -> str:
    return f"/trident/?topology={name}&period={period}"


def test_the_days_of_a_month_are_a_calendar_and_a_click_shows_the_transactions_of_one(login: Login, days: str) -> None:
    window = login("ada", of_month(days), height=1300)
    cell = window.get_by_role("button", name=re.compile("^2020-02-02: committed, revision 3"))
    expect(cell).to_have_attribute("aria-pressed", "false")
    expect(window.locator("#partitions-title")).to_have_text("Partitions: days of Europe/Berlin, from 2020-01-30")
    expect(window.locator("#partitions-count")).to_have_text(
        re.compile("^2 committed, 2 failed, 1 skipped, 24 missing$")
    )
    expect(window.locator("#partitions tbody tr").first.locator("button.cell")).to_have_count(2)  # a Saturday
    expect(window.locator("#rows button.txid")).to_have_count(7)
    cell.click()
    expect(window.locator("#rows button.txid")).to_have_text(["4", "3", "2"])
    expect(window.locator("#rows td[data-label=Partition]")).to_have_text(
        ["2020-02-02 #3", "2020-02-02 #2", "2020-02-02"]
    )
    expect(window.locator("tr.open td.wide")).to_contain_text("2020-02-02, revision 3 of 3")
    expect(window.locator("tr.open td.wide")).to_contain_text("lines: 1 file, 3.9 KB: ")
    expect(window.locator("#partition")).to_contain_text("transaction 4, committed 20")
    open_row(window, 2)
    expect(window.locator("tr.open td.wide")).to_contain_text("revision 1 of 3; replaced by transaction 4")
    window.get_by_role("button", name="Show all transactions").click()
    expect(window.locator("#rows button.txid")).to_have_count(7)
    window.get_by_role("button", name="Earlier").click()
    expect(window.locator("#period")).to_have_text("2020-01")
    expect(window.locator("button.cell")).to_have_count(2)
    expect(window.get_by_role("button", name="Earlier")).to_be_disabled()


def test_a_redo_is_clicked_and_its_run_is_shown(login: Login, page: PageServer, days: str) -> None:
    window = login("uwe", of_month(days))
    window.get_by_role("button", name=re.compile("^2020-02-04: missing since 2020-02-0")).click()
    window.get_by_role("button", name="Redo, partition 2020-02-04").click()
    expect(window.locator("#dialog-what")).to_contain_text("Each day is processed again from its sources")
    expect(window.get_by_label("From partition")).to_have_value("2020-02-04")
    window.get_by_label("to partition").fill("2020-02-08")
    window.get_by_label("Which").select_option("missing")
    confirm(window)
    expect(window.locator("#mending")).to_contain_text("backfill of 2020-02-04 to 2020-02-08, missing ones by uwe")
    window.get_by_role("button", name="Redo, partition 2020-02-04").click()
    with page.ledger(days) as ledger:
        begin_key(ledger, "2020-02-04")
    confirm(window)
    expect(window.locator("#dialog-error")).to_contain_text("the partition 2020-02-04 has moved")


def test_the_arrow_keys_lead_through_the_days_and_enter_chooses_one(login: Login, days: str) -> None:
    window = login("vera", of_month(days))
    cells = window.locator("button.cell")
    expect(cells).to_have_count(29)
    assert window.locator("button.cell[tabindex='0']").count() == 1
    window.locator("button.cell[tabindex='0']").focus()
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowUp"):
        window.keyboard.press(key)
    expect(cells.nth(1)).to_be_focused()
    window.keyboard.press("Enter")
    expect(window.locator("#rows button.txid")).to_have_text(["4", "3", "2"])
    expect(cells.nth(1)).to_be_focused()
    expect(window.locator("#partition button.act")).to_have_count(0)  # who may only look has no Redo


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("step", [None, WEEKS, HOURS], ids=["days", "weeks", "hours"])
def test_a_grid_is_in_the_window_whatever_its_width(
    login: Login, page: PageServer, width: int, step: Partitions | None
) -> None:
    name = f"days-{next(numbers)}"
    with page.ledger(name) as ledger:
        if step is None:
            put_days(ledger)
        else:
            ledger.register(definition_of(step))
            commit(ledger, begin_key(ledger, step.begin, step))
    window = login("ada", of_month(name, "2020" if step is WEEKS else LONG_AGO), width=width, height=800)
    expect(window.locator("button.cell")).to_have_count({None: 29, WEEKS: 53, HOURS: 696}[step])
    expect(window.locator("button.cell").nth(1)).to_be_visible()
    assert window.evaluate("document.scrollingElement.scrollWidth") <= width


# ---- for everybody -------------------------------------------------------------------------------------------------


def test_the_keyboard_alone_opens_a_row_and_skips_it(login: Login, page: PageServer, small: str) -> None:
    window = login("uwe", f"/trident/?topology={small}")
    opener = window.get_by_role("button", name="Transaction 1, details")
    opener.focus()
    window.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(window.get_by_role("button", name="Skip, transaction 1")).to_be_visible()
    tab_to(window, "Skip, transaction 1")
    window.keyboard.press("Enter")
    expect(window.get_by_label("Reason")).to_be_focused()
    window.keyboard.type("by keyboard")
    window.keyboard.press("Enter")
    expect(window.locator("#done")).to_contain_text("is SKIPPED")
    assert status(page, small, 1) is Status.SKIPPED


def test_every_control_has_a_name_and_every_chart_says_what_it_shows(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders")
    expect(window.locator("#rows button.txid").first).to_be_visible()
    nameless = window.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a")].filter(one => one.checkVisibility()
            && !(one.ariaLabel || one.innerText || (one.labels && one.labels.length))).map(one => one.outerHTML)"""
    )
    assert nameless == []
    labels = [one.get_attribute("aria-label") for one in window.locator("figure svg").all()]
    assert len(labels) == 4
    assert all(label and "transactions, at most" in label for label in labels)


@pytest.mark.parametrize("path", ["/trident/", "/trident/?topology=orders"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_sticks_out_of_a_narrow_window(login: Login, path: str, width: int) -> None:
    window = login("ada", path, width=width, height=800)
    expect(window.locator("#overview-rows tr, #rows tr").first).to_be_visible()
    assert window.evaluate("document.scrollingElement.scrollWidth") <= width


def test_it_is_dark_where_the_system_is(login: Login) -> None:
    window = login("ada", "/trident/?topology=orders", dark=True)
    expect(window.locator("#rows button.txid").first).to_be_visible()
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", ground)[:3])) < 60


def test_it_lies_in_airflows_frame_and_its_links_lead_out_of_it(login: Login) -> None:
    window = login("ada", "/plugin/transactions")
    frame = window.frame_locator("iframe")
    expect(frame.locator("#overview-rows tr").first).to_be_visible()
    frame.get_by_role("link", name="orders").click()
    expect(frame.locator("#rows button.txid").first).to_be_visible()
    picture(window, "page-in-airflow")
    frame.locator("#rows td.run a").first.click()
    expect(window).to_have_url(re.compile(r"/dags/words/runs/scheduled__10003"))
