"""What a worker tries before it confirms: the definition, the states, each bolt in another program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.errors import ChildError, ConfigurationError, DefinitionChangedError, TridentError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.storm import BoltSink, ShellBolt, ShellSpout
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.workers.worker import bolts_of, initialise
from tests.fixtures.child import shell

PROGRAM = """
import json, pathlib, sys
pathlib.Path({mark!r}).open("a").write("x")
def read():
    lines = []
    while (line := sys.stdin.readline()) and line != "end\\n":
        lines.append(line)
    return json.loads("".join(lines)) if lines else None
{body}
"""
GOOD = """
setup = read()
print(json.dumps({"pid": 1}), "end", sep="\\n", flush=True)
while read() is not None:
    print(json.dumps({"command": "sync"}), "end", sep="\\n", flush=True)
"""


def bolt_of(folder: Path, body: str, **options: Any) -> ShellBolt:
    """A multilang bolt that leaves a mark for each start."""
    file = folder / "bolt.py"
    file.write_text(PROGRAM.format(mark=str(folder / "started"), body=body))
    return ShellBolt([sys.executable, "-I", "-S", str(file)], **options)


def topology(folder: Path, bolt: ChildBolt, *, sink: ChildBolt | None = None) -> Topology:
    made = Topology("words", exactly_once=sink is None)
    stream = made.new_stream("lines", FixedBatchSpout("line string", ["a b"]))
    words = stream.each("line", bolt, "word string")
    words.group_by("word").persistent_aggregate(SqliteState(str(folder / "words.db")), Count(), "n", name="words")
    if sink is not None:
        stream.partition_persist(BoltSink(sink), ["line"], name="sink")
    return made


def test_each_bolt_is_started_and_stopped_once_and_none_where_it_does_not_run(tmp_path: Path) -> None:
    made = topology(tmp_path, bolt_of(tmp_path, GOOD))
    with MemoryLedger("words") as ledger:
        initialise(made, ledger, children_here=True)
        assert (tmp_path / "started").read_text() == "x"
        initialise(made, ledger, children_here=False)  # on the machines of a cluster
        assert (tmp_path / "started").read_text() == "x"
        assert list(ledger.transactions()) == []


def test_a_bolt_that_is_a_sink_runs_where_commits_are(tmp_path: Path) -> None:
    made = topology(tmp_path, shell(), sink=shell())
    assert [fields for _, fields in bolts_of(made)] == [("line",), ("line",)]
    assert [fields for _, fields in bolts_of(made, children_here=False)] == [("line",)]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("sys.exit(3)", ChildError, "bolt.py' ended with code 3 before it began"),
        ("print('no json', 'end', sep='\\n', flush=True)\nread(); read(); read()", TridentError, "no json"),
        ("raise RuntimeError('boom')", ChildError, "boom"),
    ],
)
def test_a_bolt_that_does_not_begin_is_an_error_that_names_it(
    tmp_path: Path, body: str, kind: type[Exception], text: str
) -> None:
    made = topology(tmp_path, bolt_of(tmp_path, body))
    with MemoryLedger("words") as ledger, pytest.raises(kind, match=text):
        initialise(made, ledger, children_here=True)


def test_a_program_that_is_not_there_and_another_definition_are_refused(tmp_path: Path) -> None:
    with MemoryLedger("words") as ledger:
        with pytest.raises(ConfigurationError, match="no-such-program"):
            initialise(topology(tmp_path, ShellBolt("no-such-program")), ledger, children_here=True)
        other = Topology("words")
        stream = other.new_stream("others", FixedBatchSpout("line string", ["a"]))
        stream.group_by("line").persistent_aggregate(
            SqliteState(str(tmp_path / "others.db")), Count(), "n", name="others"
        )
        with pytest.raises(DefinitionChangedError, match="airflow trident ledger accept words"):
            initialise(other, ledger, children_here=True)


def test_a_spout_in_another_program_is_not_started_by_a_trial(tmp_path: Path) -> None:
    """It could take something from its source that no transaction has."""
    mark = tmp_path / "started"
    made = Topology("words")
    program = [sys.executable, "-c", f"open({str(mark)!r}, 'w')"]
    stream = made.new_stream("lines", ShellSpout(program, "line string", str(tmp_path / "spool")))
    stream.group_by("line").persistent_aggregate(SqliteState(str(tmp_path / "words.db")), Count(), "n", name="words")
    with MemoryLedger("words") as ledger:
        initialise(made, ledger, children_here=True)
    assert not mark.exists()
