"""What a JVM that this process starts prints on standard error, as lines of the log at their own levels.

Airflow shows whatever a task's processes print on standard error as errors: Java's words about itself, Spark's warnings
and what users' functions print in Spark's workers.
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
"""Java's last lines when it does not start; why, it said before them."""
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
    """The level of a line and what is left to say, without the time and the level that log4j wrote; None if nothing is.

    :param before: the level of the line before, which the lines of a stack trace share.
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
    """A pipe to be the standard error of a JVM, and a thread that reads it to its end: nobody who writes waits.

    Raw file descriptors: the interpreter waits at its exit for the lock of a buffered file that a thread is reading.
    """

    def __init__(self) -> None:
        self._reads, self.writes = os.pipe()
        self._open = True
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        os.register_at_fork(after_in_child=self._close)  # nobody reads there, and a full pipe would stop the JVM
        self._thread = Thread(target=self._read, name="trident-jvm-stderr", daemon=True)
        self._thread.start()

    def given(self) -> None:
        """The JVM has its end of the pipe, or never will."""
        os.close(self.writes)

    def last_words(self) -> str:
        """The last lines of a JVM that has ended, as far as they may say why."""
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
        with suppress(Exception):  # whatever a handler does, the reading goes on
            if _shown(found[0]):
                log.log(found[0], "%s", found[1])
            else:  # nothing is lost in a program without a log: where the JVM would have printed it
                os.write(2, line + b"\n")
        return found[0]


def _shown(level: int) -> bool:
    """Does any handler take a line of that level? The commands mute theirs."""
    if not log.isEnabledFor(level):
        return False
    logger: logging.Logger | None = log
    while logger is not None:
        if any(handler.level <= level for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
