"""What becomes of topology files of both generations, as a person reads it. `make golden` writes the plans again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, Topology
from airflow_trident.plan.graph import ordered
from airflow_trident.plan.show.explain import explain
from airflow_trident.storm import from_qtopology
from airflow_trident.storm.components.bolt import BoltNode
from airflow_trident.topology.stream import Stream
from tests.fixtures.plan import PaperState

GOLDEN = Path(__file__).parents[1] / "golden" / "qtopology"


def counted(stream: Stream) -> Any:
    return stream.group_by("word").persistent_aggregate(PaperState(), Count(), "n")


OPTIONS: dict[str, dict[str, Any]] = {
    "modules": {"fields": {"split": "word string"}, "states": {"split": counted}, "overrides": {"HOST": "localhost"}},
    "workers": {
        "fields": {"bolt2": "word string"},
        "states": {"bolt2": counted},
        "protocol": "seed",
        "working_dir": "/opt",
    },
}


def imported(name: str) -> Topology:
    return from_qtopology(str(GOLDEN / f"{name}.json"), spool_dir="/shared/spool", **OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_the_plan_of_a_file_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    plan = explain(imported(name).compile()).partition("\ndigest ")[0]
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(plan)
    assert plan == path.read_text()


def test_every_golden_file_is_imported() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{name}.{kind}" for name in OPTIONS for kind in ("json", "txt")
    }


def test_what_a_file_says_of_a_program_is_what_is_started() -> None:
    nodes = ordered(imported("workers").compile().sinks)
    bolts = {node.bolt.cmd: node.bolt for node in nodes if isinstance(node, BoltNode)}
    assert {cmd: (bolt.working_dir, bolt.allow_parallel, bolt.protocol) for cmd, bolt in bolts.items()} == {
        "bolt.js": ("/opt/./sample", False, "seed"),
        "bolt2.js": ("/opt/./sample", True, "seed"),
    }
