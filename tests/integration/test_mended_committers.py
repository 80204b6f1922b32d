"""What a person mends where a committer has effects of its own: it is never run for a transaction that it had, and
nobody says that it holds, or does not hold, what nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, KeyValueStates, SqliteState, Sum
from airflow_trident.errors import ConfigurationError, LostTransactionsError, UserCodeError
from airflow_trident.protocol.records import Status
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.mending.rebuild import Rebuilt
from airflow_trident.runtime.repair import take_back
from airflow_trident.storm import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    BoltTuple,
    OutputFieldsDeclarer,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.testing import MemoryTransactionalSpout
from airflow_trident.topology.stream import Stream
from tests.fixtures.behind import Versions, copies_in, rebuild
from tests.fixtures.committing import Site
from tests.seeds.stateful_words import WordCountBolt

WORDS = {0: [(word,) for word in ("a", "b", "a", "c")]}
SPOUT = MemoryTransactionalSpout(WORDS, "word string", 1)


class Told(BaseTransactionalBolt):
    """A committer or a bolt that writes down each batch that it finishes, and passes it on."""

    def __init__(self, name: str, book: Path) -> None:
        self.name, self.book = name, str(book)

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.collector, self.id, self.words = collector, id, [""][:0]

    def execute(self, tuple: BoltTuple) -> None:
        self.words.append(tuple.get_string(1))

    def finish_batch(self) -> None:
        with open(self.book, "a") as book:
            book.write(f"{self.name} {self.id.txid} {''.join(self.words)}\n")
        if Path(f"{self.book}-fails").exists():
            raise ValueError("cannot stand it")
        for word in self.words:
            self.collector.emit([self.id, word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


class Bench:
    """A committer that emits to a bolt and on to a state; beside it a state that feeds another one; all states in
    numbered copies, so that any of them can be lost."""

    def __init__(self, folder: Path) -> None:
        self.book, self.which = folder / "book", dict[str, int]()
        states = Versions(copies_in(folder), self.which)
        builder = TransactionalTopologyBuilder("mended", "spout", SPOUT)
        builder.set_committer_bolt("sum", Told("sum", self.book)).global_grouping("spout")
        builder.set_bolt("between", Told("between", self.book), 1).global_grouping("sum")
        builder.set_committer_bolt("last", Told("last", self.book)).global_grouping("between")
        kept = KeyValueStates("sqlite", {"path": str(folder / "kept.db")})

        def first_and_second(words: Stream) -> None:
            first = words.group_by("word").persistent_aggregate(states, Count(), "first")
            newest = first.new_values_stream().group_by("word")
            newest.persistent_aggregate(states, "first", Sum(), "second")

        def fed(words: Stream) -> None:
            words.group_by("word").persistent_aggregate(states, Count(), "fed")

        def stateful(words: Stream) -> None:
            done = words.stateful("word", WordCountBolt(), provider=kept, name="kept")
            trail = SqliteState(str(folder / "trail.db"))
            done.new_values_stream().partition_persist(trail, "word, count", keys="word", name="trail")

        builder.end_stream("spout", first_and_second)
        builder.end_stream("spout", stateful)
        builder.end_stream("last", fed)
        self.site = Site(builder.build(), folder / "staging")

    def told(self) -> list[str]:
        return self.book.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_states_beside_a_committer_are_rebuilt_and_the_committer_is_not_run_again(bench: Bench) -> None:
    bench.site.run(3)
    before = bench.told()
    assert before == [
        f"{name} {txid} {word}" for txid, word in enumerate("aba", 1) for name in ("sum", "between", "last")
    ]
    bench.which |= {"first": 1, "second": 1}
    assert rebuild(bench.site).run().replayed == {name: Txids.span(1, 3) for name in ("first", "second")}
    assert bench.site.content("first") == {"a": 2, "b": 1}
    assert bench.site.content("second") == {"a": 1 + 2, "b": 1}
    assert bench.told() == before
    assert any("committer sum keeps what it does in a database of its own" in line for line in bench.site.said)
    assert bench.site.run(1) == [4]
    assert len(bench.told()) == len(before) + 3


def test_a_state_that_a_committer_feeds_is_lost_and_is_not_fed_with_nothing(bench: Bench) -> None:
    bench.site.run(3)
    bench.which["fed"] = 1
    with pytest.raises(LostTransactionsError, match="'fed' lacks 1 to 3"):
        rebuild(bench.site).run()
    assert any("transaction 1 is lost for state fed: it is fed from state" in line for line in bench.site.said)
    assert bench.site.content("fed") == {}
    done = rebuild(bench.site).run(accept_loss="the committer's database has them")
    assert done == Rebuilt(replayed={}, lost={"fed": Txids.span(1, 3)})
    bench.site.run(1)
    assert bench.site.content("fed") == {"c": 1}


def test_a_committer_that_is_named_is_refused_with_what_a_person_can_do(bench: Bench) -> None:
    bench.site.run(1)
    with pytest.raises(ConfigurationError, match=r"'sum' is a committer with a database of its own.*by hand"):
        rebuild(bench.site).run(["sum"])


def test_what_a_committer_may_have_done_is_taken_back_with_a_warning_and_its_txid_tells_the_rest(bench: Bench) -> None:
    """It wrote, then it raised: nobody but its database knows. The replay gives it the same txid again."""
    fails = Path(f"{bench.book}-fails")
    txid = bench.site.begin("run")
    bench.site.process(txid)
    fails.touch()
    with pytest.raises(UserCodeError, match="cannot stand it"):
        bench.site.committer().commit(txid)
    taken = take_back(
        bench.site.ledger, bench.site.topology, txid, owner="p", reason="r", progress=bench.site.said.append
    )
    assert taken.status is Status.FAILED
    assert any("state sum may hold a part of it: it cannot say" in line for line in bench.site.said)
    fails.unlink()
    bench.site.process(txid)
    bench.site.commit(txid)
    assert [line for line in bench.told() if line.startswith("sum")] == ["sum 1 a", "sum 1 a"]
