"""Makes a named worker for a command or task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

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
