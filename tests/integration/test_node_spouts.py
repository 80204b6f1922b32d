"""Spouts of qtopology, programs and modules, through the spool: real children."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_trident import Topology
from airflow_trident.errors import (
    ChildProtocolError,
    ConfigurationError,
    DamagedInputError,
    SourceUnavailableError,
)
from airflow_trident.storm import NodeSpout
from tests.fixtures.child import needs_node
from tests.fixtures.child_spout import COMPONENTS, begin, children, fails, module, once, program, rows_of

pytestmark = [pytest.mark.usefixtures("others"), needs_node]


def test_a_program_of_qtopology_gives_a_batch_until_it_is_empty_and_hears_spout_ack_when_that_is_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert once(program(tmp_path, "3", init={"a": 1})) == [(3, "č 3"), (2, "č 2"), (1, "č 1")]
    heard = [record.getMessage().split("): ", 1)[1] for record in caplog.records if "numbers.js" in record.getMessage()]
    assert [json.loads(heard[0].removeprefix("init "))["a"], *heard[1:]] == [1, "spout_ack"]


def test_what_a_spout_hears_run_comes_before_next_and_shutdown_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    polls = ["run", "next", "next", "next", "pause"]
    options = {"init": {"items": 2, "hears": True}, "stream_field": "stream"}
    for spout, end in [
        (program(tmp_path / "program", "2", "hears"), ["spout_ack", "shutdown"]),
        (module(tmp_path / "module", "n long, stream string", **options), ["shutdown"]),
    ]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            once(spout)
        told = [record.getMessage().partition("): ")[2] for record in caplog.records]
        assert [json.loads(line) for line in told if line.startswith('"')] == ["init", *polls, *end]


def test_a_spout_hears_the_names_of_its_topology_and_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = Topology("feed").new_stream("numbers", program(tmp_path, "1"))
    with caplog.at_level(logging.INFO):
        once(stream.topology.spouts["numbers"])
    (begun,) = (message for message in caplog.messages if "init " in message)
    assert json.loads(begun.partition("init ")[2])["name"] == "numbers"


def test_nothing_but_init_comes_to_a_spout_before_it_has_begun(tmp_path: Path) -> None:
    """It takes its time to begin, and ends if it hears anything meanwhile."""
    assert len(once(program(tmp_path, "2", "late", heartbeat_s=0.01))) == 2


@pytest.mark.parametrize(("ack", "sizes"), [("spooled", [1, 1, 1]), ("given", [3])])
def test_a_spout_that_waits_for_its_ack_gives_what_it_gives_without(tmp_path: Path, ack: str, sizes: list[int]) -> None:
    spout = program(tmp_path, "3", "held", ack=ack)
    assert bool(spout.notes) is (ack == "given")
    coordinator = spout.coordinator()
    found, last = [], None
    while (metadata := begin(coordinator, last)) is not None:
        found.append(len(rows_of(spout, metadata)))
        last = metadata
    coordinator.close()
    assert found == sizes


def test_a_program_of_the_first_protocol_gives_its_data_bare_and_is_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spout = program(tmp_path, "2", "seed", protocol="seed")
    assert "at most once until then" in spout.notes[0]
    with caplog.at_level(logging.INFO):
        assert once(spout) == [(2, "č 2"), (1, "č 1")]
    assert "spout_ack" not in caplog.text


@pytest.mark.parametrize("nothing", ["0", '""', "false", "null"])
def test_what_counts_as_nothing_is_as_empty(tmp_path: Path, nothing: str) -> None:
    with closing(program(tmp_path, "1", f"nothing:{nothing}").coordinator()) as coordinator:
        assert begin(coordinator) is None
        assert rows_of(program(tmp_path), begin(coordinator)) == [(1, "č 1")]


@pytest.mark.parametrize("protocol", ["seed", "0.7", "module"])
def test_an_object_without_keys_is_a_tuple_in_each_protocol(tmp_path: Path, protocol: str) -> None:
    """It is true in JavaScript. In 0.7 the spout waits for the acknowledgement of it before it gives the next one."""
    if protocol == "module":
        spout = module(tmp_path, init={"items": 2, "without_keys_at": 1})
        assert once(spout) == [(2, "item 2"), (None, None)]
        return
    flags = ("seed",) if protocol == "seed" else ("held",)
    spout = program(tmp_path, "1", "nothing:{}", *flags, protocol=protocol, ack="given")
    assert once(spout) == [(None, None), (1, "č 1")]


def test_an_empty_list_is_a_tuple_that_does_not_fit(tmp_path: Path) -> None:
    fails(program(tmp_path, "1", "nothing:[]"), DamagedInputError, "gave .*, which does not fit its fields")


def test_stream_ids_come_in_a_field_or_are_an_error(tmp_path: Path) -> None:
    fields = "stream string, n long"
    found = once(program(tmp_path, "3", "streams", fields=fields, stream_field="stream"))
    assert found == [("odd", 3), ("default", 2), ("odd", 1)]
    fails(program(tmp_path / "other", "1", "streams"), DamagedInputError, "it came on stream 'odd': name a field for")


def test_a_whole_object_is_one_field_of_json(tmp_path: Path) -> None:
    assert once(program(tmp_path, "1", fields="data string", whole=True)) == [('{"n":1,"text":"č 1"}',)]


def test_rows_of_heartbeats_belong_to_the_batch(tmp_path: Path) -> None:
    found = once(program(tmp_path, "2", "beats", heartbeat_s=1000))
    assert sorted(n for n, _ in found) == [-1, 1, 2]


@pytest.mark.parametrize("ack", ["never", "spooled"])
@pytest.mark.parametrize(("flags", "max_rows", "polls"), [((), 5, 3), (("behind",), 1, 2), (("behind",), 1, 6)])
def test_what_a_spout_gives_at_heartbeats_is_neither_lost_nor_taken_for_an_answer(
    flags: tuple[str, ...], max_rows: int, polls: int, ack: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A poll begins with a heartbeat. If that gives enough, the answer to `next` comes later, or at the end, where no
    acknowledgement can follow: a spout that waits for those gives it again."""
    spout = program(tmp_path, "2", "beats", "hears", *flags, heartbeat_s=1e-9, max_rows=max_rows, ack=ack)
    with caplog.at_level(logging.INFO), closing(spout.coordinator()) as coordinator:
        last = None
        for _ in range(polls):
            last = begin(coordinator, last) or last
    printed = [record.getMessage().rpartition("): ")[2] for record in caplog.records]
    gave = Counter(int(line.removeprefix("gives ")) for line in printed if line.startswith("gives "))
    gave += Counter({-1: printed.count('"heartbeat"')})
    files = (tmp_path / "spool").glob("*.arrow")
    found = Counter(row["n"] for path in files for row in pa.ipc.open_file(path).read_all().to_pylist())
    left = sum(map(int, re.findall(r"(\d+) tuples came after the last poll, unacknowledged", caplog.text)))
    assert found <= gave
    assert found.total() + left == gave.total()
    assert ack == "spooled" or not left
    assert "nobody asked for" not in caplog.text


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        (("1", "refuses"), SourceUnavailableError, "did not begin: .its library sends no text"),
        (("3", "twice"), ChildProtocolError, "which nobody asked for"),
    ],
)
def test_what_a_program_must_not_do_is_an_error(
    tmp_path: Path, flags: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    fails(program(tmp_path, *flags), kind, said)
    assert children() == []


def test_how_a_child_ends_after_its_batch_is_durable_is_of_no_consequence_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(once(program(tmp_path, "2", "bad-end"))) == 2
    assert "ended badly" in caplog.text


def test_a_module_of_qtopology_2_runs_in_the_host(tmp_path: Path) -> None:
    fields = "n long, text string, extra struct<list:array<long>>, stream string"
    found = once(module(tmp_path, fields, stream_field="stream"))
    assert found[0] == (3, "item 3", {"list": [3]}, "odd")
    assert [row[0] for row in found] == [3, 2, 1]


def test_a_module_that_is_not_there_or_does_not_begin_or_fails_says_why(tmp_path: Path) -> None:
    missing = NodeSpout("gone.js", "n long", str(tmp_path / "spool"), working_dir=str(COMPONENTS))
    fails(missing, ConfigurationError, r"Cannot find module .*gone.js")
    fails(module(tmp_path, init={"refuse": True}), SourceUnavailableError, "no such feed")
    spout = module(tmp_path, "n long, stream string", init={"fail_at": 2}, stream_field="stream")
    coordinator = spout.coordinator()
    first = begin(coordinator)
    assert rows_of(spout, first) == [(3, "odd")]
    with pytest.raises(SourceUnavailableError, match="the feed broke"):
        begin(coordinator, first)
