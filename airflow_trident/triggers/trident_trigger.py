"""What all triggers of the package have in common."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from airflow.triggers.base import BaseTrigger

from airflow_trident import settings
from airflow_trident.hooks.zookeeper import ZooKeeperHook, settings_of
from airflow_trident.triggers.shared_watch import Hub, shared_hub


class TridentTrigger(BaseTrigger):
    """A trigger keeps each argument as an attribute of the same name: Airflow makes it again from these."""

    zookeeper_conn_id: str | None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        """The ZooKeeper session that all triggers of the process share."""
        conn_id = self.zookeeper_conn_id or settings.text(settings.ZOOKEEPER_CONN_ID)
        ensemble = settings_of(await ZooKeeperHook.aget_connection(conn_id))
        async with shared_hub(ensemble, settings.text(settings.ROOT)) as hub:
            yield hub
