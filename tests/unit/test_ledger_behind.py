"""When a ledger is behind its states, and when it only looks so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from airflow_trident.contracts.state import Marker, digest_of
from airflow_trident.errors import LedgerBehindStateError
from airflow_trident.protocol.records import (
    Claim,
    CommitPointer,
    Exceptions,
    LedgerView,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.state_agreement import require_ledger_ahead

VIEW = LedgerView(
    topology=TopologyRecord(name="words", incarnation="i1", definition=Definition(spouts={}, states={})),
    next_txid=4,
    pointer=CommitPointer(committed=2, fence=7),
    exceptions=Exceptions(),
    tx=None,
)
HIGH = Marker(incarnation="i1", high=3, fence=7, position={"lines": 3})


def tx(txid: int, **changes: Any) -> TxRecord:
    known: dict[str, Any] = {"metadata": {"lines": txid}, "touched": True, "status": Status.COMMITTING, "attempt": 0}
    return TxRecord(txid=txid, claim=Claim(key=f"run-{txid}"), op="", **known | changes)


def of(*records: TxRecord) -> Callable[[Txids], list[TxRecord]]:
    return lambda txids: [one for one in records if one.txid in txids]


@pytest.mark.parametrize(
    "marker",
    [None, HIGH, Marker(incarnation="i1", high=1, fence=2, holes=((1, 1),))],
)
def test_a_ledger_that_gave_out_every_txid_and_fence_that_the_states_have_seen_is_ahead(marker: Marker | None) -> None:
    require_ledger_ahead("words", {"counts": marker}, VIEW, of(tx(3)))


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        (Marker(incarnation="i0", high=1, fence=1), "incarnation i0"),
        (Marker(incarnation="i1", high=4, fence=7), "up to 4"),
        # One used txid was begun again, so that the txids look right: only the fence tells.
        (Marker(incarnation="i1", high=3, fence=8), "fence 8.*fence 7"),
    ],
)
def test_a_state_that_has_seen_more_than_the_ledger_gave_out_proves_an_old_copy(marker: Marker, why: str) -> None:
    with pytest.raises(LedgerBehindStateError, match=rf"'counts' of topology 'words'.*{why}.*Nothing was changed"):
        require_ledger_ahead("words", {"other": None, "counts": marker}, VIEW, of())


GROUP = Marker(incarnation="i1", high=4, fence=7, position={"lines": 4}, group={3: digest_of({"lines": 3}), 4: ""})
OPAQUE = replace(VIEW.topology.definition, spouts={"lines": SpoutDefinition(text="lines", kind=SpoutKind.OPAQUE)})


@pytest.mark.parametrize(
    ("marker", "records", "is_behind"),
    [
        (HIGH, [tx(3)], False),
        (HIGH, [tx(3, touched=False)], True),
        (HIGH, [tx(3, metadata={"lines": 4})], True),
        (HIGH, [tx(3, metadata={"lines": 4}, invalidated=True)], False),
        (HIGH, [tx(3, touched=False, status=Status.COMMITTED)], False),
        (HIGH, [], False),  # committed and pruned since the view was read
        (GROUP, [tx(3), tx(4)], False),
        (GROUP, [tx(3, metadata={"lines": 4}), tx(4)], True),
        (replace(GROUP, group={}), [tx(3), tx(4)], True),
        (replace(GROUP, group={}, holes=((3, 3),)), [tx(3), tx(4)], False),
    ],
)
def test_what_a_state_holds_above_the_commit_pointer_is_the_same_in_the_ledger(
    marker: Marker, records: list[TxRecord], is_behind: bool
) -> None:
    view = replace(VIEW, next_txid=5)
    with pytest.raises(LedgerBehindStateError, match="airflow trident repair") if is_behind else nullcontext():
        require_ledger_ahead("words", {"counts": marker}, view, of(*records))


@pytest.mark.parametrize(("held", "attempt", "is_behind"), [(1, 2, False), (2, 2, True), (3, 2, True)])
def test_a_newer_attempt_of_an_opaque_batch_may_have_another_position(held: int, attempt: int, is_behind: bool) -> None:
    view = replace(VIEW, topology=replace(VIEW.topology, definition=OPAQUE))
    records = of(tx(3, attempt=attempt, metadata={"lines": 4}))
    with pytest.raises(LedgerBehindStateError) if is_behind else nullcontext():
        require_ledger_ahead("words", {"counts": replace(HIGH, attempt=held)}, view, records)


def test_no_state_holds_what_is_skipped_or_what_comes_late_for_the_first_time() -> None:
    held, lacks = replace(HIGH, high=2, position={}), replace(HIGH, high=2, position={}, holes=((1, 1),))
    skipped, late, failed = Exceptions(skipped=Txids.of(1)), Exceptions(late=(1,)), Exceptions(failed=(1,))
    new, again = of(tx(1, touched=False)), of(tx(1))  # again: a commit of it has begun; then the state has it from that
    for exceptions, records, why in (
        (skipped, of(), "as SKIPPED"),
        (late, new, "not begun"),
        (failed, new, "not begun"),
    ):
        view = replace(VIEW, exceptions=exceptions)
        require_ledger_ahead("words", {"counts": lacks}, view, records)
        with pytest.raises(LedgerBehindStateError, match=f"holds 1, which the ledger has {why}"):
            require_ledger_ahead("words", {"counts": held}, view, records)
        joined_later = replace(VIEW.topology, since={"counts": 2})  # it had left, and kept what it had then
        require_ledger_ahead("words", {"counts": held}, replace(view, topology=joined_later), records)
    for exceptions in (late, failed):
        require_ledger_ahead("words", {"counts": held}, replace(VIEW, exceptions=exceptions), again)


def test_the_highest_that_a_state_holds_is_not_closed_in_the_ledger() -> None:
    closed = replace(VIEW, exceptions=Exceptions(closed=Txids.of(1, 2)))
    require_ledger_ahead(
        "words", {"counts": replace(HIGH, high=3, position={})}, closed, of()
    )  # a hole it has forgotten
    with pytest.raises(LedgerBehindStateError, match="holds 2, which the ledger has as CLOSED"):
        require_ledger_ahead("words", {"counts": replace(HIGH, high=2, position={})}, closed, of())


def test_a_state_that_cannot_replace_batches_does_not_say_that_the_ledger_of_an_opaque_spout_is_behind() -> None:
    """Topologies that need not be exact may have one; only the commit of such a transaction is refused."""
    view = replace(VIEW, topology=replace(VIEW.topology, definition=OPAQUE))
    require_ledger_ahead("words", {"counts": HIGH}, view, of(tx(3, attempt=1, metadata={"lines": 4})))


def test_the_ledger_is_read_again_only_for_what_is_not_committed_yet() -> None:
    def no_records(_txids: Txids) -> list[TxRecord]:
        raise AssertionError("nothing has to be read")

    require_ledger_ahead("words", {"counts": Marker(incarnation="i1", high=2, fence=7)}, VIEW, no_records)
