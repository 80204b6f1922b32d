"""One ZooKeeper session for all triggers in a process that wait on the same ensemble.

A triggerer runs up to a thousand triggers in one event loop. They share one client, which has a thread of its own: only
one thread may use a client, and no call may block the loop. The client's watch events wake the waiting triggers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from airflow_trident.protocol.records import LedgerView

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import ZNodeLedger
    from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings

T = TypeVar("T")


class _Waiter:
    """One wait; its event is set, in its own event loop, when a node changes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def wake(self) -> None:
        # The loop is closed if the triggerer has ended meanwhile.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)


class _Waiters:
    """Which waiter waits for which node. Kazoo's thread calls `wake`; other threads add and remove waiters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: dict[str, set[_Waiter]] = defaultdict(set)

    def add(self, waiter: _Waiter, paths: Iterable[str]) -> None:
        with self._lock:
            for path in paths:
                self._by_path[path].add(waiter)

    def remove(self, waiter: _Waiter) -> None:
        with self._lock:
            for path in [path for path, waiting in self._by_path.items() if waiter in waiting]:
                self._by_path[path].discard(waiter)
                if not self._by_path[path]:
                    del self._by_path[path]

    def count(self) -> int:
        with self._lock:
            return len({waiter for waiting in self._by_path.values() for waiter in waiting})

    def wake(self, path: str | None) -> None:
        """:param path: the node that changed; None: the connection was lost, and all watches with it."""
        with self._lock:
            if path is None:
                woken = {waiter for waiting in self._by_path.values() for waiter in waiting}
            else:
                woken = set(self._by_path.get(path, ()))
        for waiter in woken:
            waiter.wake()


class Hub:
    """The shared client. Get it from :func:`shared_hub`."""

    def __init__(self, settings: ZooKeeperSettings, root: str) -> None:
        from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes

        self._root = root
        self._waiters = _Waiters()
        self._znodes = ZooKeeperZNodes(settings, on_change=self._waiters.wake)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trident-ledger")
        self.users = 0

    @property
    def waiting(self) -> int:
        """How many waits have set their watch, or are about to."""
        return self._waiters.count()

    def ledger(self, topology: str, incarnation: str = "") -> SharedLedger:
        """The ledger for one wait. It keeps the incarnation that it finds; a later wait may find another one.

        :param incarnation: the incarnation that the wait is for, if known.
        """
        from airflow_trident.ledger.ledger import ZNodeLedger

        return SharedLedger(self, ZNodeLedger(self._znodes, topology, self._root, incarnation=incarnation))

    async def call(self, action: Callable[[], T]) -> T:
        """Run `action` in the client's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)

    async def wait_for_change(self, ledger: ZNodeLedger, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        """Like :meth:`Ledger.wait_for_change`, without blocking a thread."""
        waiter = _Waiter()

        def arm() -> bool:
            changed, watched = ledger.compare(txid, seen)
            if changed:
                return True
            self._waiters.add(waiter, watched)
            return self._znodes.arm(watched)

        armed: asyncio.Future[bool] | None = None
        try:
            armed = asyncio.ensure_future(self.call(arm))
            # Shielded: a cancelled wait must not end before its waiter can be removed.
            if await asyncio.shield(armed):
                return True
            async with asyncio.timeout(timeout_s):
                await waiter.event.wait()
        except TimeoutError:
            return False
        finally:
            if armed is not None and not armed.done():
                armed.add_done_callback(lambda _done: self._waiters.remove(waiter))
            else:
                self._waiters.remove(waiter)
        return True

    def close(self) -> None:
        """End the session in the client's thread, without waiting for it."""
        self._thread.submit(self._znodes.close)
        self._thread.shutdown(wait=False)


class SharedLedger:
    """A topology's ledger over the shared client."""

    def __init__(self, hub: Hub, ledger: ZNodeLedger) -> None:
        self._hub = hub
        self._ledger = ledger

    async def call(self, action: Callable[[ZNodeLedger], T]) -> T:
        """Call `action` with the ledger, in the client's thread."""
        return await self._hub.call(lambda: action(self._ledger))

    async def view(self, txid: int) -> LedgerView:
        """Like :meth:`Ledger.view`."""
        return await self.call(lambda here: here.view(txid))

    async def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        """Like :meth:`Ledger.wait_for_change`, without blocking a thread."""
        return await self._hub.wait_for_change(self._ledger, txid, seen, timeout_s)


_hubs: dict[tuple[ZooKeeperSettings, str], Hub] = {}
_hubs_lock = threading.Lock()


@asynccontextmanager
async def shared_hub(settings: ZooKeeperSettings, root: str) -> AsyncIterator[Hub]:
    """The process's hub for an ensemble; its session ends with the last user."""
    key = (settings, root)
    with _hubs_lock:
        hub = _hubs.setdefault(key, Hub(settings, root)) if key not in _hubs else _hubs[key]
        hub.users += 1
    try:
        yield hub
    finally:
        with _hubs_lock:
            hub.users -= 1
            if hub.users == 0:
                del _hubs[key]
                hub.close()
