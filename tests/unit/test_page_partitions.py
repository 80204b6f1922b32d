"""The page's grid of partitions: its periods, what a partition's transactions are, and what both cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, TransitionError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, ReadResult
from airflow_trident.plugin import page_data, page_partitions
from airflow_trident.plugin.page_data import Choice
from airflow_trident.plugin.rows import Sight
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.protocol.partition_keys import PartitionEntry, encode_keys, period_of
from airflow_trident.protocol.partitions import Partitions, PartitionStep
from airflow_trident.tasks.mending_order import MendingOrder, partition_words
from tests.fixtures.ledger import commit
from tests.fixtures.page import DEFINITION
from tests.fixtures.page_days import DAYS, LONG_AGO, begin_key, definition_of, put_days

SIGHT = Sight(frozenset({"words"}), unowned=True)
ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"]
NOW = datetime(2020, 2, 9, 12, tzinfo=UTC)


@pytest.fixture
def znodes() -> MemoryZNodes:
    return MemoryZNodes()


@pytest.fixture
def ledger(znodes: MemoryZNodes) -> ZNodeLedger:
    ledger = ZNodeLedger(znodes, "days")
    put_days(ledger)
    return ledger


def cells(ledger: ZNodeLedger, period: str = LONG_AGO, now: datetime = NOW) -> dict[str, dict]:
    grid = page_partitions.grid(ledger, period, clock=lambda: now)
    assert grid is not None
    return {cell["key"]: cell for cell in grid["cells"]}


def listed(ledger: ZNodeLedger, key: str) -> tuple[list[int], int | None]:
    up_to = page_partitions.latest_of(ledger, DAYS, key)
    choice = Choice(partition=key, up_to=up_to)
    page, more, _ = page_data._page(ledger, ledger.view(0), choice, SIGHT, visible=True)
    return [record.txid for record in page], more


# ---- the grid ---------------------------------------------------------------------------------------------------


@given(
    step=st.sampled_from(PartitionStep),
    zone=st.sampled_from(ZONES),
    begin=st.datetimes(datetime(2011, 10, 1), datetime(2012, 3, 1)),
    hours=st.integers(-200, 3_000),
)
def test_the_periods_from_now_back_to_the_begin_have_each_partition_once(
    step: PartitionStep, zone: str, begin: datetime, hours: int
) -> None:
    zone = "UTC" if step is PartitionStep.HOUR else zone
    first_keys = {
        PartitionStep.HOUR: f"{begin:%Y-%m-%dT%H}:00:00",
        PartitionStep.DAY: f"{begin:%Y-%m-}{min(begin.day, 29):02}",
        PartitionStep.WEEK: f"{begin:%G-W%V}",
        PartitionStep.MONTH: f"{begin:%Y-%m}",
    }
    partitions = Partitions(step, begin=first_keys[step], timezone=zone)
    first, now = partitions.parse(partitions.begin), begin.replace(tzinfo=UTC) + timedelta(hours=hours)
    newest = max(first, partitions.of(now), key=lambda partition: partition.start)
    keys: list[str] = []
    period = page_partitions.period(partitions, "", now)
    while True:
        shown = [partition.key for partition in partitions.between(period.first, period.last)]
        assert len(shown) <= 31 * 24
        keys[:0] = shown
        assert page_partitions.period(partitions, period.name, now) == period
        if not period.before:
            break
        later, period = period, page_partitions.period(partitions, period.before, now)
        assert period.after == later.name
    assert keys == [partition.key for partition in partitions.between(first, newest)]


def test_each_cell_has_the_status_of_its_partition_and_nobodys_errors(ledger: ZNodeLedger) -> None:
    shown = cells(ledger)
    assert {key[-2:]: (cell["status"], cell["n"]) for key, cell in shown.items()} == {
        "01": ("COMMITTED", 1),
        "02": ("COMMITTED", 3),
        "03": ("FAILED", 1),
        "04": ("MISSING", 0),
        "05": ("SKIPPED", 1),
        "06": ("FAILED", 1),
        "07": ("MISSING", 0),
        "08": ("MISSING", 0),
        "09": ("OPEN", 0),
    }
    assert shown["2020-02-02"]["committed_txid"] == 4
    assert "row 7" not in json.dumps(shown)
    assert shown["2020-02-04"]["complete_ms"] == datetime(2020, 2, 4, 23, tzinfo=UTC).timestamp() * 1000
    assert list(cells(ledger, "2020-01")) == ["2020-01-30", "2020-01-31"]


@pytest.mark.parametrize("name", ["2020", "2020-2", "2020-13", "2020-00", "now", "2020-02-01"])
def test_what_is_no_period_is_refused_with_one_that_is(ledger: ZNodeLedger, name: str) -> None:
    with pytest.raises(ConfigurationError, match="Write it as 2020-02"):
        cells(ledger, name)


@pytest.mark.parametrize("name", ["1999-01", "2031-01"])
def test_a_period_without_partitions_is_the_latest(ledger: ZNodeLedger, name: str) -> None:
    assert "2020-02-09" in cells(ledger, name)


def test_a_topology_that_is_not_bound_has_no_grid_and_no_partitions(znodes: MemoryZNodes) -> None:
    ledger = ZNodeLedger(znodes, "words")
    ledger.register(DEFINITION)
    assert page_partitions.grid(ledger, "") is None
    assert page_partitions.described(page_partitions.calendar(ledger.view(0))) is None


def test_ten_thousand_keys_cost_as_many_round_trips_as_ten(ledger: ZNodeLedger, znodes: MemoryZNodes) -> None:
    def cost(read: Callable[[], object]) -> int:
        before = znodes.round_trips
        read()
        return znodes.round_trips - before

    few = cost(lambda: cells(ledger))
    folder = ledger.paths().keys
    keys = [str(date(2020, 3, 1) + timedelta(days=number)) for number in range(10_000)]
    for period in sorted(set(map(period_of, keys))):
        of_period = {key: PartitionEntry(n=1, tx=1) for key in keys if period_of(key) == period}
        znodes.multi([Create(f"{folder}/{period}", encode_keys(of_period))])
    assert cost(lambda: cells(ledger)) == few


class CountedZNodes(MemoryZNodes):
    bytes = 0

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        result = super().read(paths, folders)
        self.bytes += sum(len(node.data) for node in result.nodes.values() if node is not None)
        return result


def test_a_grid_reads_no_metadata_that_is_kept_apart() -> None:
    tree = MemoryTree()
    ledger = ZNodeLedger(MemoryZNodes(tree), "days")
    ledger.register(definition_of(DAYS))
    commit(ledger, begin_key(ledger, "2020-02-08", files=5_000))

    def cost(read: Callable[[ZNodeLedger], object]) -> int:
        znodes = CountedZNodes(tree)
        read(ZNodeLedger(znodes, "days"))
        return znodes.bytes

    assert cost(cells) < 10_000
    assert cost(lambda client: client.seen_partitions("2020-02-08", "2020-02-08")) > 50_000


# ---- the transactions of a partition ----------------------------------------------------------------------------


def test_a_chosen_partition_lists_all_its_transactions_and_reads_no_further_than_its_first(ledger: ZNodeLedger) -> None:
    assert listed(ledger, "2020-02-02") == ([4, 3, 2], None)
    assert listed(ledger, "2020-02-04") == ([], None)
    assert listed(ledger, "2020-02-06") == ([7], None)


def test_a_transaction_that_a_person_closed_is_listed_although_it_left_the_index(ledger: ZNodeLedger) -> None:
    txid = begin_key(ledger, "2020-02-02")
    ledger.skip(7, "withdrawn")
    ledger.skip(txid, "not wanted")
    later = begin_key(ledger, "2020-02-08")
    commit(ledger, later)
    ledger.close_transaction(txid, "not wanted")
    assert ledger.partition("2020-02-02").entry.tx == 4
    assert listed(ledger, "2020-02-02") == ([txid, 4, 3, 2], None)


def test_a_transaction_says_what_has_replaced_it(ledger: ZNodeLedger) -> None:
    record = ledger.view(2).tx
    assert record is not None
    assert page_partitions.partition_now(ledger, record) == {"n": 3, "txid": 4, "committed_txid": 4}


# ---- redo -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        ("2020-02-30", "", "no key of a day"),
        ("2020-01-01", "", "before the topology's first one"),
        ("2020-02-03", "2020-02-02", "Give the earlier one first"),
        ("2020-02-03", "2020-02-09", "is complete at 2020-02-09T23:00Z"),
    ],
)
def test_a_redo_of_what_is_no_partition_or_not_over_is_refused(
    ledger: ZNodeLedger, first: str, last: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        page_partitions.dags_of_redo(ledger, ledger.view(0), first, last, None, NOW)


def test_a_redo_is_for_the_dags_of_its_partitions_and_of_the_revision_that_was_shown(ledger: ZNodeLedger) -> None:
    view = ledger.view(0)
    begin_key(ledger, "2020-02-08", dag_id="others")
    assert page_partitions.dags_of_redo(ledger, view, "2020-02-01", "2020-02-08", None, NOW) == {"words", "others"}
    assert page_partitions.dags_of_redo(ledger, view, "2020-02-04", "", 0, NOW) == set()
    assert page_partitions.dags_of_redo(ledger, view, "2020-02-02", "2020-02-02", 3, NOW) == {"words"}
    with pytest.raises(TransitionError, match="is at revision 1 now"):
        page_partitions.dags_of_redo(ledger, view, "2020-02-08", "", 0, NOW)


def test_a_redo_is_refused_for_a_topology_that_is_not_bound(znodes: MemoryZNodes) -> None:
    ledger = ZNodeLedger(znodes, "words")
    ledger.register(DEFINITION)
    with pytest.raises(ConfigurationError, match="not bound to partitions"):
        page_partitions.dags_of_redo(ledger, ledger.view(0), "2020-02-01", "", None, NOW)


@pytest.mark.parametrize(
    ("named", "command", "words"),
    [
        ({"partition": "2020-02-01"}, "--partition 2020-02-01 --redo", "2020-02-01"),
        (
            {"partition": "2020-02-01", "to": "2020-02-03", "choice": "missing", "empty": "take"},
            "--partition 2020-02-01 --to 2020-02-03 --missing --empty take",
            "2020-02-01 to 2020-02-03, missing ones",
        ),
    ],
)
def test_the_order_of_a_redo_is_a_command_and_words(named: dict, command: str, words: str) -> None:
    order = MendingOrder(
        action=PageAction.BACKFILL, topology="days", dag_id="words", incarnation="i", reason="late", by="ada", **named
    )
    assert order.command == f"airflow trident backfill days {command}"
    assert partition_words(**order.conf()) == words
    assert MendingOrder.of(order.conf()) == order


def test_a_definition_of_a_bound_topology_says_from_when_on_it_is(ledger: ZNodeLedger) -> None:
    assert page_partitions.described(page_partitions.calendar(ledger.view(0))) == {
        "step": "day",
        "timezone": "Europe/Berlin",
        "begin": "2020-01-30",
    }
    assert ledger.topology().definition == definition_of(DAYS)
