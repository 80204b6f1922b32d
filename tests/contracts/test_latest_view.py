"""The view of the latest rows of a table of upserts: what Spark reads by it is what the state itself calls latest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import FixedBatchSpout, MemoryLedger, ParquetTable, Topology, TridentUpkeepOperator, latest_rows
from airflow_trident.contracts.state import Applied
from airflow_trident.contracts.upkeep import Upkeep, View, ViewDialect
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.sessions.server import EmbeddedConnectServer
from airflow_trident.engine.spark.views import publish_view
from airflow_trident.errors import ConfigurationError
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.upkeep import keep_up, latest_query, require_upkeep
from airflow_trident.states.tables.latest_view import latest_query as of_columns
from tests.contracts.test_table_upserts import changes, changes_table, three
from tests.fixtures.spark import SMALL, soon
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, ForeignTable

OF = ("words", "rows")


@pytest.fixture
def session(spark_session: Any) -> Iterator[Any]:
    """With an empty schema `sales`."""
    spark_session.sql("CREATE SCHEMA sales")
    yield spark_session.newSession()
    spark_session.sql("DROP SCHEMA sales CASCADE")


def published(session: Any, table: ForeignTable, view: View, said: list[str] | None = None) -> bool:
    query = latest_query(table.spec, ViewDialect.SPARK, view.table)
    return publish_view(session, view, query, OF, (said if said is not None else []).append)


def read(session: Any, view: View) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in session.table(view.name).collect()), key=repr)


def latest_tuples(table: ForeignTable) -> list[tuple[Any, ...]]:
    factory: Any = table.spec.factory
    return sorted((tuple(row.values()) for row in factory.latest().to_pylist()), key=repr)


def test_a_view_has_the_latest_rows_before_and_after_replays_compactions_and_deletions(
    session: Any, tmp_path: Path
) -> None:
    table, view, said = changes_table(TABLES["parquet"], tmp_path), View(name="sales.latest"), list[str]()
    with table.opened() as state:
        assert published(session, table, view, said)
        assert read(session, view) == []
        three(state, tmp_path)
        assert published(session, table, view, said)
        assert not published(session, table, view, said)
        assert said == ["making view sales.latest", "replacing view sales.latest"]
        assert read(session, view) == [(1, "c", False), (3, "d", False)] == latest_tuples(table)
        assert state.apply_files(ticket(3, fence=99), changes(tmp_path, 3, (3, "again", None))) is Applied.ALREADY
        assert not published(session, table, view)
        assert state.compact()
        assert read(session, view) == latest_tuples(table), "old files stay for those who still read them"
        assert published(session, table, view)
        assert read(session, view) == latest_tuples(table)
        state.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (1, None, True), (3, None, True)))
        assert state.compact()
        assert published(session, table, view)
        assert read(session, view) == [] == latest_tuples(table)


def test_a_view_of_files_of_others_has_what_they_lack_and_keys_that_are_null(session: Any, tmp_path: Path) -> None:
    table = changes_table(TABLES["parquet"], tmp_path, partition_by=("word",))
    foreign: Any = table
    with table.opened() as state:
        three(state, tmp_path)
    foreign.add_column()
    (tmp_path / "sales" / "_data").mkdir(exist_ok=True)
    rows = [(None, 1), (None, 2), (7, None)]
    pq.write_table(
        pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "_txid": pa.array([row[1] for row in rows])}),
        tmp_path / "sales" / "_data" / "theirs.parquet",
    )
    there = foreign.named(foreign.version())
    theirs = {"path": "_data/theirs.parquet", "rows": 3, "bytes": 1, "partition": ["it's \\ theirs"]}
    foreign.publish(files=[*there, theirs])
    view = View(name="sales.others")
    assert published(session, table, view)
    assert read(session, view) == latest_tuples(table)
    assert (None, "it's \\ theirs", None, None) in read(session, view)
    assert session.table(view.name).columns == ["id", "word", "gone", "more"]


def test_a_view_of_a_file_that_is_gone_is_an_error_and_never_fewer_rows(session: Any, tmp_path: Path) -> None:
    table, view = changes_table(TABLES["parquet"], tmp_path), View(name="sales.short")
    with table.opened() as state:
        three(state, tmp_path)
    published(session, table, view)
    next(iter(table.data_files())).unlink()
    session.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        read(session, view)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_view_over_the_name_that_a_catalogue_has_for_a_table(session: Any, tmp_path: Path, kind: str) -> None:
    """Spark has the rows of the table under another name here, as a catalogue would have them."""
    table, view = changes_table(TABLES[kind], tmp_path), View(name="sales.latest", table="sales.changes")
    with table.opened() as state:
        three(state, tmp_path)
    with pytest.raises(ConfigurationError, match=r"sales\.latest.*cannot be found.*--table schema\.name"):
        published(session, table, view)
    pq.write_table(table.read(), tmp_path / "copy.parquet")
    session.sql(f"CREATE TABLE sales.changes USING parquet LOCATION '{tmp_path}/copy.parquet'")
    assert published(session, table, view)
    assert not published(session, table, view)
    assert read(session, view) == latest_tuples(table)


def test_what_is_not_its_own_is_not_replaced_and_what_is_missing_is_said(session: Any, tmp_path: Path) -> None:
    table = changes_table(TABLES["parquet"], tmp_path)
    session.sql("CREATE VIEW sales.theirs AS SELECT 1 AS one")
    session.sql("CREATE TABLE sales.filled USING parquet AS SELECT 1 AS one")
    for name in ("sales.theirs", "sales.filled"):
        with pytest.raises(ConfigurationError, match=r"already, and it is not the view of state 'rows'"):
            published(session, table, View(name=name))
    with pytest.raises(ConfigurationError, match=r"'nowhere\.latest'.*SCHEMA_NOT_FOUND.*Make the schema"):
        published(session, table, View(name="nowhere.latest"))
    with pytest.raises(ConfigurationError, match=r"REQUIRES_SINGLE_PART_NAMESPACE.*spark\.sql\.catalog\.NAME"):
        published(session, table, View(name="no.such.latest"))


def test_a_folder_whose_name_could_be_a_pattern_is_read_as_it_is(session: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b,c}*?`"
    folder.mkdir()
    table, view = changes_table(TABLES["parquet"], folder), View(name="sales.odd")
    with table.opened() as state:
        three(state, folder)
    assert published(session, table, view)
    assert read(session, view) == [(1, "c", False), (3, "d", False)]


class Overtaken:
    """A session before whose first view somebody else makes one of that name."""

    def __init__(self, session: Any) -> None:
        self.session, self.is_first = session, True

    def sql(self, text: str) -> Any:
        if text.startswith("CREATE") and self.is_first:
            self.is_first = False
            self.session.sql("CREATE VIEW sales.latest AS SELECT 'theirs' AS one")
        return self.session.sql(text)


def test_a_view_that_others_make_meanwhile_is_not_replaced(session: Any) -> None:
    view = View(name="sales.latest")
    with pytest.raises(ConfigurationError, match=r"already, and it is not the view of state 'rows'"):
        publish_view(Overtaken(session), view, "SELECT 1 AS one", OF, [].append)
    assert read(session, view) == [("theirs",)]


@pytest.mark.parametrize("name", ["short_urls", "tokens"])
def test_a_state_whose_name_looks_like_a_secret_to_spark_can_replace_its_view(session: Any, name: str) -> None:
    view = View(name="sales.latest")
    for query, is_new in (("SELECT 1 AS token", True), ("SELECT 1 AS token", False), ("SELECT 2 AS token", True)):
        assert publish_view(session, view, query, ("words", name), [].append) is is_new
    with pytest.raises(ConfigurationError, match="already, and it is not the view"):
        publish_view(session, view, "SELECT 3 AS token", OF, [].append)
    assert read(session, view) == [(2,)]


def test_a_column_whose_name_differs_only_in_case_from_that_of_the_row_numbers_is_read(
    session: Any, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1, 1], "_Place": ["old", "new"], "_txid": [1, 2]}), tmp_path / "copy.parquet")
    session.sql(f"CREATE TABLE sales.changes USING parquet LOCATION '{tmp_path}/copy.parquet'")
    query = of_columns("sales.changes", ["id", "_Place", "_txid"], ["id"], None, ViewDialect.SPARK)
    assert [tuple(row) for row in session.sql(query).collect()] == [(1, "new")]


# ---- Spark Connect ---------------------------------------------------------------------------------------------


@pytest.fixture
def server_with_metastore(tmp_path: Path) -> Iterator[str]:
    """A Connect server whose catalogue outlives sessions; its schema `sales` is empty."""
    from pyspark.sql.connect.session import SparkSession

    options = {
        **SMALL,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.driver.extraJavaOptions": f"{soon()} -Djava.io.tmpdir={tmp_path}",
    }
    server = EmbeddedConnectServer(tmp_path / "server", master="local[2]", heap_mb=768, conf=options)
    server.start()
    try:
        session = SparkSession.builder.remote(server.url).create()
        session.sql("CREATE SCHEMA sales")
        session.stop()
        yield server.url
    finally:
        server.stop()


@pytest.mark.rare
@pytest.mark.airflow
@pytest.mark.spark
def test_a_task_publishes_over_spark_connect_what_later_sessions_read(
    server_with_metastore: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.connect.session import SparkSession

    host, port = server_with_metastore.removeprefix("sc://").split(":")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)}))

    def build(*rows: tuple[Any, ...]) -> Topology:
        topology = Topology("sales")
        words = topology.new_stream("words", FixedBatchSpout("id long, word string, gone boolean", list(rows), 1))
        table = ParquetTable(str(tmp_path / "table"))
        words.persist_table(table, mode="upsert", keys="id", deleted="gone", name="rows")
        return topology

    topology = build((1, "a", None), (2, "b", None), (1, "c", None), (2, None, True), (3, "d", False))
    with MemoryLedger("sales") as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging")).run()
    for is_new in (True, False):
        task = TridentUpkeepOperator(
            task_id="publish",
            topology=topology,
            state="rows",
            action="publish",
            view="sales.latest",
            spark_conn_id="lake",
        )
        assert task.execute({}) is is_new
    session = SparkSession.builder.remote(server_with_metastore).create()
    wanted = [(1, "c", None), (3, "d", False)]
    assert sorted(tuple(row) for row in session.table("sales.latest").collect()) == wanted
    frame = session.read.parquet(*map(str, (tmp_path / "table").rglob("trident-*.parquet")))
    assert sorted(tuple(row) for row in latest_rows(frame, "id", "gone").collect()) == wanted
    session.stop()


def test_a_catalogue_in_memory_is_refused(spark_engine: Any, tmp_path: Path) -> None:
    table = changes_table(TABLES["parquet"], tmp_path)
    with pytest.raises(ConfigurationError, match=r"would be gone with this Spark session.*metastore"):
        keep_up(table.spec, Upkeep.PUBLISH, [].append, view=View(name="sales.latest"), engine=spark_engine)


def test_the_query_names_a_table_as_each_engine_does(tmp_path: Path) -> None:
    queries = {}
    for kind, made in TABLES.items():
        table = changes_table(made, tmp_path / kind)
        (tmp_path / kind).mkdir(exist_ok=True)
        with table.opened() as state:
            three(state, tmp_path / kind)
        queries[kind] = table.spec
    assert f"FROM `delta`.`{tmp_path}/delta/sales`" in latest_query(queries["delta"], ViewDialect.SPARK)
    assert f"FROM delta_scan('{tmp_path}/delta/sales')" in latest_query(queries["delta"], ViewDialect.DUCKDB)
    assert re.search(r"FROM \(SELECT .* FROM read_parquet\('", latest_query(queries["parquet"], ViewDialect.DUCKDB))
    assert latest_query(queries["iceberg"], ViewDialect.TRINO, "lake.sales.rows") == (
        'SELECT "id", "word", "gone"\n'
        "FROM (\n"
        '    SELECT *, row_number() OVER (PARTITION BY "id" ORDER BY "_txid" DESC NULLS LAST) AS "_place"\n'
        '    FROM "lake"."sales"."rows"\n'
        ') AS "changes"\n'
        'WHERE "_place" = 1 AND NOT coalesce("gone", false)'
    )
    for kind in ("delta", "parquet"):
        with pytest.raises(ConfigurationError, match=r"trino cannot name.*--table"):
            latest_query(queries[kind], ViewDialect.TRINO)


def test_a_name_that_is_a_pattern_for_duckdb_is_given_to_it_as_a_pattern_of_that_name_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]*b?"
    folder.mkdir()
    table = changes_table(TABLES["parquet"], folder)
    with table.opened() as state:
        three(state, folder)
    query = latest_query(table.spec, ViewDialect.DUCKDB)
    assert query.count(f"read_parquet('{tmp_path}/a[[]1][*]b[?]/") == 3


def test_what_has_no_view_is_refused_when_the_task_is_made(tmp_path: Path) -> None:
    table = changes_table(TABLES["parquet"], tmp_path)
    plain = replace(table.spec, keys=(), values=table.spec.staged, deleted=None)
    view = View(name="sales.latest")
    with pytest.raises(ConfigurationError, match="published as a view, and nothing names that"):
        require_upkeep(table.spec, Upkeep.PUBLISH)
    with pytest.raises(ConfigurationError, match="there is no view in `compact`"):
        require_upkeep(table.spec, Upkeep.COMPACT, view)
    with pytest.raises(ConfigurationError, match="there is no `publish` of state 'rows'"):
        require_upkeep(plain, Upkeep.PUBLISH, view)
    with pytest.raises(ConfigurationError, match="there is no view of state 'rows'"):
        latest_query(plain, ViewDialect.SPARK)
    for name in ("latest", "sales.", ".latest"):
        with pytest.raises(ConfigurationError, match="Give"):
            View(name=name)
