"""Requests to Redis with a certain outcome in the end: handles lost answers, servers that come back, and zombies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_trident.errors import ConfigurationError, OutcomeUnknownError, StoreUnavailableError
from airflow_trident.io.extras import require_extra
from airflow_trident.io.redis import EXTRA, RedisServer, may_have_happened, redis_errors

T = TypeVar("T")
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


class Session:
    """One client; do not share it between threads at the same time."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client: Any = server.open(StoreUnavailableError)
        self._sending = False

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Wraps the first reads: closes the client if they fail, or if the server is unfit to keep a state.

        :raises ConfigurationError: the server removes keys when its memory is full.
        """
        try:
            self.call(lambda: _require_no_eviction(self.client, self.server))
            yield
        except BaseException:
            self.close()
            raise

    def call(self, act: Callable[[], T]) -> T:
        """:raises StoreUnavailableError: no answer, or not now. :raises ConfigurationError: refused."""
        with redis_errors(self.server.place, StoreUnavailableError):
            return act()

    def send(self, act: Callable[[], T]) -> T:
        """Like `call`, for a change: from here on a lost answer may mean a change."""
        self._sending = True
        return self.call(act)

    def patiently(self, act: Callable[[], T]) -> T:
        """Repeats something without effects until it succeeds or the time is over."""
        patience = _Patience(self.server.timeout_s)
        while True:
            try:
                return self.call(act)
            except StoreUnavailableError:
                if patience.is_over():
                    raise

    def until_certain(self, attempt: Callable[[], T | None], what: str) -> T:
        """Run `attempt` until it has an answer (None: another request came in between). Each attempt first reads what
        an earlier one may have done.

        :raises StoreUnavailableError: the time is over, and surely nothing happened.
        :raises OutcomeUnknownError: the time is over, and the answer to a change was lost.
        """
        patience, sent = _Patience(self.server.timeout_s), False
        while True:
            self._sending = False
            try:
                answer = attempt()
                if answer is not None:
                    return answer
            except StoreUnavailableError as error:
                sent = sent or (self._sending and may_have_happened(error.__cause__))
                if not patience.is_over():
                    continue
                if not sent:
                    raise
                raise OutcomeUnknownError(
                    f"{what} may or may not have happened: {error.message}",
                    "Run the task again when the server is back: it knows what is applied.",
                ) from error

    def close(self) -> None:
        self.client.close()


def _require_no_eviction(client: Any, server: RedisServer) -> None:
    """Asks every node of a cluster: slots move between nodes. Not checked without the right to ask.

    :raises ConfigurationError: a node removes keys when its memory is full.
    """
    try:
        for place, memory in _memory_of_nodes(client, server):
            policy = str(memory.get("maxmemory_policy", ""))
            if memory.get("maxmemory") and policy.startswith("allkeys"):
                raise ConfigurationError(
                    f"Redis at {place} removes keys when its memory is full (maxmemory-policy {policy})",
                    "Set maxmemory-policy to noeviction: a state must not lose keys.",
                )
    except require_extra("redis.exceptions", EXTRA).NoPermissionError:
        return


def _memory_of_nodes(client: Any, server: RedisServer) -> Iterator[tuple[str, dict[str, Any]]]:
    if not server.cluster:
        yield server.place, client.info("memory")
        return
    exceptions = require_extra("redis.exceptions", EXTRA)
    for node in client.get_nodes():
        try:
            yield node.name, client.info("memory", target_nodes=node)
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            if node.server_type == "primary":  # a cluster works without a replica
                raise


class _Patience:
    """Pauses between tries, until the time is over."""

    def __init__(self, timeout_s: float) -> None:
        self._until_s = time.monotonic() + timeout_s
        self._tries = 0

    def is_over(self) -> bool:
        """Wait a little; True: no more tries."""
        pause_s = _PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)]
        self._tries += 1
        if time.monotonic() + pause_s >= self._until_s:
            return True
        time.sleep(pause_s)
        return False
