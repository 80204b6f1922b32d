"""Gives up a connection if the server never answers on it."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any


class ConnectWatchdog:
    """A client's latest try to connect.

    A server that is just starting may accept a connection and neither answer nor close it (3.9: closing fails while it
    has no database yet). kazoo waits for the answer as long as a session may last, which is longer than a call may
    take. If the connection is given up here, kazoo tries again with the same session.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._since = 0.0

    def seen_by(self, handler: Any) -> Any:
        """Returns kazoo's handler for one client; from now on this watchdog notices its connections."""
        connect = handler.create_connection

        def create_connection(*args: Any, **kwargs: Any) -> socket.socket:
            made: socket.socket = connect(*args, **kwargs)
            self._socket, self._since = made, time.monotonic()
            return made

        handler.create_connection = create_connection
        return handler

    def give_up_after(self, answer_s: float) -> None:
        """Ends the connection if it is older than `answer_s` seconds. Call this only while there is no session."""
        waiting = self._socket
        if waiting is not None and time.monotonic() - self._since >= answer_s:
            self._socket = None
            with contextlib.suppress(OSError):  # kazoo closed it already
                waiting.shutdown(socket.SHUT_RDWR)
