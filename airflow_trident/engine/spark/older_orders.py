"""The drivers of older attempts. A newer attempt has fenced them, so what they still do is never read: they are ended
before another driver is submitted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.order_takers import Taker, take_back
from airflow_trident.io.places import place_at

if TYPE_CHECKING:
    from airflow_trident.engine.engine import Job

_FILE = re.compile(r"([0-9a-f]{32})-(\d+)(?:-[0-9a-f]{64})?\.(?:job|script\.json)\Z")
_TAKEN = ".taken"


@dataclass(frozen=True, kw_only=True, order=True)
class OlderOrder:
    """`address`: of the order. `name`: of the submission, as its driver is tagged."""

    address: str
    name: str


EndDriver = Callable[[OlderOrder, Taker | None], str]
"""``end(order, holder)``: end the driver of an order, if one waits or runs. Returns its name, for people; or ""."""


def end_older(jobs: Sequence[Job], root: str, end: EndDriver) -> None:
    """End the drivers of older attempts of these jobs: their tasks were killed, or could not end them.

    :param root: the staging folder.
    :raises StoreUnavailableError, ConfigurationError: it cannot be listed.
    :raises SparkJobError: the cluster does not answer.
    """
    for order in older_orders(jobs, root):
        ended = end(order, take_back(order.address))
        driver_orders.forget(order.address)
        if ended:
            jobs[-1].progress(f"ended {ended}, the driver of an older attempt: what it does counts no more")


def file_name(name: str, jobs: Sequence[Job]) -> str:
    """How an order of these jobs is called, without ending. It says which transaction is the first one."""
    return f"{name}-{jobs[0].slot.txid}"


def older_orders(jobs: Sequence[Job], root: str) -> Iterator[OlderOrder]:
    """The orders of older attempts of these transactions, and of no others, that are still in the staging folder.

    An order lies in the folder of the last transaction that it is for. First attempts have nothing older.

    :param root: the staging folder.
    :raises StoreUnavailableError, ConfigurationError: it cannot be listed.
    """
    orders = set()
    for job in jobs:
        above, _, attempt = job.slot.path.rpartition("/")
        for entry in place_at(root).list(above) if job.slot.attempt else ():
            older, _, file = entry.name.removeprefix(f"{above}/").removesuffix(_TAKEN).partition("/")
            match = _FILE.match(file)
            if match and older.isdecimal() and int(older) < int(attempt) and int(match[2]) >= jobs[0].slot.txid:
                address = f"{root.rstrip('/')}/{above}/{older}/{file}"
                orders.add(OlderOrder(address=address, name=match[1]))
    yield from sorted(orders)
