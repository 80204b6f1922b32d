"""Windows, after Storm's TumblingCountWindow, SlidingCountWindow, TumblingDurationWindow and SlidingDurationWindow:
configurations and their arithmetic. Pure.

Tuples have a *place*: their number in the stream for a count window, their time in milliseconds for a duration window.
The window that ends at `end` holds the tuples with ``end - length <= place < end``; ends are multiples of the slide. A
*pane* is the largest range that every window contains whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from airflow_trident.errors import PlanError
from airflow_trident.names import at_least_one

DEFAULT_MAX_AHEAD = timedelta(minutes=5)
"""Synchronised clocks differ by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """Length and slide in places; the functions below make one. `timed`: places are milliseconds."""

    length: int
    slide: int
    timed: bool

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """:raises PlanError: a length below 1, or a slide that would leave tuples out (Storm's validate())."""
        if self.length < 1 or self.slide < 1:
            raise PlanError(f"{self} has no extent", "Length and slide must be positive.")
        if self.slide > self.length:
            raise PlanError(f"{self} slides by more than its length", "Let the slide be at most the length.")

    def __str__(self) -> str:
        unit = "ms" if self.timed else "tuples"
        if self.slide == self.length:
            return f"tumbling window of {self.length} {unit}"
        return f"sliding window of {self.length} {unit} by {self.slide}"

    # ---- arithmetic --------------------------------------------------------------------------------------------

    @property
    def pane(self) -> int:
        """Places per pane."""
        return math.gcd(self.length, self.slide)

    def pane_of(self, place: int) -> int:
        return place // self.pane

    def last_end(self, mark: int) -> int:
        """The end of the last window that is complete when all tuples below `mark` have come."""
        return mark // self.slide * self.slide

    def spans(self, place: int) -> tuple[int, int]:
        """The beginning of the first window that holds the place, and the end of the last one."""
        return self.last_end(place) + self.slide - self.length, self.last_end(place + self.length)

    def panes_of(self, end: int) -> range:
        """The panes of the window that ends at `end`."""
        return range((end - self.length) // self.pane, end // self.pane)

    def ends(self, panes: Iterable[int], after: int | None, mark: int) -> Iterator[int]:
        """The ends in ``(after, mark]``, ascending, of windows that contain one of `panes`: an empty window does not
        fire. The length of gaps costs nothing.

        :param panes: sorted.
        :param after: the previous end, None if there was none.
        """
        done, last = after, self.last_end(mark)
        for pane in panes:
            first = pane * self.pane // self.slide * self.slide + self.slide
            begin = first if done is None else max(first, done + self.slide)
            for end in range(begin, min(pane * self.pane + self.length, last) + 1, self.slide):
                yield end
                done = end

    def needed_from(self, end: int) -> int:
        """The first pane that a window after the one ending at `end` may contain."""
        return (end + self.slide - self.length) // self.pane


def TumblingCountWindow(length_rows: int) -> WindowConfig:  # noqa: N802 - Storm's name
    """Every `length_rows` tuples are a window."""
    at_least_one("TumblingCountWindow(length_rows)", length_rows)
    return WindowConfig(length=length_rows, slide=length_rows, timed=False)


def SlidingCountWindow(length_rows: int, slide_rows: int) -> WindowConfig:  # noqa: N802 - Storm's name
    """Every `slide_rows` tuples, a window of the last `length_rows` (of all, while there are fewer)."""
    at_least_one("SlidingCountWindow(length_rows)", length_rows)
    at_least_one("SlidingCountWindow(slide_rows)", slide_rows)
    return WindowConfig(length=length_rows, slide=slide_rows, timed=False)


def TumblingDurationWindow(length: timedelta) -> WindowConfig:  # noqa: N802 - Storm's name
    """Windows of duration `length`, one after the other, counted from 1970-01-01 UTC."""
    return WindowConfig(length=milliseconds(length), slide=milliseconds(length), timed=True)


def SlidingDurationWindow(length: timedelta, slide: timedelta) -> WindowConfig:  # noqa: N802 - Storm's name
    """A window of duration `length` ends at every multiple of `slide`."""
    return WindowConfig(length=milliseconds(length), slide=milliseconds(slide), timed=True)


def tumbling(length: int | timedelta) -> WindowConfig:
    """By a number of tuples, or by time."""
    return TumblingCountWindow(length) if isinstance(length, int) else TumblingDurationWindow(length)


def sliding(length: int | timedelta, slide: int | timedelta) -> WindowConfig:
    """By a number of tuples, or by time.

    :raises PlanError: one is a number and the other a duration.
    """
    if isinstance(length, int) and isinstance(slide, int):
        return SlidingCountWindow(length, slide)
    if isinstance(length, int) or isinstance(slide, int):
        raise PlanError(f"a window of {length} cannot slide by {slide}", "Give two numbers or two durations.")
    return SlidingDurationWindow(length, slide)


def milliseconds(time: timedelta) -> int:
    """:raises PlanError: not a duration in whole milliseconds."""
    if not isinstance(time, timedelta) or time % timedelta(milliseconds=1):
        raise PlanError(f"{time!r} is no duration in whole milliseconds", "Give a timedelta, as timedelta(minutes=5).")
    return time // timedelta(milliseconds=1)
