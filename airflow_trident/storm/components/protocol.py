"""The conversation with a component in another program: each dialect is a subclass of `Talk`.

Converts a child's JSON to values. Times, bytes and decimals are texts in JSON (ISO 8601, base64, digits).
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar, Optional, Protocol, TypeAlias, TypedDict

import msgspec

from airflow_trident.errors import ChildProtocolError, ConfigurationError
from airflow_trident.names import require_counts, require_durations, require_flags, without_none
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES, Message
from airflow_trident.storm.components.process import Channel, Program
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Schema, members

DEFAULT_STREAM = "default"
"""The stream of emits that name none (Storm: Utils.DEFAULT_STREAM_ID)."""


class OnFail(StrEnum):
    """What happens to a row that a component fails."""

    ATTEMPT = "attempt"
    """The attempt fails."""
    DROP = "drop"
    """The row and its emits are dropped, and counted in the log."""


def on_fail(value: str) -> OnFail:
    try:
        return OnFail(value)
    except ValueError:
        raise ConfigurationError(f"fail is {value!r}", 'Use "attempt" or "drop".') from None


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """Limits of size and time.

    :param max_pending: the most rows that the child has and whose outputs are incomplete (Storm:
        topology.shellbolt.max.pending).
    :param silence_s: a multilang child that sends nothing for so long, while it is waited for, is killed. After its
        last row a bolt that never answered a heartbeat is waited for so long, and then its input is closed.
    :param tuple_timeout_s: a child that acknowledges nothing for so long, while it is waited for, is killed. None: only
        the attempt's time-out ends it.
    :param strict: other text on a multilang child's stdout is an error.
    """

    max_pending: int = 512
    start_timeout_s: float = 60.0
    silence_s: float = 30.0
    tuple_timeout_s: float | None = None
    stop_timeout_s: float = 10.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    strict: bool = False

    def __post_init__(self) -> None:
        require_flags("a child process", strict=self.strict)
        require_counts("a child process", max_pending=self.max_pending)
        require_counts("a child process", least=1024, max_message_bytes=self.max_message_bytes)
        require_durations(
            "a child process",
            start_timeout_s=self.start_timeout_s,
            silence_s=self.silence_s,
            stop_timeout_s=self.stop_timeout_s,
            **without_none(tuple_timeout_s=self.tuple_timeout_s),
        )


@dataclass(frozen=True, kw_only=True)
class BoltPlace:
    """Where a bolt runs.

    :param node: of the plan, for errors.
    :param component: the name that the bolt hears; default: the node.
    :param fields: names of the values of its rows.
    :param streams: stream id -> the fields that it emits there.
    :param matched: must each emit belong to exactly one row?
    """

    node: str
    fields: tuple[str, ...]
    streams: Mapping[str, Schema]
    matched: bool
    component: str = ""
    topology: str = ""
    txid: int = 0
    attempt: int = 0
    partition: int = 0
    partitions: int = 1

    @property
    def name(self) -> str:
        """The component's name: as declared, where a name is declared."""
        return self.component or self.node

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for the component."""
        return {
            "TRIDENT_TOPOLOGY": self.topology,
            "TRIDENT_NODE": self.node,
            "TRIDENT_TXID": str(self.txid),
            "TRIDENT_ATTEMPT": str(self.attempt),
            "TRIDENT_PARTITION": str(self.partition),
        }


class BoltListener(Protocol):
    """Gets what a child says, the same for all protocols. Rows are numbers, in the order in which they were given."""

    def ready(self) -> None:
        """The child may get rows."""

    def refused(self, text: str, *, missing: bool = False) -> None:
        """The child did not begin. `missing`: its module is not installed."""

    def emitted(self, rows: tuple[int, ...], stream: str, values: Any) -> None:
        """`values`: a list, or a dict of fields."""

    def done(self, row: int) -> None:
        """The child acknowledged the row."""

    def failed(self, row: int, text: str) -> None:
        """The child failed the row."""


class Talk(ABC):
    """One conversation with a child. It handles messages, not time-outs."""

    closes_input: ClassVar[bool] = False
    """Does the child end when its input ends? If not, `bye` ends it."""

    def __init__(self, channel: Channel, place: BoltPlace) -> None:
        self._channel = channel
        self._place = place

    @abstractmethod
    def open(self) -> None:
        """Send the handshake; an answer follows."""

    @abstractmethod
    def hear(self, message: Message) -> None:
        """Take a message of the child.

        :raises ChildProtocolError: the message has no meaning in this protocol.
        """

    def beat(self) -> None:
        """Send a heartbeat."""

    def bye(self) -> None:
        """Ask the child to end."""

    def ended_well(self, code: int) -> bool:
        """Is this the exit code of a child that ended well?"""
        return code == 0

    def close(self) -> None:
        """Delete what was created for the child."""

    def unknown(self, message: Message) -> ChildProtocolError:
        return self.error(f"said {_short(message)}, which nobody asked for")

    def error(self, text: str, cure: str = "Mend the component, or name its protocol.") -> ChildProtocolError:
        return ChildProtocolError(f"{self._channel.what} {text}", cure)


class BoltTalk(Talk):
    """The conversation with a bolt: `running.py` calls it, and it calls a :class:`BoltListener`."""

    window: int
    """How many rows the bolt may have at a time."""
    acknowledges: ClassVar[bool] = True
    """Does the bolt acknowledge rows?"""
    proves_life: ClassVar[bool] = False
    """Does the bolt answer `beat`, so that silence means that it hangs?"""
    beat_s: float | None = None
    """Seconds between heartbeats while the bolt is waited for."""

    def __init__(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> None:
        super().__init__(channel, place)
        self._listener = listener

    @abstractmethod
    def give(self, row: int, values: tuple[Any, ...]) -> int:
        """Send a row; returns its size in bytes. It may be buffered until `flush`."""

    def flush(self) -> None:
        """Send buffered rows."""

    def still(self, *, last: bool) -> None:
        """Called while the bolt has a full window of rows (`last`: all rows) and has not acknowledged them."""

    def last_call(self) -> None:
        """All rows are acknowledged: let the bolt emit what it held back."""

    @property
    def called(self) -> bool:
        """Has the bolt answered the last call?"""
        return True

    @property
    def deaf(self) -> bool:
        """Has the bolt answered no heartbeat at all, as one that does not know them?"""
        return False


def _short(value: object, longest: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "..."


@dataclass
class PendingRow:
    """A row that the child got and whose emits have not been given out yet."""

    values: tuple[Any, ...]
    size_bytes: int
    emits: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    given_s: float = 0.0
    done: bool = False


class ChildComponent(ABC):
    """What running a bolt in another program needs to know of it."""

    strict_streams: ClassVar[bool] = True
    """Is an emit on an undeclared stream an error? If not, such emits are counted and dropped."""
    limits: ChildLimits
    fail: OnFail

    @abstractmethod
    def program(self, place: BoltPlace) -> Program:
        """The program to start."""

    @abstractmethod
    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> BoltTalk:
        """The conversation with a started child."""

    @abstractmethod
    def describe(self) -> str:
        """The bolt as text, the same in every process: it is part of the definition of a topology."""

    def __str__(self) -> str:
        return self.describe()


STRING = "string"
Reader: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""Makes a tuple of a list of values, or of a dict of fields. Raises ValueError."""

