"""What is said to a bolt in another program, and who listens to what it says: one class for each dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from airflow_trident.children.channel import Channel
from airflow_trident.children.framing import MAX_MESSAGE_BYTES, Message
from airflow_trident.errors import ChildProtocolError, ConfigurationError
from airflow_trident.types import Schema

DEFAULT_STREAM = "default"
"""The stream of what names none (Storm: Utils.DEFAULT_STREAM_ID)."""


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """How much and how long.

    :param max_pending: rows that are given and whose outputs are not whole (Storm: topology.shellbolt.max.pending).
    :param silence_s: a multilang child that says nothing for so long while it is waited for is dead.
    :param tuple_timeout_s: a child that acknowledges nothing for so long while it is waited for is dead; None: only the
        attempt's time-out ends it.
    :param strict: text beside messages on a multilang child's stdout is an error.
    """

    max_pending: int = 512
    start_timeout_s: float = 60.0
    silence_s: float = 30.0
    tuple_timeout_s: float | None = None
    stop_timeout_s: float = 10.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("max_pending", "start_timeout_s", "silence_s", "tuple_timeout_s", "stop_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value!r}", "It must be above zero.")
        if self.max_message_bytes < 1024:
            raise ConfigurationError(f"max_message_bytes is {self.max_message_bytes!r}", "Allow 1024 at least.")


@dataclass(frozen=True, kw_only=True)
class BoltPlace:
    """Where a bolt runs.

    :param fields: names of the values of its rows.
    :param streams: stream id -> what it emits there.
    :param matched: must each emit belong to exactly one row?
    """

    node: str
    fields: tuple[str, ...]
    streams: Mapping[str, Schema]
    matched: bool
    topology: str = ""
    txid: int = 0
    attempt: int = 0
    partition: int = 0
    partitions: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """What a component may read of it."""
        return {
            "TRIDENT_TOPOLOGY": self.topology,
            "TRIDENT_NODE": self.node,
            "TRIDENT_TXID": str(self.txid),
            "TRIDENT_ATTEMPT": str(self.attempt),
            "TRIDENT_PARTITION": str(self.partition),
        }


class BoltListener(Protocol):
    """What a child says, in our words. Rows are numbers, in the order in which they were given."""

    def ready(self) -> None:
        """It may get rows."""

    def refused(self, text: str, *, missing: bool = False) -> None:
        """It did not begin. `missing`: what it is made of is not there."""

    def emitted(self, rows: tuple[int, ...], stream: str, values: Any) -> None:
        """`values`: a list, or a dict of fields."""

    def done(self, row: int) -> None:
        """It acknowledged the row."""

    def failed(self, row: int, text: str) -> None:
        """It gave the row up."""


class Talk(ABC):
    """One conversation with a child. It knows messages and no time."""

    closes_input: ClassVar[bool] = False
    """Does the end of its input tell it to end? Else `bye` does."""

    def __init__(self, channel: Channel, place: BoltPlace) -> None:
        self._channel = channel
        self._place = place

    @abstractmethod
    def open(self) -> None:
        """Say hello; an answer follows."""

    @abstractmethod
    def hear(self, message: Message) -> None:
        """Take what it says.

        :raises ChildProtocolError: it means nothing.
        """

    def beat(self) -> None:
        """Send a heartbeat."""

    def bye(self) -> None:
        """Ask it to end."""

    def ended_well(self, code: int) -> bool:
        """Is this how it ends when nothing is wrong?"""
        return code == 0

    def close(self) -> None:
        """Clear away what was made for it."""

    def unknown(self, message: Message) -> ChildProtocolError:
        return self.error(f"said {_short(message)}, which nobody asked for")

    def error(self, text: str, cure: str = "Mend the component, or name its protocol.") -> ChildProtocolError:
        return ChildProtocolError(f"{self._channel.what} {text}", cure)


class BoltTalk(Talk):
    """`running.py` decides when what is said; :class:`BoltListener` is told what is heard."""

    window: int
    """How many rows it may have at a time."""
    acknowledges: ClassVar[bool] = True
    """Does it say when it is done with a row?"""
    proves_life: ClassVar[bool] = False
    """Is `beat` answered, so that silence means death?"""
    beat_s: float | None = None
    """How often it gets a heartbeat while it is waited for."""

    def __init__(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> None:
        super().__init__(channel, place)
        self._listener = listener

    @abstractmethod
    def give(self, row: int, values: tuple[Any, ...]) -> int:
        """Give it a row; gives the size in bytes. It may lie here until `flush`."""

    def flush(self) -> None:
        """Send what lies here."""

    def still(self, *, last: bool) -> None:
        """It has all that it may have at the moment (`last`: all that there is), and is not done with it."""

    def last_call(self) -> None:
        """It is done with all rows, and may give what it kept back."""

    @property
    def called(self) -> bool:
        """Has it answered the last call?"""
        return True


def _short(message: object) -> str:
    text = repr(message)
    return text if len(text) <= 200 else text[:200] + "..."


@dataclass
class PendingRow:
    """A row that was given and whose outputs were not given out."""

    values: tuple[Any, ...]
    size_bytes: int
    emits: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    given_s: float = 0.0
    done: bool = False
