"""What a local Spark's JVM is started with, whatever the environment has for every Java."""

from __future__ import annotations

import subprocess

import pytest

from airflow_trident.engine.spark.sessions.java import one_shot_java_options, require_java


@pytest.mark.parametrize("theirs", ["", "-Xss2m", "-Xss2m -XX:+UseG1GC"])
@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_java_starts_with_the_collector_of_the_environment(
    variable: str, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses two collectors."""
    monkeypatch.setenv(variable, theirs)
    command = [require_java(), *one_shot_java_options().split(), "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    on = {line.split()[1] for line in done.stdout.splitlines() if "= true" in line and line.split()[1].endswith("GC")}
    assert ("UseG1GC" if "G1" in theirs else "UseSerialGC") in on
