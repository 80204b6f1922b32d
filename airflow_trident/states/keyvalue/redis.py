"""Key-value states in Redis or Valkey (Storm: RedisKeyValueStateProvider, RedisKeyValueState).

A namespace is a hash of committed data, a hash of prepared writes, and a record with its marks, all under one hash tag.
Writes are first staged under a separate key. Then one script does the step: it compares the record with the one that
was decided on. The cost of a step depends on the writes since the last commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_trident.contracts.state import Capabilities
from airflow_trident.errors import CorruptRecordError, NewerRecordError, StoreUnavailableError
from airflow_trident.io.redis import RedisServer, RedisSettings, is_a_replica
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.base import Act, Admit, LayeredState, StateProvider, Writes
from airflow_trident.states.redis.map import AT_ONCE, GONE, Session, keys_changed, parts, stage
from airflow_trident.states.redis.scripts import COMMON, Said

VERSION = 1


_MARK = "mark"
"""An act that changes only the marks."""
_STEP = (
    COMMON
    + """
local record, stage, prepared, committed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local expected, new, act, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local function ended(said)
  redis.call('UNLINK', stage)
  return said
end
if is_replica() then return 'REPLICA' end
if (redis.call('GET', record) or '') ~= expected then return ended('MOVED') end
if redis.call('HLEN', stage) ~= count then return ended('UNSTAGED') end
-- a key that is no hash fails here, before anything is written
redis.call('HLEN', prepared)
redis.call('HLEN', committed)
local _, staged = pairs_of(stage)
if act == 'prepare' then
  local flat = {}
  for name, value in pairs(staged) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  in_chunks(flat, function(...) redis.call('HSET', prepared, ...) end)
elseif act == 'commit' then
  local _, values = pairs_of(prepared)
  write_hash(committed, values)
  redis.call('UNLINK', prepared)
elseif act == 'direct' then
  write_hash(committed, staged)
elseif act == 'rollback' then
  redis.call('UNLINK', prepared)
