"""States in Redis or Valkey: a hash, several hashes, or one key per key of the state (Storm: RedisMapState).

A batch is first staged under a separate key. Then one script compares the state's record with the one that was decided
on, applies all keys and writes the new record. A repeated, late or lost request finds another record and changes
nothing. The server adds counts and sums of longs; for other aggregators this process reads, merges and writes the
batch's keys.

A map in Redis that is open for reading: the common part of its states.

The record of a state in Redis: its marker, its owner, and the request that wrote it. JSON, with a version.

A map in Redis without transactions (Storm: ``RedisMapState.nonTransactional``).

Redis holds only the map, under a name that the user gives, so other programs and topologies may write it, too. A
repeated commit changes it again: at least once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    NewerRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UserCodeError,
)
from airflow_trident.io.connections import require_extra
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.redis import EXTRA, RedisServer, RedisSettings, is_a_replica, redis_errors
from airflow_trident.names import require_counts, require_flags
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import key_of, require_plain_keys
from airflow_trident.states.core.groups import Group, answers
from airflow_trident.states.core.marker import AdmittingState, admit, admit_group, group_from_json, group_to_json
from airflow_trident.states.core.merge import Key, Value, merge, merge_before
from airflow_trident.states.redis.map import (
    GONE,
    SPLIT,
    RedisLayout,
    RedisMap,
    Session,
    keys_changed,
    overflow,
    parts,
    stage,
)
from airflow_trident.states.redis.scripts import APPLY, Said, Turn

if TYPE_CHECKING:
    import pyarrow as pa


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
        return self._session.patiently(lambda: self._map.lookup(keys))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Each key once. Reads by SCAN while others may write, so the values may be of several transactions."""
        with redis_errors(self._session.server.place, StoreUnavailableError):
            yield from self._map.items()

    def count(self) -> int:
        """Number of keys in the state. One command for one hash; otherwise the names of all keys are read."""
        return self._session.patiently(self._map.count)

    def close(self) -> None:
        self._session.close()


VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`text`: as stored; the next request compares it. `op`: the request that wrote it. `kept`: how many keys have a
    value from before the highest transaction. `keys`: layout `hash`: how many keys the map has; None if the version
    that wrote the record did not count."""

    text: bytes
    marker: Marker
    op: str
    kept: int
    keys: int | None = None

    def found_with(self, keys: int, record_key: str) -> Record:
        """The record, for a hash that has so many keys now. If all are gone, the state holds nothing, and only the
        fence and the incarnation are known.

        :raises CorruptRecordError: some keys are gone, or somebody added others.
        """
        if self.keys in (None, keys):
            return replace(self, keys=keys)
        if keys == 0:
            empty = Marker(incarnation=self.marker.incarnation, high=0, fence=self.marker.fence)
            return replace(self, marker=empty, kept=0, keys=0)
        raise keys_changed(f"{keys} keys where its record {record_key} says {self.keys}")


def encode_record(spec: StateSpec, layout: str, marker: Marker, *, op: str, kept: int) -> bytes:
    content: dict[str, Any] = {
        "v": VERSION,
        "topology": spec.topology,
        "state": spec.name,
        "definition": definition(spec, layout),
        "incarnation": marker.incarnation,
        "high": marker.high,
        "attempt": marker.attempt,
        "fence": marker.fence,
        "holes": [[first, last] for first, last in marker.holes],
        "position": marker.position,
        "op": op,
        "kept": kept,
    }
    if marker.group:  # versions that know no groups omit it when they write
        content["group"] = group_to_json(marker.group)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def definition(spec: StateSpec, layout: str) -> str:
    keys, values = ", ".join(map(str, spec.keys)), ", ".join(map(str, spec.values))
    return f"({keys}) -> ({values}) as {layout}"


def decode_record(text: bytes, spec: StateSpec, layout: str, record_key: str) -> Record:
    """
    :raises ConfigurationError: it belongs to another state. :raises DefinitionChangedError: it was made with other
        fields.
    :raises CorruptRecordError, NewerRecordError: it cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        if content["v"] > VERSION:
            raise NewerRecordError(
                f"the record {record_key} has version {content['v']}, and this airflow-trident reads up to {VERSION}",
                "Install the airflow-trident version that wrote it, or a newer one.",
            )
        _require_own(content, spec, layout, record_key)
        marker = Marker(
            incarnation=str(content["incarnation"]),
            high=int(content["high"]),
            fence=int(content["fence"]),
            holes=tuple((int(first), int(last)) for first, last in content["holes"]),
            position=dict(content["position"]),
            attempt=int(content["attempt"]),
            group=group_from_json(content.get("group", [])),
        )
        return Record(
            text=text, marker=marker, op=str(content["op"]), kept=int(content["kept"]), keys=content.get("keys")
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecordError(
            f"the record {record_key} cannot be read: {text[:80]!r}", "Restore the store from a copy."
        ) from error


def _require_own(content: dict[str, Any], spec: StateSpec, layout: str, record_key: str) -> None:
    if (content["topology"], content["state"]) != (spec.topology, spec.name):
        raise ConfigurationError(
            f"{record_key} belongs to state {content['state']!r} of topology {content['topology']!r}, not to state "
            f"{spec.name!r} of topology {spec.topology!r}",
            "Give the state another key, as in RedisState(key=...).",
        )
    wanted = definition(spec, layout)
    if content["definition"] != wanted:
        raise DefinitionChangedError(
            f"state {spec.name!r} of topology {spec.topology!r} in {record_key} was made as {content['definition']}, "
            f"and now it should be {wanted}",
            "Give the state a new name, or another key.",
        )


@dataclass(frozen=True, kw_only=True)
class RedisState(RedisSettings, StateFactory):
    """A state under the keys ``{<key>}:...`` of a server; see :class:`RedisSettings` for how to reach it.

    :param key: by default ``<topology>/<state>``. The braces keep all keys of a state on one node of a cluster.
    :param layout: `HASH`: one hash ``{key}:data``. `STRING`: a key ``{key}:data:<state's key>`` each.
    :param hash_by: the first key field: one hash ``{key}:data:<its value>`` for each of its values. So several tables
        change in one atomic step.
    :param fsync: a commit waits until the server has written it to its disk (WAITAOF; needs the append-only file).
    :param replicas: the commit also waits for this number of replicas.
    """

    key: str | None = None
    layout: RedisLayout | str = RedisLayout.HASH
    hash_by: str | None = None
    fsync: bool = False
    replicas: int = 0

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)
    max_value_bytes = 500_000_000
    """Redis takes 512 MiB (proto-max-bulk-len), and a backslash is written as two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags("RedisState", fsync=self.fsync)
        require_counts("RedisState", least=0, replicas=self.replicas)
        if self.layout not in list(RedisLayout):
            raise ConfigurationError(
                f"RedisState has no layout {self.layout!r}", f"Use one of {', '.join(RedisLayout)}."
            )
        if self.hash_by is not None and self.layout == RedisLayout.STRING:
            raise ConfigurationError("RedisState with hash_by keeps hashes", "Leave out layout='string'.")
        if self.key is not None and (not self.key or "{" in self.key or "}" in self.key):
            raise ConfigurationError(
                f"{self.key!r} cannot be the key of a RedisState", "Give it a text without braces."
            )
        if (self.fsync or self.replicas) and self.cluster:
            raise ConfigurationError(
                "RedisState cannot wait for the disks of a cluster", "Set appendfsync always there, without fsync."
            )

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        if self.hash_by is not None and (len(spec.keys) < 2 or spec.keys[0].name != self.hash_by):
            raise ConfigurationError(
                f"state {spec.name!r} has the keys {', '.join(spec.key_names)}, and hash_by={self.hash_by!r}",
                "It names the first of several key fields.",
            )

    def make_state(self, spec: StateSpec) -> OpenRedisState:
        """
        :raises DefinitionChangedError: the state was made with other fields.
        """
        self.validate(spec)
        return OpenRedisState(self, self.resolve(), spec)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return self.resolve().dataset(self.key or key_of(spec))

    def describe(self) -> str:
        parts = [self.place, str(self.layout), *(filter(None, (self.key, self.hash_by and f"by {self.hash_by}")))]
        return f"RedisState({', '.join(parts)})"


class OpenRedisState(OpenRedisMap, AdmittingState):
    """See :class:`RedisState`. One client; do not share it between threads at the same time."""

    def __init__(self, factory: RedisState, server: RedisServer, spec: StateSpec) -> None:
        self._factory = factory
        self._layout = SPLIT if factory.hash_by is not None else str(factory.layout)
        self._base = f"{{{factory.key or key_of(spec)}}}"
        self._record, self._before, self._data = (f"{self._base}:{name}" for name in ("record", "before", "data"))
        super().__init__(server, self._data, self._layout, spec)

    def _read_first(self) -> None:
        """Asks only whose the record is: who looks up keys may have the right to read and no other."""
        self._decoded(self._session.call(lambda: self._client.get(self._record)))

    # ---- the marker --------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        record = self._session.patiently(self._read)
        return None if record is None else record.marker

    def _read(self) -> Record | None:
        """
        :raises CorruptRecordError: the record cannot be read, or does not fit what is there.
        """
        while True:
            text, evidence = self._session.call(self._fetch)
            record = self._decoded(text)
            if record is None:
                return None
            if isinstance(evidence, Exception):
                with redis_errors(self._session.server.place, StoreUnavailableError):
                    raise evidence
            if self._layout == RedisLayout.HASH:
                return record.found_with(evidence, self._where)
            op, _, witness = (evidence or b"").partition(b" ")
            # An older version wrote the record without a witness.
            if op != record.op.encode() or not witness or self._session.call(partial(self._client.exists, witness)):
                return record
            if self._session.call(lambda: self._client.get(self._record)) == text:  # no other step removed it
                raise keys_changed(f"no key {witness.decode(errors='replace')!r}, which its record {self._where} needs")

    @property
    def _where(self) -> str:
        return f"{self._record} of Redis at {self._session.server.place}"

    def _decoded(self, text: bytes | None) -> Record | None:
        return None if text is None else decode_record(text, self._spec, self._layout, self._where)

    def _fetch(self) -> tuple[bytes | None, Any]:
        """At one moment: the record, and how many keys there are, or one that must be there, or why that is not
        known."""
        both = self._client.pipeline(transaction=True)
        both.get(self._record)
        (both.hlen if self._layout == RedisLayout.HASH else both.get)(self._data)
        text, evidence = both.execute(raise_on_error=False)
        if isinstance(text, Exception):
            raise text
        return text, evidence

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """
        :raises OutcomeUnknownError: the answer was lost, and the server did not come back in time.
        """
        return self._in_one_step(f"transaction {ticket.txid}", partial(self._step, ticket, batch))[0]

    def _apply_group(self, group: Group) -> tuple[Applied, ...]:
        """
        :raises OutcomeUnknownError: as :meth:`apply`.
        """
        subject = f"transactions {group.tickets[0].txid} to {group.tickets[-1].txid}"
        return self._in_one_step(subject, partial(self._group_step, group))

    def _in_one_step(self, subject: str, decide: Callable[[Record | None, str], _Step]) -> tuple[Applied, ...]:
        """:param decide: gives the step to do, from the known record and the id of the request."""
        op = uuid.uuid4().hex
        sent: list[_Step] = []

        def attempt() -> tuple[Applied, ...] | None:
            record = self._read()
            if record is not None and record.op == op:  # the answer of an earlier try was lost
                return self._confirmed(sent[-1].does, op)
            step = decide(record, op)
            if step.record is None:
                return self._confirmed(step.does, op)
            sent.append(step)
            for kind, content in (("stage", step.changes), ("stage-before", step.before)):
                self._session.call(partial(stage, self._client, f"{self._base}:{kind}:{op}", content))
            if self._session.send(lambda: self._run(op, record, step)) is Said.MOVED:
                return None
            return self._confirmed(step.does, op)

        return self._session.until_certain(attempt, f"{subject} of state {self._spec.name!r}")

    def _step(self, ticket: CommitTicket, batch: pa.Table, previous: Record | None, op: str) -> _Step:
        spec = self._spec
        marker, verdict = admit(
            previous.marker if previous else None, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque
        )
        kept = previous.kept if previous else 0
        if verdict is Verdict.SKIP:
            return self._mark(previous, marker, (Applied.ALREADY,), op)
        turn = Turn.REPLACE if verdict is Verdict.REPLACE else Turn.HIGHEST
        if ticket.txid < marker.high:
            turn = Turn.LATE
        changes, before = self._changes(ticket, batch, turn)
        if turn is not Turn.LATE:
            kept = len(changes) if spec.opaque else 0
        record = encode_record(spec, self._layout, marker, op=op, kept=kept)
        return _Step(
            turn=turn,
            record=record,
            does=(Applied.APPLIED,),
            changes=changes,
            before=before,
            kept=previous.kept if previous else 0,
            adds=self._map.adds,
        )

    def _mark(self, previous: Record | None, marker: Marker, does: tuple[Applied, ...], op: str) -> _Step:
        """A step for transactions that are already applied."""
        if previous is not None and marker == previous.marker:
            return _Step(does=does)
        kept = previous.kept if previous else 0
        return _Step(does=does, record=encode_record(self._spec, self._layout, marker, op=op, kept=kept))

    def _group_step(self, group: Group, previous: Record | None, op: str) -> _Step:
        spec = self._spec
        before = previous.marker if previous else None
        marker, verdicts = admit_group(before, group.tickets, state=spec.name, commutes=spec.commutes)
        does = answers(verdicts)
        if Applied.APPLIED not in does:
            return self._mark(previous, marker, does, op)
        whole = group.as_one(verdicts)
        adds = self._map.adds and whole is not None
        if whole is not None and adds:
            changes = self._map.amounts(whole)
        else:
            changes = self._map.texts(group.changes(verdicts, self._lookup))
        record = encode_record(spec, self._layout, marker, op=op, kept=0)
        return _Step(turn=Turn.HIGHEST, record=record, does=does, changes=changes, adds=adds)

    def _changes(
        self, ticket: CommitTicket, batch: pa.Table, turn: Turn
    ) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """What to stage: amounts to add, or new values; and, for a late batch, new values of kept keys."""
        if self._map.adds:
            return self._map.amounts(batch), {}
        taken_back = self._session.call(lambda: self._map.read(self._before)) if turn is not Turn.HIGHEST else {}
        spec = self._spec
        if turn is Turn.LATE:
            before = merge_before(spec, batch, taken_back, ticket)
            return self._map.texts(merge(spec, batch, self._lookup, ticket)), self._map.texts(before)

        def lookup(keys: Sequence[Key]) -> list[Value | None]:
            stored = self._lookup(keys)
            return [taken_back.get(key, value) for key, value in zip(keys, stored, strict=True)]

        return self._map.texts(merge(spec, batch, lookup, ticket)), {}

    def _run(self, op: str, previous: Record | None, step: _Step) -> Said:
        """Run the atomic step."""
        keys = [self._record, f"{self._base}:stage:{op}", self._before, f"{self._base}:stage-before:{op}", self._data]
        expected = previous.text if previous else b""
        flags = [str(int(step.adds)), str(int(self._spec.opaque))]
        seen = previous.keys if previous and previous.keys is not None else ""
        counts = [len(step.changes), len(step.before), step.kept, seen]
        answer = self._client.eval(
            APPLY, len(keys), *keys, expected, step.record, step.turn.value, self._layout, *flags, *counts, op
        )
        reply = Said(answer.decode())
        if reply is Said.REPLICA:
            raise is_a_replica(self._session.server.place, StoreUnavailableError)
        if reply in (Said.OVERFLOW, Said.FOREIGN):
            self._map.at(list(step.changes))  # names what this state did not write
            raise overflow(self._spec) if reply is Said.OVERFLOW else keys_changed("numbers that it did not write")
        if reply is Said.TAKEN:
            raise ConfigurationError(
                f"{self._data} of Redis at {self._session.server.place} is there, without a record of state "
                f"{self._spec.name!r}: it belongs to something else, or the record was removed",
                "Give the state another key, or restore the store from a copy.",
            )
        if reply is Said.UNSTAGED:
            raise StoreUnavailableError(
                f"what was staged for state {self._spec.name!r} is gone from Redis at {self._session.server.place}",
                "Give the server more memory: it removes keys that have a time to live.",
            )
        if reply is Said.DAMAGED:
            raise CorruptRecordError(
                f"{self._before} of Redis at {self._session.server.place} does not hold the {step.kept} values "
                "that were kept",
                "Restore the store from a copy.",
            )
        return reply

    def _confirmed(self, applied: tuple[Applied, ...], op: str) -> tuple[Applied, ...]:
        """Wait for the disks, if configured. They confirm the last write of this connection, so write first."""
        factory = self._factory
        if not (factory.fsync or factory.replicas):
            return applied

        def wait() -> Any:
            self._client.set(f"{self._base}:stage:{op}", "", ex=1)
            wait_ms = int(self._session.server.timeout_s * 500)  # the answer must come before the client gives up
            return self._client.execute_command("WAITAOF", int(factory.fsync), factory.replicas, wait_ms)

        local, replicas = self._session.call(wait)
        if local < int(factory.fsync) or replicas < factory.replicas:
            raise OutcomeUnknownError(
                f"state {self._spec.name!r} is changed, but only {local} disk and {replicas} replicas have it so far",
                "Run the task again; see appendonly and the replicas of the server.",
            )
        return applied

    # ---- reading -----------------------------------------------------------------------------------------------

    def _lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        return self._session.call(lambda: self._map.lookup(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One request, and its result for each transaction. `record`: None: nothing to send. `changes`, `before`: what to
    stage. `kept`: how many kept values must exist. `adds`: the changes are amounts that the server adds."""

    does: tuple[Applied, ...]
    turn: Turn = Turn.MARK
    record: bytes | None = None
    changes: dict[bytes, bytes] = field(default_factory=dict)
    before: dict[bytes, bytes] = field(default_factory=dict)
    kept: int = 0
    adds: bool = False


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
        removed = [(address,) for address, text in texts.items() if text == GONE]
        return [*self._of_many(self._commands.put, put), *self._of_many(self._commands.remove, removed)]

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
