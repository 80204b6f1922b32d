"""How often a drain asks the ledger for each group, on a real ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from airflow_trident.engine.engine import Job
from airflow_trident.ledger.answers import Processed
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.staging.manifest import Manifest
from tests.integration.test_drain_groups import Passes, Place


def requests_of_40_more(
    zookeeper: EmbeddedZooKeeper, root: str, tmp_path: Path, drain: Callable[[Place, ZNodeLedger], object]
) -> int:
    """Whatever a drain is about is counted by two of them, one over three times as many."""
    requests = []
    for count in (20, 60):
        (folder := tmp_path / str(count)).mkdir()
        place, settings = Place(folder, count=count), ZooKeeperSettings(hosts=zookeeper.hosts)
        with open_ledger(settings, place.topology.name, root=f"{root}/{count}") as ledger:
            ledger.register(place.topology.definition())
            before, place.ledger = ledger.znodes.round_trips, ledger
            drain(place, ledger)
            requests.append(ledger.znodes.round_trips - before)
        assert place.holds()
    return requests[1] - requests[0]


@pytest.mark.zookeeper
@pytest.mark.parametrize("group", [5, 1])
def test_a_group_costs_two_requests_to_the_ledger(
    group: int, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    def drain(place: Place, _ledger: ZNodeLedger) -> None:
        place.drain(group=group, max_pending=group)

    assert requests_of_40_more(zookeeper, ledger_root, tmp_path, drain) == 2 * 40 // group


class InPairs(Passes):
    """Of each two passes that are at work the later one ends first, or both end together."""

    def __init__(self, *, later_first: bool) -> None:
        super().__init__()
        self.later_first = later_first
        self.both = Barrier(2, timeout=60)
        self.ended: dict[int, Event] = defaultdict(Event)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        last = jobs[-1].slot.txid
        manifest = super().run_group(jobs)
        if not self.later_first:
            self.both.wait()
        elif last % 10:
            assert self.recorded(last + 5).wait(60)
        return manifest

    def recorded(self, last: int) -> Event:
        return self.ended[last]


@pytest.mark.zookeeper
@pytest.mark.parametrize("later_first", [True, False])
def test_a_group_costs_two_requests_where_two_passes_are_at_work(
    later_first: bool, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    def drain(place: Place, ledger: ZNodeLedger) -> None:
        engine = InPairs(later_first=later_first)

        def tell(_ledger: object, _verb: str, answer: Any) -> None:
            for record in answer.records if isinstance(answer, Processed) else ():
                engine.recorded(record.txid).set()

        ledger.listener = tell
        place.drain(engine, group=5)

    most = 2 * 40 // 5
    more = requests_of_40_more(zookeeper, ledger_root, tmp_path, drain)
    assert more <= most + (0 if later_first else 2)  # which of two is seen first is open
