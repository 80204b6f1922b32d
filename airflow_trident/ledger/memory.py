"""A ledger for notebooks and tests: it lives and dies with its process."""

from __future__ import annotations

from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.verbs.pruning import KEPT_CLAIMS
from airflow_trident.ledger.znode_ledger import ZNodeLedger


class MemoryLedger(ZNodeLedger):
    """The ledger over znodes in memory: all but durable. It may be closed and used again.

    :param keep_claims: claim keys are kept for this many transactions.
    """

    def __init__(self, topology_name: str, *, keep_claims: int = KEPT_CLAIMS) -> None:
        super().__init__(MemoryZNodes(), topology_name, keep_claims=keep_claims)
