"""Components on the libraries that they are written for, unmodified: pystorm and streamparse from PyPI, qtopology from
npm."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ChildError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm import NodeBolt, NodeSpout, ShellBolt, ShellSpout
from tests.fixtures import child_spout
from tests.fixtures.child import COMPONENTS, emits, lines, values, words


def pystorm(kind: str, **options: Any) -> ShellBolt:
    return ShellBolt([sys.executable, os.path.join(COMPONENTS, "with_pystorm.py"), kind], **options)


@pytest.mark.parametrize("kind", ["Split", "Ids"])
def test_a_bolt_of_pystorm_splits_lines(kind: str) -> None:
    rows = lines(1200)
    found = emits(pystorm(kind), rows)
    assert values(found) == words(rows)
    assert [emit.row for emit in found] == [number for number in range(1200) for _ in range(2)]


def test_a_bolt_of_pystorm_takes_task_ids_that_come_early() -> None:
    rows = lines(100)
    assert values(emits(pystorm("Ids", task_ids_ahead=50), rows)) == words(rows)


def test_a_batching_bolt_of_pystorm_gives_its_groups() -> None:
    found = emits(pystorm("Counts"), [("a",), ("b",), ("a",)], matched=False)
    assert sorted(values(found)) == ["a=2", "b=1"]


def test_a_bolt_of_pystorm_may_print_and_name_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    assert values(emits(pystorm("Prints"), lines(3))) == [line for (line,) in lines(3)]
    assert "printed by mistake" in caplog.text


def test_an_exception_in_a_bolt_of_pystorm_names_the_row_and_has_its_traceback() -> None:
    with pytest.raises((UserCodeError, ChildError), match=r"(?s)gave the row up: .*ValueError: no such word"):
        emits(pystorm("Raises"), lines(3))


def streamparse(name: str) -> list[str]:
    """As Storm starts them for it."""
    return [sys.executable, "-m", "streamparse.run", f"with_streamparse.{name}"]


def test_a_bolt_of_streamparse_counts_words() -> None:
    rows = lines(300)
    streams = {"default": "word string, count long"}
    found = emits(ShellBolt(streamparse("WordCounter"), cwd=COMPONENTS), rows, streams=streams)
    counts = Counter[str]()
    expected = []
    for number, (line,) in enumerate(rows):
        for word in line.split():
            counts[word] += 1
            expected.append((number, (word, counts[word])))
    assert [(emit.row, emit.values) for emit in found] == expected


def test_a_spout_of_streamparse_gives_its_numbers_and_hears_which_are_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spout = ShellSpout(streamparse("Numbers"), "number long", str(tmp_path), cwd=COMPONENTS, max_rows=3, idle_s=0)
    coordinator = spout.coordinator()
    with caplog.at_level(logging.INFO):
        first = coordinator.initialize_transaction(1, None)
        assert child_spout.rows_of(spout, first) == [(0,), (1,), (2,)]
        assert "is done" not in caplog.text
        coordinator.success(1, first)
        second = coordinator.initialize_transaction(2, first)
        assert child_spout.rows_of(spout, second) == [(3,), (4,)]
        coordinator.close()
    assert [number for number in range(5) if f"number {number} is done" in caplog.text] == [0, 1, 2]


def test_a_transaction_that_fails_four_times_fails_no_tuple_of_a_reliable_spout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would give up a tuple with its fourth fail. It hears of none: the batch is read again from the spool."""

    def troubled(number: int) -> list[int]:
        tries = len([*tmp_path.glob("try-*")])
        if tries < 4:
            (tmp_path / f"try-{tries}").touch()
            raise ValueError("not yet")
        return [number]

    topology = Topology("feed")
    spout = ShellSpout(streamparse("Reliable"), "number long", str(tmp_path / "spool"), cwd=COMPONENTS, idle_s=0)
    state = SqliteState(str(tmp_path / "counts.db"))
    numbers = topology.new_stream("numbers", spout).each("number", troubled, "same long")
    numbers.group_by("same").persistent_aggregate(state, Count(), "count")
    with MemoryLedger("feed") as ledger, caplog.at_level(logging.INFO):
        drain = Drain(
            ledger=ledger,
            topology=topology,
            engine=LocalEngine(),
            staging_root=str(tmp_path / "staging"),
            attempts=Attempts(owner="the test"),
            claim=Claim(key="drain"),
            limits=DrainLimits(tries=5),
        )
        assert list(drain.run().committed) == [1]
    assert len([*tmp_path.glob("try-*")]) == 4
    assert [f"number {number} is done" in caplog.text for number in range(3)] == [True] * 3
    assert "failed" not in caplog.text


