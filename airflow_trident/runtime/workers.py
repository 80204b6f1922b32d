"""Lists commands and notebooks in the ledger while they work, because Airflow does not know them. If one is killed, its
session ends, and those who wait for it notice."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from airflow_trident.errors import TridentError
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.records import Owner


@contextmanager
def at_work(ledger: Ledger, owner: Owner | str) -> Iterator[Owner]:
    """The owner of the work inside the block, with its name among the live workers.

    Airflow's tasks are not listed: Airflow knows them. If the list cannot be written, the work goes on; but then nobody
    notices the end of this process, and a person must.
    """
    me = Owner.of(owner)
    if me.is_task or me.worker:
        yield me
        return
    me = replace(me, host=socket.gethostname(), pid=os.getpid())
    with suppress(TridentError):
        worker = Worker(host=me.host, pid=me.pid, task=me.who, txid=None, since_ms=time.time_ns() // 10**6)
        me = replace(me, worker=ledger.enlist(worker))
    try:
        yield me
    finally:
        if me.worker:
            with suppress(TridentError):
                ledger.retire(me.worker)
