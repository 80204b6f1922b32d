"""A map in Redis without transactions (Storm: ``RedisMapState.nonTransactional``).

Redis holds only the map, under a name that the user gives, so other programs and topologies may write it, too. A
repeated commit changes it again: at least once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.extras import require_extra
from airflow_trident.io.redis import EXTRA, RedisServer, RedisSettings
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import key_of, require_plain_keys
from airflow_trident.states.core.merge import merge
from airflow_trident.states.redis.encoding import GONE
from airflow_trident.states.redis.map import RedisLayout, parts
from airflow_trident.states.redis.open import OpenRedisMap

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class NonTransactionalRedisState(RedisSettings, StateFactory):
    """A map in Redis without fences and markers, for ``Topology(name, exactly_once=False)``; see :class:`RedisSettings`
    for how to reach the server.

    :param key: the hash (`HASH`), or the prefix of all key names, before a colon (`STRING`); by default
        ``<topology>/<state>``.
    """

    key: str | None = None
    layout: RedisLayout | str = RedisLayout.HASH

    capabilities = Capabilities(durable=True, atomic=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout not in list(RedisLayout):
            raise ConfigurationError(
                f"NonTransactionalRedisState has no layout {self.layout!r}", f"Use one of {', '.join(RedisLayout)}."
            )
        if self.key == "":
            raise ConfigurationError("NonTransactionalRedisState with an empty key", "Give it a name, or leave it out.")

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)

    def make_state(self, spec: StateSpec) -> OpenNonTransactionalRedisState:
        self.validate(spec)
        return OpenNonTransactionalRedisState(self, self.resolve(), spec)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return self.resolve().dataset(self.key or key_of(spec))

    def describe(self) -> str:
        return f"NonTransactionalRedisState({', '.join(filter(None, (self.place, str(self.layout), self.key)))})"


@dataclass(frozen=True)
class _Commands:
    """The commands of a layout; their arguments are the place of a key, and a value."""

    put: str
    add: str
    remove: str


_COMMANDS = {
    RedisLayout.HASH: _Commands("HSET", "HINCRBY", "HDEL"),
    RedisLayout.STRING: _Commands("SET", "INCRBY", "DEL"),
}


class OpenNonTransactionalRedisState(OpenRedisMap):
    """See :class:`NonTransactionalRedisState`."""

    def __init__(self, factory: NonTransactionalRedisState, server: RedisServer, spec: StateSpec) -> None:
        self._commands = _COMMANDS[RedisLayout(factory.layout)]
        super().__init__(server, factory.key or key_of(spec), str(factory.layout), spec)

    def marker(self) -> Marker | None:
        """Always None: the state does not know what is applied."""
        return None

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """Not atomic, and a repetition is not detected.

        :raises StoreUnavailableError: a part of the batch may be applied.
        """
        self._session.call(lambda: self._send(self._changes(ticket, batch)))
        return Applied.APPLIED

    def bar(self, ticket: CommitTicket) -> None:
        """Does nothing: the state may hold a part of any batch, and promises nothing about it."""

    def _changes(self, ticket: CommitTicket, batch: pa.Table) -> list[tuple[Any, ...]]:
        """The changes as commands. The server does the sums, so that concurrent additions of others stay."""
        if self._map.adds:
            sums = self._map.amounts(batch)
            return [(self._commands.add, *self._place(address), amount) for address, amount in sums.items()]
        texts = self._map.texts(merge(self._spec, batch, self._map.lookup, ticket))
        put = [(address, text) for address, text in texts.items() if text != GONE]
        gone = [(address,) for address, text in texts.items() if text == GONE]
        return [*self._of_many(self._commands.put, put), *self._of_many(self._commands.remove, gone)]

    def _of_many(self, command: str, changes: Sequence[tuple[bytes, ...]]) -> list[tuple[Any, ...]]:
        """For a hash, one command for many keys. Strings one by one: in a cluster they are on several nodes."""
        if self._map.layout == RedisLayout.STRING:
            return [(command, *self._place(address), *text) for address, *text in changes]
        return [(command, self._map.data, *chain.from_iterable(some)) for some in parts(changes)]

    def _place(self, address: bytes) -> tuple[bytes, ...]:
        if self._map.layout == RedisLayout.STRING:
            return (self._map.prefix + address,)
        return self._map.data.encode(), address

    def _send(self, commands: list[tuple[Any, ...]]) -> None:
        for some in parts(commands):
            with self._client.pipeline(transaction=False) as many:
                for command in some:
                    many.execute_command(*command)
                try:
                    many.execute()
                except require_extra("redis.exceptions", EXTRA).ResponseError as error:
                    if "overflow" in str(error):
                        raise self._overflow() from error
                    raise

    def _overflow(self) -> UserCodeError:
        name = self._spec.value_names[0]
        return UserCodeError(
            f"a new value of state {self._spec.name!r} does not fit: {name} is beyond the largest 64-bit number",
            "Other keys of the batch may be changed: declare a wider type for new states.",
            node=self._spec.name,
            fields=name,
        )
