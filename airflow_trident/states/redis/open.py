"""A map in Redis that is open for reading: the common part of its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_trident.contracts.state import State, StateSpec
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.io.redis import RedisServer, redis_errors
from airflow_trident.states.core.merge import Key, Value, canonical_key
from airflow_trident.states.redis.map import RedisMap
from airflow_trident.states.redis.retrying import Session


class OpenRedisMap(State):
    """One client; do not share it between threads at the same time.

    :param data: as `layout`, see `RedisMap`.
    :raises ConfigurationError: the server may remove keys.
    """

    def __init__(self, server: RedisServer, data: str, layout: str, spec: StateSpec) -> None:
        self._spec = spec
        self._session = Session(server)
        self._map = RedisMap(self._session.client, data, layout, spec)
        with self._session.opening():
            self._read_first()

    @property
    def _client(self) -> Any:
        return self._session.client

    def _read_first(self) -> None:
        """Checks made on opening; by default none."""

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        return self._session.patiently(lambda: self._map.lookup([canonical_key(key) for key in keys]))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Each key once. Reads by SCAN while others may write, so the values may be of several transactions."""
        with redis_errors(self._session.server.place, StoreUnavailableError):
            yield from self._map.items()

    def count(self) -> int:
        """Number of keys in the state. One command for one hash; otherwise the names of all keys are read."""
        return self._session.patiently(self._map.count)

    def close(self) -> None:
        self._session.close()
