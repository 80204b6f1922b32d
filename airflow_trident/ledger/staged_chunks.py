"""Small staged batches, which the ledger keeps beside its records: no other place is needed for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_trident.protocol.records import StagedRef

if TYPE_CHECKING:
    from airflow_trident.ledger.paths import LedgerPaths
    from airflow_trident.ledger.transact import Transactor

CHUNK_BYTES = 256 * 1024
"""A staged batch of more bytes goes to the staging area: a request of ZooKeeper takes 1 MB, a step of groups 450 KB."""
_NAME = re.compile(r"[0-9]{19}-staged-[0-9]+\Z")


class KeepsStaged:
    """The part of a ledger that gives staged batches back; they come in with the step that says PROCESSED."""

    transactor: Transactor
    chunk_bytes: int = 0
    """Staged batches of up to so many bytes are kept here; 0: none."""

    def paths(self) -> LedgerPaths:
        raise NotImplementedError

    def staged_content(self, staged: StagedRef) -> bytes | None:
        """What an attempt staged; None: it is not here any more. A chunk never changes, so a remembered one is right.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        if not _NAME.match(staged.chunk):
            return None
        path, cache = self.paths().chunk(staged.chunk), self.transactor.cache
        node = cache.node(path) or cache.node_now(path)
        return None if node is None else node.data
