"""What `airflow trident ledger` says about transactions, from records alone."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.cli.commands.ledger import late_rows, plan_changes
from airflow_trident.cli.commands.transactions import late_text
from airflow_trident.errors import ConfigurationError
from airflow_trident.plugin.page_data import Sight, row
from airflow_trident.protocol.records import Claim, Status, TxRecord


def record(txid: int, plan: str, **late: int) -> TxRecord:
    claim = Claim(key=str(txid))
    return TxRecord(
        txid=txid, status=Status.COMMITTED, attempt=0, metadata={}, claim=claim, op="", plan=plan, late_rows=late
    )


def test_the_transactions_with_which_the_plan_changed_are_named() -> None:
    """Those without a plan were attempted by a version that recorded none, or not at all."""
    plans = {1: "", 2: "a" * 64, 3: "a" * 64, 5: "b" * 64, 6: "", 7: "b" * 64, 8: "a" * 64}
    records = [record(txid, plan) for txid, plan in reversed(plans.items())]
    assert list(plan_changes(records)) == [
        f"the plan changed with transaction 5: {'a' * 16} -> {'b' * 16}",
        f"the plan changed with transaction 8: {'b' * 16} -> {'a' * 16}",
    ]
    assert list(plan_changes(records[:1])) == []


def test_tuples_that_no_window_took_are_named_by_transaction_and_state() -> None:
    assert list(late_rows([record(1, ""), record(2, "", n_window=3)])) == [
        "transaction 2: 3 tuples came too late for all their windows of state n_window, or without a time"
    ]


def test_the_page_has_them_for_those_who_may_see_the_transaction() -> None:
    one = record(2, "a" * 64, n_window=3)
    for visible, expected in ((True, ("a" * 16, {"n_window": 3})), (False, ("", {}))):
        shown = row(one, Sight(frozenset(), unowned=False), visible)
        assert (shown["plan"], shown["late_rows"]) == expected


class InOrder(Count):
    commutes = False


@pytest.mark.parametrize(
    ("aggregator", "says"),
    [
        (Count(), "`airflow trident backfill words --txid 4` applies it after all."),
        (
            InOrder(),
            "State kept depends on the order of transactions: `airflow trident backfill words --txid 4` applies it "
            "only until a later transaction commits",
        ),
    ],
)
def test_what_skip_says_of_a_backfill_depends_on_the_states(aggregator: Any, says: str, tmp_path: Path) -> None:
    topology = Topology("words")
    words = topology.new_stream("words", FixedBatchSpout("word string", [("a",)])).group_by("word")
    words.persistent_aggregate(SqliteState(str(tmp_path / "words.db")), aggregator, "n", name="kept")
    args = Namespace(topology="words", txid=4)
    assert late_text(args, lambda: topology).startswith(says)

    def nowhere() -> Topology:
        raise ConfigurationError("there is no DAG file", "Give one.")

    assert "if a state depends on the order of transactions" in late_text(args, nowhere)
