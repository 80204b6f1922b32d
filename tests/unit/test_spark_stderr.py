"""At which level a line that a JVM printed is shown."""

from __future__ import annotations

import logging

import pytest

from airflow_trident.engine.spark.sessions.local import leveled


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
