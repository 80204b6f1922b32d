"""Bolts in other programs, dialect by dialect, over the rows of one partition: what they give, and each way to fail."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_trident.errors import ChildError, ChildProtocolError, ConfigurationError, TridentError, UserCodeError
from airflow_trident.storm import NodeBolt, NodeSpout, ShellBolt
from airflow_trident.storm.components import running
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.protocol import BoltPlace
from airflow_trident.storm.components.running import NO_ROW
from airflow_trident.types import parse_declared
from tests.fixtures.child import emits, lines, module, needs_node, program, seed, shell, values, words

MATCHED = [
    pytest.param(shell, id="multilang"),
    pytest.param(lambda **options: shell("Ids", **options), id="multilang with task ids"),
    pytest.param(program, id="0.7", marks=needs_node),
    pytest.param(module, id="module", marks=needs_node),
    pytest.param(lambda **options: module(subtype="async", **options), id="async module", marks=needs_node),
]
UNMATCHED = [
    pytest.param(seed, id="seed", marks=needs_node),
    pytest.param(lambda **options: program(allow_parallel=True, **options), id="0.7 in parallel", marks=needs_node),
]
Made = Callable[..., ChildBolt]


# ---- what they give --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bolt", MATCHED)
def test_emits_are_matched_to_rows_and_come_in_their_order(bolt: Made) -> None:
    rows = lines(1200)
    found = emits(bolt(), rows)
    assert values(found) == words(rows)
    assert [emit.row for emit in found] == [number for number in range(1200) for _ in range(2)]


@pytest.mark.parametrize("bolt", [*MATCHED, *UNMATCHED])
def test_all_emits_come_where_they_need_not_be_matched(bolt: Made) -> None:
    rows = lines(1200)
    assert values(emits(bolt(), rows, matched=False)) == words(rows)


@pytest.mark.parametrize("bolt", [*MATCHED, *UNMATCHED])
@pytest.mark.parametrize("count", [0, 1])
def test_a_child_starts_with_the_first_row(bolt: Made, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Counted(running.Channel):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            started.append(self.pid)

    monkeypatch.setattr(running, "Channel", Counted)
    assert values(emits(bolt(), lines(count), matched=False)) == words(lines(count))
    assert len(started) == count
    assert not any(map(psutil.pid_exists, started))


@pytest.mark.parametrize("bolt", MATCHED)
def test_no_more_rows_are_read_than_it_may_have(bolt: Made) -> None:
    """Of endless rows only as many are taken as are given out, and those that are pending."""
    taken = 0

    def endless() -> Iterator[tuple[str]]:
        nonlocal taken
        while True:
            taken += 1
            yield (f"a{taken} b{taken}",)

    place = BoltPlace(node="n", fields=("line",), streams={"default": parse_declared("word string")}, matched=True)
    out = running.run_bolt(bolt(max_pending=8), endless(), place, _error)
    first = next(out)
    assert len(first.emits) >= running.OUT_ROWS
    assert taken <= (2 * running.OUT_ROWS + 1000) // 2 + 8
    out.close()  # type: ignore[attr-defined]


def _error(row: tuple[Any, ...], what: str) -> UserCodeError:
    return UserCodeError(what)


@pytest.mark.parametrize(
    "bolt",
    [
        pytest.param(lambda: shell("Streams"), id="multilang"),
        pytest.param(lambda: program("streams"), id="0.7", marks=needs_node),
        pytest.param(lambda: module("streams"), id="module", marks=needs_node),
    ],
)
def test_emits_come_on_their_streams(bolt: Made) -> None:
    streams = {"default": "word string", "long": "word string"}
    if bolt().describe().startswith("ShellBolt"):
        streams = {name: f"{spec}, length long" for name, spec in streams.items()}
    found = emits(bolt(), [("red flower",), ("stone",)], streams=streams)
    assert [(emit.row, emit.stream, emit.values[0]) for emit in found] == [
        (0, 0, "red"),
        (0, 1, "flower"),
        (1, 1, "stone"),
    ]


def test_a_multilang_stream_that_nobody_declared_is_an_error() -> None:
    with pytest.raises(ChildProtocolError, match=r"emitted on stream 'long', and declared are default"):
        emits(shell("Streams"), [("red flower",)], streams={"default": "word string, length long"})


@needs_node
@pytest.mark.parametrize("bolt", [program, module])
def test_an_emit_of_qtopology_that_nobody_reads_is_counted(bolt: Made, caplog: pytest.LogCaptureFixture) -> None:
    assert values(emits(bolt("streams"), [("red flower",), ("stone",)])) == ["red"]
    assert "2 emits on stream 'long', which nobody declared" in caplog.text


def test_one_that_works_in_batches_gives_them_at_ticks() -> None:
    found = emits(shell("Batches"), [("a b",), ("b",), ("b c",)], matched=False)
    assert values(found) == ["a=1", "b=3", "c=1"]


def test_one_that_keeps_more_rows_than_it_may_have_gets_ticks_in_between() -> None:
    found = emits(shell("Batches", max_pending=2), [("a",), ("a",), ("a",), ("b",)], matched=False)
    assert values(found) == ["a=2", "a=1", "b=1"]


@needs_node
@pytest.mark.parametrize("bolt", [seed, program, module])
def test_what_it_kept_comes_at_the_last_heartbeat(bolt: Made) -> None:
    found = emits(bolt("beat"), [("a",), ("b",)], matched=False)
    assert values(found)[:2] == ["a", "b"]
    assert len(found) == 3
    assert found[2].row == NO_ROW


@needs_node
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_every_message_that_was_queued_when_it_ended_is_there(count: int) -> None:
    """process.exit() throws away what its channel has not taken: without the preload 278 arrive, and the code is 0."""
    found = emits(seed("many", str(count), stop_timeout_s=120), [("x",)], matched=False)  # a slow machine takes long
    assert values(found) == [f"x-{number}" for number in range(count)]


@pytest.mark.parametrize("kind", ["Code2", "Bolt"])
def test_any_exit_code_of_multilang_is_well_when_all_is_acknowledged(kind: str) -> None:
    assert values(emits(shell(kind), lines(3))) == words(lines(3))


def test_one_that_is_killed_by_a_signal_in_its_last_emits_has_not_ended_well() -> None:
    with pytest.raises(ChildError, match=r"ended badly .* \(it was ended by signal 9 \(SIGKILL\)\)"):
        emits(shell("KilledAtEnd"), lines(3), matched=False)


@pytest.mark.parametrize("kind", ["AcksFirst", "AcksBatches"])
def test_what_it_emits_after_its_last_acknowledgement_is_waited_for(kind: str) -> None:
    rows = lines(3)
    assert values(emits(shell(kind), rows, matched=False)) == words(rows)


def test_one_that_ends_after_its_last_acknowledgement_by_itself_may_have_had_more_to_say() -> None:
    with pytest.raises(ChildError, match="ended with code 3 at the last heartbeat"):
        emits(shell("AcksFirst"), lines(3, now=2), matched=False)


@pytest.mark.parametrize("limit", ["silence_s", "tuple_timeout_s"])
def test_one_that_answers_no_heartbeats_sees_the_end_of_its_input_after_some_time(
    limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(emits(shell("Deaf", **{limit: 0.3}), lines(3), matched=False)) == ["3"]
    assert "answered no heartbeat; its input is closed after 0.3 s" in caplog.text


def test_a_component_knows_where_it_runs() -> None:
    assert values(emits(shell("Tells"), [("x",)])) == ["words,each-1,7,1,3"]


def test_what_json_lacks_travels_as_text() -> None:
    spec = (
        "a date, b timestamp, c binary, d decimal(10,2), e time, f interval day to second, g array<date>, "
        "h map<long,string>, i struct<at:date,n:long>, j double, k string"
    )
    row = (
        datetime.date(2020, 2, 29),
        datetime.datetime(2020, 2, 29, 12, 30, 1, 5, tzinfo=datetime.UTC),
        b"\x00\xff",
        Decimal("12.50"),
        datetime.time(3, 4, 5, 6),
        datetime.timedelta(days=-1, microseconds=3),
        [datetime.date(2021, 1, 1), None],
        {7: "seven"},
        {"at": datetime.date(2022, 2, 2), "n": 3},
        1.5,
        "ä\nend\n",
    )
    nulls = (None,) * len(row)
    names = tuple("abcdefghijk")
    found = emits(shell("Echo"), [row, nulls], fields=names, streams={"default": spec})
    assert [emit.values for emit in found] == [row, nulls]
    with pytest.raises(UserCodeError, match=r"gave 'soon', where date is declared"):
        emits(shell("Echo"), [("soon",)], fields=("a",), streams={"default": "a date"})


# ---- each way to fail (the table of failures in docs/storm/components.md) ------------------------------------

LIMITS = {"start_timeout_s": 0.2}
FAILURES: list[Any] = [
    # what, the bolt, the error, its text
    ("exit", lambda: shell("Exit7"), ChildError, r"ended with code 7 before it acknowledged \d+ rows"),
    ("exit 0", lambda: shell("Exit0"), ChildError, r"ended with code 0 before it acknowledged \d+ rows"),
    ("signal", lambda: shell("Killed"), ChildError, r"signal 9 \(SIGKILL\) before it acknowledged \d+ rows"),
    ("exception", lambda: shell("Raises"), ChildError, r"(?s)ended with code 1 before .*ValueError: no such word"),
    (
        "hang",
        lambda: shell("Hangs", silence_s=0.3),
        ChildError,
        r"was silent for 0\.3 s with \d+ rows given.*silence_s",
    ),
    ("garbage", lambda: shell("Garbage"), ChildProtocolError, "is no message: 'this is no message'"),
    ("strict", lambda: shell("Stray", strict=True), ChildProtocolError, "is no message: 'printed by mistake"),
    ("second ack", lambda: shell("Twice"), ChildProtocolError, "acknowledged it before"),
    ("unknown id", lambda: shell("Unknown"), ChildProtocolError, "spoke of row 4711, which it does not have"),
    ("unknown command", lambda: shell("Nonsense"), ChildProtocolError, r"said \{'command': 'bogus'\}"),
    ("metric without a name", lambda: shell("NamelessMetric"), ChildProtocolError, r"'metrics', 'name': ''"),
    ("emit of an acknowledged row", lambda: shell("Anchors"), ChildProtocolError, "spoke of row 0"),
    ("emit of no row", lambda: shell("Loose"), ChildProtocolError, "emitted something of no row.*flat_map"),
    ("too long", lambda: shell("Large", max_message_bytes=1 << 20), ChildProtocolError, "longer than 1048576 bytes"),
    ("fail", lambda: shell("Fails"), UserCodeError, r"gave the row up: Traceback: no such word; row \('a5 b5 now',\)"),
    ("field count", lambda: shell("Fields"), UserCodeError, r"gave \['two', 'values'\], where 1 values \(word\)"),
    ("no beginning", lambda: shell("NoBeginning"), ChildError, "(?s)ended with code 1 before it began.*KeyError"),
    ("never ready", lambda: shell("NeverReady", **LIMITS), ChildError, r"did not begin within 0\.2 s"),
    ("does not stop", lambda: shell("Stays", stop_timeout_s=0.2), ChildError, r"did not stop within 0\.2 s"),
]
NODE_FAILURES: list[Any] = [
    ("seed: exit", lambda: seed("exit7"), ChildError, r"ended (with code 7 before it had all rows|badly.*code 7)"),
    ("seed: ack", lambda: seed("ack"), ChildProtocolError, r"said \{'cmd': 'ack', 'data': \{\}\}"),
    ("seed: exit at shutdown", lambda: seed("badend"), ChildError, r"ended badly .*ended with code 9"),
    ("0.7: exit", lambda: program("exit7"), ChildError, "ended with code 7 before it acknowledged 1 rows"),
    ("0.7: throw", lambda: program("throw"), ChildError, "(?s)ended with code 1 before it .*no such word"),
    ("0.7: err", lambda: program("err"), UserCodeError, r"gave the row up: \(its library sends no text of errors\)"),
    ("0.7: second ack", lambda: program("twice"), ChildProtocolError, "acknowledged it before"),
    ("0.7: never", lambda: program("never", tuple_timeout_s=0.3), ChildError, r"acknowledged nothing for 0\.3 s"),
    ("0.7: spins", lambda: program("spin", tuple_timeout_s=0.3), ChildError, r"acknowledged nothing for 0\.3 s"),
    ("0.7: init_failed", lambda: program("badinit"), UserCodeError, "did not begin: "),
    ("0.7: silent", lambda: program("silent", start_timeout_s=1.5), ChildError, r"did not begin within 1\.5 s"),
    ("0.7: exit at shutdown", lambda: program("badend"), ChildError, r"ended badly .*ended with code 9"),
    ("0.7: stays", lambda: program("stays", stop_timeout_s=0.2), ChildError, r"did not stop within 0\.2 s"),
    ("module: err", lambda: module("err"), UserCodeError, "gave the row up: Error: no such word"),
    ("module: throw", lambda: module("throw"), UserCodeError, "gave the row up: Error: no such word"),
    ("module: exit 0", lambda: module("exit0"), ChildError, r"ended with code 0 before it acknowledged \d+ rows"),
    ("module: never", lambda: module("never", tuple_timeout_s=0.3), ChildError, r"acknowledged nothing for 0\.3 s"),
    ("module: init", lambda: module("badinit"), UserCodeError, "did not begin: Error: no such setting"),
    ("module: heartbeat", lambda: module("badbeat"), UserCodeError, "its heartbeat raised: Error: no beat"),
    ("module: shutdown", lambda: module("badend"), ChildError, "(?s)ended badly .*code 40.*no end"),
    ("module: stays", lambda: module("stays", stop_timeout_s=0.2), ChildError, r"did not stop within 0\.2 s"),
]


@pytest.mark.parametrize(
    ("bolt", "kind", "text"),
    [
        *(pytest.param(*row, id=name) for name, *row in FAILURES),
        *(pytest.param(*row, id=name, marks=needs_node) for name, *row in NODE_FAILURES),
    ],
)
def test_what_goes_wrong_fails_the_partition_and_leaves_nobody(
    bolt: Callable[[], ChildBolt], kind: type[TridentError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    given: list[Any] = []

    class Noted(running.Channel):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            started.append(self.pid)

    monkeypatch.setattr(running, "Channel", Noted)
    made = bolt()
    with pytest.raises(kind, match=text) as caught:
        given += emits(made, lines(20, now=5), matched=made.matches)
    assert type(caught.value) is kind
    assert given == []
    assert not any(map(psutil.pid_exists, started))


def test_what_it_prints_beside_its_messages_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rows = lines(20, now=5)
    assert values(emits(shell("Stray"), rows)) == words(rows)
    assert "printed by mistake" in caplog.text


def test_a_flood_on_stderr_is_drained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows = lines(20, now=5)
    assert values(emits(shell("Floods"), rows)) == words(rows)
    assert "the rest is not logged" in caplog.text


@needs_node
def test_what_a_program_of_node_prints_is_no_message() -> None:
    rows = lines(20, now=5)
    assert values(emits(program("print"), rows)) == words(rows)


@pytest.mark.parametrize(
    "bolt",
    [
        pytest.param(lambda: shell("Fails", fail="drop"), id="multilang"),
        pytest.param(lambda: program("err", fail="drop"), id="0.7", marks=needs_node),
        pytest.param(lambda: module("err", fail="drop"), id="module", marks=needs_node),
    ],
)
def test_rows_that_it_gives_up_may_be_dropped(bolt: Callable[[], ChildBolt], caplog: pytest.LogCaptureFixture) -> None:
    rows = lines(20, now=5)
    assert values(emits(bolt(), rows)) == words([row for row in rows if "now" not in row[0]])
    assert "1 rows that it gave up were dropped" in caplog.text


def test_a_cancel_is_seen_while_a_child_hangs() -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emits(shell("Hangs"), lines(20, now=0), look=look)


def test_a_program_that_is_not_there_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"ShellBolt 'no-such-program -x' in each-1: 'no-such-program' cannot"):
        emits(ShellBolt("no-such-program -x"), lines(1))


@pytest.mark.parametrize("type", ["inproc", "sys", "subproc"])
def test_what_a_component_is_initialised_with_is_on_no_command_line(type: str, tmp_path: Path) -> None:
    """All users of the machine see those, and so does who reads the error."""
    options: dict[str, Any] = {"type": type, "init": {"password": "hunter2"}, "node": "no-such-node"}
    bolt = NodeBolt("keeps.js", **options)
    spout = NodeSpout("keeps.js", "n long", str(tmp_path), **options)
    for start in (lambda: emits(bolt, lines(1)), lambda: spout.coordinator().initialize_transaction(1, None)):
        with pytest.raises(ConfigurationError, match=r"'no-such-node' cannot be started .*\(the command is") as caught:
            start()
        assert "hunter2" not in str(caught.value)


@needs_node
def test_a_module_that_is_not_there_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"NodeBolt 'none.js' \(inproc\) in each-1: Error: Cannot find module"):
        emits(NodeBolt("none.js", working_dir=os.path.dirname(__file__)), lines(1))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: shell(fail="ignore"), 'fail is \'ignore\'. Use "attempt" or "drop"'),
        (lambda: module(type="subprocess"), "type of a NodeBolt is 'subprocess'. Use one of 'inproc'"),
        (lambda: program(protocol="0.8"), "protocol of a NodeBolt is '0.8'. Use one of 'seed', '0.7'"),
        (lambda: module(args=["x"]), "takes no args"),
        (lambda: NodeBolt("process", type="sys"), "what that says later is lost. Run the program as a ShellBolt"),
    ],
)
def test_wrong_options_are_refused_when_the_dag_is_built(make: Callable[[], ChildBolt], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in str(caught.value)
