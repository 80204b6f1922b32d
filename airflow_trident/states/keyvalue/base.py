"""The contract of key-value states and of their providers, after Storm's KeyValueState and StateProvider.

Promises of an implementation (`tests/contracts/test_keyvalue_states.py` checks each for every implementation):

K1   A state has three layers: pending writes in memory, prepared writes and committed data in the store. Reads look in
     them in that order. A deletion hides what lower layers hold. An iterator gives each key exactly once, even if
     somebody writes meanwhile.
K2   `put` and `delete` change the pending layer only: no other instance sees it, and it is gone with this instance.
K3   `prepare_commit(txid)` makes the pending writes durable as prepared, in one atomic step, and empties the pending
     layer. Preparing the same txid again, under the same fence, adds to the prepared writes.
K4   `commit(txid)` makes the prepared writes committed data, in one atomic step. The txid must be the prepared one.
K5   "Already committed" is a success: `prepare_commit` and `commit` of the last committed txid return `Step.ALREADY`
     and change nothing; `prepare_commit` drops the pending writes, which belong to a replay.
K6   TransitionError, with nothing changed, if the next txid is prepared before the previous one is committed or rolled
     back, if a txid is lower, or if a newer committer prepares before it has committed or rolled back what it finds.
K7   `rollback()` drops pending and prepared writes and may be repeated. Committed data stays unchanged; later writes
     reach it only by commit.
K8   `commit()` without a txid makes the pending writes committed data at once, if nothing is prepared.
K9   Every step carries the fence of the caller's commit ticket. A lower fence than any before is refused with
     FencedError and changes nothing; a higher one is recorded in the same atomic step, even if nothing else changes.
K10  The cost of a step depends on the writes since the last commit, never on the size of the state.
K11  Namespaces do not see each other. Two processes may use one namespace: their steps come one after the other.
K12  Keys are equal if their JSON texts are equal: 1, 1.0, True and "1" are four keys. Lists and tuples are one
     kind, and come back as tuples. Values come back as they were put, or `put` refuses them. They are never pickled
     and never shared: changing a value after `put` or `get` changes no state.

Common part of all stores of key-value states: the pending layer, and the order in which layers are read.

A store only defines how prepared and committed text is kept; see :class:`LayeredState`. Texts are those of
:mod:`airflow_trident.states.keyvalue.codec`; None is a tombstone.

Keys and values of a key-value state beyond plain JSON: objects of classes, or bytes of a serializer (Storm:
keyClass, valueClass, keySerializerClass, valueSerializerClass). The store holds JSON texts in any case.

State providers by name (Storm: topology.state.provider): built-in, from an entry point, or by dotted path.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, overload

import msgspec

from airflow_trident.closeable import Closing
from airflow_trident.contracts.state import Capabilities
from airflow_trident.errors import ConfigurationError, CorruptRecordError, MissingExtraError
from airflow_trident.protocol.checkpoint import Marks, Step, admit_commit, admit_direct, admit_prepare, admit_rollback
from airflow_trident.states.keyvalue.codec import decode_key, decode_value, encode_key, encode_value
from airflow_trident.types import Json

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class KeyValueState(Closing, Generic[K, V]):
    """An open state of one namespace. Not for sharing between threads. Use as a context manager."""

    namespace: str

    # ---- what functions use ------------------------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, `default` if it has none.

        :raises ValueError: JSON cannot hold the key.
        """

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """:raises ValueError: JSON cannot hold the key or the value."""

    @abstractmethod
    def delete(self, key: K) -> V | None:
        """Remove a key and return its value."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[K, V]]:
        """Every key once, with its value."""

    # ---- what the checkpoint uses ------------------------------------------------------------------------------

    @abstractmethod
    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        """Keep the pending writes as prepared for `txid`.

        :raises FencedError: a newer committer was here.
        :raises TransitionError: another transaction is prepared, or `txid` is below the committed one.
        :raises StoreUnavailableError: nothing was changed; pending writes are kept.
        :raises OutcomeUnknownError: a change is possible; the same call again resolves it.
        """

    @abstractmethod
    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        """Turn the prepared writes of `txid` into committed data; without a txid, the pending writes.

        :raises FencedError, TransitionError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def rollback(self, *, fence: int) -> None:
        """Drop pending and prepared writes.

        :raises FencedError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the pending writes of a failed try; the store is not touched."""

    @abstractmethod
    def marks(self) -> Marks:
        """What the store knows about the namespace now; all zero if it was never used."""

    @abstractmethod
    def committed_items(self) -> Iterator[tuple[K, V]]:
        """Like `iterator`, for committed data only."""


