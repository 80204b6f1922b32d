"""Which transactions a page of the list has, over as few records as the filters allow."""

from __future__ import annotations

import random

import pytest

from airflow_trident.plugin.page_data import Choice
from airflow_trident.protocol.records import (
    Claim,
    CommitPointer,
    Exceptions,
    LedgerView,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids

KEPT = list(range(3, 41))
VIEW = LedgerView(
    topology=TopologyRecord(name="words", incarnation="i", definition=Definition(spouts={}, states={})),
    next_txid=41,
    pointer=CommitPointer(committed=30, fence=30),
    exceptions=Exceptions(failed=(12, 33), skipped=Txids.of(5, 31), late=(20,), replaying=(35,)),
    tx=None,
)


def begun_ms(txid: int) -> int:
    """Several begin in the same moment."""
    return txid // 2 * 1000


def wanted(**choice: object) -> list[int]:
    return Choice(**choice).may_have(KEPT, VIEW, begun_ms)  # type: ignore[arg-type]


def test_nothing_chosen_is_all_latest_first() -> None:
    assert wanted() == KEPT[::-1]
    assert wanted(oldest_first=True) == KEPT


@pytest.mark.parametrize(
    ("text", "txids"),
    [("5 to 8", [5, 6, 7, 8]), ("1 to 4", [3, 4]), ("39 to 400", [39, 40]), ("7 to 7", [7]), ("9 to 8", [])],
)
def test_a_range_of_txids_is_found_without_reading_a_record(text: str, txids: list[int]) -> None:
    assert wanted(text=text, oldest_first=True) == txids
    assert wanted(text=text) == txids[::-1]
    assert wanted(text=text, statuses=frozenset({Status.SKIPPED})) == [txid for txid in txids if txid == 5]
    assert not Choice(text=text).reads_all
    assert all(Choice(text=text).has(record(txid), shown="") for txid in txids)


def test_what_only_looks_like_a_range_is_looked_for() -> None:
    for text in ("5-8", "run 5 to 8", "5 to", "5 to 8 o'clock"):
        assert Choice(text=text).reads_all


@pytest.mark.parametrize(
    ("status", "txids"),
    [
        (Status.FAILED, [12, 33]),
        (Status.SKIPPED, [5, 31]),
        (Status.PROCESSING, [20, 32, *range(34, 41)]),
        (Status.COMMITTED, [n for n in range(3, 31) if n not in (5, 12, 20)]),
    ],
)
def test_statuses_are_known_from_the_lists_of_exceptions(status: Status, txids: list[int]) -> None:
    assert wanted(statuses=frozenset({status}), oldest_first=True) == txids


def test_times_are_found_by_halving_both_ends_included() -> None:
    asked: list[int] = []

    def counted(txid: int) -> int:
        asked.append(txid)
        return begun_ms(txid)

    choice = Choice(from_ms=begun_ms(10), to_ms=begun_ms(20), oldest_first=True)
    assert choice.may_have(KEPT, VIEW, counted) == list(range(10, 22))
    assert len(asked) < 14
    assert wanted(from_ms=begun_ms(40) + 1) == []
    assert wanted(to_ms=begun_ms(3) - 1) == []


@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_one_behind_the_other_are_the_whole_list_without_gap_or_repetition(oldest_first: bool) -> None:
    drawn = random.Random(7)
    for _ in range(50):
        statuses = frozenset(drawn.sample(list(Status), drawn.randint(0, 3)))
        whole = wanted(statuses=statuses, oldest_first=oldest_first)
        pages: list[int] = []
        after = None
        while page := wanted(statuses=statuses, oldest_first=oldest_first, after=after)[: drawn.randint(1, 9)]:
            pages += page
            assert len(pages) <= len(whole)
            after = page[-1]
        assert pages == whole


def record(txid: int, status: Status = Status.COMMITTED) -> TxRecord:
    return TxRecord(txid=txid, status=status, attempt=0, metadata={}, claim=Claim(key="k"), op="o")


def test_a_text_is_looked_for_in_what_the_user_sees_and_a_number_finds_its_transaction() -> None:
    assert Choice(text="SCHEDULED__2026").has(record(7), "words\nscheduled__2026-11-22")
    assert not Choice(text="secret").has(record(7), "what is shown")
    assert Choice(text="7").has(record(7), "")
    assert not Choice(text="7").has(record(17), "")


def test_the_record_has_the_last_word_on_its_status() -> None:
    choice = Choice(statuses=frozenset({Status.CLOSED}))
    assert choice.has(record(7, Status.CLOSED), "")
    assert not choice.has(record(7), "")
