"""Spouts in other programs, through the spool: real children, in Storm's protocol and in those of qtopology."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_trident import Count, NodeSpout, ShellSpout, SqliteState, Topology
from airflow_trident.contracts.spout import Coordinator
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ChildError,
    ChildProtocolError,
    ConfigurationError,
    DamagedInputError,
    SourceUnavailableError,
)
from airflow_trident.ledger.memory import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from airflow_trident.types import Json

COMPONENTS = Path(__file__).parent.parent / "programs" / "components"
QUEUE = COMPONENTS / "queue_spout.py"
FIELDS = "size int, name string"
node = pytest.mark.skipif(shutil.which("node") is None, reason="components of qtopology run in Node, which is not here")


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A folder of three items."""
    put(tmp_path, "a", "bb", "ccc")
    return tmp_path


def put(folder: Path, *items: str) -> None:
    (folder / "items").mkdir(exist_ok=True)
    for item in items:
        (folder / "items" / item).touch()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "items").iterdir())


def shell(folder: Path, fault: str = "", **options: Any) -> ShellSpout:
    command = [sys.executable, "-I", "-S", str(QUEUE), str(folder), fault]
    return ShellSpout(command, options.pop("fields", FIELDS), str(folder / "spool"), **{"idle_s": 0, **options})


def program(folder: Path, *flags: str, **options: Any) -> NodeSpout:
    return NodeSpout(
        "numbers.js",
        options.pop("fields", "n long, text string"),
        str(folder / "spool"),
        **{"type": "subproc", "working_dir": str(COMPONENTS), "args": flags, "idle_s": 0, **options},
    )


def module(folder: Path, fields: str = "n long, text string", **options: Any) -> NodeSpout:
    init = {"items": 3, **options.pop("init", {})}
    return NodeSpout(
        "number_module.js", fields, str(folder / "spool"), working_dir=str(COMPONENTS), init=init, idle_s=0, **options
    )


def rows_of(spout: ShellSpout | NodeSpout, metadata: Json) -> list[tuple[Any, ...]]:
    emitter = spout.emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def begin(coordinator: Coordinator, previous: Json = None) -> Json:
    return coordinator.initialize_transaction(1, previous)


def once(spout: ShellSpout | NodeSpout, previous: Json = None) -> list[tuple[Any, ...]]:
    """The rows of one batch; the coordinator is closed."""
    coordinator = spout.coordinator()
    try:
        return rows_of(spout, begin(coordinator, previous))
    finally:
        coordinator.close()


def fails(spout: ShellSpout | NodeSpout, kind: type[Exception], said: str) -> None:
    """A poll fails like that: the first one, or the one behind what it gave."""
    coordinator = spout.coordinator()
    with closing(coordinator), pytest.raises(kind, match=said):
        begin(coordinator, begin(coordinator))


