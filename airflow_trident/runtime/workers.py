"""Lists commands and notebooks in the ledger while they work, because Airflow does not know them. If one is killed, its
session ends, and those who wait for it notice."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from airflow_trident.errors import RetryableError, TridentError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.records import Owner

_TRIES = 3


@contextmanager
def at_work(ledger: Ledger, owner: Owner | str) -> Iterator[Owner]:
    """The owner of the work inside the block, with its name among the live workers.

    Airflow's tasks are not listed: Airflow knows them. Nothing is begun by a process that is not listed: nobody would
    notice its end, and those who wait for its transactions would wait for a person.

    :raises LedgerUnavailableError, OutcomeUnknownError: the list cannot be written now.
    """
    me = Owner.of(owner)
    if me.is_task or me.worker:
        yield me
        return
    me = replace(me, host=socket.gethostname(), pid=os.getpid())
    me = replace(me, worker=_enlist(ledger, Worker.of(me)))
    try:
        yield me
    finally:
        with suppress(TridentError):
            ledger.retire(me.worker)


def _enlist(ledger: Ledger, worker: Worker) -> str:
    for _ in range(_TRIES - 1):
        with suppress(RetryableError):  # a name whose answer was lost goes with the session, as this process does
            return ledger.enlist(worker)
    return ledger.enlist(worker)