end
-- so it is noticed if the data go and the record stays
local keys = string.format('[%d,%d]', redis.call('HLEN', prepared), redis.call('HLEN', committed))
redis.call('SET', record, string.sub(new, 1, -2) .. ',"keys":' .. keys .. '}')
return ended('DONE')
"""
)
"""KEYS: record, stage, prepared, committed. ARGV: expected and new record, act, how many keys `stage` must have."""


@dataclass(frozen=True, kw_only=True)
class RedisStateProvider(RedisSettings, StateProvider):
    """Any number of namespaces of a server; see :class:`RedisSettings` for how to reach it.

    :param prefix: the beginning of all key names.
    """

    prefix: str = "trident"

    capabilities = Capabilities(durable=True, atomic=True)

    def new_state(self, namespace: str) -> RedisKeyValueState:
        return RedisKeyValueState(namespace, f"{self.prefix}{{{namespace}}}", self.resolve())

    def describe(self) -> str:
        return f"redis {self.place} {self.prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    text: bytes
    marks: Marks
    op: str


class RedisKeyValueState(LayeredState[Any, Any]):
    """See :class:`RedisStateProvider`. Keys and values are JSON texts."""

    def __init__(self, namespace: str, base: str, server: RedisServer) -> None:
        super().__init__(namespace)
        self._base = base
        self._record, self._prepared, self._committed = (
            f"{base}:{name}" for name in ("record", "prepared", "committed")
        )
        self._session = Session(server)
        with self._session.opening():
            self._read()

    @property
    def _client(self) -> Any:
        return self._session.client

    # ---- reading -----------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        return self._session.patiently(self._read).marks

    def _read(self) -> _Record:
        text, *keys = self._session.call(self._fetch)
        subject = f"the record {self._record} of Redis at {self._session.server.place}"
        if text is None:
            if any(keys):
                raise keys_changed(f"{keys} prepared and committed keys, and {subject} is gone")
            return _Record(text=b"", marks=Marks(), op="")
        try:
            content = json.loads(text)
            if content["v"] > VERSION:
                raise NewerRecordError(
                    f"{subject} has version {content['v']}, and this airflow-trident reads up to {VERSION}",
                    "Install the airflow-trident version that wrote it, or a newer one.",
                )
            marks = Marks(
                prepared=content["prepared"], committed=int(content["committed"]), fence=int(content["fence"])
            )
            if content["keys"] != keys:
                raise keys_changed(f"{keys} prepared and committed keys where {subject} says {content['keys']}")
            return _Record(text=text, marks=marks, op=str(content["op"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptRecordError(
                f"{subject} cannot be read: {text[:80]!r}", "Restore the store from a copy."
            ) from error

    def _fetch(self) -> list[Any]:
        """The record, and how many keys are prepared and committed, at one moment."""
        pipe = self._client.pipeline(transaction=True)
        pipe.get(self._record)
        pipe.hlen(self._prepared)
        pipe.hlen(self._committed)
        replies: list[Any] = pipe.execute()
        return replies

    def _find(self, key: str) -> str | None:
        def find() -> bytes | None:
            pipe = self._client.pipeline(transaction=True)
            pipe.hget(self._prepared, key)
            pipe.hget(self._committed, key)
            prepared, committed = pipe.execute()
            newest: bytes | None = committed if prepared is None else prepared
            return newest

        return _text(self._session.patiently(find))

    def _scan(self, *, committed_only: bool) -> Iterator[tuple[str, str]]:
        names = self._session.patiently(lambda: self._names(committed_only))
        for some in parts(names):
            texts = self._session.patiently(partial(self._values, some, committed_only))
            for name, text in zip(some, texts, strict=True):
                if text is not None:
                    yield _decoded(name), text

    def _names(self, committed_only: bool) -> list[bytes]:
        hashes = [self._committed] if committed_only else [self._prepared, self._committed]
        return sorted({name for hash_name in hashes for name, _ in self._client.hscan_iter(hash_name, count=AT_ONCE)})

    def _values(self, names: Sequence[bytes], committed_only: bool) -> list[str | None]:
        pipe = self._client.pipeline(transaction=True)
        pipe.hmget(self._committed, names)
        if not committed_only:
            pipe.hmget(self._prepared, names)
        replies = pipe.execute()
        committed, prepared = replies[0], replies[-1]
        return [_text(old if new is None else new) for old, new in zip(committed, prepared, strict=True)]

    # ---- steps -------------------------------------------------------------------------------------------------

    def _step(self, act: Act, admit: Admit, writes: Writes) -> Step:
        op = uuid.uuid4().hex
        name = f"{self._base}:stage:{op}"
        decided: list[Step] = []

        def attempt() -> Step | None:
            record = self._read()
            if record.op == op:  # the answer of an earlier try was lost
                return decided[-1]
            marks, step = admit(record.marks)
            if step is Step.ALREADY and marks == record.marks:
                return step
            decided.append(step)
            done = step is Step.DONE
            content = {key.encode(): GONE if text is None else text.encode() for key, text in writes.items()}
            content = content if done else {}
            self._session.call(partial(stage, self._client, name, content))
            request = (record.text, _encode(marks, op), str(act) if done else _MARK, len(content))
            keys = (self._record, name, self._prepared, self._committed)
            reply = Said(self._session.send(lambda: self._client.eval(_STEP, len(keys), *keys, *request)).decode())
            if reply is Said.REPLICA:
                raise is_a_replica(self._session.server.place, StoreUnavailableError)
            if reply is Said.UNSTAGED:
                raise StoreUnavailableError(
                    f"what was staged for namespace {self.namespace!r} is gone from Redis",
                    "Give the server more memory: it removes keys that have a time to live.",
                )
            return step if reply is Said.DONE else None

        return self._session.until_certain(attempt, f"a step of namespace {self.namespace!r}")

    def close(self) -> None:
        self._session.close()


def _encode(marks: Marks, op: str) -> bytes:
    content = {
        "v": VERSION,
        "prepared": marks.prepared,
        "committed": marks.committed,
        "fence": marks.fence,
        "op": op,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _text(stored: bytes | None) -> str | None:
    return None if stored is None or stored == GONE else _decoded(stored)


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(
            f"the data of a namespace have {text[:80]!r}, which is no UTF-8: another program wrote it",
            "Restore the store from a copy, or rebuild the state.",
        ) from error
