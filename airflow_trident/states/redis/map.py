r"""The map of a state in Redis: finding and reading keys, and staging writes.

Keys and values of a state as bytes in Redis, readable for other programs.

A single field is its plain text: ``#redis``, ``12``, ``0.25``, ``2024-02-29``; an interval is its microseconds; bytes
stay as they are. In texts and bytes a backslash is doubled; null is ``\N``. Several fields are a JSON array, with
bytes in hexadecimal; no field is ``[]``.

Requests to Redis with a certain outcome in the end: handles lost answers, servers that come back, and zombies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError, OutcomeUnknownError, StoreUnavailableError
from airflow_trident.io.connections import require_extra
from airflow_trident.io.redis import EXTRA, RedisServer, may_have_happened, redis_errors
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key, does_not_fit
from airflow_trident.states.core.text_values import compact, decoder, encoder, json_part
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field

if TYPE_CHECKING:
    import pyarrow as pa

NULL = b"\\N"
GONE = b"\\D"
"""Never the text of a value: marks a key that is to be removed, or was missing."""
SEPARATOR = b":"


@dataclass(frozen=True)
class Texts:
    """The codec of a tuple of fields."""

    fields: tuple[Field, ...]

    @cached_property
    def _encoders(self) -> list[Callable[[Any], Any]]:
        return [encoder(field.type) for field in self.fields]

    @cached_property
    def _decoders(self) -> list[Callable[[Any], Any]]:
        return [decoder(field.type) for field in self.fields]

    def encode(self, values: Sequence[Any]) -> bytes:
        parts = [encode(value) for encode, value in zip(self._encoders, values, strict=True)]
        if len(parts) == 1:
            return _plain(parts[0])
        return compact(list(map(json_part, parts))).encode()

    def decode(self, content: bytes) -> tuple[Any, ...]:
        """:raises ValueError: `encode` did not write it."""
        if len(self.fields) == 1:
            return (_read(content, self.fields[0].type, self._decoders[0]),)
        parts = json.loads(content)
        if not isinstance(parts, list) or len(parts) != len(self.fields):
            raise ValueError(f"not {len(self.fields)} fields")
        return tuple(
            bytes.fromhex(part) if field.type == "binary" and part is not None else decode(part)
            for field, decode, part in zip(self.fields, self._decoders, parts, strict=True)
        )


def _plain(part: Any) -> bytes:
    if part is None:
        return NULL
    if isinstance(part, bytes):
        return part.replace(b"\\", b"\\\\")
    return part.replace("\\", "\\\\").encode() if isinstance(part, str) else repr(part).encode()


def _read(content: bytes, type_text: str, decode: Callable[[Any], Any]) -> Any:
    if content == NULL:
        return None
    if type_text in (*WHOLE_TYPES, "boolean", INTERVAL):
        number = int(content)
        if repr(number).encode() != content or not -(2**63) <= number < 2**63:
            raise ValueError(f"{content!r} is no whole number of 64 bits")
        return decode(number)
    whole = content.replace(b"\\\\", b"\\")
    return whole if type_text == "binary" else decode(whole.decode())


@dataclass(frozen=True)
class Addresses:
    """Where a key is: its text, or, if `split`, the text of its first field, a colon, and the text of the others. A
    colon in the first field's text is ``\\c``."""

    keys: tuple[Field, ...]
    split: bool

    @cached_property
    def _parts(self) -> tuple[Texts, Texts]:
        cut = 1 if self.split else 0
        return Texts(self.keys[:cut]), Texts(self.keys[cut:])

    def encode(self, key: Sequence[Any]) -> bytes:
        """Equal keys have one address."""
        key = canonical_key(key)
        first, rest = self._parts
        if not self.split:
            return rest.encode(key)
        return first.encode(key[:1]).replace(SEPARATOR, b"\\c") + SEPARATOR + rest.encode(key[1:])

    def decode(self, address: bytes) -> tuple[Any, ...]:
        """:raises ValueError: `encode` did not write it."""
        first, rest = self._parts
        if not self.split:
            return rest.decode(address)
        head, _, tail = address.partition(SEPARATOR)
        return (*first.decode(_with_colons(head)), *rest.decode(tail))


def _with_colons(text: bytes) -> bytes:
    """Replaces ``\\c`` by a colon, except for a c after a doubled backslash."""
    return b"\\\\".join(part.replace(b"\\c", SEPARATOR) for part in text.split(b"\\\\"))


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
        return self.at([self.addresses.encode(key) for key in keys])

    def at(self, addresses: Sequence[bytes]) -> list[Value | None]:
        """:raises CorruptRecordError: another program wrote a value there that does not fit the fields."""
        texts_by_address: dict[bytes, bytes | None] = {}
        if self.layout == RedisLayout.STRING:
            for some in parts(addresses):
                texts_by_address.update(
                    zip(some, self.client.mget([self.prefix + address for address in some]), strict=True)
                )
        else:
            for name, members in self._by_hash(addresses).items():
                for some in parts(list(members.items())):
                    texts = self.client.hmget(name, [field for field, _ in some])
                    texts_by_address.update(zip((address for _, address in some), texts, strict=True))
        return [
            None if (text := texts_by_address[address]) is None else self._value(address, text) for address in addresses
        ]

    def _value(self, address: bytes, text: bytes) -> Value:
        return self._read(self.values.decode, text, address)

    def _read(self, decode: Callable[[bytes], tuple[Any, ...]], text: bytes, address: bytes) -> tuple[Any, ...]:
        try:
            return decode(text)
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            fields = ", ".join(map(str, (*self.spec.keys, *self.spec.values)))
            shown = f"{text[:80]!r} at {address[:80]!r} of {self.data}"
            raise keys_changed(f"{shown}, where the fields are ({fields})") from error

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
            self._read(self.addresses.decode, address, address): None if text == GONE else self._value(address, text)
            for address, text in self.client.hgetall(name).items()
        }

    # ---- all keys ----------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Each key once, although SCAN may return it twice."""
        seen: set[bytes] = set()
        for address, text in self._scan():
            if address not in seen and text is not None:
                seen.add(address)
                yield self._read(self.addresses.decode, address, address), self._value(address, text)

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
        amounts = batch.column(self.spec.value_names[0]).to_pylist()
        keys = zip(*columns, strict=True) if columns else [()] * len(amounts)
        sums: dict[bytes, int] = {}
        for key, amount in zip(keys, amounts, strict=True):
            address = self.addresses.encode(key)
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


def keys_changed(problem: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"the data of a state have {problem}: keys were removed or written by somebody else",
        "Restore the store from a copy, or remove all keys of the state, its record too, and run `airflow trident "
        "rebuild`.",
    )


def _literally(text: str) -> str:
    """Escapes a text for MATCH."""
    return "".join("\\" + letter if letter in "*?[]^\\" else letter for letter in text)


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

    def until_certain(self, attempt: Callable[[], T | None], step: str) -> T:
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
                    f"{step} may or may not have happened: {error.message}",
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
