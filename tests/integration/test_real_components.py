"""Components on the libraries that they are written for, unmodified: pystorm and streamparse from PyPI, qtopology from
npm."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import NodeBolt, ShellBolt, ShellSpout
from airflow_trident.errors import ChildError, UserCodeError
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
