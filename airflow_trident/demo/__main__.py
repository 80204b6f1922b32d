"""``python -m airflow_trident.demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from airflow_trident.demo.folder import DEFAULT_NAME, VARIABLE, Folder, folder_from_environment
from airflow_trident.demo.run import INTERRUPTS, Demo
from airflow_trident.demo.screen import Colour, Screen
from airflow_trident.errors import TridentError

INTERRUPTED = 130
DESCRIPTION = f"""\
Counts the words of Python's standard library in exactly-once batches, through a real Airflow, Spark and ZooKeeper.
Two tasks are killed with SIGKILL on the way, and one file is damaged so that its transaction fails and is backfilled.
In the end every word's count is compared with a plain count of the same files.

Everything is in one folder, {DEFAULT_NAME} in the current one (or where {VARIABLE} says); only 127.0.0.1 is used.
Run it again and it goes on where it stopped; delete the folder to begin anew. Takes a few minutes.
With make: make demo ARGS=--keep
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if the counts are equal, 1 if not or on an error, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_trident.demo",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", action="store_true", help="leave Airflow running in the end, until Ctrl-C")
    parser.add_argument(
        "--lines",
        type=int,
        metavar="N",
        help="with a new folder: take N lines for each transaction instead of about 100,000",
    )
    given = parser.parse_args(arguments)
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    screen, folder = Screen(), folder_from_environment()
    try:
        folder.make()
        with folder.locked():
            _headline(screen, folder)
            equal = Demo(folder, screen, keep=given.keep, lines_of_a_part=given.lines).run()
    except KeyboardInterrupt:
        screen.line(f"\nInterrupted; nothing is left running. The next run goes on from here. Logs: {folder.logs}")
        return INTERRUPTED
    except TridentError as error:
        screen.line(screen.paint(f"\nerror: {error}", Colour.RED))
        screen.line(f"Nothing is left running. Logs: {folder.logs}")
        return 1
    screen.line(f"\n{screen.elapsed_s:.0f} s. Everything is in {folder.root}; run it again and nothing is added.")
    return 0 if equal else 1


def _headline(screen: Screen, folder: Folder) -> None:
    screen.line(screen.paint("Exactly-once batches through Airflow, Spark and ZooKeeper", Colour.BOLD))
    screen.line(f"Everything is in {folder.root}, and only 127.0.0.1 is used. Ctrl-C stops it all.\n")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