class StateProvider(ABC):
    """Opens key-value states by namespace. Made from keyword arguments while a DAG is parsed, so it opens nothing and
    imports no driver. Picklable."""

    capabilities: Capabilities

    @abstractmethod
    def new_state(self, namespace: str) -> KeyValueState[Any, Any]:
        """Open the state of a namespace, creating what is missing (Storm: StateProvider.newState).

        :raises ConfigurationError: the store cannot be used as configured.
        :raises StoreUnavailableError: it does not answer.
        """

    @abstractmethod
    def describe(self) -> str:
        """Kind and place, no secrets."""


def namespace_of(component: str, task: int | str) -> str:
    """Storm's ``<component>-<task index>``; the component ``<topology>/<node>`` tells topologies apart."""
    return f"{component}-{task}"


ProviderConfig = dict[str, Json]


Writes: TypeAlias = "Mapping[str, str | None]"
Admit: TypeAlias = "Callable[[Marks], tuple[Marks, Step]]"


class Act(StrEnum):
    """How a step changes the data."""

    PREPARE = "prepare"
    """Adds writes to the prepared ones."""
    COMMIT = "commit"
    """Makes the prepared writes committed data."""
    DIRECT = "direct"
    """Makes writes committed data without preparing; the prepared layer is empty."""
    ROLLBACK = "rollback"
    """Drops the prepared writes."""


class LayeredState(KeyValueState[K, V]):
    """A KeyValueState over a store of texts. The store's steps decide by the functions of `protocol.checkpoint`."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._pending: dict[str, str | None] = {}

    # ---- the store ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _find(self, key: str) -> str | None:
        """The key's text in the prepared layer, else in the committed one."""

    @abstractmethod
    def _scan(self, *, committed_only: bool) -> Iterator[tuple[str, str]]:
        """Keys with values, ascending, from both layers (the prepared one wins) or from the committed one alone."""

    @abstractmethod
    def _step(self, act: Act, admit: Admit, writes: Writes) -> Step:
        """One atomic step: read the marks, decide, change the data if the decision is DONE, and write the new marks."""

    # ---- reads and writes --------------------------------------------------------------------------------------

    def get(self, key: K, default: Any = None) -> Any:
        text = self._text(encode_key(key))
        return default if text is None else decode_value(text, self.namespace)

    def _text(self, key: str) -> str | None:
        return self._pending[key] if key in self._pending else self._find(key)

    def put(self, key: K, value: V) -> None:
        self._pending[encode_key(key)] = encode_value(value)

    def delete(self, key: K) -> V | None:
        name = encode_key(key)
        text = self._text(name)
        self._pending[name] = None
        return None if text is None else decode_value(text, self.namespace)

    def iterator(self) -> Iterator[tuple[K, V]]:
        pending = dict(self._pending)  # a copy: writes meanwhile must not give a key twice
        for key, value in pending.items():
            if value is not None:
                yield self._decoded(key, value)
        for key, value in self._scan(committed_only=False):
            if key not in pending:
                yield self._decoded(key, value)

    def committed_items(self) -> Iterator[tuple[K, V]]:
        for key, value in self._scan(committed_only=True):
            yield self._decoded(key, value)

    def _decoded(self, key: str, value: str) -> tuple[K, V]:
        return decode_key(key, self.namespace), decode_value(value, self.namespace)

    # ---- steps -------------------------------------------------------------------------------------------------

    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        step = self._step(Act.PREPARE, lambda marks: admit_prepare(marks, txid, fence, self.namespace), self._pending)
        self._pending = {}
        return step

    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        if txid is not None:
            return self._step(Act.COMMIT, lambda marks: admit_commit(marks, txid, fence, self.namespace), {})
        self._step(Act.DIRECT, lambda marks: (admit_direct(marks, fence, self.namespace), Step.DONE), self._pending)
        self._pending = {}
        return Step.DONE

    def rollback(self, *, fence: int) -> None:
        self._step(Act.ROLLBACK, lambda marks: (admit_rollback(marks, fence, self.namespace), Step.DONE), {})
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}


