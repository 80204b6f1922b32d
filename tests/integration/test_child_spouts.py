"""Spouts in other programs that speak Storm's multilang, through the spool: real children."""

from __future__ import annotations

import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ChildError,
    ChildProtocolError,
    ConfigurationError,
    DamagedInputError,
)
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm import NodeSpout, ShellSpout
from tests.fixtures.child_spout import FIELDS, begin, children, fails, left, once, put, rows_of, shell

pytestmark = pytest.mark.usefixtures("others")


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


def test_what_cannot_be_meant_is_refused_when_the_dag_is_built(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    for wrong, said in [
        (lambda: ShellSpout("", FIELDS, spool), "needs a command"),
        (lambda: ShellSpout("x", FIELDS, spool, max_s=0), "must be above 0"),
        (lambda: ShellSpout("x", FIELDS, spool, stream_field="stream"), "Add it: stream string"),
        (lambda: NodeSpout("x.js", "n long", spool, type="process"), "Use one of 'inproc'"),
        (lambda: NodeSpout("x.js", "n long", spool, type="subproc", protocol="1"), "Use one of 'seed'"),
        (lambda: NodeSpout("x.js", "n long", spool, type="subproc", ack="later"), "Use one of 'spooled'"),
        (lambda: NodeSpout("x.js", "n long", spool, args=["-a"]), "takes no args"),
        (lambda: NodeSpout("x.js", "n long", spool, whole=True), "one string field"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            wrong()
