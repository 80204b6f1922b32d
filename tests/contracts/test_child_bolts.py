"""The contract of bolts in other programs: in every dialect and on every engine they give what a Python function gives
that does the same, and what fails in one of them fails the attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from airflow_trident import Count, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.errors import ChildError, ConfigurationError, FieldError, PlanError, TridentError, UserCodeError
from airflow_trident.operations.expressions import col
from airflow_trident.storm import ShellBolt
from airflow_trident.storm import bolt as on_child
from airflow_trident.storm.components.bolt import ChildBolt
from tests.fixtures.child import module, needs_node, program, seed, shell
from tests.fixtures.engine import JobOf, run
from tests.fixtures.pieces import keep, lines
from tests.fixtures.plan import PaperState
from tests.oracle.rows import OracleEngine

pytestmark = pytest.mark.spark

ROWS = [
    "snow white",
    "the seven dwarfs",
    "a",
    "mirror mirror on the wall",
    "the end",
    *(f"w{n} v{n % 7}" for n in range(300)),
]
ENGINES = {"local": "local_engine", "spark": "spark_engine"}
MATCHED = [
    pytest.param(shell, id="multilang"),
    pytest.param(program, id="0.7", marks=needs_node),
    pytest.param(module, id="module", marks=needs_node),
]
ANY = [*MATCHED, pytest.param(seed, id="seed", marks=needs_node)]
Made = Callable[..., ChildBolt]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(ENGINES[request.param])
    return found


def split(line: str) -> list[str]:
    return line.split()


def split_long(line: str) -> list[str]:
    return [word for word in line.split() if len(word) > 3]


def split_short(line: str) -> list[str]:
    return [word for word in line.split() if len(word) <= 3]


@pytest.mark.parametrize("bolt", MATCHED)
def test_each_appends_what_a_function_appends(engine: Engine, bolt: Made, job_of: JobOf) -> None:
    def build(function: Any) -> Callable[[Topology], None]:
        def topology(topology: Topology) -> None:
            numbered = lines(topology, ROWS).each("line", lambda line: [len(line)], "size long")
            words = numbered.each("line", function, "word string").filter(col("size") > 1)
            words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
            keep(words.project("word, size"))

        return topology

    given = run(engine, job_of(build(bolt())))
    assert len(given["rows"]) > 600
    assert given == run(OracleEngine(), job_of(build(split)))


@pytest.mark.parametrize("bolt", ANY)
def test_flat_map_gives_what_a_function_gives(engine: Engine, bolt: Made, job_of: JobOf) -> None:
    def build(function: Any) -> Callable[[Topology], None]:
        return lambda topology: keep(lines(topology, ROWS).flat_map(function, "word string"))

    given = run(engine, job_of(build(bolt())))
    assert given == run(OracleEngine(), job_of(build(split)))


@pytest.mark.parametrize(
    "bolt",
    [
        pytest.param(lambda: program("streams"), id="0.7", marks=needs_node),
        pytest.param(lambda: module("streams"), id="module", marks=needs_node),
    ],
)
def test_each_stream_id_is_a_stream(engine: Engine, bolt: Made, job_of: JobOf) -> None:
    def with_bolt(topology: Topology) -> None:
        out = on_child(lines(topology, ROWS), "line", bolt(), {"default": "word string", "long": "word string"})
        keep(out["default"], "short")
        keep(out["long"], "long")

    def with_functions(topology: Topology) -> None:
        stream = lines(topology, ROWS)
        keep(stream.flat_map(split_short, "word string"), "short")
        keep(stream.flat_map(split_long, "word string"), "long")

    given = run(engine, job_of(with_bolt))
    assert all(given.values())
    assert given == run(OracleEngine(), job_of(with_functions))


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("word string, x long", "x string, stream_id int"),
        # `a` of the second needs another column than `a` of the first: not the one that a declared `a_` has
        ("a string, a_ long", "a_ string, a long"),
    ],
)
def test_streams_may_have_fields_of_one_name_and_several_types(
    engine: Engine, job_of: JobOf, short: str, long: str
) -> None:
    def with_bolt(topology: Topology) -> None:
        out = on_child(lines(topology, ROWS), "line", shell("Streams"), {"default": short, "long": long})
        keep(out["default"], "short")
        keep(out["long"], "long")

    def with_functions(topology: Topology) -> None:
        stream = lines(topology, ROWS)
        keep(stream.flat_map(lambda line: [(w, len(w)) for w in split_short(line)], short), "short")
        keep(stream.flat_map(lambda line: [(w, len(w)) for w in split_long(line)], long), "long")

    given = run(engine, job_of(with_bolt))
    assert all(given.values())
    assert given == run(OracleEngine(), job_of(with_functions))


def test_one_stream_of_several_may_be_used_alone(engine: Engine, job_of: JobOf) -> None:
    def with_bolt(topology: Topology) -> None:
        streams = {"default": "word string, size long", "long": "word string, size long"}
        keep(on_child(lines(topology, ROWS), "line", shell("Streams"), streams)["long"].project("word"))

    given = run(engine, job_of(with_bolt))
    expected = job_of(lambda topology: keep(lines(topology, ROWS).flat_map(split_long, "word string")))
    assert given == run(OracleEngine(), expected)


def test_a_component_gets_the_fields_that_are_named_and_knows_where_it_is(engine: Engine, job_of: JobOf) -> None:
    def topology(topology: Topology) -> None:
        told = (
            lines(topology, ["x"])
            .each("line", shell("Tells"), "told string")
            .each("told", lambda told: [told], "t string")
        )
        keep(told.project("t"))

    job = job_of(topology, attempt=3)
    (row,) = run(engine, job)["rows"]
    name, node, txid, attempt, partition = row.strip("()',").split(",")
    assert (name, txid, attempt) == (job.slot.topology, str(job.slot.txid), "3")
    assert node.startswith("each-")
    assert partition.isdigit()


@pytest.mark.parametrize("verb", ["each", "flat_map"])
@pytest.mark.parametrize(
    ("bolt", "kind", "text"),
    [
        (lambda: shell("Exit7"), ChildError, r"ended with code 7 before it acknowledged"),
        (lambda: shell("Fails"), UserCodeError, r"gave the row up: Traceback: no such word.*row \(line='now here'\)"),
        (lambda: shell("Hangs", silence_s=0.3), ChildError, r"was silent for 0\.3 s"),
        (lambda: ShellBolt("no-such-program"), ConfigurationError, "'no-such-program' cannot be started on"),
    ],
    ids=["exits", "fails", "hangs", "missing"],
)
def test_what_fails_in_a_child_fails_the_attempt(
    engine: Engine, verb: str, bolt: Made, kind: type[TridentError], text: str, job_of: JobOf
) -> None:
    def topology(topology: Topology) -> None:
        stream = lines(topology, ["a b", "now here", "c"])
        if verb == "each":
            keep(stream.each("line", bolt(), "word string"))
        else:
            keep(stream.flat_map(bolt(), "word string"))

    with pytest.raises(TridentError, match=rf"(?s){text}") as caught:
        engine.run(job_of(topology))
    assert type(caught.value) is kind
    if isinstance(caught.value, UserCodeError):
        assert caught.value.node.startswith(verb)
        assert (caught.value.fields, caught.value.row) == ("line", "line='now here'")


def test_a_value_that_is_not_as_declared_names_the_row(engine: Engine, job_of: JobOf) -> None:
    build = lambda topology: keep(lines(topology, ["a", "now here"]).each("line", shell("Typed"), "word string"))  # noqa: E731
    with pytest.raises(UserCodeError, match=r"gave 7.*row \(line='now here'\)"):
        engine.run(job_of(build))


def test_a_cancelled_attempt_ends_a_child_that_hangs(job_of: JobOf, local_engine: Engine) -> None:
    from airflow_trident.errors import AttemptTimeoutError
    from airflow_trident.runtime.timeouts import run_in_time

    before = set(psutil.Process().children(recursive=True))
    job = job_of(lambda topology: keep(lines(topology, ["now"]).flat_map(shell("Hangs"), "word string")))
    with pytest.raises(AttemptTimeoutError):
        run_in_time(local_engine, job, 1)
    mine = set(psutil.Process().children(recursive=True)) - before
    _, left = psutil.wait_procs(list(mine), 60)
    assert left == []


# ---- what is said when the DAG is built ------------------------------------------------------------------------


def stream() -> Any:
    return lines(Topology("words"), ["a b"])


@pytest.mark.parametrize(
    ("build", "kind", "text"),
    [
        (lambda: stream().each("line", seed(), "word string"), PlanError, 'in protocol "seed" no emit says'),
        (
            lambda: stream().each("line", program(allow_parallel=True), "word string"),
            PlanError,
            "with allow_parallel no",
        ),
        (lambda: stream().map(shell(), "word string"), PlanError, "which may emit any number of tuples"),
        (lambda: stream().flat_map(shell()), PlanError, "without fields"),
        (lambda: stream().each("line", shell(), "line string"), FieldError, "duplicate field 'line'"),
        (lambda: stream().each("lines", shell(), "word string"), FieldError, "no field 'lines'"),
        (lambda: stream().each("line", shell(), "word"), FieldError, "the type of the new field 'word'"),
        (lambda: on_child(stream(), "line", shell(), "word string"), PlanError, "for the streams of ShellBolt"),
        (lambda: on_child(stream(), "line", shell(), {}), PlanError, "for the streams of ShellBolt"),
        (
            lambda: on_child(stream(), "line", split, {"default": "word string"}),
            PlanError,
            "Give a ShellBolt or a NodeBolt",
        ),
    ],
)
def test_a_bolt_that_cannot_stand_there_is_refused(
    build: Callable[[], Any], kind: type[TridentError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        build()
    assert text in str(caught.value)
