"""Drivers whose calls fail, one after the other: a walk over all of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_PACKAGE = f"{os.sep}airflow_trident{os.sep}"
Place = tuple[str, str, int]
"""What is called of a driver, and the line of this package that calls it."""


@dataclass
class FailingDriver:
    """Notes from where a driver is called, in all threads. The first call from the place `fails_at` raises `error`:
    before it does anything, or `after` it has done all.

    :param modules: how the names of the driver's modules begin. Their objects are watched, too, if calls return them.
    """

    modules: tuple[str, ...]
    error: BaseException = field(default_factory=lambda: RuntimeError("none"))
    fails_at: Place | None = None
    after: bool = False
    failed: bool = False
    places: dict[Place, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, fails_at: Place | None, error: BaseException, *, after: bool = False) -> None:
        self.failed = False
        self.fails_at, self.error, self.after = fails_at, error, after

    def around(self, thing: Any) -> Any:
        """A module, object or iterator of the driver."""
        return _Watched(self, thing)

    def called(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        place = (name, *_caller())
        with self._lock:
            self.places[place] = None
            fails = place == self.fails_at and not self.failed
            self.failed = self.failed or fails
        if fails and not self.after:
            raise self.error
        answer = call(*arguments, **options)
        if fails:
            raise self.error
        return self.around(answer) if type(answer).__module__.startswith(self.modules) else answer


def _caller() -> tuple[str, int]:
    frame = sys._getframe()
    while frame.f_back is not None and _PACKAGE not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename.rpartition(_PACKAGE)[2], frame.f_lineno


class _Watched:
    """What is no call passes."""

    def __init__(self, driver: FailingDriver, thing: Any) -> None:
        self.__dict__.update(driver=driver, thing=thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.thing, name)
        if not callable(value) or isinstance(value, type):
            return value
        return lambda *arguments, **options: self.driver.called(name, value, *arguments, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.thing, name, value)

    def __iter__(self) -> Iterator[Any]:
        pages = iter(self.thing)
        while True:
            try:
                yield self.driver.called("next", pages.__next__)
            except StopIteration:
                return

    def __bytes__(self) -> bytes:
        return bytes(self.thing)

    def __len__(self) -> int:
        return len(self.thing)

    def __getitem__(self, key: Any) -> Any:
        return self.thing[key]
