"""The application that spark-submit starts for a whole drain. Arguments: order file, result file."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path. There our modules would hide others of the same name
    # (bisect). So it is removed before anything of ours is imported, because that imports them.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]

import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.driver_orders import remove
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.errors import translate
from airflow_trident.engine.spark.order_takers import content_for_driver, say
from airflow_trident.engine.spark.sessions.session import ApplicationSessions
from airflow_trident.errors import TridentError
from airflow_trident.io import connections
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.records import Owner
from airflow_trident.runtime.drains.drain import Drain, DrainResult
from airflow_trident.runtime.drains.order import DrainOrder, answer
from airflow_trident.staging.manifest import Manifest


class DriverEngine(SparkEngine):
    """If the application is ended from outside, its jobs fail. That says nothing about their transactions, so nothing
    is written."""

    def __init__(self, sessions: ApplicationSessions) -> None:
        super().__init__(sessions)
        self._application = sessions

    def run(self, job: Job) -> Manifest:
        with self._unless_ended():
            return super().run(job)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        with self._unless_ended():
            return super().run_group(jobs)

    @contextmanager
    def _unless_ended(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._application.ended():
                _leave()
            raise


def main(order_path: str, result_path: str) -> int:
    """0, or 1 if the drain ended with an error; the result file says which. Also 0 if the order is not for this driver:
    then nothing was done."""
    try:
        content = content_for_driver(order_path, "the order of a drain")
        if content is None:
            sessions = ApplicationSessions()
            sessions.begin()
            sessions.close()
            return 0
        order: DrainOrder = pickle.loads(content)  # noqa: S301 - only this user can have written it
        remove(order_path)
        answer(result_path, _drain(order))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the waiting task must read it
        answer(result_path, translate(error, "the drain"))
        return 1
    return 0


def _drain(order: DrainOrder) -> DrainResult:
    connections.install(lambda conn_id: _known(order, conn_id))
    name, sessions = order.topology.name, ApplicationSessions()
    # Commits that others left, a long listing and a full window come before the first job.
    sessions.begin()
    with (
        DriverEngine(sessions) as engine,
        open_ledger(
            order.zookeeper,
            name,
            root=order.root,
            chunk_bytes=order.chunk_bytes,
            sources_root=order.sources_root,
        ) as ledger,
    ):
        owner = here(Owner.of(order.attempts.owner))
        if owner.is_task:
            with suppress(TridentError):  # the first drain of a topology creates its ledger only later
                ledger.enlist(Worker.of(owner))
        return Drain(
            ledger=ledger,
            topology=order.topology,
            engine=engine,
            staging_root=order.staging_root,
            attempts=replace(order.attempts, owner=owner),
            claim=order.claim,
            limits=order.limits,
            retention=order.retention,
            progress=say,
            partitions=order.partitions,
        ).run()


def here(owner: Owner) -> Owner:
    """A task as the owner of attempts and commits is where its driver is: who looks whether it is alive finds that
    process among the workers. The task's own ends when it is deferred. A program is listed by the drain itself."""
    return replace(owner, host=socket.gethostname(), pid=os.getpid()) if owner.is_task else owner


def _known(order: DrainOrder, conn_id: str) -> connections.Connection:
    connection = order.connections.get(conn_id)
    return connection if connection is not None else connections.from_environment(conn_id)


def _leave() -> NoReturn:
    say("the Spark application was ended from outside")
    os._exit(1)


if __name__ == "__main__":
    from airflow_trident.runtime.drains.app import main as run  # not the module __main__: classes are pickled by name

    sys.exit(run(sys.argv[1], sys.argv[2]))
