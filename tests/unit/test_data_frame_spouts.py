"""A spout of two functions: its positions are those of a spout; what cannot be one is said before it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident import DataFrameSpout, DeltaTable, FileSink, Partitions, Script, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    FieldError,
    PlanError,
    SourceChangedError,
    UnknownNodeError,
    UserCodeError,
)
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts import SpoutKind
from airflow_trident.storm import TransactionalTopologyBuilder
from airflow_trident.testing.suites import SPOUT_CHECKS, SpoutCase, check_changed_source, metadata_of_all
from tests.fixtures.script import job_of
from tests.fixtures.transform import next_ten, tens


def spout_of(next_position: Callable[[Any], Any] = next_ten, **options: Any) -> DataFrameSpout:
    return DataFrameSpout(tens, next_position, fields="n long", **options)


@pytest.mark.parametrize("check", [one for one in SPOUT_CHECKS if one is not check_changed_source])
def test_its_positions_are_the_tuples_of_a_spout(check: Callable[[SpoutCase], None]) -> None:
    check(SpoutCase(spout_of(), [('{"ten": 2}',), ('{"ten": 3}',)], spout_of))


def test_a_stream_has_the_fields_that_the_function_gives_and_says_so() -> None:
    topology = Topology("numbers")
    stream = topology.new_stream("numbers", spout_of())
    assert stream.fields == ("n",)
    assert stream.node.what == "tens of DataFrames numbers"
    assert topology.spouts["numbers"].describe() == "DataFrameSpout(tens from next_ten)"
    assert spout_of().kind is SpoutKind.TRANSACTIONAL
    assert spout_of(opaque=True).kind is SpoutKind.OPAQUE


@pytest.mark.parametrize(
    ("gives", "text"),
    [
        (lambda previous: {1: 2}, "which JSON cannot keep as it is"),
        (lambda previous: (1, 2), "which JSON cannot keep as it is"),
        (lambda previous: float("nan"), "which JSON cannot keep as it is"),
        (lambda previous: object(), "which JSON cannot keep as it is"),
        (lambda previous: 7, "gave 7 again, which the last batch had"),
        (lambda previous: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_what_is_no_position_is_told_before_it_is_recorded(gives: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(UserCodeError, match=text):
        spout_of(gives).coordinator().initialize_transaction(2, {"position": 7})


def adds(previous: Any) -> Any:
    previous = previous or []
    previous.append(len(previous))
    return previous if len(previous) < 4 else None


def test_a_function_that_changes_what_it_is_given_changes_no_record() -> None:
    assert metadata_of_all(spout_of(adds)) == [{"position": [0]}, {"position": [0, 1]}, {"position": [0, 1, 2]}]


@pytest.mark.parametrize("metadata", [[], "x", {}, {"from": 1}, {"position": 1, "files": []}])
def test_metadata_of_another_spout_is_an_error(metadata: Any) -> None:
    with pytest.raises(SourceChangedError, match=r"is not that of a DataFrameSpout.*stream a new name"):
        spout_of().coordinator().initialize_transaction(2, metadata)
    with pytest.raises(SourceChangedError, match="is not that of a DataFrameSpout"):
        spout_of().emitter().splits(metadata)


def test_what_needs_tuples_refuses_it_when_the_dag_is_built_and_the_local_engine_before_it_reads(
    tmp_path: Path,
) -> None:
    sink = FileSink(str(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="which a function reads"):
        Script("s", inputs={"numbers": spout_of()}, outputs={"out": ("n long", sink)})
    builder = TransactionalTopologyBuilder("numbers", "spout", spout_of())
    with pytest.raises(PlanError, match="which only Spark reads"):
        builder.build()
    with pytest.raises(FieldError, match="no fields"):
        Topology("numbers").new_stream("numbers", DataFrameSpout(tens, next_ten, fields=""))
    for wrong in ({"read": None}, {"next_position": 7}):
        with pytest.raises(ConfigurationError, match="Give it a function"):
            DataFrameSpout(**{"read": tens, "next_position": next_ten, "fields": "n long", **wrong})  # type: ignore[arg-type]
    topology = Topology("numbers")
    topology.new_stream("numbers", spout_of()).partition_persist(sink, "n", name="out")
    with pytest.raises(UnknownNodeError, match="engine='spark'"):
        LocalEngine().run(job_of(topology, tmp_path))  # type: ignore[arg-type]


# ---- bound to partitions ---------------------------------------------------------------------------------------

DAYS = Partitions("day", begin="2026-01-01")
MONDAY = "2026-11-23"


def rows_of_day(session: Any, partition: Any) -> Any:
    return session.range(1)


@pytest.mark.parametrize(
    ("versions", "change"),
    [
        ((None, 3), "1 new"),
        ((3, None), "1 gone"),
        ((3, 3), ""),
        ((["a", 1], ["a", 2]), "1 other"),
        ((None, None), ""),
    ],
)
def test_a_partition_changes_with_its_version(versions: tuple[Any, Any], change: str) -> None:
    asked, given = [], list(versions)

    def version(partition: Any) -> Any:
        asked.append((partition.key, partition.start.isoformat(), partition.end.isoformat()))
        return given.pop(0)

    topology = Topology("days", partitions=DAYS)
    stream = topology.new_stream("n", DataFrameSpout(rows_of_day, fields="id long", version=version))
    assert stream.fields == ("id", "day")
    coordinator = topology.spouts["n"].coordinator()
    before, now = (coordinator.partition(DAYS.parse(MONDAY)) for _ in versions)
    assert str(coordinator.compared(before, now)) == change
    assert asked == [(MONDAY, "2026-11-23T00:00:00+00:00", "2026-11-24T00:00:00+00:00")] * 2


def test_a_partition_without_a_version_has_data_and_never_changes() -> None:
    coordinator = DataFrameSpout(rows_of_day, fields="id long").bound(DAYS).coordinator()
    before, now = (coordinator.partition(DAYS.parse(MONDAY)) for _ in range(2))
    assert before is not None
    assert not coordinator.compared(before, now)


@pytest.mark.parametrize("version", [lambda partition: {1: 2}, lambda partition: 1 // 0])
def test_what_is_no_version_is_an_error_of_the_function(version: Any) -> None:
    coordinator = DataFrameSpout(rows_of_day, fields="id long", version=version).bound(DAYS).coordinator()
    with pytest.raises(UserCodeError, match=r"lambda.*(raised|JSON cannot keep).*the partition has no data"):
        coordinator.partition(DAYS.parse(MONDAY))


def test_functions_of_positions_and_of_partitions_are_not_mixed() -> None:
    bound = Topology("days", partitions=DAYS)
    with pytest.raises(PlanError, match=r"next_position says what is new.*read\(session, partition\)"):
        bound.new_stream("n", spout_of())
    with pytest.raises(PlanError, match="topology 'days' is not bound to partitions"):
        Topology("days").new_stream("n", DataFrameSpout(rows_of_day, fields="id long"))
    with pytest.raises(ConfigurationError, match="next_position and version"):
        DataFrameSpout(tens, next_ten, fields="n long", version=len)
    with pytest.raises(ConfigurationError, match="version='v1'"):
        DataFrameSpout(rows_of_day, fields="n long", version="v1")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="has the field 'day', as the partition column"):
        bound.new_stream("n", DataFrameSpout(rows_of_day, fields="n long, day date"))


@pytest.mark.spark
def test_spark_reads_partitions_by_the_function(tmp_path: Path, spark_engine: Engine) -> None:
    """The frame of the second table has the partition column itself."""

    def plain(session: Any, partition: Any) -> Any:
        return session.sql(f"SELECT {sums[partition.key]} AS n")

    def by_day(session: Any, partition: Any) -> Any:
        return session.sql(f"SELECT 7L AS n, DATE'{days.get(partition.key, partition.key)}' AS day")

    sums, days = {MONDAY: "1L", "2026-11-24": "2L"}, dict[str, str]()
    topology = Topology("days", partitions=DAYS)
    for name, read in (("plain", plain), ("by_day", by_day)):
        stream = topology.new_stream(name, DataFrameSpout(read, fields="n long", version=lambda day: sums[day.key]))
        stream.persist_table(DeltaTable(str(tmp_path / name), partition_by="day"), name=name)
    with MemoryLedger("days") as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=spark_engine, staging_root=str(tmp_path / "staging")
        )
        assert runner.run(partitions=list(sums)) == [1, 2]
        sums[MONDAY] = "10L"
        assert runner.run(partitions=list(sums), redo="changed") == [3]
        tables = {
            name: deltalake.DeltaTable(str(tmp_path / name)).to_pyarrow_table().to_pylist()
            for name in ("plain", "by_day")
        }
        rows = {name: sorted((str(row["day"]), row["n"]) for row in table) for name, table in tables.items()}
        assert rows == {
            "plain": [(MONDAY, 10), ("2026-11-24", 2)],
            "by_day": [(MONDAY, 7), ("2026-11-24", 7)],
        }
        days[MONDAY] = "2026-11-25"
        with pytest.raises(UserCodeError, match="2026-11-25"):
            runner.run(partitions=[MONDAY])