OPTIONS = ("key_class", "value_class", "key_serializer", "value_serializer")
"""Options of every provider, each the name of a class: ``package.module:Class``."""


class Serializer(Protocol):
    """Converts objects to bytes and back (Storm: Serializer). Equal keys must give equal bytes."""

    def serialize(self, value: Any) -> bytes: ...

    def deserialize(self, data: bytes) -> Any: ...


class Form:
    """How the keys or the values are represented in JSON.

    :param kind: their class: a dataclass, or any type that JSON can be converted to; None: whatever JSON holds.
    :param serializer: converts them to bytes, stored as base64; None: JSON.
    """

    def __init__(self, role: str, kind: type | None = None, serializer: Serializer | None = None) -> None:
        self._what, self._kind, self._serializer = role, kind, serializer

    def plain(self, value: Any) -> Any:
        """The JSON value to store.

        :raises ValueError: not an object of the class, or it would come back changed.
        """
        kind = self._kind
        if kind is not None and type(value) is not kind:
            raise ValueError(f"the {self._what} {value!r:.80} of a state is no {kind.__qualname__}")
        if self._serializer is not None:
            data = self._serializer.serialize(value)
            if not isinstance(data, bytes):
                raise ValueError(f"the serializer of a state's {self._what}s gave {data!r:.80}, which is no bytes")
            return base64.b64encode(data).decode()
        if kind is None:
            return value
        plain = msgspec.to_builtins(value)
        if self._converted(plain) != value:
            raise ValueError(f"the {self._what} {value!r:.80} of a state would come back from JSON as another one")
        return plain

    def given(self, plain: Any) -> Any:
        """The object of a stored JSON value.

        :raises CorruptRecordError: the stored value is no such object.
        """
        try:
            if self._serializer is not None:
                return self._serializer.deserialize(base64.b64decode(plain, validate=True))
            return plain if self._kind is None else self._converted(plain)
        except (msgspec.ValidationError, binascii.Error, TypeError) as error:
            raise CorruptRecordError(
                f"a {self._what} of a state is {plain!r:.80}: {error}",
                "It was written with another class or serializer: use that, or a new state.",
            ) from error

    def _converted(self, plain: Any) -> Any:
        return msgspec.convert(plain, self._kind)


@dataclass(frozen=True)
class Forms:
    """The forms of keys and of values."""

    key: Form
    value: Form

    @classmethod
    def of(cls, config: Mapping[str, Json]) -> Forms:
        """:param config: may have any of `OPTIONS`; other names are ignored.
        :raises ConfigurationError: a class does not exist or does not fit.
        """
        return cls(_form("key", config), _form("value", config))


AS_THEY_ARE = Forms(Form("key"), Form("value"))


