"""What a transactional topology refuses when it is built: one clear error that names the node and the cure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from airflow_trident import Count, MemoryState
from airflow_trident.errors import ConfigurationError, FieldError, PlanError
from airflow_trident.plan.graph import Grouping
from airflow_trident.protocol.topologies import Definition
from airflow_trident.storm import (
    BaseBatchBolt,
    BaseTransactionalBolt,
    BasicBolt,
    BatchOutputCollector,
    BoltTuple,
    ICommitter,
    OutputFieldsDeclarer,
    ShellBolt,
    TopologyContext,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.storm.config import read_config
from airflow_trident.testing import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

SPOUT = MemoryTransactionalSpout({0: [("a",), ("b",)]}, "word string", 1)


class Pass(BasicBolt):
    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        collector.emit(tuple)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


class Batch(BaseBatchBolt[Any]):
    def execute(self, tuple: BoltTuple) -> None:
        """Nothing is kept."""

    def finish_batch(self) -> None:
        """Nothing is done."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare_stream("words", "id, word string")
        declarer.declare_stream("counts", "id, word string, n long")


class Commit(BaseTransactionalBolt, ICommitter):
    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.id = id

    def execute(self, tuple: BoltTuple) -> None:
        """Nothing is kept."""

    def finish_batch(self) -> None:
        """Nothing is done."""


def made(**options: Any) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("t", "spout", SPOUT, **options)


