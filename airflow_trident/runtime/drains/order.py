"""A whole drain as its own Spark application: what is sent to its driver, and what comes back.

Both are files in the staging folder (:mod:`airflow_trident.engine.spark.driver_orders`). The order contains logins, so
the driver removes it as soon as it has read it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.errors import from_json, to_json
from airflow_trident.engine.spark.shipping import ship
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_services import GCS
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.names import Composed
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import DrainResult
from airflow_trident.runtime.drains.keys import AskedPartitions
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.topology.topology import Topology

_FOLDER = "drains"
_NAMES = Composed(joint="-", longest=120)
"""With digests and endings, HDFS takes 255 characters."""
_DEPTH = 4
_RESULT = Format(
    noun="the result of a drain",
    version=1,
    cure="What it committed stays, and a retry goes on from there. See the driver's log.",
    error=SparkJobError,
)
"""The result goes from driver to task, which have the same version: so no version is written."""


@dataclass(frozen=True, kw_only=True)
class DrainOrder:
    """The arguments of `Drain`, and how the driver reaches what it needs: it cannot ask Airflow.

    :param root: the folder of all ledgers.
    :param connections: those that the topology's spouts and states name, by id.
    :param chunk_bytes: the ledger keeps staged batches of at most this many bytes.
    :param sources_root: the place of what spouts keep beside the ledger.
    """

    topology: Topology
    zookeeper: ZooKeeperSettings
    root: str
    staging_root: str
    attempts: Attempts
    claim: Claim
    limits: DrainLimits
    retention: int
    connections: Mapping[str, Connection]
    chunk_bytes: int = 0
    sources_root: str = ""
    partitions: AskedPartitions | None = None


def connections_of(topology: Topology) -> dict[str, Connection]:
    """The connections that its spouts and states name, resolved in this process.

    :raises ConfigurationError: there is no such connection, or its key file cannot be read here.
    """
    stores = [spec.factory for spec in topology.states.values()]
    ids = {name for holder in (*topology.spouts.values(), *stores) for name in _ids(holder, _DEPTH)}
    return {name: GCS.portable(connections.resolve(name)) for name in sorted(ids)}


def _ids(part: Any, depth: int) -> Iterator[str]:
    """A part of a spout or state may have a ``conn_id``. It is left out if explicit settings override it."""
    if not type(part).__module__.startswith("airflow_trident.") or not depth:
        return
    members = {member.name: getattr(part, member.name) for member in fields(part)} if is_dataclass(part) else vars(part)
    explicit = members.get("connection") or members.get("_connection")
    for name, value in members.items():
        if name.lstrip("_") == "conn_id":
            if isinstance(value, str) and value and explicit is None:
                yield value
        else:
            yield from _ids(value, depth - 1)


# ---- the files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DrainFiles:
    """Paths, the same for the task and for the driver. `name`: unique to this drain."""

    order: str
    result: str
    name: str = ""


@contextmanager
def removing(files: DrainFiles) -> Iterator[None]:
    """Removes all these files at the end of the block."""
    try:
        yield
    finally:
        driver_orders.forget(files.order, files.result)


def place(order: DrainOrder) -> DrainFiles:
    """Writes the order for the driver.

    :raises ConfigurationError: something in the topology cannot be pickled.
    """
    content = ship(order, f"topology {order.topology.name!r}")
    folder, drain_id = f"{order.staging_root.rstrip('/')}/{_FOLDER}", uuid.uuid4().hex
    name = _NAMES.of(order.topology.name, drain_id)
    placed = driver_orders.place(folder, name, ".order", content)
    driver_orders.sweep(folder)
    return DrainFiles(order=placed, result=f"{folder}/{name}.result", name=drain_id)


def answer(path: str, outcome: DrainResult | TridentError) -> None:
    """Writes the whole result or nothing: the driver may be killed at any point."""
    if isinstance(outcome, TridentError):
        content: dict[str, Any] = {"error": to_json(outcome)}
    else:
        content = {"committed": outcome.committed, "rows_read": outcome.rows_read}
        if outcome.paused_by is not None:
            content["paused_by"] = outcome.paused_by
        if outcome.keys:
            content["keys"] = [asdict(result) for result in outcome.keys]
    driver_orders.answer(path, content)


def collect(files: DrainFiles) -> DrainResult | None:
    """The driver's result; None if it wrote none.

    :raises TridentError: the error of the drain.
    """
    content = driver_orders.collect(files.result)
    if content is None:
        return None
    place = repr(files.result)
    answer_body = _RESULT.mapping(_RESULT.parsed(content, place), place)
    if "error" in answer_body:
        raise from_json(answer_body["error"])
    return _RESULT.build(DrainResult, answer_body, place)


def no_answer(files: DrainFiles, subject: str, ended: str = "") -> SparkJobError:
    """:param ended: what the cluster says about the end of the application."""
    how = f" as {ended}" if ended else ""
    return SparkJobError(
        f"{subject} ended{how} and left no result in {os.path.dirname(files.result)!r}",
        "What it committed stays, and a retry goes on from there. See the driver's log; the staging folder must be one "
        "that the driver sees too, and in an object store its environment must give the credentials.",
    )
