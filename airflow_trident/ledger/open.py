"""From settings to a ledger."""

from __future__ import annotations

from airflow_trident.ledger.paths import DEFAULT_ROOT
from airflow_trident.ledger.settings import ZooKeeperSettings
from airflow_trident.ledger.znode_ledger import ZNodeLedger, topology_names
from airflow_trident.ledger.zookeeper import ZooKeeperZNodes


def open_ledger(
    settings: ZooKeeperSettings, topology: str, *, root: str = DEFAULT_ROOT, incarnation: str = ""
) -> ZNodeLedger:
    """The ledger of one topology in ZooKeeper; connects when first used. Close it, or use it as a context manager.

    :param root: the folder of all ledgers, below the settings' chroot.
    :param incarnation: of the topology, if known: see :class:`ZNodeLedger`.
    """
    return ZNodeLedger(ZooKeeperZNodes(settings), topology, root, incarnation=incarnation)


def list_topologies(settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger there.

    :raises LedgerUnavailableError: ZooKeeper does not answer.
    """
    znodes = ZooKeeperZNodes(settings)
    try:
        return topology_names(znodes, root)
    finally:
        znodes.close()
