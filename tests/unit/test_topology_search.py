"""Topologies in files, by place: other modules of the process stay what they are, and a changed file is read again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.triggers.batch import TridentBatchTrigger

CODE = """
from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology

topology = Topology("words")
words = topology.new_stream("lines", FixedBatchSpout("word string", ["WORD"])).group_by("word")
words.persistent_aggregate(SqliteState("words.db"), Count(), "count")
"""


@pytest.mark.parametrize("name", ["json", "this", "sys"], ids=["in use", "not imported yet", "built in"])
def test_a_file_with_the_name_of_another_module_does_not_take_its_place(name: str, tmp_path: Path) -> None:
    before = sys.modules.get(name)
    file = tmp_path / f"{name}.py"
    file.write_text(CODE)
    assert topology_named("words", dag_file=f"{file}:topology").name == "words"
    assert sys.modules.get(name) is before


def test_a_file_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "half_a_topology.py"
    file.write_text("here = 1\nraise ValueError('not now')\n")
    with pytest.raises(ConfigurationError, match="not now"):
        topology_named("words", dag_file=f"{file}:topology")
    assert "half_a_topology" not in sys.modules


def test_a_trigger_goes_by_the_file_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "changed_topology", raising=False)
    file = tmp_path / "changed_topology.py"
    file.write_text(CODE)
    trigger = TridentBatchTrigger("words", f"{file}:topology")
    first = trigger._topology()
    assert trigger._topology() is first
    file.write_text(CODE.replace("WORD", "another word"))
    changed = trigger._topology()
    assert "another word" in repr(vars(changed.spouts["lines"]))
    file.unlink()  # it is being replaced
    assert trigger._topology() is changed
