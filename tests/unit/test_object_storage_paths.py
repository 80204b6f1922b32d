"""Airflow's ObjectStoragePath where an address is taken: what it names is what its text names."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_trident import (
    Count,
    DeltaState,
    DeltaTable,
    FileSink,
    FileSpout,
    FixedBatchSpout,
    SpooledSpout,
    SqliteState,
    Topology,
    TridentEmitterOperator,
    settings,
)
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts import CallableSource
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.testing import MemoryLedger

S3_URI, AZURE_URI = "s3://objects@trident/in", "abfs://objects@container/in"


def nothing(_upto: Any, _most: int) -> list[Any]:
    return []


def runner_in(path: Any) -> LocalRunner:
    topology = Topology("words")
    stream = topology.new_stream("words", FixedBatchSpout("word string", [("a",)]))
    stream.group_by("word").persistent_aggregate(SqliteState("words.db"), Count(), "count", name="counts")
    return LocalRunner(ledger=MemoryLedger("words"), topology=topology, engine=LocalEngine(), staging_root=path)


def emitter_in(path: Any) -> TridentEmitterOperator:
    topology = runner_in("/tmp/staging").topology
    return TridentEmitterOperator(task_id="emit", topology=topology, txid=1, engine="local", staging_dir=path)


TAKERS: dict[str, Callable[[Any], str]] = {
    "FileSpout": lambda path: FileSpout(path).describe(),
    "FileSink": lambda path: FileSink(path).describe(),
    "SpooledSpout": lambda path: SpooledSpout(CallableSource(nothing, "word string"), path).describe(),
    "staging_dir of a task": lambda path: str(emitter_in(path).staging_dir),
    "[trident] staging_dir": settings.staging_root,
    "LocalRunner": lambda path: str(runner_in(path).staging_root),
}


@pytest.mark.parametrize("uri", [S3_URI, AZURE_URI, "gs://trident/in"])
@pytest.mark.parametrize("taker", TAKERS)
def test_its_text_is_what_is_named(taker: str, uri: str) -> None:
    assert TAKERS[taker](ObjectStoragePath(uri)) == TAKERS[taker](uri)


@pytest.mark.parametrize("taker", TAKERS)
def test_one_of_this_machine_is_its_path(taker: str) -> None:
    assert TAKERS[taker](ObjectStoragePath("file:///srv/in")) == TAKERS[taker]("/srv/in")


def test_a_connection_given_beside_it_counts() -> None:
    path = ObjectStoragePath("s3://trident/in", conn_id="objects")
    assert FileSink(path) == FileSink(S3_URI)
    assert pickle.loads(pickle.dumps(FileSink(path))) == FileSink(S3_URI)


@pytest.mark.parametrize("make", [DeltaTable, DeltaState])
def test_it_brings_the_connection_of_a_delta_table(make: type[DeltaTable] | type[DeltaState]) -> None:
    given = make(ObjectStoragePath("s3://objects@trident/sales"))
    assert (given.path, given.conn_id) == ("s3://trident/sales", "objects")
    assert given == make("s3://trident/sales", conn_id="objects")
    with pytest.raises(ConfigurationError, match=r"conn_id='other', and its path names the connection 'objects'"):
        make(ObjectStoragePath("s3://objects@trident/sales"), conn_id="other")


def test_it_brings_the_connection_of_a_delta_spout() -> None:
    given = DeltaSpout(ObjectStoragePath("s3://objects@trident/sales"), fields="id long")
    assert given.describe() == "TableSpout(s3://trident/sales)"
    assert given.__getstate__()["_place"].conn_id == "objects"


def test_what_is_no_path_is_refused_as_before() -> None:
    with pytest.raises(ConfigurationError, match="FileSpout without a path: it got 7"):
        FileSpout(7)  # type: ignore[arg-type]
