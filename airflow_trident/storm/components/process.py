"""Messages to and from one child process, in one thread. It reads while it writes, so the two sides never wait for
each other for ever.

The child has its own session, so that its process group can be killed. On Linux it dies with the thread that started
it. What it prints is read at once; the last part is kept for errors.

Starts a child: its pipes or socket, its environment, and its end with the thread that started it.
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

from airflow_trident.closeable import Closing
from airflow_trident.errors import ChildError, ConfigurationError
from airflow_trident.storm.components.framing import (
    MAX_MESSAGE_BYTES,
    Decoder,
    Message,
    MultilangDecoder,
    NodeDecoder,
    encode_multilang,
    encode_node,
)


class Carrier(StrEnum):
    """The way on which messages are sent."""

    NODE = "node"
    """A socket whose number is in NODE_CHANNEL_FD (Node: child_process.fork); stdout and stderr are logs."""
    MULTILANG = "multilang"
    """stdin and stdout (Storm: ShellProcess); stderr is the log."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and how to start it.

    :param env: variables added to the environment of this process. A PATH is appended to the existing one.
    """

    argv: tuple[str, ...]
    carrier: Carrier
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_message_bytes: int = MAX_MESSAGE_BYTES
    strict: bool = False

    def __str__(self) -> str:
        return " ".join(self.argv)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A running child, and the file descriptors at our end, which do not block.

    :param reads: for messages from the child.
    :param writes: for messages to the child; the same as `reads` for a socket.
    :param logs: for what the child prints.
    """

    process: subprocess.Popen[bytes]
    reads: int
    writes: int
    logs: frozenset[int]
    socket: socket.socket | None = None

    def close_input(self) -> None:
        """Let the child see the end of file."""
        with suppress(OSError):
            if self.socket is not None:
                self.socket.shutdown(socket.SHUT_WR)
            elif self.process.stdin is not None:
                self.process.stdin.close()

    def close(self) -> None:
        for file in (self.socket, self.process.stdin, self.process.stdout, self.process.stderr):
            if file is not None:
                with suppress(OSError):
                    file.close()


def start(program: Program, subject: str) -> Started:
    """:param subject: the child's name in errors.

    :raises ConfigurationError: the program or its folder is missing, or may not be run.
    """
    started = _on_socket(program, subject) if program.carrier is Carrier.NODE else _on_pipes(program, subject)
    for number in {started.reads, started.writes, *started.logs}:
        os.set_blocking(number, False)
    return started


def _on_socket(program: Program, subject: str) -> Started:
    channel, child_end = socket.socketpair()
    number = child_end.fileno()
    node_env = {"NODE_CHANNEL_FD": str(number), "NODE_CHANNEL_SERIALIZATION_MODE": "json"}
    try:
        process = _popen(program, subject, subprocess.DEVNULL, node_env, (number,))
    except BaseException:
        channel.close()
        raise
    finally:
        child_end.close()
    assert process.stdout is not None
    assert process.stderr is not None
    logs = frozenset((process.stdout.fileno(), process.stderr.fileno()))
    return Started(process=process, reads=channel.fileno(), writes=channel.fileno(), logs=logs, socket=channel)


def _on_pipes(program: Program, subject: str) -> Started:
    process = _popen(program, subject, subprocess.PIPE, {}, ())
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    logs = frozenset((process.stderr.fileno(),))
    return Started(process=process, reads=process.stdout.fileno(), writes=process.stdin.fileno(), logs=logs)


