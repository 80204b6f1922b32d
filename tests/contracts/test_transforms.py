"""DataFrame functions and queries in a plan: the same on every kind of session, and what is refused of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_trident import DataFrameSpout, FileSpout, Stream, Topology, TransformContext
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.spark.submit import SubmitEngine
from airflow_trident.errors import UserCodeError
from airflow_trident.functions import col
from tests.fixtures.engine import JobOf, keep, rows_as_text, run
from tests.fixtures.transform import ORDERS, TRANSFORMS, Build, meant, next_ten, orders, stamped, tens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

BOTH = ("spark_engine", "connect_engine")


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_comes_out_is_what_the_function_means(engine: Engine, name: str, job_of: JobOf) -> None:
    (given,) = run(engine, job_of(TRANSFORMS[name])).values()
    assert given == rows_as_text(meant(name))


def test_a_submitted_application_runs_functions_queries_and_udfs(submit_engine: SubmitEngine, job_of: JobOf) -> None:
    def all_of_them(topology: Topology) -> None:
        keep(orders(topology, "a").transform(lambda frame: frame.groupBy("cust").count(), "cust int, count long"), "a")
        TRANSFORMS["udf"](topology)
        read = topology.new_stream("b", DataFrameSpout(tens, next_ten, fields="n long"))
        keep(read.transform(lambda frame: frame.groupBy().sum("n").toDF("n"), "n long"), "b")

    given = run(submit_engine, job_of(all_of_them))
    assert given["a"] == rows_as_text((cust, 8) for cust in range(5))
    assert given["rows"] == rows_as_text(meant("udf"))
    assert given["b"] == rows_as_text([(245,)])


def test_a_batch_without_rows_is_a_dataframe_without_rows(engine: Engine, job_of: JobOf) -> None:
    job = replace(job_of(TRANSFORMS["aggregated"]), metadata={})
    assert run(engine, job) == {"rows": []}


def test_the_time_of_a_transaction_is_the_same_in_every_attempt(engine: Engine, job_of: JobOf) -> None:
    def timed(topology: Topology) -> None:
        stream = orders(topology)
        keep(stream.transform(stamped, "cents int, at timestamp").project("at"), "by_function")
        keep(stream.sql("SELECT :transaction_time AS at FROM {o} LIMIT 1", "at timestamp"), "by_query")

    moment = datetime.datetime(2024, 2, 29, 12, 0, 1, 500_000, tzinfo=datetime.UTC)
    job = replace(job_of(timed), time_ms=int(moment.timestamp() * 1000))
    again = replace(job, slot=replace(job.slot, attempt=1))
    first = run(engine, job)
    assert run(engine, again) == first
    assert first == dict.fromkeys(("by_function", "by_query"), rows_as_text([(moment,)]))


def plain(stream: Stream) -> Stream:
    return stream.filter(col("cents") >= 0)


def queried(stream: Stream) -> Stream:
    return stream.sql("SELECT cents, id FROM {o}", "id string, cents int")


def viewed(stream: Stream) -> Stream:
    def through_a_view(frame: DataFrame) -> DataFrame:
        frame.createTempView("mine")
        frame.sparkSession.catalog.dropTempView("mine")
        return frame.sparkSession.sql("SELECT id, cents FROM {mine}", mine=frame)

    return stream.transform(through_a_view, "id string, cents int")


@pytest.mark.parametrize(("one", "other"), [(plain, plain), (queried, queried), (viewed, plain)])
def test_two_states_of_one_transform_get_the_same_rows(
    engine: Engine, one: Callable[[Stream], Stream], other: Callable[[Stream], Stream], job_of: JobOf
) -> None:
    """T5: what is not deterministic is made once."""

    def forked(topology: Topology) -> None:
        made = orders(topology).sql("SELECT uuid() AS id, cents FROM {o}", "id string, cents int")
        keep(one(made).project("id"), "one")
        keep(other(made).project("id"), "other")

    given = run(engine, job_of(forked))
    assert len(given["one"]) == 40
    assert given["one"] == given["other"]


# ---- what the function does ------------------------------------------------------------------------------------

FIELDS = "cust int, cents int, day string"


def narrowed(frame: DataFrame) -> Any:
    return frame.withColumn("cents", frame["cents"].cast("long"))


def raises(frame: DataFrame) -> Any:
    return 1 / 0


def divided(frame: DataFrame) -> Any:
    return frame.withColumn("cents", (frame["cents"] / (frame["cents"] - frame["cents"])).cast("int"))


def settings(frame: DataFrame) -> Any:
    frame.sparkSession.conf.set("spark.sql.ansi.enabled", "false")
    return frame


def set_by_sql(frame: DataFrame) -> Any:
    return frame.sparkSession.sql("SET spark.sql.ansi.enabled=false") and frame


def set_by_builder(frame: DataFrame) -> Any:
    from pyspark.sql import SparkSession

    SparkSession.builder.config("spark.sql.ansi.enabled", "false").getOrCreate()
    return frame


def created(what: str) -> Callable[[DataFrame], Any]:
    return lambda frame: frame.sparkSession.sql(f"CREATE {what}") and frame


WRONG: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "nothing": (lambda frame: None, "gave NoneType and not a DataFrame"),
    "missing": (lambda frame: frame.drop("day"), "did not give day"),
    "undeclared": (lambda frame: frame.selectExpr("*", "1 AS x"), "gave x, which nobody declared"),
    "doubled": (lambda frame: frame.selectExpr("*", "cents AS day"), "gave the column day twice"),
    "narrowed": (narrowed, "gave the column cents as long, declared is int"),
    "raises": (raises, "raised ZeroDivisionError"),
    "unknown_column": (lambda frame: frame.select("nope"), "nope"),
    "fails_while_it_runs": (divided, "DIVIDE_BY_ZERO"),
    "settings": (settings, "changed the session's spark.sql.ansi.enabled"),
    "set_by_sql": (set_by_sql, "is no query"),
    "counts": (lambda frame: frame.limit(frame.count()), "calls count()"),
    "collects": (lambda frame: frame.collect() and frame, "calls collect()"),
    "caches": (lambda frame: frame.cache(), "calls cache()"),
    "as_text": (lambda frame: frame.toJSON() and frame, "calls toJSON()"),
    "global_function": (created("GLOBAL TEMPORARY VIEW v AS SELECT 1"), "is no query"),
    "function_for_all": (created("FUNCTION f(x INT) RETURNS INT RETURN x"), "is no query"),
    "settings_by_builder": (set_by_builder, "calls SparkSession.builder with settings"),
    "streams": (
        lambda frame: frame.sparkSession.readStream.format("rate").load(),
        "gave a streaming DataFrame",
    ),
}


def transformed(function: Callable[[DataFrame], Any]) -> Build:
    return lambda topology: keep(orders(topology).transform(function, FIELDS, version=1))


@pytest.mark.parametrize("name", WRONG)
def test_what_a_function_must_not_do_names_the_node_and_the_cure(engine: Engine, name: str, job_of: JobOf) -> None:
    function, text = WRONG[name]
    with pytest.raises(UserCodeError) as caught:
        engine.run(job_of(transformed(function)))
    assert text in str(caught.value)
    assert caught.value.node == "transform-1"
    assert caught.value.cure


def test_what_a_function_writes_is_refused_before_it_is_written(engine: Engine, tmp_path: Path, job_of: JobOf) -> None:
    leak = tmp_path / "leak"

    def writes(frame: DataFrame) -> Any:
        frame.write.parquet(str(leak))
        return frame

    def writes_by_sql(frame: DataFrame) -> Any:
        frame.sparkSession.sql(f"CREATE TABLE leaked USING parquet LOCATION '{leak}' AS SELECT 1 AS x")
        return frame

    for function in (writes, writes_by_sql):
        with pytest.raises(UserCodeError):
            engine.run(job_of(transformed(function)))
    assert not leak.exists()


CONTEXT: dict[str, Callable[[Any, str], Any]] = {
    "parallelize": lambda context, leak: context.parallelize([1], 1).saveAsTextFile(leak),
    "setLocalProperty": lambda context, leak: context.setLocalProperty("spark.scheduler.pool", leak),
    "setJobGroup": lambda context, leak: context.setJobGroup(leak, leak),
    "addFile": lambda context, leak: context.addFile(__file__),
    "stop": lambda context, leak: context.stop(),
}


@pytest.mark.parametrize("name", CONTEXT)
def test_the_application_is_not_for_functions(spark_engine: Engine, name: str, tmp_path: Path, job_of: JobOf) -> None:
    leak = tmp_path / "leak"

    def acts(frame: DataFrame) -> Any:
        CONTEXT[name](frame.sparkSession.sparkContext, str(leak))
        return frame

    with pytest.raises(UserCodeError, match=rf"calls sparkContext\.{name},"):
        spark_engine.run(job_of(transformed(acts)))
    assert not leak.exists()


def test_what_a_function_may_have_of_its_session(spark_engine: Engine, job_of: JobOf) -> None:
    """Broadcast variables, UDFs, literal rows, and functions by SQL: they stay in the attempt's session."""

    def own(frame: DataFrame) -> Any:
        from pyspark.sql.functions import udf

        session = frame.sparkSession
        shared = session.sparkContext.broadcast({0: 5})
        assert session.sparkContext.defaultParallelism
        session.sql("/* mine */ CREATE OR REPLACE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN x * 2")
        add = udf(lambda x: x + shared.value[0], "int")
        return session.createDataFrame([(1,), (2,)], "n int").select(add("n").alias("n")).selectExpr("twice(n) AS n")

    given = run(spark_engine, job_of(lambda topology: keep(orders(topology).transform(own, "n int"))))
    assert given == {"rows": rows_as_text([(12,), (14,)])}


