"""Starts a child: its pipes or socket, its environment, and its end with the thread that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_trident.errors import ConfigurationError
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES


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


def start(program: Program, what: str) -> Started:
    """:param what: the child's name in errors.

    :raises ConfigurationError: the program or its folder is missing, or may not be run.
    """
    started = _on_socket(program, what) if program.carrier is Carrier.NODE else _on_pipes(program, what)
    for number in {started.reads, started.writes, *started.logs}:
        os.set_blocking(number, False)
    return started


def _on_socket(program: Program, what: str) -> Started:
    mine, theirs = socket.socketpair()
    number = theirs.fileno()
    said = {"NODE_CHANNEL_FD": str(number), "NODE_CHANNEL_SERIALIZATION_MODE": "json"}
    try:
        process = _popen(program, what, subprocess.DEVNULL, said, (number,))
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()
    assert process.stdout is not None
    assert process.stderr is not None
    logs = frozenset((process.stdout.fileno(), process.stderr.fileno()))
    return Started(process=process, reads=mine.fileno(), writes=mine.fileno(), logs=logs, socket=mine)


def _on_pipes(program: Program, what: str) -> Started:
    process = _popen(program, what, subprocess.PIPE, {}, ())
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    logs = frozenset((process.stderr.fileno(),))
    return Started(process=process, reads=process.stdout.fileno(), writes=process.stdin.fileno(), logs=logs)


def _popen(
    program: Program, what: str, stdin: int, said: Mapping[str, str], passed: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    if program.cwd is not None and not os.path.isdir(program.cwd):
        raise ConfigurationError(
            f"{what}: there is no folder {program.cwd!r} on {socket.gethostname()}",
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
            preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - one system call, no Python code to deadlock
        )
    except OSError as error:
        raise ConfigurationError(
            f"{what}: {program.argv[0]!r} cannot be started on {socket.gethostname()}: "
            f"{error.strerror or error} (the command is {program!s})",
            "Install it there and wherever else the topology runs, or name it by its whole path.",
        ) from error


def _environment(given: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    env = {**os.environ, **given, **said}
    if "PATH" in given and os.environ.get("PATH"):
        env["PATH"] = f"{os.environ['PATH']}{os.pathsep}{given['PATH']}"
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
