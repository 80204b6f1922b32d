"""What is made of Spark's errors."""

from __future__ import annotations

import pytest

from airflow_trident.engine.spark import errors
from airflow_trident.engine.spark.errors import cure_of, translate
from airflow_trident.engine.spark.versions import require_executors
from airflow_trident.errors import ConfigurationError, SparkJobError


@pytest.mark.parametrize(
    ("text", "cancelled"),
    [
        ("org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation", True),
        ("Job 0 cancelled part of cancelled job group trident-words", True),
        ("Job aborted due to stage failure: Stage 2 was cancelled", True),
        ("[OPERATION_CANCELED] Operation was canceled", True),
        ("Job 4 cancelled because SparkContext was shut down", True),
        ("[UNRESOLVED_COLUMN] A column with name `cancelled` cannot be resolved", False),
        ("the value 'cancel' of the column state is no number", False),
    ],
)
def test_only_what_spark_cancelled_is_called_cancelled(text: str, cancelled: bool) -> None:
    assert cure_of(text).startswith("It was cancelled") == cancelled


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "Lost task 0.0: java.io.EOFException\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle",
    ],
)
def test_a_python_worker_that_died_is_named_and_so_is_the_way_to_the_files_of_its_batch(text: str) -> None:
    assert "A Python worker of Spark ended" in cure_of(text)
    assert "ledger show" in cure_of(text)
    assert "Python worker" not in cure_of("java.io.EOFException: Unexpected EOF of a shuffle file")


UNLIKE = (
    "java.io.InvalidClassException: org.apache.spark.rdd.RDD; local class incompatible: stream classdesc "
    "serialVersionUID = 2156047220611086279, local class serialVersionUID = -2646589594477856326"
)
OTHER_EXECUTOR = f"""An error occurred while calling o56.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most \
recent failure: Lost task 0.3 in stage 0.0 (TID 3) (127.0.0.1 executor 0): {UNLIKE}
\tat java.base/java.io.ObjectStreamClass.initNonProxy(ObjectStreamClass.java:597)

Driver stacktrace:
Caused by: {UNLIKE}
\tat java.base/java.io.ObjectStreamClass.initNonProxy(ObjectStreamClass.java:597)
"""
"""What a driver of Spark 4.2.0 said whose executors were of 4.1.4, in a standalone cluster. The stack is cut."""


@pytest.mark.parametrize(("state", "cure"), [("FAILED", "Their logs say why"), ("KILLED", "killed on the master")])
def test_an_application_that_the_master_gave_up_is_told_where_to_look(state: str, cure: str) -> None:
    text = (
        f"Job aborted due to stage failure: Master removed our application: {state}\n"
        "Job 0 cancelled because SparkContext was shut down"
    )
    assert cure in cure_of(text)


@pytest.mark.parametrize(
    ("known", "named"),
    [
        (("", ""), "executor 0 on 127.0.0.1 has another release of Spark than its driver: they differ in "),
        (
            ("4.2.0", "spark:4.1"),
            "executor 0 on 127.0.0.1, in a pod of the image 'spark:4.1', has another release of Spark than its driver, "
            "which has Spark 4.2.0: they differ in ",
        ),
    ],
)
def test_executors_of_another_release_are_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, str], named: str
) -> None:
    monkeypatch.setattr(errors, "driver_and_image", lambda: known)
    error = translate(RuntimeError(OTHER_EXECUTOR), "the job")
    assert isinstance(error, ConfigurationError)
    assert error.message == f"the job: {named}org.apache.spark.rdd.RDD"
    for place in ("spark.kubernetes.container.image", "workers of the standalone cluster", "YARN"):
        assert place in error.cure


def test_other_processes_of_another_release_are_not_called_executors() -> None:
    error = translate(RuntimeError(UNLIKE), "the job")
    assert isinstance(error, ConfigurationError)
    assert (
        error.message
        == "the job: processes of this Spark are of different releases: they differ in org.apache.spark.rdd.RDD"
    )


def test_a_users_own_class_of_another_version_is_no_other_spark() -> None:
    error = translate(RuntimeError(OTHER_EXECUTOR.replace("org.apache.spark.rdd.RDD", "com.example.Row")), "the job")
    assert isinstance(error, SparkJobError)


def test_executors_may_differ_from_their_driver_in_the_last_number_only() -> None:
    require_executors("4.2.1", "4.2.0")
    with pytest.raises(ConfigurationError, match=r"import pyspark 4\.1\.4, and their driver has Spark 4\.2\.0"):
        require_executors("4.1.4", "4.2.0")
