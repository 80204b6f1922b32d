"""What pages and docstrings say about the rooms is so: a module that moved takes every mention of it along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_trident"
MAP = ROOT / "docs" / "architecture.md"
MAPS = [MAP, ROOT / "docs" / "decisions" / "0014-rooms.md", ROOT / "CONTRIBUTING.md"]
CHANGELOG = ROOT / "docs" / "changelog.md"
"""It says how things were called before."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != CHANGELOG),
]
CODE = [
    path for folder in ("airflow_trident", "tests", "demo", "tools") for path in sorted((ROOT / folder).rglob("*.py"))
]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def missing_paths(text: str) -> list[str]:
    """What stands in backquotes, looks like a file or folder, and is not there."""
    said = [word for quoted in re.findall(r"`([^`\n]+)`", text) for word in quoted.split()]
    named = [word for word in said if re.fullmatch(r"[\w.*-]+(/[\w.*-]*)+|[\w*]+\.py", word) and word != ".ci/run"]
    return [word for word in named if not any(any(base.glob(word.rstrip("/"))) for base in (ROOT, PACKAGE))]


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_every_module_that_the_map_names_is_there(page: Path) -> None:
    assert missing_paths(text_of(page)) == []


def test_a_module_that_is_not_there_is_seen() -> None:
    assert missing_paths("`runtime/gone.py`, `states/core/`, `tests/gone/*.py` and `types.py`") == [
        "runtime/gone.py",
        "tests/gone/*.py",
    ]


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    table = text_of(MAP).partition("| room |")[2].partition("## The way")[0]
    assert rooms - set(re.findall(r"`(\w+)/`", table)) == set()


def test_a_batch_goes_its_way_in_ten_steps_and_ten_changes_or_more_have_a_place() -> None:
    way, changes = text_of(MAP).partition("## The way of one batch")[2].split("## Where do I put ...")
    assert [int(number) for number in re.findall(r"^(\d+)\. ", way, re.MULTILINE)] == [*range(1, 11)]
    assert len(re.findall(r"^\| ", changes, re.MULTILINE)) >= 1 + 10


def gone_modules(text: str) -> Iterator[str]:
    """Dotted names below the package that lead to no module."""
    for dotted in re.findall(r"`~?((?:[a-z_]\w*\.)+\w+)`", text):
        parts = dotted.removeprefix("airflow_trident.").split(".")
        if len(parts) > 1 and (PACKAGE / parts[0]).is_dir() and not _is_module(parts):
            yield dotted


def _is_module(parts: list[str]) -> bool:
    """Is it a room, or a module and perhaps names in it?"""
    if PACKAGE.joinpath(*parts).is_dir():
        return True
    return any(PACKAGE.joinpath(*parts[:count]).with_suffix(".py").is_file() for count in range(1, len(parts) + 1))


OF_STORM = (
    "storm.js",
    "storm.py",
    "storm.zookeeper.servers",
    "topology.max.spout.pending",
    "topology.max.task.parallelism",
    "topology.message.timeout.secs",
    "topology.name",
)
"""Options and files of Storm, which has rooms of such names, too."""


@pytest.mark.parametrize("files", [PAGES, CODE], ids=["pages", "docstrings"])
def test_every_module_that_is_named_in_prose_is_there(files: list[Path]) -> None:
    gone = {str(path.relative_to(ROOT)): [*gone_modules(text_of(path))] for path in files if path != Path(__file__)}
    assert {path: kept for path, names in gone.items() if (kept := [*set(names) - set(OF_STORM)])} == {}


def test_a_module_that_moved_is_seen_in_prose() -> None:
    prose = "`states.marker.admit`, :mod:`~airflow_trident.plan.states` but `states.core.marker.admit`, `states.core`"
    assert [*gone_modules(prose)] == ["states.marker.admit", "airflow_trident.plan.states"]