def _popen(
    program: Program, subject: str, stdin: int, extra_env: Mapping[str, str], passed: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    if program.cwd is not None and not os.path.isdir(program.cwd):
        raise ConfigurationError(
            f"{subject}: there is no folder {program.cwd!r} on {socket.gethostname()}",
            "It must be there wherever the topology runs.",
        )
    try:
        return subprocess.Popen(
            program.argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=program.cwd,
            env=_environment(program.env, extra_env),
            pass_fds=passed,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - one system call, no Python code to deadlock
        )
    except OSError as error:
        raise ConfigurationError(
            f"{subject}: {program.argv[0]!r} cannot be started on {socket.gethostname()}: "
            f"{error.strerror or error} (the command is {program!s})",
            "Install it there and wherever else the topology runs, or name it by its whole path.",
        ) from error


def _environment(program_env: Mapping[str, str], extra_env: Mapping[str, str]) -> dict[str, str]:
    env = {**os.environ, **program_env, **extra_env}
    if "PATH" in program_env and os.environ.get("PATH"):
        env["PATH"] = f"{os.environ['PATH']}{os.pathsep}{program_env['PATH']}"
    return env


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _dying_with(parent: int) -> Callable[[], None] | None:
    """A function that the child calls before its program: the child is then killed when the thread that started it
    dies, for whatever reason. (`finally` does not run in a Python worker that Spark kills.)
    """
    libc = _LIBC
    if libc is None:
        return None

    def run() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return run


_log = logging.getLogger(__name__)

TAIL_BYTES = 64 << 10
"""How much of a child's output is kept."""
SHOWN_BYTES = 1500
"""How much of that an error shows."""
LOGGED_LINES = 100
"""How many lines of one child are logged."""
READ_BYTES = 256 << 10
_WRITE_BYTES = 64 << 10
_LOOK_S = 0.02
_TERM_S = 2.0


class Channel(Closing):
    """A running child. Leaving the ``with`` block kills what is left of its process group.

    :param subject: the child's name in errors: ``ShellBolt 'python split.py' in each-1``.
    :raises ConfigurationError: the program or its folder is missing, or may not be run.
    """

    def __init__(self, program: Program, subject: str = "") -> None:
        self.what = subject or f"the child {program!s}"
        self.eof = False
        """Has the child closed its side, so that no message follows?"""
        self.cut_off = False
        """Did the child end before it had read everything?"""
        self._tail = bytearray()
        self._logged = 0
        self._queue = bytearray()
        self._writing = False
        self._input_closed = False
        self._ended: str | None = None
        self._encode: Callable[[object], bytes]
        self._decoder: Decoder
        limit = program.max_message_bytes
        if program.carrier is Carrier.NODE:
            self._encode, self._decoder = encode_node, NodeDecoder(limit, self._stray, subject=self.what)
        else:
            self._encode = encode_multilang
            self._decoder = MultilangDecoder(limit, self._stray, subject=self.what, strict=program.strict)
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
        """Bytes that are queued and not written yet."""
        return len(self._queue)

    def send(self, message: object) -> int:
        """Queue a message, which `pump` writes; returns its size in bytes. After `close_input` it is dropped."""
        data = self._encode(message)
        if not self._input_closed:
            self._queue += data
        return len(data)

    def pump(self, wait_s: float = 0.0) -> list[Message]:
        """Write what the child can take and read what it sent. Waits at most `wait_s` seconds for anything to happen.

        :raises ChildProtocolError: the child sent something that is no message.
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
        if self._input_closed:  # another file of this process may have the number of the pipe now
            return
        queue = self._queue
        try:
            while queue:
                with memoryview(queue) as view:
                    written = os.write(self._out, view[:_WRITE_BYTES])
                del queue[:written]
        except BlockingIOError:
            return
        except OSError:  # the child is gone: whoever reads reports how it ended
            self.cut_off = True
            queue.clear()

    def _read(self) -> list[Message]:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # the child ended with unread input
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
        """Log a line of the child. Only its first lines are logged."""
        self._logged += 1
        if self._logged <= LOGGED_LINES:
            _log.log(level, "%s: %s", self.what, line)
        elif self._logged == LOGGED_LINES + 1:
            _log.log(level, "%s: says more than %d lines; the rest is not logged", self.what, LOGGED_LINES)

    @property
    def tail(self) -> str:
        """The last part of what the child printed."""
        return bytes(self._tail[-SHOWN_BYTES:]).decode(errors="replace").strip()

    # ---- the end -----------------------------------------------------------------------------------------------

    def close_input(self) -> None:
        """Close the child's input: it sees the end of file. Queued messages are lost."""
        self._queue.clear()
        self._watch_writing()
        self._input_closed = True
        self._started.close_input()

    def ended(self, timeout_s: float, hear: Callable[[Message], None], look: Callable[[], None] | None = None) -> int:
        """Wait until the child has ended by itself; returns its exit code, or minus the signal.

        :param hear: gets the messages that still arrive.
        :param look: called now and then; an exception from it ends the wait.
        :raises ChildError: the child did not end within `timeout_s`, and was killed.
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
        """Kill the process group; `gently`: SIGTERM first, and some time to end. A second call does nothing."""
        if self._ended is not None:
            return
        if gently and not self._gone:
            self._signal(signal.SIGTERM)
            self._wait(_TERM_S)
        self._reaped()

    @property
    def _gone(self) -> bool:
        """Has the child ended? It stays a zombie, so that no other process gets the id of its group."""
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
        """Kill the rest of the group; returns the exit code."""
        if self._ended is None:
            self._signal(signal.SIGKILL)
            self._ended = _how(self._process.wait())
            for number in list(self._logs):
                self._drain(number)
        return self._process.wait()

    def close(self) -> None:
        """Kill the child and release its resources."""
        self.kill()
        self._input_closed = True
        self._select.close()
        self._started.close()

    # ---- errors ------------------------------------------------------------------------------------------------

    def error(self, text: str, cure: str = "", kind: type[ChildError] = ChildError) -> ChildError:
        """An error with the child's name, what happened, its exit code if it ended, and its last output."""
        return kind(f"{self.what} {text}{self.last_words()}", cure)

    def last_words(self) -> str:
        """`` (ended with code 7); it said last: ...``"""
        if self._ended is None and self._gone:
            self._reaped()
        ended = f" (it {self._ended})" if self._ended else ""
        return f"{ended}; it said last: {self.tail}" if self.tail else ended

    def lost(self, text: str) -> ChildError:
        """The error for a child that ended too early. Kills the rest of its group."""
        self._wait(_TERM_S)  # the pipe ends a moment before the process
        self.kill()
        return ChildError(f"{self.what} {self._ended} {text}{f'; it said last: {self.tail}' if self.tail else ''}")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"was ended by signal {-code}"
