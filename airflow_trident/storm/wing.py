"""What this wing adds to the rooms below it: the commands about components and named workers, and deployments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow_trident.contracts.wing import Wing

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

    from airflow_trident.ledger.snapshot import Snapshot, Write
    from airflow_trident.ledger.znodes import ZNodes
    from airflow_trident.protocol.records import Command, TopologyRecord
    from airflow_trident.storm.workers.deployments import Deployed


class StormWing(Wing):
    def commands(self) -> Sequence[CLICommand]:
        from airflow_trident.storm.components_parser import CHILD, QTOPOLOGY
        from airflow_trident.storm.workers_parser import DEPLOY, UNDEPLOY, WORKER, WORKERS

        return DEPLOY, UNDEPLOY, WORKER, WORKERS, QTOPOLOGY, CHILD

    def read(self, znodes: ZNodes, root: str, topologies: Collection[str] | None) -> Deployed:
        from airflow_trident.storm.workers.deployments import Deployments

        return Deployments(znodes, root).read(topologies)

    def obeying(self, snap: Snapshot, topology: TopologyRecord, command: Command, by: str) -> tuple[Write, ...]:
        from airflow_trident.storm.workers.deploying import obeyed

        return obeyed(snap, topology, command, by)
