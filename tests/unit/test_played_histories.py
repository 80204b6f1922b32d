"""The record of the histories that `make histories` has played."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.simulation import played
from tests.simulation.kinds import KINDS
from tests.simulation.played import Part


def part(kind: str, first: int, last: int, commit: str = "a", broken: dict[int, str] | None = None) -> Part:
    return Part(kind, first, last, last - first, 10, 1.0, broken or {}, commit)


def test_no_seed_is_counted_twice_and_none_broke_a_promise() -> None:
    for kind in KINDS:
        mine = sorted((one for one in played.load() if one.kind == kind), key=lambda one: one.first)
        assert all(before.last <= after.first for before, after in pairwise(mine)), kind
        assert not [one.broken for one in mine if one.broken], kind


def test_the_page_has_the_table_of_what_was_played(tmp_path: Path) -> None:
    page = tmp_path / "verification.md"
    page.write_text(played.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    played.write_page(played.table(tuple(KINDS), played.load()), page)
    assert page.read_text(encoding="utf-8") == played.PAGE.read_text(encoding="utf-8"), "run `make histories` again"


def test_parts_of_several_runs_add_up(tmp_path: Path) -> None:
    file = tmp_path / "played.json"
    played.save([part("x", 250, 500, broken={300: "P1"}), part("x", 0, 250), part("x", 500, 750, "b")], file)
    found = played.load(file)
    assert [(one.first, one.last, one.commit, one.broken) for one in found] == [
        (0, 500, "a", {300: "P1"}),
        (500, 750, "b", {}),
    ]
    assert played.is_played(found, "x", 250, 750)
    assert not played.is_played(found, "x", 500, 1000)
    assert not played.is_played(found, "y", 0, 1)
    assert played.table(["x", "y"], found)[2:5] == [
        "| `x` | 750 | 750 | 30 | 1 |",
        "| `y` | 0 | 0 | 0 | 0 |",
        "| all | 750 | 750 | 30 | 1 |",
    ]
