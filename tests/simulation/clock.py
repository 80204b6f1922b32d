"""The time in a history: a step takes a second. The wall clock may be set back or forward."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from tests.simulation.scheduler import Scheduler

BEGAN_MS = 1_700_000_000_000


class SimTime:
    """Replaces the module `time`.

    `wrong_s`: the error of the wall clock of the present process.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.wrong_s = 0

    def monotonic(self) -> float:
        return float(self._scheduler.steps)

    def time(self) -> float:
        return self.time_ms() / 1000

    def time_ns(self) -> int:
        return self.time_ms() * 1_000_000

    def time_ms(self) -> int:
        return BEGAN_MS + 1000 * (self._scheduler.steps + self.wrong_s)

    def sleep(self, _seconds: float) -> None:
        self._scheduler.step()


@contextmanager
def instead_of_time(clock: SimTime) -> Iterator[None]:
    """All modules of the package that read a clock read this one."""
    with ExitStack() as stack:
        for module in _modules():
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield


def _modules() -> list[ModuleType]:
    found = (module for name, module in sys.modules.items() if name.startswith("airflow_trident."))
    return [module for module in found if getattr(module, "time", None) is time]
