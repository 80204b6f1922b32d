"""Whichever call of a driver raises, and whatever it raises: what comes out is an error of this package, which names
the store and a cure, and is retried unless that would be in vain. What runs after it has nothing doubled and nothing
lost.

For Kafka, Redis and databases the same is in `tests/integration/test_kafka_spout.py`, `test_states_redis.py` and
`test_silent_databases.py`.
"""

from __future__ import annotations

import itertools
import uuid

import kazoo.exceptions as kz
import pytest
from kazoo.handlers.threading import KazooTimeoutError

from airflow_trident.errors import Outcome, TridentError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import Ledgers
from airflow_trident.ledger.znodes import Create
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.diagnose import access_list
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from tests.faults.drivers import FailingDriver
from tests.fixtures.ledger import DEFINITION, begun, claim, commit, nothing

FOREIGN = (
    OSError(5, "Input/output error"),
    ValueError("odd"),
    RuntimeError("cannot start new thread"),
    KeyError("odd"),
)
"""Errors that any driver may raise, although it has its own."""


def require_told(error: TridentError, names: str, *, never: bool) -> None:
    """The error names the thing and a cure.

    :param never: a retry would be in vain.
    """
    assert names in str(error), error
    assert error.cure, error
    assert error.outcome is (Outcome.FAIL if never else Outcome.RETRY), error


# ---- ZooKeeper -----------------------------------------------------------------------------------------------------

OF_ZOOKEEPER = [
    error() for error in vars(kz).values() if isinstance(error, type) and issubclass(error, kz.KazooException)
]
NEVER = (
    kz.NoAuthError,
    kz.AuthFailedError,
    kz.InvalidACLError,
    kz.SessionClosedRequireSaslError,
    kz.QuotaExceededError,
    kz.BadArgumentsError,
    kz.ConfigurationError,
    kz.EphemeralOnLocalSessionError,
    kz.InvalidCallbackError,
    kz.MarshallingError,
    kz.NoChildrenForEphemeralsError,
    kz.ReconfigDisabledError,
    kz.UnimplementedError,
)
"""Some of which a retry makes no difference."""


@pytest.fixture
def kazoo(monkeypatch: pytest.MonkeyPatch) -> FailingDriver:
    driver, made = FailingDriver(("kazoo",)), ZooKeeperZNodes._new_client
    monkeypatch.setattr(ZooKeeperZNodes, "_new_client", lambda self: driver.around(made(self)))
    return driver


def all_verbs(ledgers: Ledgers, name: str) -> None:
    """The life of two transactions, as all who take part ask for it."""
    ledger, znodes = ledgers.ledger(name), ledgers.znodes
    ledger.register(DEFINITION)
    for number in (1, 2):
        view = ledger.view(number)
        if view.next_txid <= number:
            begun(ledger, number)
        if view.pointer.committed < number:
            commit(ledger, number)
    ledger.begin(claim(3), nothing)
    assert ledger.view(2).pointer.committed == 2
    znodes.post([Create(f"/posted-{uuid.uuid4().hex}")])
    znodes.wait_for_change({"/": None}, 0.0)
    assert name in ledgers.names()
    access_list(znodes, "/")
    znodes.close()


def test_whatever_kazoo_raises_and_wherever_the_ledger_goes_on(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, kazoo: FailingDriver
) -> None:
    with Ledgers(ZooKeeperSettings(hosts=zookeeper.hosts, op_deadline_s=5.0), root=ledger_root) as ledgers:
        all_verbs(ledgers, "counted")
        places = list(kazoo.places)
        assert len(places) > 15
        errors = [*OF_ZOOKEEPER, KazooTimeoutError("late"), *FOREIGN]
        walk = zip(itertools.cycle(places), itertools.chain(errors, errors), strict=False)
        for number, (place, error) in enumerate(walk):
            kazoo.set(place, error, after=number >= len(errors))
            try:
                all_verbs(ledgers, f"t{number}")
            except TridentError as raised:
                require_told(raised, "ZooKeeper", never=isinstance(error, NEVER))
            assert kazoo.failed, place
            kazoo.set(None, error)
            all_verbs(ledgers, f"t{number}")
