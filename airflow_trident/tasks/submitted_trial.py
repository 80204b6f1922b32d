"""A trial of a connection of type ``spark``: a real application of one task."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress

from airflow_trident.engine.spark import driver_orders, trial_app
from airflow_trident.engine.spark.driver_tags import DriverTags
from airflow_trident.engine.spark.errors import cure_of, from_json, root_cause
from airflow_trident.engine.spark.trial import TrialResult
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.io.deadlines import CLUSTERS
from airflow_trident.io.object_stores import is_object_uri
from airflow_trident.protocol.durable_format import Format
from airflow_trident.staging.storage import absolute_root
from airflow_trident.tasks.hook_submit import HookSubmit

APPLICATION = os.path.abspath(trial_app.__file__)
_RESULT = Format(noun="the result of the trial", version=1, cure="See the driver's log.", error=SparkJobError)


def submitted_trial(conn_id: str, staging_root: str) -> TrialResult:
    """Submit one task, and wait for its end. `TrialResult.sees`: do executors see the staging folder? True without one.

    :raises SparkJobError, ConfigurationError: no master answers, or the application failed.
    :raises AirflowException: there is no such connection.
    """
    submit = HookSubmit(conn_id, {}, "trident doctor")
    _require_reached(submit.rpc_addresses())
    folder, name = f"{absolute_root(staging_root)}/.doctor-{uuid.uuid4().hex}", uuid.uuid4().hex
    order, result = driver_orders.place(folder, name, ".trial", b"doctor"), f"{folder}/{name}.result"
    try:
        said: TridentError | None = None
        try:
            submit(APPLICATION, [order, result], DriverTags(topology="doctor", order=name))
        except TridentError as error:
            said = error
        except Exception as error:  # noqa: BLE001 - the hook raises what it likes
            text = str(error)
            said = SparkJobError(f"the application failed: {root_cause(text) or type(error).__name__}", cure_of(text))
        return _found(result, said)
    finally:
        driver_orders.forget(order, result)
        if not is_object_uri(folder):
            with suppress(OSError):
                os.rmdir(folder)


def _found(result: str, said: TridentError | None) -> TrialResult:
    """What the application answered.

    :param said: how it ended, if not well. What it answered itself says more.
    """
    content = driver_orders.collect(result)
    if content is None:
        raise said or SparkJobError(
            f"the application ended and left no result: its driver does not see the staging folder {result!r}",
            "Name a staging folder that the driver's machine sees under the same path.",
        )
    answer = _RESULT.mapping(_RESULT.parsed(content, result), result)
    if "error" in answer:
        raise from_json(answer["error"])
    return _RESULT.build(TrialResult, answer, result)


def _require_reached(masters: tuple[tuple[str, int], ...]) -> None:
    """Spark asks a standalone cluster's masters for a minute before it gives up.

    :raises SparkJobError: none of them takes a connection.
    """
    reason = ""
    for address in masters:
        try:
            socket.create_connection(address, CLUSTERS.connect_s).close()
        except OSError as error:
            reason = str(error)
        else:
            return
    if masters:
        asked = ", ".join(f"spark://{host}:{port}" for host, port in masters)
        raise SparkJobError(
            f"no Spark master takes connections at {asked} ({reason})", "Start it, or correct the host."
        )
