"""What is made of Spark's errors."""

from __future__ import annotations

import pytest

from airflow_trident.engine.spark.errors import cure_of


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
