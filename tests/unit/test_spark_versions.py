"""What each release of Spark is asked for, as far as no Spark is needed to know it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.session import Attached, Sessions
from airflow_trident.engine.spark.versions import (
    hashed_to,
    mixes_runs,
    release_of,
    require_jvm,
    require_server,
    require_version,
    spark_hash,
)
from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.stages import Plan
from airflow_trident.staging.manifest import Slot
from tests.fixtures.engine import TOPOLOGIES, make_job
from tests.fixtures.transform import TRANSFORMS


def plan_of(name: str, folder: Path) -> Plan:
    return make_job(TOPOLOGIES[name], folder).plan


@pytest.mark.parametrize(("version", "release"), [("3.5.9", (3, 5)), ("4.2.0", (4, 2)), ("4.1.0-preview1", (4, 1))])
def test_a_release_is_two_numbers(version: str, release: tuple[int, int]) -> None:
    assert release_of(version) == release


def test_an_older_spark_is_refused_with_the_one_that_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Spark 3\.4\.4 is too old.*Use Spark 3\.5 or newer"):
        require_version(plan_of("word_count", tmp_path), "3.4.4")


def test_a_connect_server_is_refused_that_is_older_than_its_client() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"Spark 4\.1\.4, and the client here is pyspark 4\.2\.0.*Install pyspark 4\.1 here, or .* 4\.2 or newer",
    ):
        require_server("4.1.4", "4.2.0")
    assert require_server("4.2.1-SNAPSHOT", "4.2.0") == ""
    assert require_server("4.10.0", "4.2.0") == ", from a client of 4.2.0"


def test_a_spark_that_can_mix_two_runs_of_code_is_named() -> None:
    assert [bool(mixes_runs(version)) for version in ("3.5.9", "4.0.5", "4.1.0-preview1", "4.2.0")] == [1, 1, 0, 0]
    assert "Spark 4.0.5 does not notice" in mixes_runs("4.0.5")
    assert "Use Spark 4.1 or newer" in mixes_runs("4.0.5")


class OfVersion(Sessions):
    def __init__(self, version: str, *, local: bool) -> None:
        self.version, self.local = version, local

    def open(self, slot: Slot, *, trial: bool = False) -> Attached:
        nothing: Any = lambda: None  # noqa: E731
        session: Any = SimpleNamespace(version=self.version)
        return Attached(session, sys, 1, nothing, nothing, local=self.local, about=f"Spark {self.version}")


@pytest.mark.parametrize(("version", "local", "told"), [("4.0.5", False, 1), ("4.0.5", True, 0), ("4.1.4", False, 0)])
def test_that_runs_can_be_mixed_is_said_once_where_executors_can_be_lost(
    version: str, local: bool, told: int, tmp_path: Path
) -> None:
    said: list[str] = []
    engine = SparkEngine(OfVersion(version, local=local))
    job = replace(make_job(TOPOLOGIES["word_count"], tmp_path), progress=said.append)
    for _ in range(2):
        with engine._attached(job):
            pass
    assert sum("rows of two runs" in line for line in said) == told


def test_pyspark_is_refused_with_the_jars_of_another_spark() -> None:
    with pytest.raises(
        ConfigurationError, match=r"pyspark 4\.2\.0 .* Spark 3\.5\.1-amzn-1\. Unset SPARK_HOME.*pyspark 3\.5"
    ):
        require_jvm("3.5.1-amzn-1", "4.2.0")
    require_jvm("4.2.1", "4.2.0")


def test_a_time_of_day_is_refused_where_spark_has_none(tmp_path: Path) -> None:
    plan = plan_of("times_and_intervals", tmp_path)
    with pytest.raises(ConfigurationError, match=r"Spark 4\.0\.5 has no times of day.*Spark 4\.1 or newer"):
        require_version(plan, "4.0.5")
    require_version(plan, "4.1.4")


def test_a_transform_is_refused_where_spark_cannot_tell_a_sessions_settings(tmp_path: Path) -> None:
    plan = make_job(TRANSFORMS["aggregated"], tmp_path).plan
    with pytest.raises(ConfigurationError, match=r"transform-1 needs Spark 4\.0, and this is 3\.5\.9"):
        require_version(plan, "3.5.9")
    require_version(plan, "4.0.0")


def test_plans_without_times_run_on_the_oldest(tmp_path: Path) -> None:
    require_version(plan_of("word_count", tmp_path), "3.5.9")


def test_each_partition_has_a_number_that_is_hashed_to_it() -> None:
    for count in (1, 2, 7, 200):
        assert [spark_hash(number) % count for number in hashed_to(count)] == list(range(count))
