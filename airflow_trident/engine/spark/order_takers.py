"""Who has the order of a submitted application: one driver, or a task that took it back.

A task that submits an application may be killed before it knows, or has told anybody, which application that is. So a
driver takes the order before it does anything, and the task's next try takes it too: only one of the two can. So no
second driver works beside an unknown one, and no driver begins later for which nobody waits.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from airflow_trident.engine.spark import driver_orders
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.io.paths import is_object_uri
from airflow_trident.protocol.durable_format import Format

_TAKER = Format(noun="who took the order", version=1, cure="Run the task again.", error=SparkJobError)


@dataclass(frozen=True, kw_only=True)
class Taker:
    """Who has an order: a driver, or a task that took it back.

    `instance`: unique to this process. `driver_id`: the cluster's id, "" if the cluster does not say.
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
"""The taker of an order if it cannot be read: the driver ended while it took the order."""


def take(order: str, me: Taker) -> Taker:
    """Takes the order if nobody has. Returns who has it, now and for ever.

    :raises StoreUnavailableError, ConfigurationError: the staging folder does not answer, or is not writable.
    """
    content = driver_orders.take(order, _TAKER.dump(asdict(me), "who takes an order"))
    try:
        return _TAKER.build(Taker, _TAKER.load(content, repr(order)), repr(order))
    except SparkJobError:
        return NOBODY_KNOWN


def take_back(order: str) -> Taker | None:
    """Takes back an order that no driver has taken. None: no driver will take it. Otherwise: who has it.

    The note that it is taken stays: a driver may have read the order and be about to take it.
    """
    me = Taker.this_process()
    holder = take(order, me)
    if holder == me:
        driver_orders.remove(order)
        holder = take(order, me)  # a script's driver replaces the note, and then reads the order
    return None if holder == me else holder


def note(order: str, driver_id: str) -> None:
    """Notes which driver has the order, unless a note says who has it. Best effort."""
    with suppress(TridentError, OSError):
        take(order, Taker.this_process(driver_id))


def leave(order: str, *answers: str, over: bool) -> None:
    """At the end of a submission: the order goes, and so do these answers.

    :param over: False: a driver may go on, or come. The note of who has the order stays, for the next attempt to look
        for that driver; if nobody had it, no driver begins it any more.
    """
    if over:
        driver_orders.forget(order, *answers)
        return
    with suppress(TridentError, OSError):
        take_back(order)
    driver_orders.remove(order, *answers)


@contextmanager
def freed_if_gone(order: str) -> Iterator[None]:
    """For a driver that took an order too late: nobody else removes its note."""
    try:
        yield
    except FileNotFoundError:
        driver_orders.free(order)
        raise


def content_for_driver(order: str, subject: str) -> bytes | None:
    """The order, taken by this driver; None: another driver has it, or it was taken back. Only the log says so.

    :param subject: "the order of a drain".
    :raises ConfigurationError: another user may have written it.
    :raises OSError: it cannot be read.
    """
    me = Taker.this_process(_driver_id())
    try:
        driver_orders.read_order(order, subject)
        holder = take(order, me)
        if holder == me:  # if the work has ended since, its order went, and then the note of who took it
            with freed_if_gone(order):
                content = driver_orders.read_order(order, subject)
    except FileNotFoundError:
        if not is_object_uri(order) and not os.path.isdir(os.path.dirname(order)):
            raise  # the staging folder is not here
        say(f"the order {order!r} is done, or was taken back: this driver begins nothing")
        return None
    if holder != me:
        say(f"the order {order!r} is taken by {holder}: this driver begins nothing")
        return None
    return content


def _driver_id() -> str:
    """The cluster's id of this driver; "" if it is unknown here."""
    folder = os.path.basename(os.getcwd())
    if folder.startswith("driver-"):  # a standalone cluster's worker runs it in a folder of that name
        return folder
    return os.path.basename(os.environ.get("APPLICATION_WEB_PROXY_BASE", ""))  # YARN's: /proxy/application_...


def say(line: str) -> None:
    """Writes to the driver's log, through the JVM, which may be dead already."""
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
