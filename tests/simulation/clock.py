"""The time in a history: a step takes a second. The wall clock may be set back or forward."""

from __future__ import annotations

import functools
import sys
import time
from contextlib import AbstractContextManager
from types import ModuleType

from tests.simulation.scheduler import Scheduler
from tests.simulation.swaps import swapped

BEGAN_MS = 1_700_000_000_000


class SimTime:
    """Replaces the module `time`. The time zone stays that of the process.

    `wrong_s`: the error of the wall clock of the present process.
    """

    tzname, timezone, altzone = time.tzname, time.timezone, time.altzone
    tzset = staticmethod(time.tzset)

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


def instead_of_time(clock: SimTime) -> AbstractContextManager[None]:
    """All modules of the package that read a clock read this one."""
    return swapped([(module, "time", clock) for module in _modules(len(sys.modules))])


@functools.lru_cache(maxsize=1)
def _modules(_imported: int) -> list[ModuleType]:
    """Airflow has thousands of modules: they are searched again only when one is imported."""
    found = (module for name, module in sys.modules.items() if name.startswith("airflow_trident."))
    return [module for module in found if getattr(module, "time", None) is time]
