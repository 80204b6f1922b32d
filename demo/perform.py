"""Performs a demonstration from the command line: its folder, its lock, its exit status."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType

from airflow_trident.errors import TridentError
from demo.folder import DemoFolder
from demo.run import INTERRUPTS, Demo
from demo.screen import Colour, Screen
from demo.story import Play

INTERRUPTED = 130


def perform(plays: Sequence[Play], folder: DemoFolder, *, keep: bool) -> int:
    """Exit status: 0 if the counts are equal, 1 if not or on an error, 130 if interrupted."""
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, and then left so
            signal.signal(number, _interrupt)
    screen = Screen()
    try:
        folder.make()
        with folder.locked():
            _headline(screen, folder)
            equal = Demo(folder, screen, plays, keep=keep).run()
    except KeyboardInterrupt:
        screen.line(f"\nInterrupted; nothing is left running. The next run goes on from here. Logs: {folder.logs}")
        return INTERRUPTED
    except TridentError as error:
        screen.line(screen.paint(f"\nerror: {error}", Colour.RED))
        screen.line(f"Nothing is left running. Logs: {folder.logs}")
        return 1
    screen.line(f"\n{screen.elapsed_s:.0f} s. Everything is in {folder.root}; run it again and nothing is added.")
    if not keep:
        screen.line("With ARGS=--keep Airflow stays up, and its page shows these transactions as they are now.")
    return 0 if equal else 1


def _headline(screen: Screen, folder: DemoFolder) -> None:
    screen.line(screen.paint("Exactly-once batches through Airflow, Spark and ZooKeeper", Colour.BOLD))
    screen.line(f"Everything is in {folder.root}, and only 127.0.0.1 is used. Ctrl-C stops it all.\n")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
