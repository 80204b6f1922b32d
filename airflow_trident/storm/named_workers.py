"""Makes a named worker for a command or task, and the rows about workers that command and page show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.ledger.open import open_ledger
from airflow_trident.protocol.records import Owner
from airflow_trident.storm.workers.deployments import Deployments
from airflow_trident.storm.workers.named_worker import NamedWorker, Patience
from airflow_trident.storm.workers.running_topology import Means
from airflow_trident.tasks.engines import EngineKind

if TYPE_CHECKING:
    from airflow_trident.engine.base import Engine
    from airflow_trident.hooks.zookeeper import ZooKeeperHook
    from airflow_trident.ledger.base import Ledger
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.limits import DrainLimits
    from airflow_trident.runtime.phases import Attempts, Progress
    from airflow_trident.storm.workers.deployment import Roster
    from airflow_trident.topology.topology import Topology


def make_worker(
    name: str,
    hook: ZooKeeperHook,
    *,
    only: Collection[str],
    code_of: Callable[[str], Topology],
    engine_of: Callable[[Topology], Engine],
    children_here: Callable[[Topology], bool],
    staging_dir: str | None,
    attempts: Attempts,
    claim: Claim,
    limits: DrainLimits,
    retention_of: Callable[[str], int],
    patience: Patience,
    progress: Progress,
) -> NamedWorker:
    """Opens no connection yet. Asks Airflow for the ZooKeeper connection here, once, so that threads need not ask.

    :raises PlanError: the name is invalid.
    """
    where, root = hook.zookeeper_settings(), settings.text(settings.ROOT)
    chunk_bytes = settings.chunk_bytes(staging_dir)

    def ledger_of(topology: str, incarnation: str) -> Ledger:
        return open_ledger(where, topology, root=root, incarnation=incarnation, chunk_bytes=chunk_bytes)

    means = Means(
        code_of=code_of,
        open_ledger=ledger_of,
        engine_of=engine_of,
        staging_root=settings.staging_root(staging_dir),
        attempts=attempts,
        claim=claim,
        limits=limits,
        retention_of=retention_of,
        children_here=children_here,
    )
    return NamedWorker(
        name=name,
        deployments=Deployments(hook.get_conn(), root),
        means=means,
        owner=Owner.of(attempts.owner),
        progress=progress,
        only=tuple(only),
        patience=patience,
    )


def bolts_run_here(engine: EngineKind | str, conn_id: str | None, conf: Mapping[str, str]) -> bool:
    """Does the processing phase run on this machine, with the bolts in other programs?"""
    if EngineKind(engine) is EngineKind.LOCAL:
        return True
    return conn_id is None and conf.get("spark.master", "local").startswith("local")


def rows_of(roster: Roster) -> list[dict[str, Any]]:
    """A row for each worker of the topology, in the deployment's order.

    `status`: of the worker; `epoch`: of the command that it acknowledged last, None if none; `told`: the command to all
    workers, with its epoch; `host`, `pid`, `task`, `since_ms`: the process with this name, None if there is none;
    `error`: why the worker cannot continue.
    """
    deployment = roster.deployment
    rows: list[dict[str, Any]] = []
    for name in deployment.workers:
        said, process = roster.acknowledged.get(name), roster.live.get(name)
        rows.append(
            {
                "topology": deployment.topology,
                "worker": name,
                "status": str(roster.standing(name)),
                "epoch": said.epoch if said is not None else None,
                "told": f"{deployment.command} {deployment.epoch}",
                "host": process.host if process is not None else None,
                "pid": process.pid if process is not None else None,
                "task": process.task if process is not None else None,
                "since_ms": process.since_ms if process is not None else None,
                "error": said.error if said is not None else "",
            }
        )
    return rows
