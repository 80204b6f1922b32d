"""The map of a state in Redis: finding and reading keys, and staging writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.operations.api import MergeKind
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key, does_not_fit
from airflow_trident.states.redis.encoding import GONE, SEPARATOR, Addresses, Texts

if TYPE_CHECKING:
    import pyarrow as pa

STAGED_FOR_S = 3600
"""Staged data of a killed committer expires after this time."""
AT_ONCE = 5000
"""How many keys are in one command."""


class RedisLayout(StrEnum):
    """How a map is kept (Storm: RedisDataTypeDescription)."""

    HASH = "hash"
    STRING = "string"


SPLIT = "split"
"""Another layout: several hashes, by the first key field."""


@dataclass(frozen=True)
class RedisMap:
    """`data`: name of the hash, or common prefix of all hashes or keys. Errors are the driver's."""

    client: Any
    data: str
    layout: str
    spec: StateSpec

    @cached_property
    def addresses(self) -> Addresses:
        return Addresses(self.spec.keys, self.layout == SPLIT)

    @cached_property
    def values(self) -> Texts:
        return Texts(self.spec.values)

    def texts(self, changes: Changes) -> dict[bytes, bytes]:
        return {
            self.addresses.encode(key): GONE if value is None else self.values.encode(value)
            for key, value in changes.items()
        }

    # ---- some keys ---------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        addresses = [self.addresses.encode(key) for key in keys]
        found: dict[bytes, bytes | None] = {}
        if self.layout == RedisLayout.STRING:
            for some in parts(addresses):
                found.update(zip(some, self.client.mget([self.prefix + one for one in some]), strict=True))
        else:
            for name, members in self._by_hash(addresses).items():
                for some in parts(list(members.items())):
                    texts = self.client.hmget(name, [field for field, _ in some])
                    found.update(zip((address for _, address in some), texts, strict=True))
        return [None if (text := found[address]) is None else self.values.decode(text) for address in addresses]

    def _by_hash(self, addresses: Iterable[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Hash -> field -> address."""
        groups: dict[bytes, dict[bytes, bytes]] = {}
        for address in addresses:
            name, field = self.data.encode(), address
            if self.layout == SPLIT:
                head, _, field = address.partition(SEPARATOR)
                name = self.prefix + head
            groups.setdefault(name, {})[field] = address
        return groups

    @property
    def prefix(self) -> bytes:
        """The common prefix of the names of several hashes or keys."""
        return self.data.encode() + SEPARATOR

    def read(self, name: str) -> Changes:
        """Reads a small hash of addresses and values."""
        return {
            self.addresses.decode(address): None if text == GONE else self.values.decode(text)
            for address, text in self.client.hgetall(name).items()
        }

    # ---- all keys ----------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Each key once, although SCAN may return it twice."""
        seen: set[bytes] = set()
        for address, text in self._scan():
            if address not in seen and text is not None:
                seen.add(address)
                yield self.addresses.decode(address), self.values.decode(text)

    def _scan(self) -> Iterator[tuple[bytes, bytes | None]]:
        if self.layout == RedisLayout.HASH:
            yield from self.client.hscan_iter(self.data, count=AT_ONCE)
        elif self.layout == RedisLayout.STRING:
            for some in parts(self._names()):
                texts = self.client.mget(some)
                yield from zip((name[len(self.prefix) :] for name in some), texts, strict=True)
        else:
            for name in self._names():
                for field, text in self.client.hscan_iter(name, count=AT_ONCE):
                    yield name[len(self.prefix) :] + SEPARATOR + field, text

    def _names(self) -> list[bytes]:
        return list(dict.fromkeys(self.client.scan_iter(match=_literally(self.data) + ":*", count=AT_ONCE)))

    def count(self) -> int:
        if self.layout == RedisLayout.HASH:
            return int(self.client.hlen(self.data))
        names = self._names()
        return len(names) if self.layout == RedisLayout.STRING else sum(int(self.client.hlen(name)) for name in names)

    # ---- what the server adds ----------------------------------------------------------------------------------

    @property
    def adds(self) -> bool:
        """Can the server do the arithmetic exactly?"""
        combiners = self.spec.combiners
        is_sum = len(combiners) == 1 and combiners[0].merge_kind is MergeKind.ADD
        return is_sum and self.spec.values[0].type == "long"

    def amounts(self, batch: pa.Table) -> dict[bytes, bytes]:
        """The amount to add at each address."""
        columns = [batch.column(name).to_pylist() for name in self.spec.key_names]
        given = batch.column(self.spec.value_names[0]).to_pylist()
        keys = zip(*columns, strict=True) if columns else [()] * len(given)
        sums: dict[bytes, int] = {}
        for key, amount in zip(keys, given, strict=True):
            address = self.addresses.encode(canonical_key(key))
            sums[address] = sums.get(address, 0) + (amount or 0)
        for amount in sums.values():
            if not -(2**63) <= amount < 2**63:
                raise overflow(self.spec)
        return {address: b"%d" % amount for address, amount in sums.items()}


def overflow(spec: StateSpec) -> Exception:
    return does_not_fit(spec, f"{spec.value_names[0]} is beyond the largest 64-bit number")


# ---- writing ---------------------------------------------------------------------------------------------------


def stage(client: Any, name: str, content: Mapping[bytes, bytes]) -> None:
    """Write a hash that expires after a while."""
    if not content:
        return
    client.unlink(name)  # of an interrupted try
    for some in parts(list(content.items())):
        both = client.pipeline(transaction=True)  # so that no hash is left without an expiry
        both.execute_command("HSET", name, *chain.from_iterable(some))
        both.expire(name, STAGED_FOR_S)
        both.execute()


def parts(all_of_them: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(all_of_them), AT_ONCE):
        yield all_of_them[at : at + AT_ONCE]


def _literally(text: str) -> str:
    """Escapes a text for MATCH."""
    return "".join("\\" + letter if letter in "*?[]^\\" else letter for letter in text)
