"""Nodes that are to be there as long as a client is: they go with its session, and come again with its next one.

A client whose connection is lost for longer than the session's timeout gets another session from kazoo. Without this
its process would be off every list from then on, and be taken for one that was killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_trident.ledger.znodes import Create, Delete, Op


class Ephemerals:
    """What one client keeps. Kazoo's thread, which must not wait, tells of sessions: nobody hears the answers to what
    is sent then. A node that exists is fine."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def sent(self, ops: Iterable[Op], client: Any) -> None:
        """After a `multi` with full paths. One connection answers in order: the nodes are watched as it left them."""
        for op in ops:
            if isinstance(op, Create) and op.ephemeral:
                self._kept[op.path] = op.data
                self._watch(client, op.path)

    def forget(self, ops: Iterable[Op]) -> None:
        """Before a `multi` is sent: what it deletes must not come again."""
        for op in ops:
            if isinstance(op, Delete):
                self._kept.pop(op.path, None)

    def clear(self) -> None:
        self._kept.clear()

    def renew(self, client: Any) -> None:
        """A session was established, perhaps a new one."""
        for path in list(self._kept):
            self._create(client, path)

    def _create(self, client: Any, path: str) -> None:
        data = self._kept.get(path)
        if data is not None:
            client.create_async(path, data, ephemeral=True)
            self._watch(client, path)

    def _watch(self, client: Any, path: str) -> None:
        """The node of a former session may be there for some time still, and go then."""

        def changed(event: Any) -> None:
            if event.type == "DELETED":
                self._create(client, path)

        client.exists_async(path, watch=changed)
