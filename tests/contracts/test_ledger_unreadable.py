"""What every ledger promises, over every implementation: nothing unreadable is guessed at (L9)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_trident.errors import (
    CorruptRecordError,
    FencedError,
    NewerRecordError,
    TridentError,
)
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.znodes import Delete, Set
from tests.fixtures import single
from tests.fixtures.ledger import (
    LEDGERS,
    OVER_ZNODES,
    claim,
    committed_up_to,
    lines,
)


@pytest.fixture(params=OVER_ZNODES)
def znode_ledger(request: pytest.FixtureRequest) -> Iterator[ZNodeLedger]:
    with LEDGERS[request.param](request) as place:
        ledger = place.registered()
        committed_up_to(ledger, 2)
        yield ledger


RECORDS = {
    "topology": lambda paths: paths.topology,
    "head": lambda paths: paths.head,
    "commit pointer": lambda paths: paths.commit,
    "exceptions": lambda paths: paths.exceptions,
    "transaction": lambda paths: paths.tx(2),
    "claim": lambda paths: paths.claim(claim(2).key),
}


def touch_all(ledger: Ledger) -> None:
    ledger.view(2)
    single.begin(ledger, claim(2), lines)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(
    ("data", "error"),
    [(b'{"v":2}', NewerRecordError), (b"\xff\x00", CorruptRecordError), (b'{"v":1}', CorruptRecordError)],
    ids=["newer", "not JSON", "fields missing"],
)
def test_l9_p11_an_unreadable_record_is_named(
    znode_ledger: ZNodeLedger, record: str, data: bytes, error: type[TridentError]
) -> None:
    path = RECORDS[record](LedgerPaths(znode_ledger._path, znode_ledger.topology().incarnation))
    node = znode_ledger.znodes.read([path]).nodes[path]
    assert node is not None
    znode_ledger.znodes.fault_of = None  # type: ignore[attr-defined]
    znode_ledger.znodes.multi([Set(path, data, node.version)])
    with pytest.raises(error, match=path):
        touch_all(znode_ledger)


@pytest.mark.parametrize("record", ["head", "commit pointer", "exceptions"])
def test_l9_p11_a_missing_record_is_named(znode_ledger: ZNodeLedger, record: str) -> None:
    path = RECORDS[record](LedgerPaths(znode_ledger._path, znode_ledger.topology().incarnation))
    znode_ledger.znodes.fault_of = None  # type: ignore[attr-defined]
    znode_ledger.znodes.multi([Delete(path)])
    with pytest.raises(CorruptRecordError, match=f"{path} is missing"):
        touch_all(znode_ledger)


def test_writes_to_a_former_incarnation_of_the_topology_find_nothing(znode_ledger: ZNodeLedger) -> None:
    znodes, path = znode_ledger.znodes, znode_ledger._path
    node = znodes.read([path]).nodes[path]
    assert node is not None
    former = znode_ledger.topology().incarnation
    znodes.fault_of = None  # type: ignore[attr-defined]
    znodes.multi([Set(path, node.data.replace(former.encode(), b"ffffffff"), node.version)])
    for attempt in (
        lambda: single.attempt(znode_ledger, 2, owner="x"),
        lambda: single.begin(znode_ledger, claim(9), lines),
    ):
        with pytest.raises(FencedError, match=f"deleted and created again: it is now ffffffff, this was {former}"):
            attempt()