def test_a_dataframe_of_another_session_is_refused(spark_engine: Engine, job_of: JobOf) -> None:
    def foreign(frame: DataFrame) -> Any:
        return frame.sparkSession.newSession().createDataFrame([(1, 1, "day")], FIELDS)

    with pytest.raises(UserCodeError, match="gave a DataFrame of another session") as caught:
        spark_engine.run(job_of(transformed(foreign)))
    assert "frame.sparkSession" in caught.value.cure


def test_a_dataframe_of_another_session_is_refused_on_connect(
    connect_engine: Engine, connect_server: str, job_of: JobOf
) -> None:
    from pyspark.sql.connect.session import SparkSession  # its builder would make all of this process remote

    foreign: Any = SparkSession(connection=connect_server)
    try:
        for given in (lambda frame: foreign.range(1), lambda frame: frame.crossJoin(foreign.range(1)).drop("id")):
            with pytest.raises(UserCodeError, match=r"another session|SESSION_NOT_SAME"):
                connect_engine.run(job_of(transformed(given)))
    finally:
        foreign.client.close()


@pytest.mark.parametrize("what", ["view", "udf"])
def test_what_an_attempt_registers_is_not_there_for_the_next(engine: Engine, what: str, job_of: JobOf) -> None:
    """T3: each attempt has a session of its own."""

    def registers(frame: DataFrame, context: TransformContext) -> DataFrame:
        session = frame.sparkSession
        if context.attempt == 0 and what == "view":
            frame.createTempView("mine")
        elif context.attempt == 0:
            session.udf.register("mine", lambda value: value + 1, "int")
        return session.sql("SELECT cents FROM mine" if what == "view" else "SELECT mine(1) AS cents")

    def build(topology: Topology) -> None:
        keep(orders(topology).transform(registers, "cents int"))

    assert len(run(engine, job_of(build))["rows"]) == (len(ORDERS) if what == "view" else 1)
    with pytest.raises(UserCodeError, match=r"TABLE_OR_VIEW_NOT_FOUND|UNRESOLVED_ROUTINE"):
        engine.run(job_of(build, attempt=1))
    assert len(run(engine, job_of(build, attempt=0))["rows"]) > 0


