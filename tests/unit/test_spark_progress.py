"""What is shown of a Spark job: what it is at, errors with the frames of users alone, lines of its JVM."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from threading import Event

import pytest

from airflow_trident.engine.spark import progress as spark_progress
from airflow_trident.engine.spark.errors import from_json, to_json
from airflow_trident.engine.spark.sessions.local import leveled
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


# ---- lines of the JVM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        ("26/11/22 09:50:40 WARN NativeCodeLoader: none", logging.WARNING, "NativeCodeLoader: none"),
        ("26/11/22 09:50:40 ERROR Inbox: An error", logging.ERROR, "Inbox: An error"),
        ("2026-11-22T09:50:40,123 [INFO] Utils: x", logging.INFO, "Utils: x"),
        ("OpenJDK 64-Bit Server VM warning: no", logging.WARNING, "OpenJDK 64-Bit Server VM warning: no"),
        ('Exception in thread "main" x.Y: z', logging.ERROR, 'Exception in thread "main" x.Y: z'),
        ("java.lang.OutOfMemoryError: Java heap space", logging.ERROR, "java.lang.OutOfMemoryError: Java heap space"),
        ("Traceback (most recent call last):", logging.ERROR, "Traceback (most recent call last):"),
        ("DEBUG: (1, 'ERROR')", logging.INFO, "DEBUG: (1, 'ERROR')"),
        ("7 words of a user's function", logging.INFO, "7 words of a user's function"),
    ],
)
def test_a_line_has_the_level_that_it_says(line: str, level: int, said: str) -> None:
    assert leveled(line, logging.CRITICAL) == (level, said)


@pytest.mark.parametrize("line", ["\tat a.B.c(D.java:1)", "Caused by: x.Y: z", '  File "a.py", line 1', ""])
def test_the_lines_of_a_stack_trace_have_the_level_of_what_it_is_of(line: str) -> None:
    assert leveled(line, logging.ERROR) == (logging.ERROR, line)
    assert leveled(line, logging.WARNING) == (logging.WARNING, line)


def test_what_java_says_of_a_module_that_spark_asks_for_is_no_news() -> None:
    assert leveled("WARNING: Using incubator modules: jdk.incubator.vector") is None
