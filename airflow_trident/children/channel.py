"""One child process and what goes to and fro, in one thread: it reads while it writes, so that neither side waits for
the other for ever.

The child has a session of its own, so that its group can be killed, and dies with the thread that started it (Linux).
What it prints is drained, and the last of it kept for errors.
"""

from __future__ import annotations

import ctypes
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from airflow_trident.children.framing import (
    MAX_MESSAGE_BYTES,
    Decoder,
    Message,
    MultilangDecoder,
    NodeDecoder,
    encode_multilang,
    encode_node,
)
from airflow_trident.errors import ChildError, ConfigurationError

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


class Carrier(StrEnum):
    """Where messages travel."""

    NODE = "node"
    """A socket whose number is in NODE_CHANNEL_FD (Node: child_process.fork); stdout and stderr are logs."""
    MULTILANG = "multilang"
    """stdin and stdout (Storm: ShellProcess); stderr is the log."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and how it is started.

    :param env: in addition to the environment of this process; a PATH goes behind the one that is there.
    """

    argv: tuple[str, ...]
    carrier: Carrier
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    max_message_bytes: int = MAX_MESSAGE_BYTES
    strict: bool = False

    def __str__(self) -> str:
        return " ".join(self.argv)


class Channel:
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
        self._program = program
        self._tail = bytearray()
        self._logged = 0
        self._queue = bytearray()
        self._writing = False
        self._ended: str | None = None
        self._socket: socket.socket | None = None
        self._encode: Callable[[object], bytes]
        self._decoder: Decoder
        if program.carrier is Carrier.NODE:
            self._encode, self._decoder = encode_node, NodeDecoder(program.max_message_bytes, self._stray)
            self._process, self._in, self._out, self._logs = self._start_node()
        else:
            self._encode = encode_multilang
            self._decoder = MultilangDecoder(program.max_message_bytes, self._stray, strict=program.strict)
            self._process, self._in, self._out, self._logs = self._start_multilang()
        self._select = selectors.DefaultSelector()
        for number in {self._in, self._out, *self._logs}:
            os.set_blocking(number, False)
        for number in (self._in, *self._logs):
            self._select.register(number, selectors.EVENT_READ)

    # ---- start -------------------------------------------------------------------------------------------------

    def _start_node(self) -> tuple[subprocess.Popen[bytes], int, int, set[int]]:
        mine, theirs = socket.socketpair()
        number = theirs.fileno()
        said = {"NODE_CHANNEL_FD": str(number), "NODE_CHANNEL_SERIALIZATION_MODE": "json"}
        try:
            process = self._popen(subprocess.DEVNULL, said, (number,))
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        self._socket = mine
        assert process.stdout is not None
        assert process.stderr is not None
        return process, mine.fileno(), mine.fileno(), {process.stdout.fileno(), process.stderr.fileno()}

    def _start_multilang(self) -> tuple[subprocess.Popen[bytes], int, int, set[int]]:
        process = self._popen(subprocess.PIPE, {}, ())
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        return process, process.stdout.fileno(), process.stdin.fileno(), {process.stderr.fileno()}

    def _popen(self, stdin: int, said: Mapping[str, str], passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
        program = self._program
        if program.cwd is not None and not os.path.isdir(program.cwd):
            raise ConfigurationError(
                f"{self.what}: there is no folder {program.cwd!r} on {socket.gethostname()}",
                "It must be there wherever the topology runs.",
            )
        try:
            return subprocess.Popen(
                program.argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=program.cwd,
                env=_environment(program.env, said),
                pass_fds=passed,
                bufsize=0,
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - one call of the system, and nothing of Python's
            )
        except OSError as error:
            raise ConfigurationError(
                f"{self.what}: {program.argv[0]!r} cannot be started on {socket.gethostname()}: "
                f"{error.strerror or error} (the command is {program!s})",
                "Install it there and wherever else the topology runs, or name it by its whole path.",
            ) from error

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
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        elif self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

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
        if self._socket is not None:
            self._socket.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _environment(given: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    env = {**os.environ, **given, **said}
    if "PATH" in given and os.environ.get("PATH"):
        env["PATH"] = f"{os.environ['PATH']}{os.pathsep}{given['PATH']}"
    return env


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Called in the child before its program: it is killed when the thread dies that started it, whatever that died of.

    (`finally` does not run in a Python worker that Spark kills.)
    """
    libc = _LIBC
    if libc is None:
        return None

    def run() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return run
