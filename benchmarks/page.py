"""`python -m benchmarks.page`: what the page "Transactions" costs with 10,000 transactions and 50 topologies.

A real API server answers each question several times, and where a chromium is on the machine it draws both views.
ZooKeeper itself counts the sessions: opening and closing one are two of its transactions, and who only reads makes no
others.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.zookeeper.four_letters import four_letters
from tests.fixtures.page import PageServer
from tests.fixtures.page_ledgers import busy_page

ROUNDS = 15
QUESTIONS = {
    "overview": "/api/topologies",
    "one topology": "/api/topologies/orders",
    "a page far back": "/api/topologies/orders?after=5000",
    "FAILED ones": "/api/topologies/orders?status=FAILED",
    "a text that few have": "/api/topologies/orders?text=scheduled__00042",
    "one transaction": "/api/topologies/orders/transactions/4711",
}
VIEWS = {
    "overview, drawn": ("/trident/", "#overview-rows tr"),
    "one topology, drawn": ("/trident/?topology=orders", "#rows tr"),
}


def zxid(hosts: str) -> int:
    host, port = hosts.split(":")
    (line,) = [line for line in four_letters(host, int(port), "srvr", 5.0).splitlines() if line.startswith("Zxid: ")]
    return int(line.removeprefix("Zxid: "), 16)


def measured(hosts: str, look: Callable[[], object]) -> str:
    look()
    before, times = zxid(hosts), []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        look()
        times.append(time.perf_counter() - begun)
    sessions = (zxid(hosts) - before) / 2 / ROUNDS
    return f"{statistics.median(times):.3f} s (at most {max(times):.3f}), {sessions:.2f} sessions"


def asked(page: PageServer) -> Iterator[str]:
    for name, path in QUESTIONS.items():
        yield f"{name}: {measured(page.hosts, lambda path=path: page.ask('ada', 'GET', path).raise_for_status())}"  # type: ignore[misc]


def drawn(page: PageServer, chromium: str) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": "_token", "value": page.token("ada"), "url": page.airflow.api.url}])
        for name, (path, row) in VIEWS.items():
            times = []
            for _ in range(ROUNDS):
                window = context.new_page()
                begun = time.perf_counter()
                window.goto(page.airflow.api.url + path)
                window.locator(row).first.wait_for()
                times.append(time.perf_counter() - begun)
                window.close()
            yield f"{name}: {statistics.median(times):.3f} s (at most {max(times):.3f})"
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        zookeeper = EmbeddedZooKeeper(Path(folder) / "zookeeper", heap_mb=512)
        zookeeper.start()
        try:
            with busy_page(zookeeper, Path(folder) / "page", "/page-measured") as page:
                chromium = shutil.which("chromium")
                for line in asked(page):
                    print(line, flush=True)
                for line in drawn(page, chromium) if chromium else ["drawn: no chromium on PATH"]:
                    print(line, flush=True)
        finally:
            zookeeper.stop()


if __name__ == "__main__":
    main()
