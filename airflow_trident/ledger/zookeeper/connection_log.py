"""Why there is no connection: kazoo only logs the reason, once for each of its many tries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

SAY_AGAIN_S = 60.0
_MEANINGLESS = "Transition to CONNECTING"


class ConnectionLog:
    """A logger for one client of kazoo, which remembers its warnings. For an outage it logs one line at the beginning,
    one each minute while it lasts, and one at the end.

    :param where: names the ensemble in the log.
    """

    def __init__(self, where: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._where, self._clock_s = where, clock_s
        self._log = logging.getLogger("kazoo.client")
        in_detail = self._log.isEnabledFor(logging.DEBUG)
        # Every task opens a session and closes it: that is no news in its log.
        self.logger = logging.Logger("airflow_trident.zookeeper", logging.DEBUG if in_detail else logging.WARNING)
        if in_detail:
            self.logger.parent = self._log
        # kazoo logs each request, and the credentials are one: without this the log would show the password.
        self.logger.addFilter(lambda record: not any(type(part).__name__ == "Auth" for part in record.args or ()))
        self._lines: dict[str, None] = {}
        self._since_s: float | None = None
        self._said_s, self._dropped = 0.0, 0
        self._folds = not in_detail
        handler = logging.Handler(logging.WARNING)
        handler.emit = self._keep  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def _keep(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        line = record.getMessage() + (f": {error!r}" if error else "")
        self._lines[line] = None
        if self._folds and line != _MEANINGLESS:
            self._fold(line.replace("\n", " "))

    def _fold(self, line: str) -> None:
        now_s = self._clock_s()
        self._dropped += 1
        if self._since_s is None:
            self._since_s = self._said_s = now_s
            self._log.warning("%s: %s. Trying again.", self._where, line)
        elif now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            lasts_s = now_s - self._since_s
            self._log.warning("%s: no connection for %.0f s, %d tries: %s", self._where, lasts_s, self._dropped, line)

    def connected(self) -> None:
        """Call this when there is a session: it logs the end of an outage, if there was one."""
        if self._since_s is not None:
            lasted_s = self._clock_s() - self._since_s
            self._log.warning("%s: connected again after %.1f s", self._where, lasted_s)
        self._since_s, self._dropped = None, 0

    def clear(self) -> None:
        self._lines.clear()

    def text(self) -> str:
        """The last few different warnings, as the end of a sentence."""
        lines = [line.replace("\n", " ") for line in self._lines if line != _MEANINGLESS]
        return f" ({'; '.join(lines[-3:])})" if lines else ""
