"""The page that says which test does what the documents show: its tests are there, and its lists are whole."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.source import tree_of
from tests.unit import test_child_bolts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests" / "README.md"
COUNTS = {
    "Trident's API, from inside": 6,
    "qtopology's protocol": 16,
    "Transactional topologies": 6,
    "State support in core Storm": 4,
    "The tweets chapter": 17,
    "Workers that are lost and come again": 8,
    "Behaviour of components": 45,
}
"""Section -> its pieces of code, messages or cases."""


@cache
def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "][
        1:
    ]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = tree_of(ROOT / path)
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:4] == "test")


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 60
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


@pytest.mark.parametrize("section", COUNTS)
def test_each_list_is_whole_and_each_row_has_a_test_or_a_reason(section: str) -> None:
    told = rows(sections()[section])
    assert [int(row[0]) for row in told] == [*range(1, COUNTS[section] + 1)]
    assert all("`tests/" in row[-1] or row[-1].startswith(("the same", "the three hashes")) for row in told)


def test_each_failure_of_the_reference_has_its_test() -> None:
    reference = (ROOT / "docs" / "storm" / "components.md").read_text(encoding="utf-8")
    table = reference.partition("\n## Failures\n")[2].partition("\n## ")[0]
    assert [row[0] for row in rows(sections()["Failures of components"])] == [row[0] for row in rows(table)]


def test_each_way_to_fail_stands_in_a_row() -> None:
    ways = [row[0] for row in (*test_child_bolts.FAILURES, *test_child_bolts.NODE_FAILURES)]
    text = sections()["Failures of components"]
    assert f"{len(ways)} ways to fail" in text
    told = [name for row in rows(text) for name in re.findall(r"(?<!\*)\*([^*]+)\*", row[-1])]
    assert set(told) == set(ways)
