"""Why there is no connection: kazoo only logs it."""

from __future__ import annotations

import logging


class Reasons:
    """A logger for one client of kazoo, which remembers its warnings."""

    def __init__(self) -> None:
        kazoo = logging.getLogger("kazoo.client")
        # Every task opens a session and closes it: that is no news in its log.
        level = logging.DEBUG if kazoo.isEnabledFor(logging.DEBUG) else logging.WARNING
        self.logger = logging.Logger("airflow_trident.zookeeper", level)
        self.logger.parent = kazoo
        # It would show the password: it logs each request, and the credentials are one.
        self.logger.addFilter(lambda record: not any(type(part).__name__ == "Auth" for part in record.args or ()))
        self._lines: dict[str, None] = {}
        handler = logging.Handler(logging.WARNING)
        handler.emit = self._keep  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def _keep(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._lines[record.getMessage() + (f": {error!r}" if error else "")] = None

    def clear(self) -> None:
        self._lines.clear()

    def text(self) -> str:
        """The last few different ones, as the end of a sentence."""
        lines = [line.replace("\n", " ") for line in self._lines if line != "Transition to CONNECTING"]
        return f" ({'; '.join(lines[-3:])})" if lines else ""
