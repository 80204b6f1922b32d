"""A job that takes long says what it is at, and an error of users' code comes with their frames alone."""

from __future__ import annotations

import traceback
from pathlib import Path
from threading import Event

import pytest

from airflow_trident.engine.spark import progress as spark_progress
from airflow_trident.engine.spark.errors import from_json, to_json
from airflow_trident.errors import UserCodeError
from airflow_trident.operations.user_code import Border


def test_a_job_says_again_and_again_what_it_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_progress, "FIRST_S", 0.0)
    monkeypatch.setattr(spark_progress, "EVERY_S", 0.0)
    lines: list[str] = []
    twice = Event()

    def progress(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            twice.set()

    with spark_progress.watched("transaction 1, state n (1 of 2)", lambda: "stage 7: 3 of 200 tasks done", progress):
        assert twice.wait(60)
    assert lines[0] == "transaction 1, state n (1 of 2): at work for 0 s, stage 7: 3 of 200 tasks done"


def test_a_spark_that_does_not_answer_does_not_end_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_progress, "FIRST_S", 0.0)
    said = Event()
    with spark_progress.watched("a job", lambda: str(1 / 0), lambda line: said.set()):
        assert said.wait(60)


def fails(value: int) -> float:
    return 1 / (value - 7)


def test_users_frames_come_along_from_a_worker() -> None:
    with pytest.raises(UserCodeError) as caught:
        Border("each-1", "fails", ("n",), 3).one(fails, (7,))
    again = from_json(to_json(caught.value))
    shown = "".join(traceback.format_exception(again))
    assert shown.index("ZeroDivisionError") < shown.index(Path(__file__).name, shown.index("row (n=7)"))
    assert "return 1 / (value - 7)" in shown
    assert "operations/calls/" not in shown
