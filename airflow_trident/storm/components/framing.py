"""Messages as bytes between this process and a child.

There are two carriers: Node's channel has one JSON object per line; Storm's multilang has JSON and then a line ``end``.
A decoder takes bytes in any pieces and returns complete messages.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from airflow_trident.errors import ChildProtocolError

Message: TypeAlias = dict[str, Any]

MAX_MESSAGE_BYTES = 64 << 20
SHOWN_BYTES = 120
_END = b"\nend\n"
_DECODER = msgspec.json.Decoder()


def encode_node(message: object) -> bytes:
    """One line for Node's channel. NaN and infinity become null, because Node exits at a line that is no JSON."""
    return _json(message) + b"\n"


def encode_multilang(message: object) -> bytes:
    """JSON and a line ``end``."""
    return _json(message) + _END


def _json(message: object) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can only escape in ASCII
        return json.dumps(_plain(message), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return msgspec.to_builtins(value)


class Decoder(ABC):
    """Takes bytes in any pieces, returns complete messages.

    :param max_message_bytes: the longest message allowed, which also limits the buffer.
    :param stray: gets other text that comes before a message.
    :param subject: the child's name in errors.
    """

    end: bytes
    """What a message ends with."""

    def __init__(
        self,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        stray: Callable[[bytes], None] | None = None,
        *,
        subject: str = "the child",
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._stray = stray or (lambda _: None)
        self._what = subject
        self._buffer = bytearray()
        self._searched_bytes = 0

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes, in order.

        :raises ChildProtocolError: something is no message, or is longer than allowed.
        """
        buffer = self._buffer
        buffer += data
        if buffer.find(self.end, self._searched_bytes) < 0:
            self._searched_bytes = max(0, len(buffer) - len(self.end) + 1)
            self._require_short(len(buffer))
            return []
        *whole, rest = bytes(buffer).split(self.end)
        self._buffer = bytearray(rest)
        self._searched_bytes = max(0, len(rest) - len(self.end) + 1)
        messages: list[Message] = []
        try:
            for part in whole:
                self._require_short(len(part))
                if (message := self._of(part)) is not None:
                    messages.append(message)
            self._require_short(len(rest))
        except ChildProtocolError as error:
            error.before = tuple(messages)
            raise
        return messages

    @abstractmethod
    def _of(self, part: bytes) -> Message | None:
        """One message; None if the part may be ignored."""

    def _require_short(self, size_bytes: int) -> None:
        if size_bytes > self._max_message_bytes:
            self._buffer.clear()
            raise ChildProtocolError(
                f"{self._what} said a message that is longer than {self._max_message_bytes} bytes",
                "Raise max_message_bytes, or let the component say less at a time.",
            )

    def _refused(self, part: bytes) -> ChildProtocolError:
        return ChildProtocolError(
            f"{self._what} said something that is no message: {_shown(part)}",
            "Its messages must stand alone on their carrier: let it print to stderr.",
        )


class NodeDecoder(Decoder):
    """One JSON object per line. Node's own objects (their ``cmd`` begins with ``NODE_``) are ignored."""

    end = b"\n"

    def _of(self, part: bytes) -> Message | None:
        if not part.strip():
            return None
        message = _parsed(part)
        if message is None:
            raise self._refused(part)
        command = message.get("cmd")
        return None if isinstance(command, str) and command.startswith("NODE_") else message


class MultilangDecoder(Decoder):
    """JSON objects, each followed by a line ``end``.

    Other output of a component comes on the same pipe, before the next message: then the last line is the message, and
    the rest goes to `stray`. Two messages before one ``end`` are refused, as Storm's parser does: one of them would be
    lost.

    :param strict: such output is an error instead.
    """

    end = _END

    def __init__(
        self,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        stray: Callable[[bytes], None] | None = None,
        *,
        subject: str = "the child",
        strict: bool = False,
    ) -> None:
        super().__init__(max_message_bytes, stray, subject=subject)
        self._strict = strict

    def _of(self, part: bytes) -> Message | None:
        while part.startswith(b"end\n"):  # its line break belonged to the message before
            part = part[4:]
        if part == b"end" or not part.strip():
            return None
        message = _parsed(part)
        if message is not None:
            return message
        before, _, last = part.rpartition(b"\n")
        message = None if self._strict or not before else _parsed(last)
        if message is None:
            raise self._refused(part)
        if _has_message(before):
            raise ChildProtocolError(
                f"{self._what} said several messages before one line 'end': {_shown(part)}",
                "Each message needs a line 'end' of its own behind it; let it print other things to stderr.",
            )
        self._stray(before)
        return message


def _parsed(part: bytes) -> Message | None:
    """The JSON object, or None if it is none."""
    try:
        message = _DECODER.decode(part)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        try:  # msgspec refuses NaN and half a surrogate pair
            message = json.loads(part.decode())
        except (ValueError, RecursionError):
            return None
    return message if isinstance(message, dict) else None


_TEXTS = json.JSONDecoder()
_COMMANDS = ("emit", "ack", "fail", "log", "error", "sync", "metrics")
"""What a component of Storm says (multilang protocol; `ShellBolt` and `ShellSpout`)."""


def _has_message(text: bytes) -> bool:
    """Does a line begin with a message of a component: an object with one of multilang's commands, or its ``pid``
    alone? What a component logs may be JSON, and have these fields."""
    if b'"command"' not in text and b'"pid"' not in text:
        return False
    whole = text.decode(errors="replace")
    for line in re.finditer(r"^[ \t]*(?=\{)", whole, re.MULTILINE):
        try:
            message, _ = _TEXTS.raw_decode(whole, line.end())
        except (ValueError, RecursionError):
            continue
        if message.get("command") in _COMMANDS or message.keys() == {"pid"}:
            return True
    return False


def _shown(part: bytes) -> str:
    return repr(part[:SHOWN_BYTES])[1:] + ("..." if len(part) > SHOWN_BYTES else "")
