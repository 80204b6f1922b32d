"""Nodes that exist as long as a client does: they go with its session, and are created again in its next one.

If the connection is lost for longer than the session timeout, kazoo begins another session. Without this module the
process would then be missing from every list, and would be taken for one that was killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_trident.ledger.znodes import Create, Delete, Op


class Ephemerals:
    """The nodes of one client. Kazoo's thread reports sessions and must not wait, so nobody reads the answers to what
    is sent then. A node that exists already is fine."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def sent(self, ops: Iterable[Op], client: Any) -> None:
        """Call after a `multi` with full paths. Answers come in order, so the watches see the nodes as the `multi` left
        them."""
        for op in ops:
            if isinstance(op, Create) and op.ephemeral:
                self._kept[op.path] = op.data
                self._watch(client, op.path)

    def forget(self, ops: Iterable[Op]) -> None:
        """Call before a `multi` is sent: what it deletes must not be created again."""
        for op in ops:
            if isinstance(op, Delete):
                self._kept.pop(op.path, None)

    def clear(self) -> None:
        self._kept.clear()

    def renew(self, client: Any) -> None:
        """Call when a session begins, perhaps a new one."""
        for path in list(self._kept):
            self._create(client, path)

    def _create(self, client: Any, path: str) -> None:
        data = self._kept.get(path)
        if data is not None:
            client.create_async(path, data, ephemeral=True)
            self._watch(client, path)

    def _watch(self, client: Any, path: str) -> None:
        """A former session's node may exist for some time; when it goes, it is created again."""

        def changed(event: Any) -> None:
            if event.type == "DELETED":
                self._create(client, path)

        client.exists_async(path, watch=changed)