def unknown_component(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("sum", Commit()).global_grouping("spuot")


def unknown_stream(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("batch", Batch()).shuffle_grouping("spout")
    builder.set_bolt("sum", Commit()).global_grouping("batch", "count")


def default_stream_that_is_not_declared(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("batch", Batch()).shuffle_grouping("spout")
    builder.set_bolt("sum", Commit()).global_grouping("batch")


def no_input(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("sum", Commit())


def circle(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("one", Pass()).shuffle_grouping("two")
    builder.set_bolt("two", Pass()).shuffle_grouping("one")
    builder.set_bolt("sum", Commit()).global_grouping("two")


def nobody_reads(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("lost", Pass()).shuffle_grouping("spout")
    builder.set_bolt("sum", Commit()).global_grouping("spout")


def no_committer(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")


def committer_without_its_attempt(builder: TransactionalTopologyBuilder) -> None:
    builder.set_committer_bolt("sum", Batch()).global_grouping("spout")


def basic_committer(builder: TransactionalTopologyBuilder) -> None:
    builder.set_committer_bolt("sum", Pass()).global_grouping("spout")  # type: ignore[arg-type]


def direct(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("sum", Commit()).direct_grouping("spout")


def same_id(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("spout", Commit())


def a_class(builder: TransactionalTopologyBuilder) -> None:
    builder.set_bolt("sum", Commit)  # type: ignore[arg-type]


def end_in_no_state(builder: TransactionalTopologyBuilder) -> None:
    builder.end_stream("spout", lambda words: words.group_by("word"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (unknown_component, ["bolt 'sum' reads component 'spuot'", "Did you mean 'spout'?"]),
        (unknown_stream, ["bolt 'sum' reads stream 'count' of component 'batch'", "Did you mean 'counts'?"]),
        (default_stream_that_is_not_declared, ["stream 'default' of component 'batch'", "'words', 'counts'"]),
        (no_input, ["bolt 'sum' of topology 't' has no input", "shuffle_grouping"]),
        (circle, ["one > two > one", "take one of these inputs away"]),
        (nobody_reads, ["bolt 'lost'", "set_committer_bolt()"]),
        (no_committer, ["has no committer", "end_stream()"]),
        (
            committer_without_its_attempt,
            ["committer 'sum' (Batch) has no way to be exactly once", "txid", "end_stream"],
        ),
        (basic_committer, ["committer 'sum' is the basic bolt Pass", "BaseTransactionalBolt"]),
        (direct, ["bolt 'sum' has a direct grouping of component 'spout'", "custom_grouping"]),
        (same_id, ["two components named 'spout'"]),
        (a_class, ["bolt 'sum' of topology 't' is the class Commit", "Give an object"]),
        (end_in_no_state, ["end_stream of component 'spout' ends in no state"]),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_bad_wiring_is_one_error_that_names_the_node_and_the_cure(
    wrong: Callable[[TransactionalTopologyBuilder], None], says: list[str]
) -> None:
    def build() -> None:
        builder = made()
        wrong(builder)
        builder.build()

    with pytest.raises(PlanError) as error:
        build()
    for part in says:
        assert part in str(error.value)


def test_a_bolt_with_the_name_of_the_input_of_another_is_refused() -> None:
    builder = made()
    builder.set_bolt("words", Pass()).shuffle_grouping("spout")
    builder.set_bolt("words.shuffle-0", Pass()).shuffle_grouping("words")
    builder.set_bolt("sum", Commit()).global_grouping("words.shuffle-0")
    with pytest.raises(PlanError, match=r"two nodes 'words\.shuffle-0'.*another name"):
        builder.build().compile()


class Shell(ShellBolt):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


def test_a_bolt_in_another_program_must_say_what_it_emits_and_cannot_commit() -> None:
    builder = made()
    with pytest.raises(PlanError, match=r"ShellBolt 'split' does not say what it emits\. Make a subclass"):
        builder.set_bolt("plain", ShellBolt("split"))
    with pytest.raises(PlanError, match=r"committer 'send' is ShellBolt 'split', which never learns.*BoltSink"):
        builder.set_committer_bolt("send", Shell("split"))
    builder.set_bolt("batch", Batch()).shuffle_grouping("spout")
    builder.set_bolt("split", Shell("split")).shuffle_grouping("batch", "words").shuffle_grouping("batch", "counts")
    builder.set_committer_bolt("commit", Commit()).shuffle_grouping("split")
    with pytest.raises(PlanError, match=r"'counts' of component 'batch' has \(id, word, n\)\. Let a BasicBolt bring"):
        builder.build()


@pytest.mark.parametrize(
    ("one", "two", "exchange"),
    [
        (("fields", "word"), ("fields", "word"), (Grouping.FIELDS, ("word",))),
        (("fields", "word"), ("fields", "other"), (Grouping.COLOCATED, ())),
        (("fields", "word"), ("global",), (Grouping.COLOCATED, ())),
        (("shuffle",), ("all",), (Grouping.COLOCATED, ())),
        (("fields", "word"), ("shuffle",), None),
    ],
)
def test_what_all_inputs_of_a_bolt_in_another_program_send_to_a_task_comes_to_one_process(
    one: tuple[str, ...], two: tuple[str, ...], exchange: tuple[Grouping, tuple[str, ...]] | None
) -> None:
    class Split(Shell):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("id, word string, other string")

    builder = made()
    declarer = builder.set_bolt("count", Shell("count"))
    for name, (kind, *fields) in {"one": one, "two": two}.items():
        builder.set_bolt(name, Split("split")).shuffle_grouping("spout")
        getattr(declarer, f"{kind}_grouping")(name, *fields)
    builder.set_committer_bolt("commit", Commit()).shuffle_grouping("count")
    (stage,) = (one for one in builder.build().compile().stages if one.union is not None)
    assert (None if stage.exchange is None else (stage.exchange.grouping, stage.exchange.keys)) == exchange


def test_a_field_that_a_stream_does_not_have_names_bolt_stream_and_fields() -> None:
    builder = made()
    builder.set_bolt("sum", Commit()).fields_grouping("spout", "wort")
    with pytest.raises(
        FieldError, match=r"bolt 'sum': no field 'wort' in stream 'default' of component 'spout'.*'word'"
    ):
        builder.build()


@pytest.mark.parametrize("fields", ["id", "", "id long, word string"])
def test_a_stream_is_declared_with_the_attempt_first_and_one_field_more(fields: str) -> None:
    class Odd(Pass):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(fields)

    with pytest.raises(PlanError, match="TransactionAttempt"):
        made().set_bolt("odd", Odd())


def test_a_committer_that_keeps_no_previous_value_is_refused_behind_an_opaque_spout() -> None:
    spout = OpaqueMemoryTransactionalSpout({0: [("a",)]}, "word string", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("sum", Commit()).global_grouping("spout")
    with pytest.raises(PlanError, match="stream 'spout' and state 'sum' of topology 't' are not exactly once"):
        builder.build()

    class Keeps(Commit):
        keeps_previous_value = True

    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("sum", Keeps()).global_grouping("spout")
    assert builder.build().shortfalls == ()


def test_what_need_not_be_exactly_once_may_be_built() -> None:
    builder = made(exactly_once=False)
    builder.set_committer_bolt("sum", Batch()).global_grouping("spout")
    assert list(builder.build().states) == ["sum"]


def test_a_stream_may_end_in_a_state_of_this_package() -> None:
    builder = made()
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")
    builder.end_stream("pass", lambda words: words.group_by("word").persistent_aggregate(MemoryState(), Count(), "n"))
    assert list(builder.build().states) == ["n"]


class Paper(TransactionalSpout[Any]):
    """Cannot be read."""

    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> Any: ...

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> Any: ...

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


class OtherPaper(Paper):
    """Another source."""


def test_another_class_of_spout_is_another_definition() -> None:
    def definition(spout: Paper) -> Definition:
        builder = TransactionalTopologyBuilder("t", "spout", spout)
        builder.set_committer_bolt("sum", Commit()).global_grouping("spout")
        return builder.build().definition()

    before, now = definition(Paper()), definition(OtherPaper())
    assert before.differences(now) == [
        "stream spout: TransactionalSource of Paper transactional -> TransactionalSource of OtherPaper transactional"
    ]


def test_two_builds_give_plans_of_one_digest() -> None:
    def digest() -> str:
        builder = made()
        builder.set_bolt("batch", Batch(), 3).fields_grouping("spout", "word")
        builder.set_bolt("sum", Commit(), 2).all_grouping("batch", "words").fields_grouping("batch", "counts", "id")
        return builder.build().compile().digest

    assert digest() == digest()


class Positions(TransactionalSpout[dict[str, int]]):
    """Its coordinator returns the same position until somebody else moves it."""

    class Lookup(TransactionalSpout.Coordinator[dict[str, int]]):
        def initialize_transaction(self, txid: int, prev_metadata: dict[str, int] | None) -> dict[str, int]:
            return {"begin": 1, "quantity": 10}

    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> Positions.Lookup:
        return Positions.Lookup()

    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> Any:
        raise AssertionError("nothing is emitted here")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, word string")


def test_a_coordinator_that_returns_the_metadata_before_is_refused_unless_the_spout_allows_it() -> None:
    spout = Positions()
    builder = TransactionalTopologyBuilder("t", "positions", spout)
    builder.set_committer_bolt("sum", Commit()).global_grouping("positions")
    source = builder.build().spouts["positions"]
    coordinator = source.coordinator()
    first = coordinator.initialize_transaction(1, None)
    with pytest.raises(ConfigurationError, match=r"spout 'positions' .* the one before, \{'begin': 1.*max_pending=1"):
        coordinator.initialize_transaction(2, first)
    spout.repeats_metadata = True
    assert coordinator.initialize_transaction(2, first) == {"txid": 2, "meta": {"begin": 1, "quantity": 10}}


# ---- configuration ---------------------------------------------------------------------------------------------


def test_storms_names_are_mapped_in_one_place() -> None:
    read = read_config(
        {
            "topology.max.spout.pending": 3,
            "topology.message.timeout.secs": 30,
            "transactional.zookeeper.servers": ["zk1", "zk2:2182"],
            "transactional.zookeeper.port": 2000,
            "transactional.zookeeper.root": "/transactional",
            "storm.zookeeper.servers": ["other"],
            "topology.max.task.parallelism": 2,
            "topology.state.provider": "redis",
            "topology.state.provider.config": '{"host": "localhost"}',
            "my.own": 1,
        }
    )
    assert read.transaction() == {"max_pending": 3, "attempt_timeout": timedelta(seconds=30)}
    assert (read.zookeeper_uri, read.zookeeper_root) == ("zookeeper://zk1:2000,zk2:2182", "/transactional")
    assert (read.state_provider, read.state_provider_config) == ("redis", {"host": "localhost"})
    assert read.max_task_parallelism == 2
    assert read.for_components["my.own"] == 1


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"topology.max.spout.pendign": 1}, "'topology.max.spout.pendign' is unknown.*topology.max.spout.pending"),
        ({"topology.acker.executors": 1}, "there are no ackers"),
        ({"topology.max.spout.pending": 0}, "topology.max.spout.pending is 0.*1 or more"),
        ({"transactional.zookeeper.servers": "zk1"}, "Give a list of hosts"),
        ({"topology.state.provider.config": "{"}, "Give a JSON object"),
    ],
)
def test_a_name_of_storm_that_means_nothing_here_is_refused(conf: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made(conf=conf)
