"""A spout of two functions: its positions are those of a spout; what cannot be one is said before it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import DataFrameSpout, FileSink, Script, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    FieldError,
    PlanError,
    SourceChangedError,
    UnknownNodeError,
    UserCodeError,
)
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
