"""Settings of the whole process that foreign code may change. A border notices each change and sets it back.

There are two kinds. Rows, paths and files depend on **values**: working folder, locale, default time zone, umask and
decimal context. Code that changed one gets an error. Code that ran beside it in another thread gets one too, since
its rows may depend on the change. **Manners** are signal handlers, standard streams, hooks, the environment and the
time-out of sockets. They are set back with a line in the log when the last border is left: another thread may need
them.
"""

from __future__ import annotations

import contextlib
import decimal
import locale
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_log = logging.getLogger(__name__)
_MASK = re.compile(r"^Umask:\s*([0-7]+)", re.MULTILINE)
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1", "SIGUSR2")
)


@dataclass(frozen=True, slots=True)
class Setting:
    """`read`: the value now; `write`: sets it; `shows`: a value in an error or a log; it is no secret."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    shows: Callable[[Any, Any], str] = lambda _before, now: f"now {now!r:.80}"


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


def _zone() -> tuple[Any, ...]:
    return os.environ.get("TZ"), time.tzname, time.timezone, time.altzone


def _set_zone(before: tuple[Any, ...]) -> None:
    if before[0] is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before[0]
    time.tzset()


def _mask() -> int | None:
    """Linux tells the umask without a change of it; other threads would write files with a changed one."""
    with contextlib.suppress(OSError):
        match = _MASK.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
        return int(match[1], 8) if match else None
    return None


def _set_mask(before: int | None) -> None:
    if before is not None:
        os.umask(before)


def _set_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _names_of_environment(before: dict[str, str], now: dict[str, str]) -> str:
    return ", ".join(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))


def _set_handlers(before: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


QUICK = (
    Setting("the working folder", _folder, os.chdir),
    Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda text: locale.setlocale(locale.LC_ALL, text)),
    Setting("the default time zone", _zone, _set_zone, lambda _before, now: f"now {now[1]}"),
)
MASK = Setting("the umask", _mask, _set_mask, lambda _before, now: f"now {now:#o}")
HANDLERS = Setting(
    "signal handlers",
    lambda: tuple(map(signal.getsignal, _SIGNALS)),
    _set_handlers,
    lambda before, now: ", ".join(
        number.name for number, old, new in zip(_SIGNALS, before, now, strict=True) if old != new
    ),
)
STREAMS = tuple(Setting(f"sys.{name}", *_attribute(sys, name)) for name in ("stdout", "stderr", "excepthook"))
MANNERS = (
    *STREAMS,
    Setting("threading.excepthook", *_attribute(threading, "excepthook")),
    Setting("the default time-out of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Setting("the environment", lambda: dict(os.environ), _set_environment, _names_of_environment),
)


class _Group:
    """Settings with one baseline for all threads: their values when the first thread came in.

    :param at_end: changes are set back when the last one leaves, not when each does.
    """

    def __init__(self, settings: Sequence[Setting], *, at_end: bool = False) -> None:
        self._settings = settings
        self._at_end = at_end
        self._lock = threading.RLock()  # the thread that has it may end another watch: of a generator that is collected
        self._inside = 0
        self._baseline: list[Any] = []
        self._changed_by: list[int] = []

    def enter(self) -> int:
        """This returns the number of earlier changes."""
        with self._lock:
            if not self._inside:
                self._baseline = [setting.read() for setting in self._settings]
            self._inside += 1
            return len(self._changed_by)

    def leave(self, before: int, limit: int | None = None) -> tuple[list[str], bool]:
        """This returns the changes, and whether code of another thread changed something since `before`.

        :param limit: if the first ones of this number are as they were, the others are not looked at; None: all are.
        """
        me = threading.get_ident()
        with self._lock:
            self._inside -= 1
            problems = [] if self._at_end and self._inside else self._set_back(limit)
            beside = any(thread != me for thread in self._changed_by[before:])
            self._changed_by += [me] * bool(problems)
            return problems, beside

    def forked(self) -> None:
        """The child of a fork needs a new lock: another thread of its parent may have held the old one."""
        self._lock = threading.RLock()

    def _set_back(self, limit: int | None) -> list[str]:
        problems: list[str] = []
        for place, (setting, before) in enumerate(zip(self._settings, self._baseline, strict=True)):
            if place == limit and not problems:
                break
            now = setting.read()
            if now == before:
                continue
            problems.append(f"{setting.name} ({setting.shows(before, now)})")
            with contextlib.suppress(OSError, ValueError, locale.Error):
                setting.write(before)
        return problems


_VALUES = _Group((*QUICK, MASK))
_MANNERS = _Group(MANNERS, at_end=True)
_HANDLERS = _Group((HANDLERS,))
for _group in (_VALUES, _MANNERS, _HANDLERS):
    os.register_at_fork(after_in_child=_group.forked)


def _decimals() -> tuple[Any, ...]:
    now = decimal.getcontext()
    traps = frozenset(kind for kind, is_set in now.traps.items() if is_set)
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


class Watch(AbstractContextManager["Watch"]):
    """A watch surrounds foreign code and sets its changes back at the end. `trouble` names them then; "" means none.

    A child that the code forked ends here: its parent has the connections and the work.

    :param quick: another watch surrounds this one; settings that take long to read are left out.
    :param manners: the last such watch sets manners back.
    """

    def __init__(self, *, quick: bool = False, manners: bool = False) -> None:
        self.trouble = ""
        self._quick = quick
        self._manners = manners

    def __enter__(self) -> Watch:
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._decimals, self._context = _decimals(), decimal.getcontext().copy()
        self._seen = _VALUES.enter()
        self._handlers = None if self._quick or self._thread != threading.main_thread().ident else _HANDLERS.enter()
        if self._manners:
            _MANNERS.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        is_dropped = isinstance(error, GeneratorExit)  # a pass that is thrown away, among the decimals of another
        if os.getpid() != self._process and not is_dropped:
            _end_fork(error)
        changed, beside = _VALUES.leave(self._seen, len(QUICK) if self._quick else None)
        if not is_dropped and threading.get_ident() == self._thread and (now := _decimals()) != self._decimals:
            changed.append(f"the decimal context (now prec={now[0]}, rounding={now[1]})")
            decimal.setcontext(self._context)
        manners = _HANDLERS.leave(self._handlers)[0] if self._handlers is not None else []
        manners += _MANNERS.leave(0)[0] if self._manners else []
        if manners:
            _log.warning("Code of a user changed %s of the process; that was set back", ", ".join(manners))
        if changed:
            self.trouble = f"changed {', '.join(changed)} of the process"
        elif beside:
            self.trouble = "ran while other code changed settings of the process that rows depend on"


def _end_fork(error: BaseException | None) -> NoReturn:
    """Ends this process as ``sys.exit()`` would, but nothing that belongs to its parent runs."""
    code = 1 if error is not None else 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
