"""What stands in for functions that older releases of Spark lack does what those functions do."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.session import Sessions
from airflow_trident.engine.spark.versions import repartition_by_id, spark_hash, to_arrow, try_mod
from airflow_trident.staging.manifest import Slot

pytestmark = pytest.mark.spark


class Older:
    """An object without some of its attributes."""

    def __init__(self, whole: Any, *lacking: str) -> None:
        self._whole, self._lacking = whole, lacking

    def __getattr__(self, name: str) -> Any:
        if name in self._lacking:
            raise AttributeError(name)
        return getattr(self._whole, name)


@pytest.fixture(scope="module")
def spark(spark_engine: SparkEngine) -> Iterator[Any]:
    sessions: Sessions = spark_engine._sessions
    attached = sessions.open(Slot(topology="older", incarnation="one", txid=1, attempt=0))
    yield SimpleNamespace(session=attached.session, f=attached.functions)
    attached.release()


def test_the_hash_of_an_int_is_sparks(spark: Any) -> None:
    numbers = [0, 1, -1, 7, 2**31 - 1, -(2**31), *range(1000, 1100)]
    rows = spark.session.createDataFrame([(number,) for number in numbers], "number int")
    assert [row[0] for row in rows.select(spark.f.hash("number")).collect()] == [spark_hash(one) for one in numbers]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_without_repartition_by_id_every_row_still_goes_to_the_partition_of_its_number(spark: Any, count: int) -> None:
    rows = spark.session.range(100).withColumn("target", (spark.f.col("id") % count).cast("int"))
    sent = repartition_by_id(spark.f, Older(rows, "repartitionById"), count, spark.f.col("target"))
    assert sent.rdd.getNumPartitions() == count
    found = sent.select("target", spark.f.spark_partition_id()).distinct().collect()
    assert sorted(map(tuple, found)) == [(place, place) for place in range(count)]


@pytest.mark.parametrize("lacking", [(), ("repartitionById",)], ids=["newest", "older"])
def test_a_number_beyond_the_last_partition_counts_on_from_the_first(spark: Any, lacking: tuple[str, ...]) -> None:
    rows = spark.session.range(100).withColumn("target", spark.f.col("id").cast("int"))
    sent = repartition_by_id(spark.f, Older(rows, *lacking), 3, spark.f.col("target"))
    found = sent.select("target", spark.f.spark_partition_id()).collect()
    assert sorted(map(tuple, found)) == [(number, number % 3) for number in range(100)]


def test_without_try_mod_a_remainder_by_zero_is_null(spark: Any) -> None:
    rows = spark.session.createDataFrame([(7, 3), (-7, 3), (7, 0), (None, 3), (7, None)], "a int, b int")
    a, b = spark.f.col("a"), spark.f.col("b")
    older = try_mod(Older(spark.f, "try_mod"), a, b)  # type: ignore[arg-type]
    assert [row[0] for row in rows.select(older).collect()] == [1, -1, None, None, None]


def test_without_to_arrow_the_table_is_the_same(spark: Any) -> None:
    rows = spark.session.createDataFrame([(1, "a", [1.5]), (2, None, None)], "n int, s string, x array<double>")
    older = to_arrow(Older(rows, "toArrow"))  # type: ignore[arg-type]
    assert older.to_pylist() == [{"n": 1, "s": "a", "x": [1.5]}, {"n": 2, "s": None, "x": None}]
    nothing = to_arrow(Older(rows.filter("n > 5"), "toArrow"))  # type: ignore[arg-type]
    assert (nothing.num_rows, nothing.column_names) == (0, ["n", "s", "x"])
