"""What a run of Spark changes or opens outside of itself is as before when the run ends, however it ends."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from airflow_trident.engine.spark import engine
from airflow_trident.engine.spark.sessions import connect
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.staging.manifest import Slot

SLOT = Slot(topology="t", incarnation="i", txid=1, attempt=0)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConfigurationError("it has another time zone", "Mend it."), ConfigurationError),
        (SparkJobError("no answer", "Retry."), SparkJobError),
        (RuntimeError("the channel is closed"), SparkJobError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["refused", "failed", "unknown", "interrupted"],
)
@pytest.mark.parametrize("stops", [True, False], ids=["it can be stopped", "it cannot be stopped"])
def test_a_connect_session_that_cannot_be_set_up_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException], stops: bool
) -> None:
    stopped: list[Any] = []

    def attach(*_: Any) -> Any:
        raise error

    def stop(session: Any) -> None:
        stopped.append(session)
        if not stops:
            raise RuntimeError("the server is gone")

    sessions = connect.ConnectSessions("sc://nowhere")
    session = object()
    monkeypatch.setattr(connect, "require_server", lambda *_: None)
    monkeypatch.setattr(connect, "attach_connect", attach)
    monkeypatch.setattr(connect, "stop_session", stop)
    monkeypatch.setattr(sessions, "_session", lambda _: session)
    with pytest.raises(raised) as caught:
        sessions.open(SLOT)
    assert stopped == [session]
    assert error in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize("first_ends_first", [True, False])
@pytest.mark.parametrize("disabled", [True, False])
def test_loggers_that_runs_at_the_same_time_silence_are_as_before(
    monkeypatch: pytest.MonkeyPatch, disabled: bool, first_ends_first: bool
) -> None:
    logger = logging.Logger("of a test")
    logger.disabled = disabled
    monkeypatch.setattr(engine, "error_loggers", lambda: [logger])
    for _ in range(2):
        first, second = engine._quiet_errors(), engine._quiet_errors()
        ends = (first, second) if first_ends_first else (second, first)
        first.__enter__()
        second.__enter__()
        assert logger.disabled
        ends[0].__exit__(None, None, None)
        assert logger.disabled, "the other run goes on"
        ends[1].__exit__(None, None, None)
        assert logger.disabled is disabled


# ---- what is wrapped so that a transform cannot act -----------------------------------------------------------------


CLASSIC = """
import sys
from airflow_trident.engine.spark.refused_actions import no_actions
from pyspark.sql.classic.dataframe import DataFrame

with no_actions("transform-1"):
    assert hasattr(DataFrame.collect, "__wrapped__")
assert "pyspark.sql.connect.dataframe" not in sys.modules

from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

with no_actions("transform-1"):
    assert hasattr(ConnectFrame.collect, "__wrapped__")
"""


def test_a_process_without_connect_does_not_import_it() -> None:
    """Its modules, with gRPC and pandas, take a third of a second. Once they are there, their actions are refused."""
    subprocess.run([sys.executable, "-c", CLASSIC], check=True, timeout=120)
