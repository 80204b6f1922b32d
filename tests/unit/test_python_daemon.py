"""A Python daemon of a Connect session ends itself when it has had no worker for a while, and only then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_trident.engine.spark.python_daemon import end_when_idle

LOOKS = """
import os, signal
from {module} import {ends} as end_when_idle
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Spark's daemon
end, other = os.pipe()
child = os.fork()
if child == 0:
    os.close(other)
    os.read(end, 1)
    os._exit(0)
end_when_idle(0.02)
look, looks = signal.getsignal(signal.SIGALRM), 0
def count(*which):
    global looks
    looks += 1
    look(*which)
if look:
    signal.signal(signal.SIGALRM, count)
    while looks < 10:
        signal.pause()
print("10 looks with a child" if look else "no timer", flush=True)
os.close(other)
while look:
    signal.pause()
"""


def daemon(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = LOOKS.format(module=end_when_idle.__module__, ends=end_when_idle.__name__)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True, timeout=60)


def test_the_daemon_of_a_session_ends_without_workers() -> None:
    assert daemon({"SPARK_JOB_ARTIFACT_UUID": "of a session"}).stdout == "10 looks with a child\n"


@pytest.mark.parametrize("environment", [{}, {"SPARK_JOB_ARTIFACT_UUID": "default"}])
def test_the_only_daemon_of_an_application_stays(environment: dict[str, str]) -> None:
    assert daemon(environment).stdout == "no timer\n"
