"""Staged batches of several transactions: each gets its own rows back, or all of them together."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.errors import InseparableError, StagingError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedMember, decode, encode
from airflow_trident.types import ddl, parse_declared

WORDS = parse_declared("word string, n long")
LAST = Slot(topology="words", incarnation="i1", txid=9, attempt=2)
ATTEMPTS = {6: 0, 7: 3, 9: 2}
ROWS = {6: [("a", 1), ("b", 2)], 7: [], 9: [("a", 5)]}


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "staging"))


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return rows_to_table(WORDS, list(rows))


def by_transaction(area: StagingArea) -> Manifest:
    """One file of "counts" with the rows of all, and nothing for "others"."""
    file = area.write(LAST, "counts", table(*(row for txid in ATTEMPTS for row in ROWS[txid])))
    members, first = [], 0
    for txid, attempt in ATTEMPTS.items():
        rows = {"counts": (first, len(ROWS[txid]))}
        members.append(StagedMember(txid=txid, attempt=attempt, rows_read=10 * txid, rows=rows))
        first += len(ROWS[txid])
    sinks = {"counts": ddl(WORDS), "others": ddl(WORDS)}
    return Manifest(slot=LAST, files=(file,), rows_read=220, sinks=sinks, group=tuple(members))


def by_key(area: StagingArea) -> Manifest:
    file = area.write(LAST, "counts", table(("a", 6), ("b", 2)))
    members = tuple(
        StagedMember(txid=txid, attempt=attempt, rows_read=10 * txid, rows={}) for txid, attempt in ATTEMPTS.items()
    )
    sinks = {"counts": ddl(WORDS)}
    return Manifest(slot=LAST, files=(file,), rows_read=220, sinks=sinks, group=members, inseparable=True)


def read(area: StagingArea, attempts: dict[int, int], state: str = "counts") -> list[Any]:
    return [table_to_rows(one) for one in area.read_each(area.load(LAST), attempts, state, WORDS)]


# ---- by transaction --------------------------------------------------------------------------------------------


def test_each_transaction_gets_its_own_rows_back(area: StagingArea) -> None:
    refs = area.publish_group(by_transaction(area))
    assert {txid: ref.manifest for txid, ref in refs.items()} == dict.fromkeys(
        ATTEMPTS, "words/i1/0000000000000000009/2/manifest.json"
    )
    assert {txid: (ref.rows_read, ref.rows) for txid, ref in refs.items()} == {
        6: (60, {"counts": 2}),
        7: (70, {"counts": 0}),
        9: (90, {"counts": 1}),
    }
    assert [ref.bytes > 0 for ref in refs.values()] == [False, False, True]
    assert area.load(refs[6]) == area.load(LAST) == by_transaction_as_loaded(area)
    assert read(area, ATTEMPTS) == [ROWS[6], ROWS[7], ROWS[9]]
    assert read(area, {7: 3}) == [[]]
    assert read(area, {6: 0, 9: 2}) == [ROWS[6], ROWS[9]]
    assert read(area, ATTEMPTS, "others") == [[], [], []]


def by_transaction_as_loaded(area: StagingArea) -> Manifest:
    return decode(encode(area.load(LAST)), "again")


@pytest.mark.parametrize("asked", [{6: 1}, {8: 0}, {6: 0, 7: 2}, {10: 0}])
def test_what_it_is_not_of_is_staged_again(area: StagingArea, asked: dict[int, int]) -> None:
    area.publish_group(by_transaction(area))
    with pytest.raises(StagingError, match=r"6 \(attempt 0\), 7 \(attempt 3\), 9 \(attempt 2\), and not of.*again"):
        read(area, asked)


def test_who_knows_no_groups_is_told_to_stage_again_and_never_gets_the_rows_of_all(area: StagingArea) -> None:
    area.publish_group(by_transaction(area))
    with pytest.raises(StagingError, match="6 to 9 together, and one transaction is asked for"):
        area.read(area.load(LAST), "counts", WORDS)


def test_a_single_transaction_is_read_as_a_group_of_one(area: StagingArea) -> None:
    file = area.write(LAST, "counts", table(("a", 5)))
    more = area.write(LAST, "counts", table(("b", 6)))
    area.publish(Manifest(slot=LAST, files=(file, more), rows_read=2, sinks={"counts": ddl(WORDS)}))
    (rows,) = read(area, {9: 2})
    assert sorted(rows) == [("a", 5), ("b", 6)]
    with pytest.raises(StagingError, match="not of"):
        read(area, {9: 1})


# ---- by key ----------------------------------------------------------------------------------------------------


def test_what_was_merged_by_key_is_one_table_of_all(area: StagingArea) -> None:
    refs = area.publish_group(by_key(area))
    assert {txid: ref.rows for txid, ref in refs.items()} == {6: {}, 7: {}, 9: {"counts": 2}}
    assert read(area, ATTEMPTS) == [[("a", 6), ("b", 2)]]


@pytest.mark.parametrize("asked", [{9: 2}, {6: 0, 7: 3}, {6: 0, 7: 4, 9: 2}, {6: 0, 7: 3, 9: 2, 10: 0}])
def test_what_was_merged_by_key_counts_for_all_of_them_or_not_at_all(area: StagingArea, asked: dict[int, int]) -> None:
    area.publish_group(by_key(area))
    with pytest.raises(InseparableError, match=r"counts for the transactions 6.*together, and not for"):
        read(area, asked)
    with pytest.raises(StagingError):
        area.read(area.load(LAST), "counts", WORDS)


# ---- the manifest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [by_transaction, by_key])
def test_a_group_survives_its_manifest(area: StagingArea, kind: Callable[[StagingArea], Manifest]) -> None:
    manifest = kind(area)
    assert decode(encode(manifest), "m") == manifest


def test_what_is_no_group_has_no_field_of_one(area: StagingArea) -> None:
    plain = Manifest(slot=LAST, files=(), rows_read=2, sinks={})
    assert set(json.loads(encode(plain))) == {
        "version", "topology", "incarnation", "txid", "attempt", "rows_read", "files", "sinks",
    }  # fmt: skip
    assert decode(encode(plain), "m") == plain


DAMAGES: dict[str, Callable[[Manifest], Manifest]] = {
    "does not end with its own": lambda m: replace(m, group=m.group[:-1]),
    "end with its own": lambda m: replace(m, group=(m.group[1], m.group[0], m.group[2])),
    "begin at 1 instead of 0": lambda m: replace(m, group=(with_rows(m, 0, (1, 2)), *m.group[1:])),
    "has 2 of the 3 rows": lambda m: replace(m, group=(*m.group[:-1], with_rows(m, 2, (2, 0)))),
    "begin at 2 instead of 3": lambda m: replace(m, group=(with_rows(m, 0, (0, 3)), *m.group[1:])),
    "several files": lambda m: replace(m, files=(*m.files, replace(m.files[0], path="words/other"))),
    "says whose rows are whose": lambda m: replace(m, inseparable=True),
    "has no group": lambda m: replace(m, group=(), inseparable=True),
}


def with_rows(manifest: Manifest, place: int, rows: tuple[int, int]) -> StagedMember:
    return replace(manifest.group[place], rows={"counts": rows})


@pytest.mark.parametrize("why", DAMAGES)
def test_a_manifest_that_contradicts_itself_is_neither_published_nor_read(area: StagingArea, why: str) -> None:
    damaged = DAMAGES[why](by_transaction(area))
    with pytest.raises(StagingError, match=why):
        area.publish_group(damaged)
    content = json.loads(encode(damaged))
    content |= {"inseparable": damaged.inseparable}
    with pytest.raises(StagingError, match=why):
        decode(json.dumps(content).encode(), "m")


@pytest.mark.parametrize("field", ["txid", "attempt", "rows_read", "rows"])
def test_a_member_with_a_wrong_field_is_refused(area: StagingArea, field: str) -> None:
    content = json.loads(encode(by_transaction(area)))
    content["group"][1][field] = "x"
    with pytest.raises(StagingError, match=rf"field 'group\[.*\]\.{field}'"):
        decode(json.dumps(content).encode(), "m")


# ---- cleaning --------------------------------------------------------------------------------------------------


def test_a_group_is_removed_with_its_last_transaction(area: StagingArea) -> None:
    area.publish_group(by_transaction(area))
    area.remove_before("words", "i1", 9, set[int]().__contains__)
    assert read(area, {6: 0}) == [ROWS[6]]
    area.remove_before("words", "i1", 10, set[int]().__contains__)
    with pytest.raises(StagingError, match="not in the staging folder"):
        area.load(LAST)
