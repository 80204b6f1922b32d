"""From the click to the commit: what a person mends in the browser alone, with a scheduler behind the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.protocol.records import Status
from tests.fixtures.browser import browser, confirm, open_row, status
from tests.fixtures.page import MENDING, page_server
from tests.integration.test_airflow_tasks import DAG as WORDS
from tools.local_airflow.rest import wait_until

__all__ = ["browser"]
pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.browser]

SLOW_MS = 240_000
"""So long a slow machine may take for a run."""


@pytest.mark.rare
def test_a_failed_transaction_is_mended_and_replayed_from_the_browser_alone(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, browser: Browser, airflow_database: Path
) -> None:
    """With a scheduler: the run that the button starts finds the topology's code and commits."""
    folder = tmp_path / "states"
    folder.mkdir()
    dags = {"words": WORDS.replace("FOLDER", str(folder)).replace("ARGUMENTS", ""), "mending": MENDING}
    root = "/page-in-browser-whole"
    with page_server(tmp_path / "page", zookeeper.hosts, root, dags, airflow_database, scheduler=True) as server:
        (folder / "fail-1").touch()
        body = {"dag_run_id": "first", "logical_date": None}
        server.ask("ada", "POST", "/api/v2/dags/words/dagRuns", body, below="").raise_for_status()
        window = browser.new_context().new_page()
        window.context.add_cookies([{"name": "_token", "value": server.token("uwe"), "url": server.airflow.api.url}])
        expect_failed(window, f"{server.airflow.api.url}/trident/?topology=words")
        (folder / "fail-1").unlink()
        open_row(window, 1)
        window.get_by_role("button", name="Replay, transaction 1").click()
        confirm(window, "the function is mended")
        expect(window.locator("#mending")).to_contain_text("committed: 1", timeout=SLOW_MS)
        expect(window.locator("#rows tr").first).to_contain_text("COMMITTED", timeout=SLOW_MS)
        assert status(server, "words", 1) is Status.COMMITTED
        window.get_by_role("button", name="Clear failed runs, topology words").click()
        expect(window.get_by_role("dialog")).to_contain_text("first")
        confirm(window)
        expect(window.locator("#done")).to_have_text("1 run is cleared: first")

        def green() -> bool:
            run = server.ask("ada", "GET", "/api/v2/dags/words/dagRuns/first", below="").json()
            return bool(run["state"] == "success")

        assert wait_until(green, timeout_s=SLOW_MS / 1000)
        window.context.close()


def expect_failed(window: Page, url: str) -> None:
    """The page is looked at until the first run has made its topology and failed."""
    window.goto(url)
    expect(window.locator("#rows tr").first).to_contain_text("FAILED", timeout=SLOW_MS)
