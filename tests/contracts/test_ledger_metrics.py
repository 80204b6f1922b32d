"""What is counted of a transaction's life: each thing once, whatever becomes of the ledger's requests and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from airflow_trident.errors import FencedError
from airflow_trident.ledger.answers import StagedAttempt
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import TxRecord
from airflow_trident.tasks.telemetry import MetricKind, metrics_of, parts_of, phase_spans
from tests.fixtures import single
from tests.fixtures.ledger import LEDGERS, OVER_ZNODES, STAGED, begun, commit


@pytest.fixture(params=OVER_ZNODES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with LEDGERS[request.param](request) as place:
        yield place.registered()


@pytest.fixture
def counted(ledger: Ledger) -> Counter[str]:
    found: Counter[str] = Counter()

    def listen(_ledger: Ledger, verb: str, answer: object) -> None:
        for metric in metrics_of(verb, answer):
            found[metric.name] += metric.value if metric.kind is MetricKind.COUNTER else 1

    ledger.listener = listen
    return found


def test_a_life_is_counted_once(ledger: Ledger, counted: Counter[str]) -> None:
    begun(ledger, 1)
    begun(ledger, 1)  # the same claim again
    attempt = single.attempt(ledger, 1, owner="a").attempt
    ledger.fail(1, attempt, "no")
    ledger.fail(1, attempt, "no")
    commit(ledger, 1)
    assert dict(counted) == {
        "begun": 1,
        "attempts": 2,
        "failed": 1,
        "processing": 1,
        "rows": STAGED.rows_read,
        "bytes": STAGED.bytes,
        "committed": 1,
        "commit": 1,
        "lag": 1,
    }


def test_a_step_that_opens_the_gate_counts_and_traces_what_it_records(ledger: Ledger, counted: Counter[str]) -> None:
    spans: list[tuple[str, int]] = []
    count = ledger.listener
    assert count is not None

    def listen(ledger: Ledger, verb: str, answer: object) -> None:
        count(ledger, verb, answer)
        records = [part for part in parts_of(answer) if isinstance(part, TxRecord)]
        spans.extend((span.name, span.txid) for record in records for span in phase_spans(verb, record))

    ledger.listener = listen
    for txid in (1, 2):
        single.attempt(ledger, begun(ledger, txid), owner="a drain")
    done = [StagedAttempt(txid=txid, attempt=0, staged=STAGED) for txid in (1, 2)]
    ledger.committed(ledger.processed(done, gate_by="a drain").tickets)
    assert (counted["processing"], counted["rows"], counted["committed"]) == (2, 2 * STAGED.rows_read, 2)
    assert spans == [
        *(("processing", txid) for txid in (1, 2)),
        *((name, txid) for txid in (1, 2) for name in ("waiting", "commit")),
    ]


def test_what_is_skipped_and_who_is_too_late_are_counted(ledger: Ledger, counted: Counter[str]) -> None:
    begun(ledger, 1)
    old = single.attempt(ledger, 1, owner="a").attempt
    single.attempt(ledger, 1, owner="b")
    with pytest.raises(FencedError):
        single.processed(ledger, 1, old, STAGED)
    ledger.skip(1, "withdrawn")
    ledger.skip(1, "withdrawn")
    assert (counted["fenced"], counted["skipped"], counted["committed"]) == (1, 1, 0)


def test_a_listener_that_raises_changes_nothing(ledger: Ledger) -> None:
    def listen(_ledger: Ledger, _verb: str, _answer: object) -> None:
        raise RuntimeError("the backend of metrics is down")

    ledger.listener = listen
    begun(ledger, 1)
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 1
