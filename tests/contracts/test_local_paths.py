"""Whatever is given a path of a file system refuses one with a scheme, while the DAG is built and before it is used.

What takes a path is found by the names of parameters, in everything that the package makes public and in every
built-in provider, so that the next one is asked too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_trident
from airflow_trident import (
    Count,
    DeltaState,
    DeltaTable,
    FileSink,
    FileSpout,
    FixedBatchSpout,
    KeyValueStates,
    Script,
    SpooledSpout,
    SqliteState,
    Topology,
    TridentBackfillOperator,
    TridentCommitterOperator,
    TridentDrainOperator,
    TridentEmitterOperator,
    TridentSparkSubmitOperator,
    functions,
    settings,
    spouts,
    states,
    storm,
    trident_transaction,
)
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts import CallableSource
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.states.keyvalue.base import BUILT_IN, provider_class
from airflow_trident.storm import NodeBolt, NodeSpout, ShellBolt, ShellSpout, TridentWorkerOperator

PATHS = ("path", "folder", "dir", "file", "root", "uri", "cwd")
"""A parameter that is one of these words, or ends with one behind ``_``, is a path."""


def topology() -> Topology:
    made = Topology("t")
    made.new_stream("s", FixedBatchSpout("a long", [])).persistent_aggregate(SqliteState("x.db"), Count(), "n")
    return made


def script() -> Script:
    return Script(
        "t",
        inputs={"lines": FileSpout("in", format="parquet", fields="a long")},
        outputs={"n": ("a long", FileSink("out"))},
    )


def task(kind: Any, **more: Any) -> Callable[[Any], object]:
    return lambda path: kind(task_id="t", topology=topology(), staging_dir=path, **more)


def group(path: Any) -> object:
    with DAG("d"):
        return trident_transaction(topology(), staging_dir=path)


LOCAL: dict[str, Callable[[Any], object]] = {
    "SqliteState.path": SqliteState,
    "ShellSpout.cwd": lambda path: ShellSpout("feed", "a long", "spool", cwd=path),
    "NodeSpout.working_dir": lambda path: NodeSpout("feed.js", "a long", "spool", working_dir=path),
    "ShellBolt.cwd": lambda path: ShellBolt("bolt", cwd=path),
    "NodeBolt.working_dir": lambda path: NodeBolt("bolt.js", working_dir=path),
    "provider sqlite.path": lambda path: KeyValueStates("sqlite", {"path": path}),
}
"""By class and parameter: made with a path."""
NODES = {"MemoryLedger.root"}
"""Paths of znodes."""
OF_SPARK = {"TridentSparkSubmitOperator.driver_class_path"}
"""What only Spark reads."""
OTHERS: dict[str, Callable[[Any], object]] = {
    "a rendered staging_dir": settings.staging_root,
    "LocalRunner": lambda path: LocalRunner(
        ledger=MemoryLedger("t"), topology=topology(), engine=LocalEngine(), staging_root=path
    ),
    "StagingArea": lambda path: StagingArea(path).load(Slot(topology="t", incarnation="i", txid=1, attempt=0)),
}
"""Staging folders that are not public, or have their path while they run."""
ANYWHERE: dict[str, Callable[[Any], object]] = {
    "FileSpout.path": FileSpout,
    "FileSink.path": FileSink,
    "SpooledSpout.folder": lambda path: SpooledSpout(CallableSource(lambda rows: None, "a long"), path),
    "ShellSpout.folder": lambda path: ShellSpout("feed", "a long", path),
    "NodeSpout.folder": lambda path: NodeSpout("feed.js", "a long", path),
    "DeltaState.path": DeltaState,
    "DeltaTable.path": DeltaTable,
    "TridentEmitterOperator.staging_dir": task(TridentEmitterOperator, txid=1),
    "TridentCommitterOperator.staging_dir": task(TridentCommitterOperator, txid=1),
    "TridentBackfillOperator.staging_dir": task(TridentBackfillOperator),
    "TridentDrainOperator.staging_dir": task(TridentDrainOperator),
    "TridentSparkSubmitOperator.staging_dir": lambda path: TridentSparkSubmitOperator(
        task_id="t", topology=script(), application="job.py", staging_dir=path
    ),
    "TridentWorkerOperator.staging_dir": lambda path: TridentWorkerOperator(
        task_id="t", topologies=[topology()], name="w1", staging_dir=path
    ),
    "trident_transaction.staging_dir": group,
}
"""What knows object stores."""


ON_S3 = {**{name: make for name, make in ANYWHERE.items() if not name.startswith("Delta")}, **OTHERS}


def takers_of_paths() -> Iterator[str]:
    packages = (airflow_trident, functions, spouts, states)
    known = {name: getattr(package, name) for package in packages for name in package.__all__} | {
        "MemoryLedger": MemoryLedger
    }
    known |= {name: kind for name in storm.__all__ if isinstance(kind := getattr(storm, name), type)}
    known |= {f"provider {name}": provider_class(name) for name in BUILT_IN}
    for name, made in known.items():
        if not callable(made):
            continue
        for kind in made.__mro__ if isinstance(made, type) else (made,):
            if not kind.__module__.startswith("airflow_trident"):
                continue
            for parameter in inspect.signature(kind).parameters:
                if parameter.rpartition("_")[2] in PATHS:
                    yield f"{name}.{parameter}"


def test_every_public_parameter_that_is_a_path_is_asked_here() -> None:
    assert set(takers_of_paths()) == {*LOCAL, *ANYWHERE, *NODES, *OF_SPARK}


@pytest.mark.parametrize(
    "path", ["s3://bucket/out", "gs://bucket/a.db", Path("s3://bucket/out"), "HDFS://nn/x", " s3://b"]
)
@pytest.mark.parametrize("make", LOCAL.values(), ids=LOCAL)
def test_a_uri_of_an_object_store_is_no_folder_of_the_working_directory(
    make: Callable[[Any], object], path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"mounted file systems only.*every worker"):
        make(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make", [*LOCAL.values(), *OTHERS.values(), FileSpout, FileSink], ids=[*LOCAL, *OTHERS, "spout", "sink"]
)
def test_a_file_uri_is_refused_with_the_path_that_it_means(make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"Leave the scheme out: '/data/x'"):
        make("file:///data/x")


@pytest.mark.parametrize("make", [*LOCAL.values(), *ANYWHERE.values()], ids=[*LOCAL, *ANYWHERE])
@pytest.mark.parametrize("path", ["out", "~/out", "/data/out", "a:b/c", "x/s3:/y", "{{ var.value.folder }}"])
def test_a_path_of_the_file_system_is_taken(make: Callable[[Any], object], path: str) -> None:
    make(path)


@pytest.mark.parametrize("make", ANYWHERE.values(), ids=ANYWHERE)
def test_what_knows_object_stores_takes_their_uris_but_none_that_lost_a_slash(make: Callable[[Any], object]) -> None:
    make("s3://bucket/table")
    with pytest.raises(ConfigurationError, match="mounted file systems only"):
        make("s3:/bucket/table")


@pytest.mark.parametrize("uri", ["ftp://host/out", "s3://key:secret@bucket/x", "s3://bucket/../x"])
@pytest.mark.parametrize("make", ON_S3.values(), ids=ON_S3)
def test_what_knows_s3_refuses_other_object_stores(make: Callable[[Any], object], uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://"):
        make(uri)


NOT_ON_HDFS = ("TridentSparkSubmitOperator.staging_dir",)
ON_HDFS = {name: make for name, make in ON_S3.items() if name not in NOT_ON_HDFS}


@pytest.mark.parametrize("make", ON_HDFS.values(), ids=ON_HDFS)
def test_staging_sinks_and_spools_may_be_in_an_hdfs(
    make: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"hdfs://\[connection@\]"):
        make("hdfs://nn/../x")
    monkeypatch.setenv("AIRFLOW_CONN_WEBHDFS_DEFAULT", '{"conn_type": "http"}')
    with suppress(ConfigurationError):  # only one of them asks for the connection here
        make("hdfs://nn/x")


@pytest.mark.parametrize("name", NOT_ON_HDFS)
def test_what_cannot_be_in_an_hdfs_yet_says_so_when_the_dag_is_built(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://"):
        ON_S3[name]("hdfs://nn/x")
