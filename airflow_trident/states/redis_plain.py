"""A map in Redis that knows of no transactions (Storm: ``RedisMapState.nonTransactional``).

Nothing but the map is in Redis, under a name of the user's own, so that other programs and other topologies may write
it, too. A commit that is repeated changes it again: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, UserCodeError
from airflow_trident.extras import require_extra
from airflow_trident.plan.states import Applied, Capabilities, Marker, State, StateFactory, StateSpec
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.redis_server import EXTRA, RedisServer, RedisSettings, redis_errors
from airflow_trident.states.checks import require_plain_keys
from airflow_trident.states.merge import Key, Value, canonical_key, merge
from airflow_trident.states.redis_map import RedisLayout, RedisMap, adds, amounts, parts, require_no_eviction
from airflow_trident.states.redis_session import Session
from airflow_trident.states.redis_text import GONE

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class NonTransactionalRedisState(RedisSettings, StateFactory):
    """A map in Redis without fences and without markers, for ``Topology(name, exactly_once=False)``; see
    :class:`RedisSettings` for how to reach the server.

    :param key: the hash (`HASH`), or what the names of all keys begin with, before a colon (`STRING`); by default
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

    def make_state(self, spec: StateSpec) -> OpenNonTransactionalRedisState:
        require_plain_keys(spec)
        return OpenNonTransactionalRedisState(self, self.resolve(), spec)

    def describe(self) -> str:
        return f"NonTransactionalRedisState({', '.join(filter(None, (self.place, str(self.layout), self.key)))})"


class OpenNonTransactionalRedisState(State):
    """See :class:`NonTransactionalRedisState`. One client; not for sharing between threads at the same time."""

    def __init__(self, factory: NonTransactionalRedisState, server: RedisServer, spec: StateSpec) -> None:
        self._server = server
        self._spec = spec
        self._session = Session(server)
        name = factory.key or f"{spec.topology}/{spec.name}"
        self._map = RedisMap(self._session.client, name, str(factory.layout), spec)
        try:
            self._session.call(lambda: require_no_eviction(self._session.client, server))
        except BaseException:
            self._session.close()
            raise

    def marker(self) -> Marker | None:
        """None, always: it does not know what is applied."""
        return None

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """Not in one step, and not told apart from a repetition.

        :raises StoreUnavailableError: a part of the batch may be applied.
        """
        spec = self._spec
        if adds(spec):
            self._session.call(lambda: self._add(amounts(spec, self._map.addresses, batch)))
        else:
            self._session.call(lambda: self._write(self._map.texts(merge(spec, batch, self._map.lookup))))
        return Applied.APPLIED

    def _add(self, sums: dict[bytes, bytes]) -> None:
        """By the server, so that what others add meanwhile stays."""
        name, prefix = self._map.data, self._map.prefix
        for some in parts(list(sums.items())):
            with self._session.client.pipeline(transaction=False) as many:
                for address, amount in some:
                    if self._map.layout == RedisLayout.STRING:
                        many.execute_command("INCRBY", prefix + address, amount)
                    else:
                        many.execute_command("HINCRBY", name, address, amount)
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

    def _write(self, texts: dict[bytes, bytes]) -> None:
        client, name, prefix = self._session.client, self._map.data, self._map.prefix
        put = [(address, text) for address, text in texts.items() if text != GONE]
        gone = [address for address, text in texts.items() if text == GONE]
        with client.pipeline(transaction=False) as many:
            for some in parts(put):
                if self._map.layout == RedisLayout.STRING:
                    for address, text in some:  # one by one: in a cluster they are on several nodes
                        many.set(prefix + address, text)
                else:
                    many.execute_command("HSET", name, *chain.from_iterable(some))
            for some in parts(gone):
                if self._map.layout == RedisLayout.STRING:
                    for address in some:
                        many.delete(prefix + address)
                else:
                    many.hdel(name, *some)
            many.execute()

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        return self._session.patiently(lambda: self._map.lookup([canonical_key(key) for key in keys]))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Each key once. Read by SCAN, while others may write."""
        with redis_errors(self._server.place, StoreUnavailableError):
            yield from self._map.items()

    def count(self) -> int:
        """How many keys the state has."""
        return self._session.patiently(self._map.count)

    def close(self) -> None:
        self._session.close()
