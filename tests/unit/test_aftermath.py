"""What the documents say of accidents is what the program found, and the program still finds it."""

from __future__ import annotations

import re

import pytest

from benchmarks.aftermath import dbt, operators, report, ways
from benchmarks.aftermath.accidents import Accident
from tests.documented import DOCS

HAND = "Iceberg by hand, a mark in the snapshot"


def test_the_table_in_the_documents_is_the_one_that_the_program_made() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| *\| retry \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert tables == [report.table(report.read()) + "\n"], "`make aftermath` prints the table"


def test_what_the_table_names_is_what_the_program_plays() -> None:
    measured = report.read()
    assert set(measured) <= {*operators.OPERATORS, *ways.WAYS, *dbt.MODELS}
    assert all(set(row) == set(Accident) for row in measured.values()), "a cell was not counted"


@pytest.mark.parametrize("accident", [Accident.KILL, Accident.TWO_WRITING])
def test_the_program_finds_what_it_found(accident: Accident) -> None:
    assert ways.left_by(HAND, accident, zookeeper="") == report.read()[HAND][accident]
