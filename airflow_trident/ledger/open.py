"""Opens one ledger, or all of them, from settings."""

from __future__ import annotations

from collections.abc import Callable

from airflow_trident.closeable import Closing
from airflow_trident.errors import TridentError
from airflow_trident.ledger.base import topology_names
from airflow_trident.ledger.overviews import Overview, overviews
from airflow_trident.ledger.paths import DEFAULT_ROOT
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import LedgerView
from airflow_trident.storm.workers.deployments import Deployments


class Ledgers(Closing):
    """The ledgers of an ensemble through one client, which connects on first use: one session for all. Close it, or use
    it as a context manager; that closes its ledgers too.

    :param root: the folder of all ledgers, below the settings' chroot.
    """

    def __init__(self, settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> None:
        self.znodes = ZooKeeperZNodes(settings)
        self._root = root

    def names(self) -> list[str]:
        """The names of all topologies that have a ledger there, sorted.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        return topology_names(self.znodes, self._root)

    def ledger(self, topology: str, *, incarnation: str = "") -> ZNodeLedger:
        """The ledger of one topology. Do not close it by itself.

        :param incarnation: the expected life of the topology, if known: another one is refused.
        """
        return ZNodeLedger(self.znodes, topology, self._root, incarnation=incarnation)

    def overviews(
        self, *, latest: int, lowest_of: Callable[[LedgerView], int | None]
    ) -> dict[str, Overview | TridentError]:
        """All topologies, by name: see :func:`airflow_trident.ledger.overviews.overviews`."""
        return overviews(self.znodes, self.names(), latest=latest, lowest_of=lowest_of, root=self._root)

    def deployments(self) -> Deployments:
        """The deployments of all topologies on named workers. Do not close it by itself."""
        return Deployments(self.znodes, self._root)

    def close(self) -> None:
        self.znodes.close()


def open_ledger(
    settings: ZooKeeperSettings,
    topology: str,
    *,
    root: str = DEFAULT_ROOT,
    incarnation: str = "",
    chunk_bytes: int = 0,
) -> ZNodeLedger:
    """The ledger of one topology in ZooKeeper; connects when first used. Close it, or use it as a context manager.

    :param root: the folder of all ledgers, below the settings' chroot.
    :param incarnation: of the topology, if known: see :class:`ZNodeLedger`.
    :param chunk_bytes: the ledger keeps staged batches of up to this many bytes; none by default.
    """
    ledger = ZNodeLedger(ZooKeeperZNodes(settings), topology, root, incarnation=incarnation)
    ledger.chunk_bytes = chunk_bytes
    return ledger


def list_topologies(settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger there.

    :raises LedgerUnavailableError: ZooKeeper does not answer.
    """
    with Ledgers(settings, root=root) as ledgers:
        return ledgers.names()