def test_settings_that_an_attempt_changed_are_not_those_of_the_next(engine: Engine, job_of: JobOf) -> None:
    seen = []

    def looks(frame: DataFrame, context: TransformContext) -> DataFrame:
        session = frame.sparkSession
        seen.append(session.conf.get("spark.sql.ansi.enabled"))
        if context.attempt == 0:
            session.conf.set("spark.sql.ansi.enabled", "false")
        return frame

    def build(topology: Topology) -> None:
        keep(orders(topology).transform(looks, FIELDS))

    with pytest.raises(UserCodeError, match=r"changed the session's spark\.sql\.ansi\.enabled"):
        engine.run(job_of(build))
    assert len(run(engine, job_of(build, attempt=1))["rows"]) == len(ORDERS)
    assert seen == ["true", "true"]


def test_outside_of_a_transform_actions_are_what_they_were(spark_engine: Engine, job_of: JobOf) -> None:
    from pyspark.sql import SparkSession

    run(spark_engine, job_of(TRANSFORMS["aggregated"]))
    session = SparkSession.builder.getOrCreate()
    frame = session.range(3)
    assert frame.count() == 3
    assert frame.rdd.getNumPartitions() >= 1
    assert session.sql("SET spark.sql.shuffle.partitions").collect()


def test_a_table_that_the_function_reads_itself_is_joined(engine: Engine, tmp_path: Path, job_of: JobOf) -> None:
    """Reading and pivoting start jobs of their own, and are allowed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int32()), "factor": pa.array([10, 100])}), tmp_path / "t.parquet"
    )

    def scaled(frame: DataFrame) -> Any:
        table = frame.sparkSession.read.parquet(str(tmp_path / "t.parquet"))
        days = frame.groupBy("cust").pivot("day").count()
        return days.join(table, days["cust"] == table["id"]).selectExpr("cust", "factor * `day-0` AS n")

    given = run(engine, job_of(lambda topology: keep(orders(topology).transform(scaled, "cust int, n long"))))
    assert given == {"rows": rows_as_text([(1, 30), (2, 200)])}


def test_a_table_that_the_function_reads_itself_is_read_anew_and_a_stream_of_it_is_not(
    spark_engine: Engine, tmp_path: Path, job_of: JobOf
) -> None:
    """T2: a replay gets another version of what the batch does not name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(number: int) -> None:
        pq.write_table(pa.table({"factor": pa.array([10**number])}), tmp_path / "factors" / f"{number}.parquet")

    def by_itself(frame: DataFrame) -> Any:
        table = frame.sparkSession.read.parquet(str(tmp_path / "factors"))
        return frame.limit(1).join(table).select("factor")

    def by_a_stream(frame: DataFrame, factors: DataFrame) -> Any:
        return frame.limit(1).join(factors).select("factor")

    def both(topology: Topology) -> None:
        spout = FileSpout(str(tmp_path / "factors" / "*.parquet"), format="parquet", fields="factor long")
        factors = topology.new_stream("factors", spout)
        keep(orders(topology).transform(by_itself, "factor long"), "by_itself")
        others = {"factors": factors}
        keep(orders(topology, "more").transform(by_a_stream, "factor long", others=others), "by_a_stream")

    (tmp_path / "factors").mkdir()
    write(1)
    job = job_of(both)
    assert run(spark_engine, job) == dict.fromkeys(("by_itself", "by_a_stream"), rows_as_text([(10,)]))
    write(2)
    again = run(spark_engine, replace(job, slot=replace(job.slot, attempt=1)))
    assert again == {"by_itself": rows_as_text([(10,), (100,)]), "by_a_stream": rows_as_text([(10,)])}


# ---- where its code runs ---------------------------------------------------------------------------------------


def test_functions_of_dag_files_travel_to_the_executors(engine: Engine, tmp_path: Path, job_of: JobOf) -> None:
    """T6: a UDF made inside of the function uses a module that no worker can import."""
    import importlib.util
    import sys

    path = tmp_path / "dag_file_of_a_user.py"
    path.write_text(
        "def helper(x):\n    return x + 1\n\n"
        "def plus(frame):\n"
        "    from pyspark.sql import functions as F\n"
        "    return frame.select(F.udf(lambda x: helper(x), 'int')('cents').alias('cents'))\n"
    )
    spec = importlib.util.spec_from_file_location("made_up_dag_name", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_up_dag_name"] = module
    try:
        spec.loader.exec_module(module)
        given = run(engine, job_of(lambda topology: keep(orders(topology).transform(module.plus, "cents int"))))
    finally:
        del sys.modules["made_up_dag_name"]
    assert given == {"rows": rows_as_text((number * 3 % 17 + 1,) for number in range(40))}
