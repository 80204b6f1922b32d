"""`python -m benchmarks.page`: what the page "Transactions" costs with 10,000 transactions and 50 topologies.

A real API server answers each question several times. If the machine has a chromium, it draws both views, measured from
the beginning of the navigation until the last row of the answer is in the page: in a window that has never been there,
and in one that has the page's files. ZooKeeper itself counts the sessions: to open and to close one are two of its
transactions, and a client that only reads makes no others.

Ends with 1 if a target is missed: a view under a second, at most one session for each request.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Request, sync_playwright

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.zookeeper.diagnose import four_letters
from airflow_trident.plugin.page_data import PAGE
from tests.fixtures.airflow import empty_database
from tests.fixtures.browser import NAMES
from tests.fixtures.page import PageServer
from tests.fixtures.page_ledgers import OTHERS, busy_page

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
    "overview, drawn": ("/trident/", "#overview-rows tr", OTHERS + 1),
    "one topology, drawn": ("/trident/?topology=orders", "#rows tr.row", PAGE),
}
"""Name -> path, the name for its rows, and their number."""
VIEW_S, SESSIONS = 1.0, 1.0
"""The targets: median of a view in seconds, sessions for each request."""


def zxid(hosts: str) -> int:
    host, port = hosts.split(":")
    (line,) = [line for line in four_letters(host, int(port), "srvr", 5.0).splitlines() if line.startswith("Zxid: ")]
    return int(line.removeprefix("Zxid: "), 16)


@dataclass(frozen=True)
class Measured:
    """`times`: seconds of each round; `sessions`: of ZooKeeper, for each request; `requests`: of a round."""

    name: str
    times: tuple[float, ...]
    sessions: float
    requests: int = 1

    @property
    def missed(self) -> bool:
        return statistics.median(self.times) >= VIEW_S or self.sessions > SESSIONS

    def __str__(self) -> str:
        median, most = statistics.median(self.times), max(self.times)
        asked = f" for each of {self.requests} requests" if self.requests > 1 else ""
        missed = " MISSED" * self.missed
        return f"{self.name}: {median:.3f} s (at most {most:.3f}), {self.sessions:.2f} sessions{asked}{missed}"


def measured(
    name: str, hosts: str, look: Callable[[], float], requests: Callable[[], int] = lambda: ROUNDS
) -> Measured:
    """
    :param look: does it once and returns its seconds.
    :param requests: the number of requests to the ledger, in all rounds.
    """
    before = zxid(hosts)
    times = tuple(look() for _ in range(ROUNDS))
    asked = requests()
    return Measured(name, times, (zxid(hosts) - before) / 2 / asked, asked // ROUNDS)


def asked(page: PageServer) -> Iterator[Measured]:
    for name, path in QUESTIONS.items():

        def look(path: str = path) -> float:
            begun = time.perf_counter()
            page.ask("ada", "GET", path).raise_for_status()
            return time.perf_counter() - begun

        look()
        yield measured(name, page.hosts, look)


def drawn(page: PageServer, chromium: str) -> Iterator[Measured]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (path, row, count) in VIEWS.items():
            yield _view(f"{name}, first visit", page, browser, path, f"{row} >> nth={count - 1}", again=False)
            yield _view(f"{name}, later ones", page, browser, path, f"{row} >> nth={count - 1}", again=True)
        browser.close()


def _view(name: str, page: PageServer, browser: Browser, path: str, last: str, *, again: bool) -> Measured:
    """
    :param last: the last row of the view.
    :param again: in a window that has the page's files already.
    """
    requests = 0

    def count(request: Request) -> None:
        nonlocal requests
        requests += "/trident/api/" in request.url

    def context() -> BrowserContext:
        made = browser.new_context()
        made.add_cookies([{"name": "_token", "value": page.token("ada"), "url": page.airflow.api.url}])
        made.on("request", count)
        return made

    def look(inside: BrowserContext) -> float:
        window = inside.new_page()
        begun = time.perf_counter()
        window.goto(page.airflow.api.url + path)
        window.locator(last).wait_for()
        took = time.perf_counter() - begun
        window.close()
        return took

    def look_first() -> float:
        inside = context()
        took = look(inside)
        inside.close()
        return took

    known = context()
    look(known)  # the first look also wakes the server
    requests = 0
    found = measured(name, page.hosts, (lambda: look(known)) if again else look_first, lambda: requests)
    known.close()
    return found


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        zookeeper = EmbeddedZooKeeper(Path(folder) / "zookeeper", heap_mb=512)
        zookeeper.start()
        try:
            (Path(folder) / "database").mkdir()
            database = empty_database(Path(folder) / "database")
            with busy_page(zookeeper, Path(folder) / "page", "/page-measured", database) as page:
                chromium = next(filter(None, map(shutil.which, NAMES)), None)
                print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {ROUNDS} rounds each", flush=True)
                for one in chain(asked(page), drawn(page, chromium) if chromium else ()):
                    print(one, flush=True)
                    missed += one.missed
                print(f"load {os.getloadavg()[0]:.1f}", flush=True)
                if not chromium:
                    print(f"drawn: there is no browser on PATH ({', '.join(NAMES)})")
        finally:
            zookeeper.stop()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