_TEXTS: dict[str, Any] = {
    "binary": bytes,
    "date": datetime.date,
    "time": datetime.time,
    "timestamp": datetime.datetime,
    INTERVAL: datetime.timedelta,
}


def _needs(type_text: str) -> bool:
    """Is a value, or a part of it, a text in JSON and something else here?"""
    parts = members(type_text)
    if type_text.startswith("map<") and parts[0].type != STRING:
        return True
    if parts:
        return any(_needs(part.type) for part in parts)
    return type_text in _TEXTS or type_text.startswith("decimal")


def reader_of(schema: Schema) -> Reader:
    """A reader for these fields. Types are checked later, as for the outputs of a function."""
    names = tuple(field.name for field in schema)
    texts = [(place, field.type, _python(field.type)) for place, field in enumerate(schema) if _needs(field.type)]

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, dict):
            values: Any = tuple(map(value.get, names))
        elif isinstance(value, list) and len(value) == len(names):
            values = tuple(value)
        else:
            raise ValueError(f"{_short(value, 80)}, where {len(names)} values ({', '.join(names)}) are declared")
        return _with_texts(values, texts) if texts else values

    return read


def _with_texts(values: tuple[Any, ...], texts: list[tuple[int, str, Any]]) -> tuple[Any, ...]:
    whole = list(values)
    for place, name, kind in texts:
        try:
            whole[place] = msgspec.convert(whole[place], kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"{_short(whole[place], 80)}, where {name} is declared: {error}") from error
    return tuple(whole)


def _python(type_text: str) -> Any:
    """The type to which msgspec converts a JSON value."""
    if type_text in _TEXTS:
        return Optional[_TEXTS[type_text]]  # noqa: UP045 - of a value
    if type_text.startswith("decimal"):
        return Decimal | None
    if not _needs(type_text):
        return Optional[int] if type_text in WHOLE_TYPES else Any  # noqa: UP045 - of a value
    inner = [_python(member.type) for member in members(type_text)]
    if type_text.startswith("array<"):
        return Optional[list[inner[0]]]  # type: ignore[valid-type] # noqa: UP045
    if type_text.startswith("map<"):
        named_by = members(type_text)[0].type
        key = str if named_by == STRING else int if named_by in WHOLE_TYPES else inner[0]
        return Optional[dict[key, inner[1]]]  # type: ignore[valid-type] # noqa: UP045
    named = {member.name: member_type for member, member_type in zip(members(type_text), inner, strict=True)}
    return Optional[TypedDict("Members", named, total=False)]  # type: ignore[operator] # noqa: UP045
