"""Small staged batches, which the ledger keeps beside its records. Such a batch needs no other place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_trident.protocol.records import StagedRef

if TYPE_CHECKING:
    from airflow_trident.ledger.paths import LedgerPaths
    from airflow_trident.ledger.transact import Transactor

CHUNK_BYTES = 256 * 1024
"""A staged batch of more bytes goes to the staging area: ZooKeeper takes 1 MB in a request, and a step of groups 450
KB."""
_NAME = re.compile(r"[0-9]{19}-staged-[0-9]+\Z")


class KeepsStaged:
    """The part of a ledger that returns staged batches. The step that says PROCESSED writes them."""

    transactor: Transactor
    chunk_bytes: int = 0
    """The ledger keeps staged batches of at most this many bytes; 0: none."""

    def paths(self) -> LedgerPaths:
        raise NotImplementedError

    def staged_content(self, staged: StagedRef) -> bytes | None:
        """What an attempt staged; None: the ledger has it no longer. A chunk never changes, so a remembered one is
        right.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        if not _NAME.match(staged.chunk):
            return None
        path, cache = self.paths().chunk(staged.chunk), self.transactor.cache
        node = cache.node(path) or cache.node_now(path)
        return None if node is None else node.data
