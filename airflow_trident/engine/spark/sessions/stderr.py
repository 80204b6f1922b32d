"""Standard error of a JVM that this process starts, as lines of the log with their own levels.

Airflow shows all standard error of a task's processes as errors: messages of Java, Spark's warnings and the output of
users' functions in Spark's workers.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from contextlib import suppress
from threading import Thread

log = logging.getLogger(__name__)

_HARMLESS = re.compile(r"^WARNING: Using incubator modules: ")
"""Spark itself asks Java for such a module."""
_NO_CAUSE = re.compile(r"^Error: (Could not create the Java Virtual Machine|A fatal exception has occurred)")
"""Java's last lines when it does not start; the cause comes before them."""
_LOG4J = re.compile(r"^[\[\d][-\d/:.,TZ+\[\] ]*[\[\] ](TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\]? +(.*)$")
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_CONTINUES = re.compile(r"^(\s|$|Caused by: |Suppressed: )")
_WARNING = re.compile(r"^(WARNING\b|[\w .-]+ VM warning: )")
_ERROR = re.compile(r"^(Error\b|Exception in thread |Traceback \(|([\w$]+\.)*[\w$]*(Exception|Error)\b)")

_CHUNK_BYTES = 65_536
_LAST_LINES = 200
_END_WAIT_S = 5.0


def leveled(line: str, before: int = logging.INFO) -> tuple[int, str] | None:
    """The level of a line and its text, without log4j's time and level; None if nothing is left.

    :param before: the level of the previous line, which the lines of a stack trace share.
    """
    if _HARMLESS.match(line):
        return None
    if found := _LOG4J.match(line):
        return _LEVELS[found[1]], found[2]
    if _CONTINUES.match(line):
        return before, line
    if _WARNING.match(line):
        return logging.WARNING, line
    return (logging.ERROR if _ERROR.match(line) else logging.INFO), line


class StandardError:
    """A pipe for the standard error of a JVM, and a thread that reads it to its end, so that writers never wait.

    Raw file descriptors: at its exit the interpreter waits for the lock of a buffered file that a thread is reading.
    """

    def __init__(self) -> None:
        self._reads, self.writes = os.pipe()
        self._open = True
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        os.register_at_fork(after_in_child=self._close)  # nobody reads in the child, and a full pipe would stop the JVM
        self._thread = Thread(target=self._read, name="trident-jvm-stderr", daemon=True)
        self._thread.start()

    def given(self) -> None:
        """Called when the JVM has its end of the pipe, or will never have it."""
        os.close(self.writes)

    def last_words(self) -> str:
        """The last lines of a JVM that has ended, which may say why."""
        self._thread.join(_END_WAIT_S)
        return "\n".join(line for line in self._last if not _NO_CAUSE.match(line))

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._reads)

    def _read(self) -> None:
        rest, level = b"", logging.INFO
        while chunk := os.read(self._reads, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) >= _CHUNK_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                level = self._say(line, level)
        if rest:
            self._say(rest, level)
        self._close()

    def _say(self, line: bytes, before: int) -> int:
        found = leveled(line.decode(errors="replace").rstrip("\r"), before)
        if found is None:
            return before
        self._last.append(found[1])
        with suppress(Exception):  # reading continues whatever a handler does
            if _shown(found[0]):
                log.log(found[0], "%s", found[1])
            else:  # without a log, print where the JVM would have printed
                os.write(2, line + b"\n")
        return found[0]


def _shown(level: int) -> bool:
    """Does any handler accept a line of that level? The commands mute their handlers."""
    if not log.isEnabledFor(level):
        return False
    logger: logging.Logger | None = log
    while logger is not None:
        if any(handler.level <= level for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
