"""What all triggers of the package have in common."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.hooks.zookeeper import ZooKeeperHook, settings_of
from airflow_trident.triggers.shared_watch import Hub, shared_hub

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

LONGEST_PAUSE_S = 30.0
"""Between two tries to read a connection; less where ``[trident] poll_s`` is less."""


class TridentTrigger(BaseTrigger):
    """A trigger keeps each argument as an attribute of the same name: Airflow makes it again from these."""

    zookeeper_conn_id: str | None
    connection_tries: float = 20
    """How often it is tried to read the connection. A server of Airflow that restarts, or a secrets backend that does
    not answer, ends no wait."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        """The ZooKeeper session that all triggers of the process share.

        :raises ConfigurationError: the connection is invalid, or cannot be read in :attr:`connection_tries` tries.
        """
        ensemble = settings_of(await self._connection())
        async with shared_hub(ensemble, settings.text(settings.ROOT)) as hub:
            yield hub

    async def _connection(self) -> Connection:
        conn_id = self.zookeeper_conn_id or settings.text(settings.ZOOKEEPER_CONN_ID)
        pause_s = min(LONGEST_PAUSE_S, settings.number(settings.POLL_S, least=0.1))
        tried = 0
        while True:
            try:
                return await ZooKeeperHook.aget_connection(conn_id)
            except Exception as error:
                # Airflow says "not defined" also when nobody answered who could know it.
                tried += 1
                what = f"the connection {conn_id!r} cannot be read ({type(error).__name__}: {error})"
                if tried >= self.connection_tries:
                    raise ConfigurationError(
                        f"{what}; it was tried {tried} times in a triggerer",
                        "Look whether Airflow's API server and the secrets backend answer, or add it: `airflow "
                        f"connections add {conn_id} --conn-type zookeeper --conn-host HOST:2181`. Then clear the task.",
                    ) from error
                self.log.warning("%s. The wait goes on; it is tried again in %g s.", what, pause_s)
                await asyncio.sleep(pause_s)
