"""Which waiting transactions are committed in one step."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.protocol.records import Claim, StagedRef, Status, TxRecord
from airflow_trident.runtime.commit import MOST_ROWS, first_group, waiting_run
from airflow_trident.staging.manifest import Manifest, Slot, StagedMember

STAGED = (Status.PROCESSED, Status.COMMITTING)


def record(txid: int, status: Status = Status.PROCESSED, manifest: str = "", rows: int = 1) -> TxRecord:
    staged = StagedRef(manifest=manifest or f"m{txid}", rows_read=1, rows={"count": rows}, bytes=1)
    return TxRecord(
        txid=txid,
        status=status,
        attempt=0,
        metadata={},
        claim=Claim(key=str(txid)),
        op="",
        staged=staged if status in (*STAGED, Status.COMMITTED) else None,
    )


def manifest(*txids: int, inseparable: bool = False) -> Manifest:
    slot = Slot(topology="t", incarnation="i", txid=txids[-1], attempt=0)
    members = tuple(StagedMember(txid=txid, attempt=0, rows_read=1, rows={}) for txid in txids)
    return Manifest(slot=slot, files=(), rows_read=1, sinks={}, group=members, inseparable=inseparable)


@given(st.lists(st.sampled_from(list(Status)), max_size=12), st.sets(st.integers(1, 12)), st.integers(1, 12))
def test_a_run_ends_before_the_first_that_cannot_commit(statuses: list[Status], taken: set[int], most: int) -> None:
    records = [record(txid, status) for txid, status in enumerate(statuses, start=1)]
    found = waiting_run(records, lambda one: one.txid not in taken, most)
    assert len(found) <= most
    upto = found[-1].txid if found else 0
    for one in records[:upto]:
        assert one in found or one.status.lets_others_pass
        assert one not in found or one.status is Status.PROCESSED or one.txid not in taken
    rest = [one for one in records[upto:] if not one.status.lets_others_pass]
    if rest and len(found) < most:
        stuck = rest[0]
        assert stuck.status not in STAGED or (stuck.status is Status.COMMITTING and stuck.txid in taken)


def test_what_is_unreadable_ends_a_group_and_goes_alone() -> None:
    waiting = [record(1), record(2), record(3)]
    manifests = {"m1": manifest(1), "m3": manifest(3)}
    assert [one.txid for one in first_group(waiting, manifests)] == [1]
    assert [one.txid for one in first_group(waiting[1:], manifests)] == [2]


def test_what_was_merged_by_key_goes_whole_and_by_itself() -> None:
    waiting = [record(1), *(record(txid, manifest="m") for txid in (2, 3, 4)), record(5)]
    manifests = {"m1": manifest(1), "m": manifest(2, 3, 4, inseparable=True), "m5": manifest(5)}
    assert [one.txid for one in first_group(waiting, manifests)] == [1]
    assert [one.txid for one in first_group(waiting[1:], manifests)] == [2, 3, 4]
    assert [one.txid for one in first_group(waiting[1:3], manifests)] == [2]
    moved = [waiting[1], replace(waiting[2], attempt=1), waiting[3]]
    assert [one.txid for one in first_group(moved, manifests)] == [2]
    assert [one.txid for one in first_group(waiting[2:], manifests)] == [3]


def test_rows_that_are_apart_are_bounded() -> None:
    waiting = [record(txid, rows=MOST_ROWS // 2) for txid in (1, 2, 3)]
    manifests = {f"m{txid}": manifest(txid) for txid in (1, 2, 3)}
    assert [one.txid for one in first_group(waiting, manifests)] == [1, 2]
    large = [record(1, rows=2 * MOST_ROWS), *waiting[1:]]
    assert [one.txid for one in first_group(large, manifests)] == [1]