def processes() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Servers of other tests are children of this process, too."""
    _OTHERS.update(processes())
    yield
    _OTHERS.clear()


_OTHERS: set[int] = set()


def children() -> list[int]:
    """Those that were started in this test."""
    return sorted(processes() - _OTHERS)


# ---- Storm's multilang -----------------------------------------------------------------------------------------


def test_a_batch_of_a_child_is_spooled_and_read_again_without_the_child_and_acknowledged_after_the_commit(
    queue: Path,
) -> None:
    spout = shell(queue, max_rows=2)
    coordinator = spout.coordinator()
    first = begin(coordinator)
    second = begin(coordinator, first)
    assert begin(coordinator, second) is None
    assert left(queue) == ["a", "bb", "ccc"]
    coordinator.success(1, first)
    assert left(queue) == ["ccc"]
    coordinator.close()
    assert children() == []
    again = shell(queue / "nowhere").emitter()  # no child is asked
    assert again is not None
    assert [rows_of(spout, one) for one in (first, second, first)] == [
        [(1, "a"), (2, "bb")],
        [(3, "ccc")],
        [(1, "a"), (2, "bb")],
    ]
    other = pickle.loads(pickle.dumps(shell(queue, max_rows=2))).coordinator()
    other.success(2, second)  # in any process, by id, and twice is right
    other.success(2, second)
    other.close()
    assert left(queue) == []


def test_what_a_child_gives_again_because_it_was_not_acknowledged_is_known_by_its_id(queue: Path) -> None:
    first = begin(coordinator := shell(queue, max_rows=2).coordinator())
    coordinator.close()
    assert once(shell(queue), first) == [(3, "ccc")]


def test_one_child_serves_a_coordinator_for_as_long_as_it_is_open_and_ends_with_it(queue: Path) -> None:
    coordinator = shell(queue, max_rows=1).coordinator()
    first = begin(coordinator)
    (child,) = children()
    begin(coordinator, first)
    coordinator.success(1, first)
    assert children() == [child]
    coordinator.close()
    assert children() == []


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("exit:2", ChildError, "ended with code 7"),
        ("kill:2", ChildError, "SIGKILL"),
        ("hang:2", ChildError, "said nothing for 0.5 s when it was asked for 'next'"),
        ("garbage:2", ChildProtocolError, "is no message"),
        ("twice:2", ChildProtocolError, "which nobody asked for"),
    ],
)
def test_what_a_child_gave_before_it_failed_is_spooled_and_the_error_comes_with_the_next_poll(
    queue: Path, fault: str, kind: type[Exception], said: str
) -> None:
    spout = shell(queue, fault, silence_s=0.5, ids=False)
    coordinator = spout.coordinator()
    first = begin(coordinator)
    assert rows_of(spout, first) == [(1, "a"), (2, "bb")]
    assert children() == []
    with pytest.raises(kind, match=said):
        begin(coordinator, first)
    (queue / "mended").touch()
    assert [name for _, name in rows_of(spout, begin(coordinator, first))] == ["a", "bb", "ccc"]
    coordinator.close()


def test_an_error_has_the_last_words_of_the_child(queue: Path) -> None:
    fails(shell(queue, "exit:1"), ChildError, "the feed broke")


def test_what_a_child_prints_beside_its_messages_is_logged_unless_that_is_an_error(
    queue: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(once(shell(queue, "stray:2"))) == 3
    assert "printed beside" in caplog.text
    shutil.rmtree(queue / "spool")
    fails(shell(queue, "stray:1", strict=True), ChildProtocolError, "printed beside")


def test_a_child_that_does_not_begin_is_killed(queue: Path) -> None:
    said = "said nothing for 0.5 s when it was asked for 'the beginning'"
    fails(shell(queue, "slow-start", start_timeout_s=0.5), ChildError, said)
    assert children() == []


def test_a_program_that_is_not_there_is_named_with_its_host(tmp_path: Path) -> None:
    spout = ShellSpout("no-such-feed --all", FIELDS, str(tmp_path / "spool"))
    with pytest.raises(
        ConfigurationError, match=r"ShellSpout 'no-such-feed --all': 'no-such-feed' cannot be started on"
    ):
        begin(spout.coordinator())


def test_a_tuple_that_does_not_fit_is_an_error_and_the_others_of_its_batch_are_spooled(queue: Path) -> None:
    put(queue, "x" * 200)
    spout = shell(queue, fields="size byte, name string")
    coordinator = spout.coordinator()
    first = begin(coordinator)
    assert [name for _, name in rows_of(spout, first)] == ["a", "bb", "ccc"]
    with pytest.raises(DamagedInputError, match=r"does not fit its fields .size byte, name string"):
        begin(coordinator, first)
    coordinator.success(1, first)
    coordinator.close()
    assert left(queue) == ["x" * 200], "what was not spooled is not acknowledged"


def test_a_tuple_with_another_number_of_values_is_an_error(queue: Path) -> None:
    fails(shell(queue, fields="size int, name string, more string"), DamagedInputError, "3 values")


def test_a_tuple_without_an_id_is_like_no_other(queue: Path) -> None:
    coordinator = shell(queue, "no-id:2").coordinator()
    first = begin(coordinator)
    coordinator.success(1, first)
    coordinator.close()
    assert left(queue) == ["bb"]


@pytest.mark.parametrize("drained", [False, True])
def test_one_child_serves_many_transactions_and_is_told_what_is_committed(queue: Path, drained: bool) -> None:
    put(queue, *(f"item-{number}" for number in range(7)))
    topology = Topology("feed")
    items = topology.new_stream("items", shell(queue, max_rows=2))
    items.group_by("name").persistent_aggregate(SqliteState(str(queue / "counts.db")), Count(), "count")
    options: dict[str, Any] = {"topology": topology, "engine": LocalEngine(), "staging_root": str(queue / "staging")}
    with MemoryLedger("feed") as ledger:
        if drained:
            attempts = Attempts(owner="the test")
            done = Drain(ledger=ledger, attempts=attempts, claim=Claim(key="drain"), **options).run().committed
        else:
            done = LocalRunner(ledger=ledger, **options).run()
    assert list(done) == [1, 2, 3, 4, 5]
    assert left(queue) == []
    assert (queue / "started").read_text() == "started\n"
    assert children() == []


def test_a_spout_runs_in_a_topology_and_its_plan_says_what_it_cannot_keep(queue: Path) -> None:
    topology = Topology("feed")
    items = topology.new_stream("items", shell(queue, max_rows=2))
    items.group_by("name").persistent_aggregate(SqliteState(str(queue / "counts.db")), Count(), "count")
    assert topology.compile().notes == ()
    with MemoryLedger("feed") as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(queue / "staging")
        )
        assert runner.run() == [1, 2]
    assert left(queue) == []
    forgetful = Topology("forgetful")
    stream = forgetful.new_stream("items", shell(queue, ids=False))
    stream.group_by("name").persistent_aggregate(SqliteState(str(queue / "counts.db")), Count(), "count")
    assert forgetful.compile().notes == (
        "stream items: what its child gave is lost if it is killed before that is spooled (ids=False)",
    )


# ---- qtopology -------------------------------------------------------------------------------------------------


@node
def test_a_program_of_qtopology_gives_a_batch_until_it_is_empty_and_hears_spout_ack_when_that_is_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert once(program(tmp_path, "3", init={"a": 1})) == [(3, "č 3"), (2, "č 2"), (1, "č 1")]
    heard = [record.getMessage().split("): ", 1)[1] for record in caplog.records if "numbers.js" in record.getMessage()]
    assert [json.loads(heard[0].removeprefix("init "))["a"], *heard[1:]] == [1, "spout_ack"]


@node
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


@node
def test_a_program_of_the_first_protocol_gives_its_data_bare_and_is_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spout = program(tmp_path, "2", "seed", protocol="seed")
    assert "at most once until then" in spout.notes[0]
    with caplog.at_level(logging.INFO):
        assert once(spout) == [(2, "č 2"), (1, "č 1")]
    assert "spout_ack" not in caplog.text


@node
def test_stream_ids_come_in_a_field_or_are_an_error(tmp_path: Path) -> None:
    fields = "stream string, n long"
    found = once(program(tmp_path, "3", "streams", fields=fields, stream_field="stream"))
    assert found == [("odd", 3), ("default", 2), ("odd", 1)]
    fails(program(tmp_path / "other", "1", "streams"), DamagedInputError, "it came on stream 'odd': name a field for")


@node
def test_a_whole_object_is_one_field_of_json(tmp_path: Path) -> None:
    assert once(program(tmp_path, "1", fields="data string", whole=True)) == [('{"n":1,"text":"č 1"}',)]


@node
def test_rows_of_heartbeats_belong_to_the_batch(tmp_path: Path) -> None:
    found = once(program(tmp_path, "2", "beats", heartbeat_s=1000))
    assert sorted(n for n, _ in found) == [-1, 1, 2]


@node
@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        (("1", "refuses"), SourceUnavailableError, "did not begin: .its library sends no text"),
        (("1", "twice"), ChildProtocolError, "which nobody asked for"),
    ],
)
def test_what_a_program_must_not_do_is_an_error(
    tmp_path: Path, flags: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    fails(program(tmp_path, *flags), kind, said)
    assert children() == []


@node
def test_how_a_child_ends_after_its_batch_is_durable_is_of_no_consequence_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(once(program(tmp_path, "2", "bad-end"))) == 2
    assert "ended badly" in caplog.text


@node
def test_a_module_of_qtopology_2_runs_in_the_host(tmp_path: Path) -> None:
    fields = "n long, text string, extra struct<list:array<long>>, stream string"
    found = once(module(tmp_path, fields, stream_field="stream"))
    assert found[0] == (3, "item 3", {"list": [3]}, "odd")
    assert [row[0] for row in found] == [3, 2, 1]


@node
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


def test_what_cannot_be_meant_is_refused_when_the_dag_is_built(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    for wrong, said in [
        (lambda: ShellSpout("", FIELDS, spool), "needs a command"),
        (lambda: ShellSpout("x", FIELDS, spool, max_s=0), "times above 0"),
        (lambda: ShellSpout("x", FIELDS, spool, stream_field="stream"), "Add it: stream string"),
        (lambda: NodeSpout("x.js", "n long", spool, type="process"), "Use one of 'inproc'"),
        (lambda: NodeSpout("x.js", "n long", spool, type="subproc", protocol="1"), "Use one of 'seed'"),
        (lambda: NodeSpout("x.js", "n long", spool, type="subproc", ack="later"), "Use one of 'spooled'"),
        (lambda: NodeSpout("x.js", "n long", spool, args=["-a"]), "takes no args"),
        (lambda: NodeSpout("x.js", "n long", spool, whole=True), "one string field"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            wrong()
