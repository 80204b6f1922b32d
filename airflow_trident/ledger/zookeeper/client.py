"""ZooKeeper through kazoo, wrapped once.

This file does what kazoo does not: every call has a deadline (kazoo's own calls wait for ever); refusals of a `multi`
are raised (kazoo returns them in a list); a lost answer is told apart from a refusal; a forked child gets a fresh
client (an inherited one hangs); host names are checked; errors give the reason of a failed connection (kazoo only logs
it); a client that hangs because the server was restored is replaced; a connection that a server never answers is given
up. This file never sends anything twice.

Adds operations to a `multi` of kazoo, and finds which of them was refused.

Gives up a connection if the server never answers on it.

Why there is no connection: kazoo only logs the reason, once for each of its many tries.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import (
    ConfigurationError,
    LedgerAuthError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    TridentError,
    error_text,
)
from airflow_trident.ledger.znodes import (
    Check,
    Create,
    Delete,
    Ephemerals,
    Op,
    ReadResult,
    Refusal,
    WriteRefusedError,
    ZNode,
    refused,
    require_sizes,
)
from airflow_trident.ledger.zookeeper.settings import Tls, ZooKeeperSettings

if TYPE_CHECKING:
    from kazoo.client import KazooClient


def raise_first(ops: Sequence[Op], results: Sequence[object]) -> None:
    """:raises WriteRefusedError: the condition of an operation did not hold. Other failures are raised as they are."""
    from kazoo import exceptions as kz

    refusals = {
        kz.BadVersionError: Refusal.BAD_VERSION,
        kz.NodeExistsError: Refusal.NODE_EXISTS,
        kz.NoNodeError: Refusal.NO_NODE,
        kz.NotEmptyError: Refusal.NOT_EMPTY,
    }
    # Operations before the one that failed say "rolled back", those after it "inconsistency".
    fillers = (kz.RolledBackError, kz.RuntimeInconsistency)
    failures = [(op, answer) for op, answer in zip(ops, results, strict=True) if isinstance(answer, Exception)]
    for op, failure in failures:
        if type(failure) in refusals:
            raise refused(op, refusals[type(failure)])
        if not isinstance(failure, fillers):
            raise failure
    if failures:
        raise failures[0][1]


def add(transaction: Any, op: Op) -> None:
    if isinstance(op, Check):
        transaction.check(op.path, op.version)
    elif isinstance(op, Create):
        transaction.create(op.path, op.data, ephemeral=op.ephemeral)
    elif isinstance(op, Delete):
        transaction.delete(op.path, version=op.version)
    else:
        transaction.set_data(op.path, op.data, version=op.version)


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


SAY_AGAIN_S = 60.0
_MEANINGLESS = "Transition to CONNECTING"


class ConnectionLog:
    """A logger for one client of kazoo, which remembers its warnings. For an outage it logs one line at the beginning,
    one each minute while it lasts, and one at the end.

    :param address: names the ensemble in the log.
    """

    def __init__(self, address: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._where, self._clock_s = address, clock_s
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


_PAUSE_S = 0.05
"""The pause between two tries of a read while there is no session."""
_CLOSE_S = 5.0
"""How long closing a client may take; after that it ends in the background."""

_instances: weakref.WeakSet[ZooKeeperZNodes] = weakref.WeakSet()
_inherited: list[KazooClient] = []
"""Clients of the parent process. They are kept, so that this process never runs or finalises any of them."""


class ZooKeeperZNodes:
    """A :class:`~airflow_trident.ledger.znodes.ZNodes` on a real ensemble. Connects when first used.

    Do not share it between threads. A forked child may go on using it and gets its own session.

    :param on_change: called with the path of a watched node that changed, or with None when the connection, and with it
        every armed watch, was lost. It runs in kazoo's thread, so it must return at once.
    """

    def __init__(self, settings: ZooKeeperSettings, on_change: Callable[[str | None], None] | None = None) -> None:
        self.settings = settings
        self.round_trips = 0
        self._on_change = on_change
        self._client: KazooClient | None = None
        self._pid = os.getpid()
        self._connection_log, self._connect_watchdog = ConnectionLog(self.describe()), ConnectWatchdog()
        self._connected, self._event = threading.Event(), threading.Event()
        self._ephemerals = Ephemerals()
        self._armed: object = None
        """What :meth:`wait_for_change` watches, as it was seen; the watch is in force until `_event` is set."""
        _instances.add(self)

    # ---- the contract ------------------------------------------------------------------------------------------

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        full = self._read([self._full(path) for path in paths], [self._full(path) for path in folders])
        return ReadResult(
            {path: full.nodes[self._full(path)] for path in paths},
            {path: full.folders[self._full(path)] for path in folders},
        )

    def multi(self, ops: Sequence[Op]) -> None:
        self._multi([replace(op, path=self._full(op.path)) for op in ops])

    def post(self, ops: Sequence[Op]) -> None:
        with self._translated(f"to write {ops[-1].path}"):
            self._send(
                [replace(op, path=self._full(op.path)) for op in ops], time.monotonic() + self.settings.op_deadline_s
            )

    def ensure(self, path: str) -> None:
        # This creates the chroot, too: kazoo never creates its own chroot, so paths are prefixed here instead.
        steps = self._full(path).strip("/").split("/")
        every = ["/" + "/".join(steps[:depth]) for depth in range(1, len(steps) + 1)]
        deadline = time.monotonic() + self.settings.op_deadline_s
        for full_path, node in self._read(every, []).nodes.items():
            if node is None:
                self._create(full_path, deadline)

    def wait_for_change(
        self,
        seen: Mapping[str, int | None],
        timeout_s: float,
        folders: Mapping[str, frozenset[str] | None] | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_s
        watched = dict(seen), dict(folders or {})
        if self._armed != watched or self._event.is_set():
            self._event.clear()
            self._armed = None
            if self.arm(*watched):
                return True
            self._armed = watched
        return self._event.wait(max(0.0, deadline - time.monotonic()))

    def arm(self, seen: Mapping[str, int | None], folders: Mapping[str, frozenset[str] | None] | None = None) -> bool:
        """Watches the nodes, and the children of the folders, without waiting. True: one is not as it was seen, or that
        is unknown."""
        client = self._ready(time.monotonic() + self.settings.op_deadline_s)
        self.round_trips += 1
        # A watch of the children of a missing folder cannot be set: its creation is watched.
        listed = {path: names for path, names in (folders or {}).items() if names is not None}
        wanted = {**seen, **{path: None for path in folders or {} if path not in listed}}
        try:
            with self._translated(f"watch {', '.join([*wanted, *listed][:5])}"):
                # Always the same function: kazoo keeps a set per path, so waiting again adds no second watch.
                armed = [client.exists_async(self._full(path), watch=self._on_event) for path in wanted]
                children = [client.get_children_async(self._full(path), watch=self._on_event) for path in listed]
                stats = [answer.get(timeout=self.settings.op_deadline_s) for answer in armed]
                names = [self._names(answer) for answer in children]
        except OutcomeUnknownError:
            return True
        versions = [None if stat is None else stat.version for stat in stats]
        return versions != list(wanted.values()) or names != list(listed.values())

    def _names(self, answer: Any) -> frozenset[str] | None:
        from kazoo.exceptions import NoNodeError

        try:
            return frozenset(answer.get(timeout=self.settings.op_deadline_s))
        except NoNodeError:
            return None

    @property
    def is_connected(self) -> bool:
        """Has this process a session now, over a connection that works as far as is known? It sends nothing."""
        return self._client is not None and self._pid == os.getpid() and self._connected.is_set()

    def describe(self) -> str:
        return f"ZooKeeper at {self.settings.hosts}{self.settings.chroot}"

    def close(self) -> None:
        client, self._client, self._armed = self._client, None, None
        self._ephemerals.clear()
        self._event.set()
        if client is not None and self._pid == os.getpid():
            _stop(client)

    # ---- the session -------------------------------------------------------------------------------------------

    def forget_inherited(self) -> None:
        """In a forked child: never use or close the parent's client."""
        if self._client is not None:
            _inherited.append(self._client)
        self._client = self._armed = None
        self._pid, self._ephemerals = os.getpid(), Ephemerals()
        self._connection_log, self._connect_watchdog = ConnectionLog(self.describe()), ConnectWatchdog()
        self._connected, self._event = threading.Event(), threading.Event()

    def _ready(self, deadline: float) -> KazooClient:
        """A client with a session.

        :raises LedgerUnavailableError: none before `deadline` (of :func:`time.monotonic`); says kazoo's reason.
        """
        if self._pid != os.getpid():
            self.forget_inherited()
        if self._client is None:
            deadline = min(deadline, time.monotonic() + self.settings.connect_deadline_s)
            with self._translated("to connect"):
                starting = self._new_client()
                try:
                    starting.start_async()
                except BaseException:
                    _stop(starting)
                    raise
            self._client = starting
        client = self._client
        answer_s = min(self.settings.op_deadline_s, self.settings.connect_deadline_s) / 3
        while not self._connected.wait(min(0.1, _left_s(deadline))):
            self._connect_watchdog.give_up_after(answer_s)
            if client.client_state == "AUTH_FAILED":
                self._replace(client)
                raise self._denied("it refused the credentials")
            if time.monotonic() >= deadline:
                self._replace(client)
                raise self._unavailable("no connection")
        return client

    def _new_client(self) -> KazooClient:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
        from kazoo.security import make_acl, make_digest_acl

        settings, tls, auth = self.settings, self.settings.tls, self.settings.auth
        acl = [make_digest_acl(auth.user, auth.password, all=True)] if auth else []
        if tls and tls.acl_identity:
            acl.append(make_acl("x509", tls.acl_identity, all=True))
        client = KazooClient(
            hosts=settings.hosts,
            timeout=settings.session_timeout_s,
            auth_data=[("digest", f"{auth.user}:{auth.password}")] if auth else None,
            default_acl=acl or None,
            # By default kazoo waits up to an hour between two tries: an outage of a minute would last two.
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=2.0),
            logger=self._connection_log.logger,
            handler=self._connect_watchdog.seen_by(SequentialThreadingHandler()),
            use_ssl=tls is not None,
            **(_tls_arguments(tls) if tls else {}),
        )
        self._connection_log.clear()
        self._connected.clear()
        connected, ephemerals, connection_log = self._connected, self._ephemerals, self._connection_log

        def on_state(state: str) -> None:
            if state == "CONNECTED":
                connection_log.connected()
                connected.set()
                ephemerals.renew(client)
            else:
                connected.clear()

        client.add_listener(on_state)
        return client

    def _replace(self, client: KazooClient) -> None:
        """Drops a client that never connected: if it saw newer data than a restored server has, that server refuses it
        for ever. Its queued requests are not sent."""
        if self._client is client:
            self._client = self._armed = None
            self._connected = threading.Event()
            _stop(client)

    def _on_event(self, event: Any) -> None:
        self._event.set()
        if self._on_change is not None:
            self._on_change(event.path.removeprefix(self.settings.chroot) if event.path else None)

    # ---- calls, with full paths --------------------------------------------------------------------------------

    def _read(self, paths: Sequence[str], folders: Sequence[str]) -> ReadResult:
        deadline = time.monotonic() + self.settings.op_deadline_s
        while True:
            client = self._ready(deadline)
            self.round_trips += 1
            try:
                with self._translated(f"to read {', '.join([*paths, *folders][:5])}"):
                    return self._read_once(client, paths, folders, deadline)
            except OutcomeUnknownError as error:
                # Reading again does no harm.
                if time.monotonic() + _PAUSE_S > deadline:
                    self._replace(client)
                    raise self._unavailable(f"no answer to a read of {paths or folders}") from error
                time.sleep(_PAUSE_S)

    def _read_once(
        self, client: KazooClient, paths: Sequence[str], folders: Sequence[str], deadline: float
    ) -> ReadResult:
        from kazoo.exceptions import NoNodeError

        def answer(handle: Any) -> Any:
            try:
                return handle.get(timeout=_left_s(deadline))
            except NoNodeError:
                return None

        # One connection answers in order: what follows the sync is at least as new as this moment.
        synced = client.sync_async("/")
        nodes = [client.get_async(path) for path in paths]
        names = [client.get_children_async(path) for path in folders]
        synced.get(timeout=_left_s(deadline))
        read = {path: answer(handle) for path, handle in zip(paths, nodes, strict=True)}
        listed = {path: answer(handle) for path, handle in zip(folders, names, strict=True)}
        return ReadResult(
            {path: None if node is None else ZNode(node[0], node[1].version) for path, node in read.items()},
            {path: None if children is None else frozenset(children) for path, children in listed.items()},
        )

    def _multi(self, ops: Sequence[Op]) -> None:
        require_sizes(ops)
        deadline = time.monotonic() + self.settings.op_deadline_s
        self.round_trips += 1
        with self._translated(f"to write {ops[-1].path}"):
            raise_first(ops, self._send(ops, deadline).get(timeout=_left_s(deadline)))

    def _send(self, ops: Sequence[Op], deadline: float) -> Any:
        client = self._ready(deadline)
        self._ephemerals.forget(ops)
        transaction = client.transaction()
        for op in ops:
            add(transaction, op)
        answer = transaction.commit_async()
        self._ephemerals.sent(ops, client)
        return answer

    def _create(self, path: str, deadline: float) -> None:
        """Creates an empty node where none is. Repeating this has no effect, so a lost answer needs no resolving."""
        while True:
            try:
                return self._multi([Create(path)])
            except WriteRefusedError as error:
                if error.refusal is Refusal.NODE_EXISTS:
                    return None
                raise
            except OutcomeUnknownError:
                if time.monotonic() > deadline:
                    raise

    def _full(self, path: str) -> str:
        return (self.settings.chroot + path) or "/"

    # ---- errors ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Raises kazoo's errors as this package's, and whatever else comes out of its calls. A lost answer is an
        OutcomeUnknownError, also for a read; so is an error that does not tell whether the request was applied."""
        from kazoo import exceptions as kz

        denied = (kz.NoAuthError, kz.AuthFailedError, kz.InvalidACLError, kz.SessionClosedRequireSaslError)
        never = (
            kz.BadArgumentsError,
            kz.ConfigurationError,
            kz.EphemeralOnLocalSessionError,
            kz.InvalidCallbackError,
            kz.MarshallingError,
            kz.NoChildrenForEphemeralsError,
            kz.ReconfigDisabledError,
            kz.UnimplementedError,
        )
        try:
            yield
        except TridentError:
            raise
        except denied as error:
            raise self._denied(f"{type(error).__name__} on the try {doing}") from error
        except kz.QuotaExceededError as error:
            raise ConfigurationError(
                f"{self.describe()} refused the try {doing}: a quota of ZooKeeper is used up",
                "Raise the quota (setquota of zkCli.sh), or name another root.",
            ) from error
        except never as error:
            raise ConfigurationError(
                f"{self.describe()} refused the try {doing}: {error_text(error)}",
                "See the settings, the version and the log of its servers (`airflow trident zookeeper status`).",
            ) from error
        except Exception as error:
            raise OutcomeUnknownError(
                f"{self.describe()}: the answer on the try {doing} was lost ({error_text(error)})",
                "Run the same step again.",
            ) from error

    def _unavailable(self, problem: str) -> LedgerUnavailableError:
        return LedgerUnavailableError(
            f"{self.describe()} does not answer: {problem}{self._connection_log.text()}",
            "Check the address, that the server runs (`airflow trident zookeeper status`), and TLS if it is used.",
        )

    def _denied(self, action: str) -> LedgerAuthError:
        user = self.settings.auth.user if self.settings.auth else "none"
        return LedgerAuthError(
            f"{self.describe()} denies access: {action} (user: {user}){self._connection_log.text()}",
            "Use the credentials that created the ledger: every worker needs the same.",
        )


def _tls_arguments(tls: Tls) -> dict[str, Any]:
    return {
        "ca": tls.ca or None,
        "certfile": tls.certificate or None,
        "keyfile": tls.key or None,
        "keyfile_password": tls.key_password or None,
        "verify_certs": tls.verify,
        "check_hostname": tls.check_hostname and tls.verify,
    }


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _stop(client: KazooClient) -> None:
    """Closes the session and frees what the client holds; in the background if the server does not answer.

    An Airflow task ends without running exit handlers. So a client that was not stopped keeps its session, and with it
    the ephemeral nodes, until the timeout.
    """

    def end() -> None:
        with contextlib.suppress(Exception):  # errors do not matter: nobody needs this client any more
            client.stop()
            client.close()

    thread = threading.Thread(target=end, name="zookeeper-close", daemon=True)
    thread.start()
    thread.join(_CLOSE_S)


def _after_fork_in_child() -> None:
    for client in list(_instances):
        client.forget_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