def split_config(config: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """The options for keys and values, and the rest, which belongs to the provider."""
    forms = {name: config[name] for name in OPTIONS if name in config}
    return forms, {name: value for name, value in config.items() if name not in forms}


def _form(role: str, config: Mapping[str, Json]) -> Form:
    kind = _class(f"{role}_class", config)
    serializer = _class(f"{role}_serializer", config)
    if serializer is None:
        return Form(role, kind)
    try:
        made = serializer()
    except TypeError as error:
        raise ConfigurationError(f"{role}_serializer: {error}", "It is made without arguments.") from error
    for method in ("serialize", "deserialize"):
        if not callable(getattr(made, method, None)):
            raise ConfigurationError(
                f"{role}_serializer {config[f'{role}_serializer']!r} has no {method}()",
                "It needs serialize(value) -> bytes and deserialize(data).",
            )
    return Form(role, kind, made)


def _class(option: str, config: Mapping[str, Json]) -> type | None:
    name = config.get(option)
    if name is None:
        return None
    module, _, attribute = str(name).replace(":", ".").rpartition(".")
    try:
        named_class = getattr(import_module(module or "builtins"), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{option} {name!r}: there is no module {error.name!r}",
            "Check the spelling, and that it is installed where this runs.",
        ) from error
    if not isinstance(named_class, type):
        raise ConfigurationError(f"{option} {name!r} is no class", "Name one as in 'package.module:Class'.")
    return named_class


GROUP = "airflow_trident.state_providers"
"""Entry points of other packages: a name, and the ``module:Class`` of a StateProvider."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Location of a provider of this package. `extra`: what to install for its driver, empty if nothing."""

    target: str
    extra: str = ""


BUILT_IN: dict[str, BuiltIn] = {
    "memory": BuiltIn("airflow_trident.states.keyvalue.memory:MemoryStateProvider"),
    "sqlite": BuiltIn("airflow_trident.states.keyvalue.sqlite:SqliteStateProvider"),
    "redis": BuiltIn("airflow_trident.states.keyvalue.redis:RedisStateProvider", "redis"),
}
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[:.]([A-Za-z_]\w*)\Z")


def make_provider(name: str, config: ProviderConfig, built_in: Mapping[str, BuiltIn] = BUILT_IN) -> StateProvider:
    """The provider with its configuration as keyword arguments; opens nothing.

    :raises ConfigurationError: no or several providers of that name, not a provider, or wrong configuration.
    :raises MissingExtraError: its driver is not installed.
    """
    kind = provider_class(name, built_in)
    try:
        return kind(**config)
    except TypeError as error:
        raise ConfigurationError(
            f"the state provider {name!r} cannot be made with the configuration {sorted(config)}: {error}",
            f"See the parameters of {kind.__module__}.{kind.__qualname__}.",
        ) from error


def provider_class(name: str, built_in: Mapping[str, BuiltIn] = BUILT_IN) -> type[StateProvider]:
    """See :func:`make_provider`."""
    providers: list[tuple[str, str, EntryPoint | BuiltIn]] = []
    if name in built_in:
        providers.append(("airflow-trident", built_in[name].target, built_in[name]))
    named = {(_owner(point), point.value): point for point in _registered(tuple(sys.path)).select(name=name)}
    providers += [(owner, target, point) for (owner, target), point in named.items()]
    if len(providers) > 1:
        whose = ", ".join(f"{target} of {owner}" for owner, target, _ in providers)
        raise ConfigurationError(
            f"several state providers are named {name!r}: {whose}", "Uninstall one, or name its class by dotted path."
        )
    if providers:
        owner, target, origin = providers[0]
        extra = f"airflow-trident[{origin.extra}]" if isinstance(origin, BuiltIn) and origin.extra else ""
        return _load(name, target, extra or f"what {owner} needs for it")
    if _PATH.match(name):
        return _load(name, name, "")
    names = sorted({*built_in, *_registered(tuple(sys.path)).names})
    raise ConfigurationError(
        f"no state provider is named {name!r}",
        f"Known are {', '.join(names)}, or give a class as 'package.module:Class'.",
    )


@lru_cache(maxsize=1)
def _registered(_search_path: tuple[str, ...]) -> EntryPoints:
    """Python reads the metadata of everything that is installed each time: 0.05 s, for each state of each DAG file."""
    return entry_points(group=GROUP)


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _load(name: str, target: str, needs: str) -> type[StateProvider]:
    """:param needs: what to install if a module is missing; empty if the user named the class."""
    match = _PATH.match(target)
    if match is None:
        raise ConfigurationError(
            f"the state provider {name!r} is registered as {target!r}", "An entry point says 'package.module:Class'."
        )
    try:
        module = import_module(match[1])
    except ModuleNotFoundError as error:
        if needs:
            raise MissingExtraError(
                f"the state provider {name!r} needs the module {error.name!r}, which is not installed",
                f"Install {needs}.",
            ) from error
        raise ConfigurationError(
            f"the state provider {name!r} cannot be imported: no module {error.name!r}",
            "Check the spelling, and that the module is installed where this runs.",
        ) from error
    provider: Any = getattr(module, match[2], None)
    if not (isinstance(provider, type) and issubclass(provider, StateProvider)):
        problem = "does not exist" if provider is None else "is no StateProvider"
        raise ConfigurationError(
            f"the state provider {name!r}: {match[2]!r} in {match[1]!r} {problem}",
            "It should be a subclass of airflow_trident.states.keyvalue.base.StateProvider.",
        )
    return provider
