"""``python -m demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from demo.folder import DEFAULT_NAME, VARIABLE, folder_from_environment
from demo.perform import perform
from demo.story import WordCount

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
        prog="python -m demo",
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
    return perform([WordCount(given.lines)], folder_from_environment(), keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
