"""A whole drain as a Spark application of its own: what travels to its driver, and what comes back.

Both lie in the staging folder (:mod:`airflow_trident.engine.spark.orders`). The order holds logins: the driver
removes it as soon as it is read.

Whoever submits an application may be killed before it knows, or has told anybody, which one that is. So a driver takes
the order before it does anything, and who comes back takes it too: of the two only one can. No second driver works
beside one that nobody knew of, and none begins later that nobody waits for.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from airflow_trident.engine.spark import orders
from airflow_trident.engine.spark.errors import from_json, to_json
from airflow_trident.engine.spark.ship import ship
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import DrainResult
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.topology.topology import Topology

_FOLDER = "drains"
_DEPTH = 4
_RESULT = Format(
    noun="the result of a drain",
    version=1,
    cure="What it committed stays, and a retry goes on from there. See the driver's log.",
    error=SparkJobError,
)
"""It travels from driver to task, both of the same version: none is written."""
_TAKER = Format(noun="who took the order of a drain", version=1, cure="Run the task again.", error=SparkJobError)


@dataclass(frozen=True, kw_only=True)
class DrainOrder:
    """What `Drain` is given, and how the driver reaches what it needs: it has no Airflow to ask.

    :param root: the folder of all ledgers.
    :param connections: those that the topology's spouts and states name, by id.
    :param chunk_bytes: staged batches of up to so many bytes are kept in the ledger.
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


def connections_of(topology: Topology) -> dict[str, Connection]:
    """The connections that its spouts and states name, resolved here.

    :raises ConfigurationError: there is no such connection.
    """
    stores = [spec.factory for spec in topology.states.values()]
    ids = {name for one in (*topology.spouts.values(), *stores) for name in _ids(one, _DEPTH)}
    return {name: connections.resolve(name) for name in sorted(ids)}


def _ids(thing: Any, depth: int) -> Iterator[str]:
    """A ``conn_id`` may lie in a part of a spout or state. Where explicit settings win it is not asked for."""
    if not type(thing).__module__.startswith("airflow_trident.") or not depth:
        return
    members = {one.name: getattr(thing, one.name) for one in fields(thing)} if is_dataclass(thing) else vars(thing)
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
    """Paths, the same for the task and for the driver. `name`: no other drain has it."""

    order: str
    result: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Taker:
    """The one that has an order: a driver, or a task that took it back.

    `instance`: of this process alone. `driver_id`: what the cluster calls it, "" where it does not say.
    """

    host: str
    pid: int
    instance: str
    driver_id: str = ""

    @classmethod
    def this_process(cls, driver_id: str = "") -> Taker:
        return cls(host=socket.gethostname(), pid=os.getpid(), instance=uuid.uuid4().hex, driver_id=driver_id)

    def __str__(self) -> str:
        return self.driver_id or f"process {self.pid} on {self.host}"


NOBODY_KNOWN = Taker(host="", pid=0, instance="")
"""Has an order of which it cannot be read who took it: its driver ended while it took it."""


def take(order: str, me: Taker) -> Taker:
    """Take the order, if nobody has: who has it now, and for ever.

    :raises StoreUnavailableError, ConfigurationError: the staging folder does not answer, or nobody may write there.
    """
    said = orders.take(order, _TAKER.dump(asdict(me), "who takes an order"))
    try:
        return _TAKER.build(Taker, _TAKER.load(said, repr(order))[1], repr(order))
    except SparkJobError:
        return NOBODY_KNOWN


def take_back(files: DrainFiles) -> Taker | None:
    """Take back an order that no driver has taken: none will, and None is the answer. Else who has it.

    That it is taken stays written: a driver may have read the order, and be about to take it.
    """
    me = Taker.this_process()
    holder = take(files.order, me)
    if holder != me:
        return holder
    orders.remove(files.order)
    return None


@contextmanager
def removing(files: DrainFiles) -> Iterator[None]:
    """Nothing of them is left afterwards."""
    try:
        yield
    finally:
        orders.remove(files.order)
        orders.free(files.order)
        orders.remove(files.result)


def place(order: DrainOrder) -> DrainFiles:
    """Write it for the driver.

    :raises ConfigurationError: something in the topology cannot be pickled.
    """
    content = ship(order, f"topology {order.topology.name!r}")
    folder, own = f"{order.staging_root.rstrip('/')}/{_FOLDER}", uuid.uuid4().hex
    name = f"{order.topology.name}-{own}"
    placed = orders.place(folder, name, ".order", content)
    return DrainFiles(order=placed, result=f"{folder}/{name}.result", name=own)


def answer(path: str, outcome: DrainResult | TridentError) -> None:
    """All of it or nothing: the driver may be killed at any point."""
    if isinstance(outcome, TridentError):
        said: dict[str, Any] = {"error": to_json(outcome)}
    else:
        said = {"committed": outcome.committed, "rows_read": outcome.rows_read}
    orders.answer(path, said)


def collect(files: DrainFiles) -> DrainResult | None:
    """What the driver answered; None if it did not.

    :raises TridentError: what the drain ended with.
    """
    content = orders.collect(files.result)
    if content is None:
        return None
    place = repr(files.result)
    said = _RESULT.mapping(_RESULT.parsed(content, place), place)
    if "error" in said:
        raise from_json(said["error"])
    return _RESULT.build(DrainResult, said, place)


def no_answer(files: DrainFiles, what: str, ended: str = "") -> SparkJobError:
    """:param ended: what the cluster says about its end."""
    how = f" as {ended}" if ended else ""
    return SparkJobError(
        f"{what} ended{how} and left no result in {os.path.dirname(files.result)!r}",
        "What it committed stays, and a retry goes on from there. See the driver's log; the staging folder must be one "
        "that the driver sees too, and on s3:// its environment must give the credentials.",
    )
