"""Child processes with a log file each, and their certain end.

Every child leads a session of its own, which is recorded directly after its start, and works in a directory where
nobody else works. These two marks identify everything that belongs to a child, at any depth and whoever its parent is
by now: Airflow's workers outlive a killed scheduler, and Spark's JVM outlives a killed task. (The environment is no
such mark: Airflow's processes overwrite theirs with a title.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_trident.errors import TridentError

if TYPE_CHECKING:
    import psutil

TAIL_LINES = 12
LOOK_S = 0.2


class ServiceError(TridentError):
    """A child process ended although it should run, or failed; the text has the end of its log."""


@dataclass(slots=True)
class Processes:
    """Children by name. `work`: the working directory of all; `records`: keeps their sessions; `logs`: their output."""

    work: Path
    logs: Path
    records: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> int:
        """Start a child that runs until it is stopped; returns its process id. An earlier log is continued."""
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                command,
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[name] = child
        self._record(child.pid)
        return child.pid

    def run(
        self, name: str, command: list[str], environment: dict[str, str], say: Callable[[str], None] | None = None
    ) -> None:
        """Run a child to its end.

        :param say: gets the lines that the child prints, as they come; the log has them, too.
        :raises ServiceError: the exit status of the child is not 0.
        """
        begin = self.log(name).stat().st_size if self.log(name).exists() else 0
        self.start(name, command, environment)
        child = self._running[name]
        with self.log(name).open(errors="replace") as log:
            log.seek(begin)
            pending = ""
            status = None
            while status is None:
                with suppress(subprocess.TimeoutExpired):
                    status = child.wait(LOOK_S)
                pending += log.read()
                *lines, pending = pending.split("\n")
                for line in lines:
                    if say is not None:
                        say(line)
        del self._running[name]
        if status:
            raise self._ended(name, status)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def require_alive(self) -> None:
        """:raises ServiceError: a child has ended."""
        for name, child in self._running.items():
            status = child.poll()
            if status is not None:
                raise self._ended(name, status)

    def kill(self, name: str) -> None:
        """SIGKILL only the child itself: what it started lives on, as after an accident."""
        child = self._running.pop(name)
        child.kill()
        child.wait()

    def stop(self, *, grace_s: float = 10.0) -> None:
        """End all children and everything that they started: first SIGTERM, and SIGKILL after `grace_s` seconds."""
        for child in self._running.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace_s
        for child in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        self.kill_remains()
        for child in self._running.values():
            child.wait()
        self._running.clear()

    def kill_remains(self) -> int:
        """SIGKILL everything that belongs to children, also to those of earlier programs. Returns how many there
        were."""
        killed: set[int] = set()
        # Repeated until none is found: a process may have started another one after it was listed and before it was
        # killed.
        while found := self._members():
            for process in found:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
            killed |= {process.pid for process in found}
            _wait_gone(found)
        self.records.unlink(missing_ok=True)
        return len(killed)

    def _members(self) -> list[psutil.Process]:
        import psutil

        sessions = self._sessions()
        if not sessions:
            return []
        members = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if (
                    os.getsid(process.pid) in sessions
                    and process.status() != psutil.STATUS_ZOMBIE
                    and Path(process.cwd()).samefile(self.work)
                ):
                    members.append(process)
        return members

    def _record(self, pid: int) -> None:
        sessions = self._sessions() | {pid}
        partial = self.records.with_suffix(".partial")
        partial.write_text(json.dumps(sorted(sessions)))
        partial.replace(self.records)

    def _sessions(self) -> set[int]:
        try:
            return set(json.loads(self.records.read_text()))
        except FileNotFoundError:
            return set()

    def _ended(self, name: str, status: int) -> ServiceError:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        lines = self.log(name).read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return ServiceError(
            f"{name} ended with {how}; the end of its log:\n    " + "\n    ".join(lines), f"See {self.log(name)}."
        )


def _wait_gone(processes: list[psutil.Process]) -> None:
    import psutil

    # Children of this process stay as zombies until they are waited for; _members() does not count those.
    psutil.wait_procs(processes, timeout=2.0)
