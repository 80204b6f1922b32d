"""One child process and what goes to and fro, in one thread: it reads while it writes, so that neither side waits for
the other for ever.

The child has a session of its own, so that its group can be killed, and dies with the thread that started it (Linux).
What it prints is drained, and the last of it kept for errors.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from airflow_trident.children.framing import (
    Decoder,
    Message,
    MultilangDecoder,
    NodeDecoder,
    encode_multilang,
    encode_node,
)
from airflow_trident.children.starting import Carrier, Program, start
from airflow_trident.closing import Closing
from airflow_trident.errors import ChildError

_log = logging.getLogger(__name__)

TAIL_BYTES = 64 << 10
"""So much of what a child prints is kept."""
SHOWN_BYTES = 1500
"""So much of that comes into an error."""
LOGGED_LINES = 100
"""So many lines of one child are logged."""
READ_BYTES = 256 << 10
_WRITE_BYTES = 64 << 10
_LOOK_S = 0.02
_TERM_S = 2.0


class Channel(Closing):
    """A running child. Leaving the ``with`` block kills what is left of its process group.

    :param what: who it is, for errors: ``ShellBolt 'python split.py' in each-1``.
    :raises ConfigurationError: the program or its folder is not there, or may not be run.
    """

    def __init__(self, program: Program, what: str = "") -> None:
        self.what = what or f"the child {program!s}"
        self.eof = False
        """Will it say nothing more?"""
        self.cut_off = False
        """Did it end with something unread, or before all was written?"""
        self._tail = bytearray()
        self._logged = 0
        self._queue = bytearray()
        self._writing = False
        self._ended: str | None = None
        self._encode: Callable[[object], bytes]
        self._decoder: Decoder
        if program.carrier is Carrier.NODE:
            self._encode, self._decoder = encode_node, NodeDecoder(program.max_message_bytes, self._stray)
        else:
            self._encode = encode_multilang
            self._decoder = MultilangDecoder(program.max_message_bytes, self._stray, strict=program.strict)
        self._started = start(program, self.what)
        self._process, self._in, self._out = self._started.process, self._started.reads, self._started.writes
        self._logs = set(self._started.logs)
        self._select = selectors.DefaultSelector()
        for number in (self._in, *self._logs):
            self._select.register(number, selectors.EVENT_READ)

    # ---- talking -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def backlog_bytes(self) -> int:
        """What was sent and is not written yet."""
        return len(self._queue)

    def send(self, message: object) -> int:
        """Put a message behind those that wait to be written; gives its bytes. `pump` writes them."""
        data = self._encode(message)
        self._queue += data
        return len(data)

    def pump(self, wait_s: float = 0.0) -> list[Message]:
        """Write what goes, read what came; at most `wait_s` seconds long, and until anything happens.

        :raises ChildProtocolError: something that came is no message.
        """
        self._flush()
        self._watch_writing()
        messages: list[Message] = []
        for key, mask in self._select.select(wait_s):
            if key.fd in self._logs:
                self._drain(key.fd)
                continue
            if mask & selectors.EVENT_WRITE:
                self._flush()
            if mask & selectors.EVENT_READ:
                messages += self._read()
        return messages

    def _watch_writing(self) -> None:
        wanted = bool(self._queue)
        if wanted == self._writing:
            return
        if self._in == self._out:
            if self.eof:
                return
            self._select.modify(self._in, selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0))
        elif wanted:
            self._select.register(self._out, selectors.EVENT_WRITE)
        else:
            self._select.unregister(self._out)
        self._writing = wanted

    def _flush(self) -> None:
        queue = self._queue
        try:
            while queue:
                with memoryview(queue) as view:
                    written = os.write(self._out, view[:_WRITE_BYTES])
                del queue[:written]
        except BlockingIOError:
            return
        except OSError:  # it is gone: how it ended is told by who reads
            self.cut_off = True
            queue.clear()

    def _read(self) -> list[Message]:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # it left something unread
            self.cut_off = True
            data = b""
        if data:
            return self._decoder.feed(data)
        self.eof = True
        self._select.unregister(self._in)
        if self._in == self._out:
            self._writing = False
            self.cut_off |= bool(self._queue)
            self._queue.clear()
        return []

    # ---- what it prints ----------------------------------------------------------------------------------------

    def _drain(self, number: int) -> None:
        try:
            data = os.read(number, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._select.unregister(number)
            self._logs.discard(number)
            return
        self._printed(data, logging.INFO)

    def _stray(self, text: bytes) -> None:
        self._printed(text + b"\n", logging.WARNING)

    def _printed(self, data: bytes, level: int) -> None:
        self._tail += data[-TAIL_BYTES:]
        del self._tail[:-TAIL_BYTES]
        if self._logged > LOGGED_LINES:
            return
        for line in data[:TAIL_BYTES].decode(errors="replace").splitlines():
            self.log(level, line)

    def log(self, level: int, line: str) -> None:
        """Log a line of the child's; only the first lines of a child are."""
        self._logged += 1
        if self._logged <= LOGGED_LINES:
            _log.log(level, "%s: %s", self.what, line)
        elif self._logged == LOGGED_LINES + 1:
            _log.log(level, "%s: says more than %d lines; the rest is not logged", self.what, LOGGED_LINES)

    @property
    def tail(self) -> str:
        """The last that it printed."""
        return bytes(self._tail[-SHOWN_BYTES:]).decode(errors="replace").strip()

    # ---- the end -----------------------------------------------------------------------------------------------

    def close_input(self) -> None:
        """Nothing more is sent: the child sees the end of file. What is queued and not written is lost."""
        self._queue.clear()
        self._watch_writing()
        self._started.close_input()

    def ended(self, timeout_s: float, hear: Callable[[Message], None], look: Callable[[], None] | None = None) -> int:
        """Wait until the child has ended by itself; gives its exit code, or minus the signal.

        :param hear: gets what it says until then.
        :param look: called now and then; what it raises ends the wait.
        :raises ChildError: it did not within `timeout_s`; it is killed.
        """
        end_s = time.monotonic() + timeout_s
        while not (self.eof and self._gone):
            if time.monotonic() > end_s:
                if self._gone:  # a child of the child holds its pipes open
                    break
                self.kill(gently=True)
                raise self.error(f"did not stop within {timeout_s:g} s", "Raise stop_timeout_s, or mend its shutdown.")
            if look is not None:
                look()
            for message in self.pump(_LOOK_S):
                hear(message)
        return self._reaped()

    def kill(self, *, gently: bool = False) -> None:
        """End its process group: SIGKILL, or SIGTERM before and some time for it. Doing it again is free."""
        if self._ended is not None:
            return
        if gently and not self._gone:
            self._signal(signal.SIGTERM)
            self._wait(_TERM_S)
        self._reaped()

    @property
    def _gone(self) -> bool:
        """Has it ended? It stays a zombie, so that the number of its group is not another's."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS until Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _wait(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while not self._gone and time.monotonic() < end_s:
            time.sleep(_LOOK_S)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _reaped(self) -> int:
        """Kills what is left of the group."""
        if self._ended is None:
            self._signal(signal.SIGKILL)
            self._ended = _how(self._process.wait())
            for number in list(self._logs):
                self._drain(number)
        return self._process.wait()

    def close(self) -> None:
        """Kill what is left of it and give back what it needed."""
        self.kill()
        self._select.close()
        self._started.close()

    # ---- errors ------------------------------------------------------------------------------------------------

    def error(self, text: str, cure: str = "", kind: type[ChildError] = ChildError) -> ChildError:
        """An error that says who, what, how it ended, if it did, and what it printed last."""
        return kind(f"{self.what} {text}{self.last_words()}", cure)

    def last_words(self) -> str:
        """`` (ended with code 7); it said last: ...``"""
        if self._ended is None and self._gone:
            self._reaped()
        ended = f" (it {self._ended})" if self._ended else ""
        return f"{ended}; it said last: {self.tail}" if self.tail else ended

    def lost(self, text: str) -> ChildError:
        """Of a child that ended before it should have: kills what is left of it."""
        self._wait(_TERM_S)  # end of file comes a moment before the end of the process
        self.kill()
        return ChildError(f"{self.what} {self._ended} {text}{f'; it said last: {self.tail}' if self.tail else ''}")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"was ended by signal {-code}"
