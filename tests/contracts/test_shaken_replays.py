"""A shaken dry replay shows what depends on settings that mean nothing, where a plain one says equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_trident import FileSink, FileSpout, Function, OperationContext, Stream, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.debugging import StateDifference, dry_replay
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.testing import MemoryLedger
from tests.fixtures.script import Run, daily, engine, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINES = 600


class Replays:
    """Transaction 1, processed on an engine, and replayed on it."""

    def __init__(self, topology: Topology, engine: Engine, folder: Path) -> None:
        self.topology, self.engine, self.staging = topology, engine, str(folder / "staging")
        self.ledger = MemoryLedger(topology.name)
        coordinate(self.ledger, topology, [Claim(key="one")])
        process(self.ledger, topology, 1, engine, self.staging, Attempts(owner="test"))

    def again(self, *, shake: bool) -> StateDifference:
        said: list[str] = []
        (found,) = dry_replay(self.ledger, self.topology, 1, self.engine, self.staging, said.append, shake=shake)
        assert any(line.startswith("shaken: ") for line in said) == (shake and not isinstance(self.engine, LocalEngine))
        return found


def topology(folder: Path, end: Callable[[Stream], Stream]) -> Topology:
    """Of numbers in three files."""
    source = folder / "numbers"
    source.mkdir()
    for place in range(3):
        lines = (f"{number},{number % 7}" for number in range(place, LINES, 3))
        (source / f"{place}.csv").write_text("\n".join(["n,k", *lines, ""]))
    made = Topology("shaken")
    rows = end(made.new_stream("numbers", FileSpout(str(source), format="csv", fields="n long, k long")))
    rows.partition_persist(FileSink(str(folder / "lake")), rows.fields)
    return made


def numbered(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return frame.repartition("k").select("n", functions.monotonically_increasing_id().alias("id"))


def summed(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return frame.repartition(5).groupBy("k").agg(functions.sum(1.0 / (frame["n"] + 1)).alias("total"))


def listed(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return frame.groupBy("k").agg(functions.first("n").alias("first"))


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").count()


def by_transform(function: Any, fields: str) -> Callable[[Stream], Stream]:
    return lambda stream: stream.transform(function, fields)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "fields"),
    [(numbered, "n long, id long"), (listed, "k long, first long"), (counted, "k long, count long")],
)
def test_what_depends_on_partitions_or_order_differs_only_when_it_is_shaken(
    spark_engine: Engine, tmp_path: Path, function: Any, fields: str
) -> None:
    replays = Replays(topology(tmp_path, by_transform(function, fields)), spark_engine, tmp_path)
    assert replays.again(shake=False).equal
    assert replays.again(shake=True).equal == (function is counted)
    assert replays.again(shake=False).equal  # the session has its settings again


def doubled(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("n * 2 AS n", "explode(array(k, k)) AS k").where("n > 10")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "fields", "true"),
    [
        (doubled, "n long, k long", True),
        (counted, "k long, count long", False),
        (lambda frame: frame.select("k").distinct(), "k long", False),
    ],
)
def test_whether_a_transform_works_row_by_row_shows_when_it_is_shaken(
    spark_engine: Engine, tmp_path: Path, function: Any, fields: str, true: bool
) -> None:
    made = topology(tmp_path, lambda stream: stream.transform(function, fields, rowwise=True))
    replays = Replays(made, spark_engine, tmp_path)
    assert replays.again(shake=False).equal
    assert replays.again(shake=True).equal == true


@pytest.mark.spark
def test_of_sums_of_doubles_it_says_by_how_much(spark_engine: Engine, tmp_path: Path) -> None:
    replays = Replays(topology(tmp_path, by_transform(summed, "k long, total double")), spark_engine, tmp_path)
    found = replays.again(shake=True)
    assert not found.equal
    assert found.only_reals is not None
    assert 0 < found.only_reals < 1e-12


@pytest.mark.spark
def test_a_session_of_connect_is_shaken_and_is_what_it_was(connect_engine: Engine, tmp_path: Path) -> None:
    replays = Replays(topology(tmp_path, by_transform(listed, "k long, first long")), connect_engine, tmp_path)
    assert not replays.again(shake=True).equal
    assert replays.again(shake=False).equal


class WithPartition(Function):
    def prepare(self, context: OperationContext) -> None:
        self.place = context.partition_index

    def execute(self, n: int) -> Any:
        yield n * 10 + self.place


def test_the_local_engine_has_more_partitions_and_turns_the_input(tmp_path: Path) -> None:
    made = topology(tmp_path, lambda stream: stream.each("n", WithPartition(), "m long"))
    replays = Replays(made, LocalEngine(), tmp_path)
    assert replays.again(shake=False).equal
    found = replays.again(shake=True)
    assert found.missing_rows == found.extra_rows > 0
    assert found.only_reals is None


def test_a_script_gets_its_files_the_other_way_round_and_other_settings(tmp_path: Path) -> None:
    script = daily(tmp_path)
    (tmp_path / "orders/b.csv").write_text("customer,cents\nann,1\n")

    def first_file(run: Run) -> None:
        name = run.input("orders")[0].name
        written(run.folder("daily"), {"customer": ("string", [name]), "cents": ("long", [1])})

    replays = Replays(script, engine(first_file), tmp_path)
    assert replays.again(shake=False).equal
    assert replays.again(shake=True).extra == (("b.csv", 1),)


def test_real_numbers_are_compared_beside_the_rest_of_their_rows(tmp_path: Path) -> None:
    from collections import Counter

    from airflow_trident.runtime.debugging import _real_difference

    old, new = Counter([("a", 1.0), ("b", 2.0)]), Counter([("a", 1.0 + 1e-10), ("b", 2.0)])
    assert _real_difference(old, new) == pytest.approx(1e-10)
    assert _real_difference(old, Counter([("a", 1.0), ("c", 2.0)])) is None
    assert _real_difference(old, Counter([("a", 1.0)])) is None
    assert _real_difference(Counter([("a", 1.0)]), Counter([("a", float("inf"))])) is None
    assert _real_difference(Counter(), Counter()) is None
