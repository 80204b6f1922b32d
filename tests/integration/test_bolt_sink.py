"""A bolt with effects at the end of a stream: every batch, in the order of transactions, at least once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ChildError, ConfigurationError, PlanError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm import BoltSink, ShellBolt
from airflow_trident.storm.components import bolt_sink
from tests.fixtures.child import shell

RECORDER = Path(__file__).parent.parent / "programs" / "components" / "recorder.py"


def sink(folder: Path) -> BoltSink:
    return BoltSink(ShellBolt([sys.executable, "-I", "-S", str(RECORDER), str(folder / "told")]))


def topology(folder: Path, words: list[str], teller: BoltSink | None = None, *, exactly_once: bool = False) -> Topology:
    made = Topology("told", exactly_once=exactly_once)
    stream = made.new_stream("words", FixedBatchSpout("word string, n int", [(word, 1) for word in words], 2))
    stream.partition_persist(teller or sink(folder), "word", name="teller")
    return made


def runner(ledger: MemoryLedger, made: Topology, folder: Path) -> LocalRunner:
    return LocalRunner(ledger=ledger, topology=made, engine=LocalEngine(), staging_root=str(folder / "staging"))


def test_a_bolt_is_told_every_batch_in_order_with_its_txid(tmp_path: Path) -> None:
    made = topology(tmp_path, ["a", "b", "c", "d", "e"])
    with MemoryLedger("told") as ledger:
        assert runner(ledger, made, tmp_path).run() == [1, 2, 3]
    assert (tmp_path / "told").read_text().splitlines() == ["1 a", "1 b", "2 c", "2 d", "3 e"]


def test_a_commit_that_failed_gives_the_bolt_the_whole_batch_again(tmp_path: Path) -> None:
    made = topology(tmp_path, ["a", "b", "c", "bad", "e"])
    with MemoryLedger("told") as ledger:
        with pytest.raises(UserCodeError, match=r"sink 'teller' gave the row up: this one is bad; fields .word., row"):
            runner(ledger, made, tmp_path).run()
        assert [record.status for record in ledger.transactions()] == [Status.COMMITTED, Status.COMMITTING]
        (tmp_path / "told.mended").touch()
        runner(ledger, made, tmp_path).run()
    told = (tmp_path / "told").read_text().splitlines()
    assert told == ["1 a", "1 b", "2 c", "2 c", "2 bad", "3 e"]


def test_a_bolt_that_acknowledges_nothing_is_named_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bolt_sink, "TUPLE_TIMEOUT_S", 0.2)
    made = topology(tmp_path, ["a"], BoltSink(shell("Batches", ticks=0)))
    said = r"shell.py Batches' in teller acknowledged nothing for 0\.2 s with 1 rows given.*raise tuple_timeout_s"
    with MemoryLedger("told") as ledger, pytest.raises(ChildError, match=said):
        runner(ledger, made, tmp_path).run()


def test_a_topology_must_say_that_it_need_not_be_exactly_once_and_its_plan_says_it(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"BoltSink.*is non-transactional"):
        topology(tmp_path, ["a"], exactly_once=True)
    (note,) = topology(tmp_path, ["a"]).compile().notes
    assert note.startswith("not exactly once: state teller with stream words")


def test_a_sink_cannot_be_asked_and_is_one_of_a_bolt(tmp_path: Path) -> None:
    spec = topology(tmp_path, ["a"]).states["teller"]
    with spec.factory.make_state(spec) as state:
        with pytest.raises(ConfigurationError, match="cannot be asked"):
            state.get_many([("a",)])
        with pytest.raises(ConfigurationError, match="cannot be asked"):
            state.items()
    with pytest.raises(ConfigurationError, match="Give it a ShellBolt"):
        BoltSink("python tell.py")  # type: ignore[arg-type]