def test_the_file_reader_of_qtopology_gives_the_rows_of_csv(qtopology_folder: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"a;b\r\n1;2\n\n 3;4 \n")
    spout = NodeSpout(
        "file_reader",
        "a string, b string",
        str(tmp_path / "spool"),
        working_dir=qtopology_folder,
        type="sys",
        init={"file_name": str(tmp_path / "rows.csv"), "file_format": "csv", "csv_separator": ";"},
        max_rows=2,
    )
    found: list[tuple[Any, ...]] = []
    with closing(spout.coordinator()) as coordinator:
        last = None
        while len(found) < 2:
            if (given := coordinator.initialize_transaction(1, last)) is not None:
                found += child_spout.rows_of(spout, last := given)
    assert found == [("1", "2"), ("3", "4")]


def test_a_line_that_is_no_json_is_an_object_without_keys_and_has_its_line_in_the_log(
    qtopology_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows.json").write_text('{"n":1}\nno json\n{"n":3}\n')
    spout = NodeSpout(
        "file_reader",
        "n long",
        str(tmp_path / "spool"),
        working_dir=qtopology_folder,
        type="sys",
        init={"file_name": str(tmp_path / "rows.json"), "file_format": "json"},
        max_rows=3,
    )
    rows: list[tuple[Any, ...]] = []
    with caplog.at_level(logging.INFO), closing(spout.coordinator()) as coordinator:
        last = None
        while len(rows) < 3:
            if (metadata := coordinator.initialize_transaction(1, last)) is not None:
                rows += child_spout.rows_of(spout, last := metadata)
    assert rows == [(1,), (None,), (3,)]
    assert "gave an error as data, which becomes an object without keys: SyntaxError" in caplog.text


def test_a_standard_node_of_qtopology_routes_by_stream_id(qtopology_folder: str) -> None:
    routes = {"red": {"color": "red"}, "warm": {"color": ["red", "orange"]}}
    bolt = NodeBolt("router", working_dir=qtopology_folder, type="sys", init={"routes": routes})
    streams = {"red": "color string, n long", "warm": "color string, n long"}
    rows = [("red", 1), ("blue", 2), ("orange", 3)]
    found = emits(bolt, rows, fields=("color", "n"), streams=streams)
    assert [(emit.row, list(streams)[emit.stream], emit.values) for emit in found] == [
        (0, "red", ("red", 1)),
        (0, "warm", ("red", 1)),
        (2, "warm", ("orange", 3)),
    ]


def test_the_transformer_and_the_forwarder_of_qtopology_give_what_its_documents_say(qtopology_folder: str) -> None:
    template = {"ts": "ts", "tags": {"c": "country", "b": "user.browser"}}
    bolt = NodeBolt("transform", working_dir=qtopology_folder, type="sys", init={"output_template": template})
    fields, row = ("ts", "country", "user"), (1, "si", {"browser": "x"})
    streams = {"default": "ts long, tags struct<c:string,b:string>"}
    assert emits(bolt, [row, (2, None, None)], fields=fields, streams=streams)[0].values == (1, {"c": "si", "b": "x"})
    forward = NodeBolt("forward", working_dir=qtopology_folder, type="sys")
    assert values(emits(forward, [("a",), ("b",)], fields=("name",), streams={"default": "name string"})) == ["a", "b"]


def test_a_filter_of_qtopology_keeps_what_matches(qtopology_folder: str) -> None:
    bolt = NodeBolt("filter", working_dir=qtopology_folder, type="sys", init={"filter": {"name": {"$like": "^x"}}})
    assert values(emits(bolt, [("xy",), ("yx",), ("x",)], fields=("name",), streams={"default": "name string"})) == [
        "xy",
        "x",
    ]
