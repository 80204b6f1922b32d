"""The DSL: what each verb does to the fields, and that every mistake is raised on the line that makes it."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident import Count, KeyValueStates, Max, Min, StatefulFunction, StateUpdater, Sum, Topology
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.aggregators import CollectList
from airflow_trident.operations.expressions import col, explode, split
from airflow_trident.plan.rewrites.fusion import MOST_FUSED
from airflow_trident.plan.show.explain import explain
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.topologies import Definition, StateDefinition
from airflow_trident.topology.stream import Stream
from airflow_trident.types import ddl
from tests.fixtures.plan import Joined, Longer, Longest, PaperSpout, PaperState, Split, letters, shout


def orders() -> Stream:
    return Topology("shop").new_stream("orders", PaperSpout("user string, item string, price double, n int"))


VERBS: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "each appends": (
        lambda s: s.each("item", Split(), "word"),
        "user string, item string, price double, n int, word string",
    ),
    "each takes a plain function and written types": (
        lambda s: s.project("item").each("item", lambda item: [(item, 1)], "a string, b long"),
        "item string, a string, b long",
    ),
    "each takes an expression": (lambda s: s.project("n").each(col("n") + 1, "m"), "n int, m long"),
    "each explodes an expression": (
        lambda s: s.project("item").each(explode(split(col("item"), " ")), "word"),
        "item string, word string",
    ),
    "filter keeps the fields": (lambda s: s.project("item").filter("item", Longer()), "item string"),
    "filter takes an expression": (lambda s: s.project("n").filter(col("n") > 0), "n int"),
    "map keeps names and types": (lambda s: s.project("item").map(shout), "item string"),
    "map replaces the fields": (lambda s: s.project("item").map(shout, "loud"), "loud string"),
    "flat_map replaces the fields": (lambda s: s.project("item").flat_map(letters, "letter"), "letter string"),
    "project selects in the order given": (lambda s: s.project("price, user"), "price double, user string"),
    "partition_by keeps the fields": (lambda s: s.project("user").partition_by("user"), "user string"),
    "shuffle keeps the fields": (lambda s: s.project("user").shuffle(), "user string"),
    "aggregate gives the output only": (lambda s: s.aggregate(Count(), "n"), "n long"),
    "aggregators by the names of their outputs": (
        lambda s: s.group_by("user").aggregate(
            n=Count(), total=Sum("price"), least=("n", Min()), items=CollectList("item")
        ),
        "user string, n long, total double, least int, items array<string>",
    ),
    "Sum of a double is a double": (lambda s: s.aggregate("price", Sum(), "total"), "total double"),
    "Sum of an int is a long": (lambda s: s.aggregate("n", Sum(), "total"), "total long"),
    "Min and Max keep the type": (
        lambda s: s.group_by("user").aggregate("n", Min(), "least"),
        "user string, least int",
    ),
    "a user's combiner has the type of combine": (lambda s: s.aggregate("item", Longest(), "w"), "w string"),
    "a user's reducer has the type of reduce": (
        lambda s: s.group_by("user, n").aggregate("item", Joined(), "all"),
        "user string, n int, all string",
    ),
}


@pytest.mark.parametrize("case", VERBS)
def test_every_verb_gives_the_fields_it_promises(case: str) -> None:
    verb, expected = VERBS[case]
    assert ddl(verb(orders()).schema) == expected


def test_named_aggregators_are_the_plan_that_others_are() -> None:
    def definition(verb: Callable[[Stream], Any]) -> Any:
        stream = orders()
        verb(stream)
        plan = stream.topology.compile()
        return explain(plan), plan.digest

    named = definition(lambda s: s.group_by("user").persistent_aggregate(PaperState(), n=Count(), t=Sum("price")))
    others = definition(
        lambda s: s.group_by("user").persistent_aggregate(PaperState(), (Count(), "n"), ("price", Sum(), "t"))
    )
    assert named == others


def no_types(value):  # type: ignore[no-untyped-def]
    return [value]


MISTAKES: dict[str, tuple[Callable[[Stream], Any], type[PlanError], str]] = {
    "unknown field with a near miss": (
        lambda s: s.each("itm", Split(), "word"),
        FieldError,
        "each in topology 'shop': no field 'itm' in the stream, which has (user, item, price, n). Did you mean 'item'?",
    ),
    "unknown field in an expression": (lambda s: s.filter(col("prize") > 1), FieldError, "no field 'prize'"),
    "unknown group field": (lambda s: s.group_by("usr"), FieldError, "no field 'usr'"),
    "doubled field": (lambda s: s.each("item", Split(), "user"), FieldError, "duplicate field 'user'"),
    "output type not known": (lambda s: s.each("item", no_types, "w"), FieldError, 'Write it, as in "w string"'),
    "class instead of an object": (lambda s: s.each("item", Split, "w"), PlanError, "Give an object: Split()"),
    "no function at all": (lambda s: s.each("item", 5, "w"), PlanError, "a method execute()"),
    "each without outputs": (lambda s: s.each("item", Split()), PlanError, "needs the fields"),
    "filter that is no boolean": (lambda s: s.filter(col("n") + 1), FieldError, "needs a boolean"),
    "Sum of text": (lambda s: s.aggregate("item", Sum(), "t"), FieldError, "Sum cannot add fields of type string"),
    "Sum of two fields": (
        lambda s: s.aggregate("n, price", Sum(), "t"),
        FieldError,
        "exactly one input field and got 2",
    ),
    "Max without a field": (lambda s: s.aggregate(Max(), "m"), FieldError, "exactly one input field and got 0"),
    "fields named twice": (
        lambda s: s.aggregate("price", Sum("n"), "t"),
        PlanError,
        "names the fields of Sum twice: (price) and (n). Name them once: Sum('price').",
    ),
    "both forms": (lambda s: s.aggregate("price", total=Sum()), PlanError, "got both named aggregators and others"),
    "a named class": (lambda s: s.aggregate(n=Count), PlanError, "with objects, not classes"),
    "a named aggregator of an unknown field": (lambda s: s.aggregate(t=Sum("prize")), FieldError, "no field 'prize'"),
    "aggregator class": (lambda s: s.aggregate(Count, "n"), PlanError, "with objects, not classes"),
    "no state": (lambda s: s.persistent_aggregate("db", Count(), "n"), PlanError, "is no state"),
    "no such type": (lambda s: s.each("item", no_types, "w strng"), FieldError, "unknown type 'strng'"),
    "bad state name": (lambda s: s.persistent_aggregate(PaperState(), Count(), "n", name="a b"), PlanError, "'a b'"),
    "nothing to store": (
        lambda s: s.partition_persist(PaperState(), "user", keys="user"),
        PlanError,
        "has no value fields",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake_is_raised_on_the_line_that_makes_it(case: str) -> None:
    verb, kind, text = MISTAKES[case]
    with pytest.raises(kind) as caught:
        verb(orders())
    assert text in str(caught.value)
    lines = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.filename == __file__ and frame.name == "<lambda>" for frame in lines)


def test_two_states_of_one_name_are_refused() -> None:
    stream = orders()
    stream.persistent_aggregate(PaperState(), Count(), "n")
    with pytest.raises(PlanError, match="two states named 'n'"):
        stream.persistent_aggregate(PaperState(), Count(), "n")


def test_two_streams_of_one_name_are_refused() -> None:
    topology = Topology("shop")
    topology.new_stream("a", PaperSpout())
    with pytest.raises(PlanError, match="two streams named 'a'"):
        topology.new_stream("a", PaperSpout())


def test_a_topology_without_a_state_is_refused() -> None:
    topology = Topology("shop")
    topology.new_stream("a", PaperSpout())
    with pytest.raises(PlanError, match="nothing would ever be committed"):
        topology.compile()


def test_a_stream_that_reaches_no_state_is_refused() -> None:
    topology = Topology("shop")
    topology.new_stream("a", PaperSpout()).persistent_aggregate(PaperState(), Count(), "n")
    topology.new_stream("b", PaperSpout())
    with pytest.raises(PlanError, match="stream 'b' of topology 'shop' reaches no state"):
        topology.compile()


def test_a_stream_stays_as_it_is_when_a_verb_is_called_on_it() -> None:
    stream = orders()
    stream.project("user").each("user", Split(), "word")
    assert stream.fields == ("user", "item", "price", "n")


def test_the_definition_names_what_ledger_and_states_depend_on_and_no_function() -> None:
    topology = Topology("shop")
    stream = topology.new_stream("orders", PaperSpout("user string, item string"))
    stream.each("item", Split(), "word").group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    definition = topology.definition()
    assert str(definition.spouts["orders"]) == "PaperSpout transactional"
    assert definition.states == {
        "count": StateDefinition(
            text="PaperState (word string) -> (count long) by Count", place="PaperState", inputs=("",)
        )
    }


class Pairs(Joined):
    output_types = "string"


class Trail(StatefulFunction[str, int]):
    def init_state(self, state: Any) -> None: ...

    def execute(self, *values: Any) -> None: ...


STATES: dict[str, tuple[Callable[[Stream, str], Any], str]] = {
    "a combiner": (
        lambda s, field: s.group_by("user").persistent_aggregate(PaperState(), field, Sum(), "n"),
        "(price)",
    ),
    "one of several": (
        lambda s, field: s.persistent_aggregate(PaperState(), (Count(), "n"), (field, Sum(), "sum")),
        "(; price)",
    ),
    "a reducer": (lambda s, field: s.persistent_aggregate(PaperState(), field, Joined(), "n"), "(price)"),
    "an updater": (
        lambda s, field: s.partition_persist(
            PaperState(), ["user", field], lambda state, rows: None, keys="user", values="n long"
        ),
        "(user, price)",
    ),
    "a window": (
        lambda s, field: s.tumbling_window(2, PaperState(), field, Sum(), "n").partition_persist(
            PaperState(), "n", keys="", name="out"
        ),
        "(price long)",
    ),
    "a stateful function": (
        lambda s, field: s.stateful(field, Trail(), provider=KeyValueStates("memory"), name="n"),
        "(price)",
    ),
    "a key": (
        lambda s, field: s.each(field, lambda x: [x], "k long").partition_persist(
            PaperState(), ["user", field], keys="user", values=f"{field} long", name="n"
        ),
        "(price long)",
    ),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_that_is_fed_with_another_field_is_another_definition(kind: str) -> None:
    """The values of two fields would be added up in one state without a word."""
    build, said = STATES[kind]
    price, tax = Topology("shop"), Topology("shop")
    for topology, field in ((price, "price"), (tax, "tax")):
        build(topology.new_stream("orders", PaperSpout("user string, price long, tax long")), field)
    differences = price.definition().differences(tax.definition())
    assert len(differences) == 1, differences
    assert said in differences[0]
    assert said.replace("price", "tax") in differences[0]
    assert price.definition().differences(price.definition()) == []


class Updating(StateUpdater):
    """What it describes is not for the definition."""

    def describe(self, tuples: Any) -> float:
        raise AssertionError("it is called")

    def update_state(self, state: Any, tuples: Any) -> None: ...


def test_what_a_users_updater_calls_describe_is_not_called() -> None:
    topology = Topology("shop")
    orders = topology.new_stream("orders", PaperSpout("user string, price long"))
    orders.partition_persist(PaperState(), "user, price", Updating(), keys="user", name="kept")
    assert topology.definition().states["kept"].text == "PaperState (user string) -> (price long) by updater"


def unsafe(**kinds: SpoutKind) -> Definition:
    topology = Topology("shop", exactly_once=False)
    for name, kind in kinds.items():
        spout = type(PaperSpout.__name__, (PaperSpout,), {"kind": kind})("user string")
        topology.new_stream(name, spout).group_by("user").persistent_aggregate(PaperState(), Count(), name)
    return topology.definition()


def test_a_stream_that_became_exactly_once_is_named_and_no_other() -> None:
    lossy, exact = SpoutKind.NON_TRANSACTIONAL, SpoutKind.TRANSACTIONAL
    before, after = unsafe(one=lossy, two=lossy), unsafe(one=exact, two=lossy)
    assert before.differences(after) == ["stream one: PaperSpout non-transactional -> PaperSpout transactional"]
    assert before.differences(unsafe(two=lossy, one=lossy)) == []
    assert len(before.differences(unsafe(one=exact, two=exact))) == 4


def windows_of(fields: str, reads: str) -> Topology:
    topology = Topology("shop")
    window = topology.new_stream("orders", PaperSpout(fields)).tumbling_window(2, PaperState(), reads, Pairs(), "n")
    window.partition_persist(PaperState(), "n", keys="", name="out")
    return topology


def test_a_window_whose_fields_get_another_type_is_another_definition() -> None:
    """Its open windows hold tuples of the old type."""
    old, new = windows_of("a string, b decimal(9,2)", "a, b"), windows_of("a string, b decimal(11,2)", "a, b")
    (difference,) = old.definition().differences(new.definition())
    assert "of (a string, b decimal(9,2)) -> " in difference
    assert not old.definition().same_state(new.definition(), "n_window")


class CountedSpout(PaperSpout):
    """Counts how often it is asked for its kind."""

    asked = 0

    @property
    def kind(self) -> SpoutKind:  # type: ignore[override]
        CountedSpout.asked += 1
        return SpoutKind.TRANSACTIONAL


def asked_for(streams: int) -> int:
    before, topology = CountedSpout.asked, Topology("wide")
    for number in range(streams):
        counted = topology.new_stream(f"s{number}", CountedSpout("user string")).group_by("user")
        counted.persistent_aggregate(PaperState(), Count(), f"n{number}")
    topology.compile()
    topology.definition()
    return CountedSpout.asked - before


def test_what_a_topology_asks_its_spouts_grows_with_their_number() -> None:
    assert asked_for(80) == 2 * asked_for(40)


@pytest.mark.parametrize("verb", [lambda s: s.peek("user", repr), lambda s: s.shuffle().peek("user", repr)])
def test_a_topology_may_be_deeper_than_the_stack_of_python(verb: Callable[[Stream], Stream]) -> None:
    topology = Topology("deep")
    stream = topology.new_stream("orders", PaperSpout("user string"))
    for _ in range(1_100):
        stream = verb(stream)
    stream.group_by("user").persistent_aggregate(PaperState(), Count(), "n")
    plan = topology.compile()
    assert "peek-2 repr(user)" in explain(plan)
    assert max(len(stage.nodes) for stage in plan.stages) <= MOST_FUSED


def test_building_a_topology_imports_no_spark_no_zookeeper_client_no_arrow_and_no_airflow() -> None:
    program = (
        "import sys; from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology\n"
        "t = Topology('t'); t.new_stream('a', FixedBatchSpout('w string', [('a',)], 1))"
        ".group_by('w').persistent_aggregate(SqliteState('x.db'), Count(), 'n'); t.compile()\n"
        "print(sorted({'pyspark', 'kazoo', 'pyarrow', 'pandas', 'airflow'} & {m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
