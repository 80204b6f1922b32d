"""Many topologies read together are what each is by itself, in as many round trips as few take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_trident.errors import CorruptError, TridentError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import Ledgers, Overview
from airflow_trident.ledger.workers import Worker
from airflow_trident.ledger.znodes import Set
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from tests.fixtures.ledger import DEFINITION, begun, commit

pytestmark = pytest.mark.zookeeper
LATEST = 3


@pytest.fixture
def ledgers(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> Iterator[Ledgers]:
    with Ledgers(ZooKeeperSettings(hosts=zookeeper.hosts), root=ledger_root) as found:
        yield found


def put(ledgers: Ledgers, *names: str) -> None:
    for name in names:
        ledger = ledgers.ledger(name)
        ledger.register(DEFINITION)
        for number in range(1, 6):
            begun(ledger, number)
        for number in (1, 2):
            commit(ledger, number)
        ledger.enlist(Worker(host="here", pid=1, task=name, txid=3, since_ms=1))


def read(ledgers: Ledgers) -> dict[str, Overview | TridentError]:
    return ledgers.overviews(latest=LATEST, lowest_of=lambda view: view.lowest_uncommitted(view.next_txid))


def whole(found: Overview | TridentError) -> Overview:
    assert isinstance(found, Overview)
    return found


def test_each_of_many_topologies_is_what_it_is_by_itself(ledgers: Ledgers) -> None:
    put(ledgers, "one", "two")
    ledgers.ledger("new").register(DEFINITION)
    ledgers.ledger("two").note_coordinator(CoordinatorOutcome(kind=OutcomeKind.ERROR, error="X: y"))
    found = read(ledgers)
    assert list(found) == ["new", "one", "two"]
    for name in ("one", "two"):
        ledger, overview = ledgers.ledger(name), whole(found[name])
        assert overview.view == ledger.view(0)
        assert overview.outcome == ledger.coordinator()
        assert list(overview.latest) == list(ledger.transactions(3))
        assert overview.lowest == ledger.view(3).tx
        assert list(overview.workers) == list(ledger.workers())
    new = whole(found["new"])
    assert (new.view.next_txid, new.latest, new.lowest, new.workers) == (1, (), None, ())


def test_what_is_damaged_is_said_of_its_topology_alone(ledgers: Ledgers) -> None:
    put(ledgers, "bad", "good", "worse")
    for name, path in (("bad", ledgers.ledger("bad").paths().commit), ("worse", ledgers.ledger("worse").paths().tx(4))):
        node = ledgers.znodes.read([path]).nodes[path]
        assert node is not None, name
        ledgers.znodes.multi([Set(path, b"{", node.version)])
    found = read(ledgers)
    assert isinstance(found["bad"], CorruptError)
    assert isinstance(found["worse"], CorruptError)
    assert whole(found["good"]).view.next_txid == 6


def test_twelve_topologies_take_no_more_round_trips_than_two(ledgers: Ledgers) -> None:
    def trips() -> int:
        before = ledgers.znodes.round_trips
        assert all(isinstance(one, Overview) for one in read(ledgers).values())
        return ledgers.znodes.round_trips - before

    put(ledgers, "a", "b")
    of_two = trips()
    put(ledgers, *(f"c{number}" for number in range(10)))
    assert trips() == of_two <= 7
