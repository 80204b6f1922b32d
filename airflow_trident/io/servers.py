"""Servers on this machine for users without one: they start in the background, and every other process can find them.

A server belongs to a folder. It outlives the process that started it; a file in the folder holds its address.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from airflow_trident.errors import ConfigurationError, RetryableError, TridentError

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 15.0
_POLL_S = 0.05

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Servers that this process started: it must wait for each when it ends, whoever stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """`started_here`: by this call of :meth:`BackgroundServer.start`; false if it ran before."""

    running: bool
    hosts: str = ""
    pid: int = 0
    data_dir: str = ""
    log: str = ""
    started_here: bool = False


class BackgroundServer(ABC):
    """The server of one folder. Any process may make such an object to find, start or stop the server.

    :param data_dir: is created; holds the log and the server's address (``server.json``).
    :param port: 0 for a free one, preferably that of the last start, so that a restart keeps the address.
    """

    what: ClassVar[str]
    """"ZooKeeper server": for messages."""
    log_name: ClassVar[str]
    output_name: ClassVar[str]
    """File name of the process's output; may be the log."""
    error: ClassVar[type[TridentError]] = RetryableError
    """Raised if a server does not run or did not start."""
    start_command: ClassVar[str]

    def __init__(self, data_dir: str | Path, *, port: int = 0, host: str = "127.0.0.1") -> None:
        self.data_dir = Path(data_dir).absolute()
        self.port = port
        self.host = host
        self.log = self.data_dir / self.log_name
        self._info = self.data_dir / "server.json"
        self._stopped = ServerStatus(running=False, data_dir=str(self.data_dir), log=str(self.log))

    # ---- what a kind of server says ----------------------------------------------------------------------------

    @abstractmethod
    def _require(self) -> None:
        """:raises ConfigurationError: what it needs (Java, jars) is missing."""

    @abstractmethod
    def _prepare(self, port: int) -> None:
        """Write its configuration into the existing folder.

        :raises OSError: the folder cannot be written.
        """

    @abstractmethod
    def _command(self, port: int) -> list[str]: ...

    @abstractmethod
    def _serves(self, host: str, port: int) -> bool:
        """Does it answer requests?"""

    def _environment(self) -> dict[str, str] | None:
        """None: the same as this process."""
        return None

    # ---- for everybody -----------------------------------------------------------------------------------------

    @property
    def hosts(self) -> str:
        """``host:port`` of the running server.

        :raises RetryableError: it does not run.
        """
        status = self.status()
        if not status.running:
            raise self.error(f"no {self.what} runs on {self.data_dir}", f"Start it: `{self.start_command}`.")
        return status.hosts

    def start(self) -> ServerStatus:
        """Start the server and wait until it answers a request; a running server is left alone and reported.

        :raises ConfigurationError: what it needs is missing, the folder is not writable, or the port is taken.
        :raises RetryableError: it did not start (the text has the end of its log); or one runs and does not answer.
        """
        self._require()
        with self._writing():
            if not self.data_dir.is_dir():
                self.data_dir.parent.mkdir(parents=True, exist_ok=True)
                self.data_dir.mkdir(mode=0o700, exist_ok=True)
            (self.data_dir / "start.lock").touch()
        with self._locked():
            running = self._found()
            if running is not None:
                return running
            port = self._choose_port()
            with self._writing():
                self._prepare(port)
            process = self._spawn(port)
            _children[process.pid] = process
            try:
                self._wait_until_serving(process, port)
            except BaseException:
                self._end(process.pid)
                raise
            hosts = f"{self.host}:{port}"
            status = replace(self._stopped, running=True, hosts=hosts, pid=process.pid, started_here=True)
            self._write(self._info, json.dumps(asdict(status)))
            return status

    def stop(self) -> bool:
        """Stop the server, whoever started it. False: none ran.

        :raises ConfigurationError: it belongs to another user.
        """
        status = self.status()
        if not status.running:
            return False
        self._end(status.pid)
        return True

    def status(self) -> ServerStatus:
        """Whether a server runs on this folder, and where. Detects a file that a killed server left."""
        try:
            info = json.loads(self._info.read_text(encoding="utf-8"))
            pid, hosts = int(info["pid"]), str(info["hosts"])
            host, _, port = hosts.rpartition(":")
            alive = self._runs(pid, host, int(port))
        except (OSError, ValueError, KeyError, TypeError):
            return self._stopped
        return replace(self._stopped, running=True, hosts=hosts, pid=pid) if alive else self._stopped

    def _runs(self, pid: int, host: str, port: int) -> bool:
        """Is it the server's process, or a later one with the same number? The server's working directory tells; start
        times change with the clock."""
        import psutil

        if not _is_alive(pid):
            return False
        try:
            return os.path.samefile(psutil.Process(pid).cwd(), self.data_dir)
        except psutil.ZombieProcess:
            return True
        except psutil.AccessDenied:  # another user's process
            return self._serves(host, port)
        except (psutil.NoSuchProcess, OSError):
            return False

    # ---- starting ----------------------------------------------------------------------------------------------

    def _found(self) -> ServerStatus | None:
        """The running server, once it answers. A killed one stays in the process table for a while, so wait until it is
        gone."""
        deadline = time.monotonic() + START_DEADLINE_S
        while (status := self.status()).running:
            host, _, port = status.hosts.rpartition(":")
            if self._serves(host, int(port)):
                return status
            if time.monotonic() >= deadline:
                raise self.error(
                    f"the {self.what} {status.pid} on {self.data_dir} runs and does not answer on {status.hosts}",
                    f"See {self.log}; stop it and start it again.",
                )
            time.sleep(_POLL_S)
        return None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"the data folder {self.data_dir} of the {self.what} cannot be written: {error.strerror}",
                "Give a folder that this user may write to, on a disk with space.",
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One start at a time: two servers on one data folder would destroy it."""
        import fcntl

        with (self.data_dir / "start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _choose_port(self) -> int:
        """:raises ConfigurationError: the requested port is taken."""
        if self.port:
            if not _is_free(self.host, self.port):
                raise ConfigurationError(
                    f"port {self.port} on {self.host} is in use by another program",
                    "Choose another port, or 0 for a free one.",
                )
            return self.port
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            last = int(json.loads(self._info.read_text(encoding="utf-8"))["hosts"].rpartition(":")[2])
            if _is_free(self.host, last):
                return last
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return int(probe.getsockname()[1])

    def _write(self, path: Path, text: str) -> None:
        """Atomic, because other processes may be reading."""
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        with (self.data_dir / self.output_name).open("wb") as output:
            # In its own session: Ctrl-C in the starting terminal does not stop it.
            return subprocess.Popen(
                self._command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.data_dir,
                env=self._environment(),
                start_new_session=True,
            )

    def _wait_until_serving(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise self._did_not_start(f"it ended with code {process.returncode}")
            if self._serves(self.host, port):
                return
            time.sleep(_POLL_S)
        raise self._did_not_start(f"it does not answer on port {port} after {START_DEADLINE_S:g} s")

    def _did_not_start(self, why: str) -> TridentError:
        ends = [_tail(path) for path in dict.fromkeys((self.data_dir / self.output_name, self.log))]
        output = " | ".join(filter(None, ends)) or "nothing"
        return self.error(
            f"the {self.what} on {self.data_dir} did not start: {why}; it said: {output}",
            f"See {self.log}.",
        )

    # ---- stopping ----------------------------------------------------------------------------------------------

    def _end(self, pid: int) -> None:
        """Sends SIGTERM, and SIGKILL if that has no effect."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            except PermissionError as error:
                raise ConfigurationError(
                    f"the {self.what} {pid} on {self.data_dir} belongs to another user", "Stop it as that user."
                ) from error
            if self._wait_until_gone(pid):
                return

    def _wait_until_gone(self, pid: int) -> bool:
        deadline = time.monotonic() + STOP_DEADLINE_S
        while time.monotonic() < deadline:
            if not _is_alive(pid):
                return True
            time.sleep(_POLL_S)
        return False


# ---- processes -------------------------------------------------------------------------------------------------


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _is_alive(pid: int) -> bool:
    import psutil

    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
        return False
    try:
        process = psutil.Process(pid)
        # A zombie process has ended. But while its other threads are ending (Java has dozens) it looks the same, and
        # ports and files are not free yet.
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _tail(path: Path, lines: int = 3) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " / ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())
