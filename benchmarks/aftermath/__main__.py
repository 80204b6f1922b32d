"""`python -m benchmarks.aftermath`: what each way of writing a batch leaves behind after an accident, counted in rows.

Each job is killed with SIGKILL at a named place, or stopped there while its retry runs, or cleared. Then the rows that
a reader of the store sees are counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.aftermath import report, ways
from benchmarks.aftermath.accidents import Accident, Left

if TYPE_CHECKING:
    from tests.fixtures.postgres import PostgresServer

Play: TypeAlias = Callable[[Accident], Left]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aftermath", description=__doc__)
    parser.add_argument("--job", nargs=4, metavar=("WAY", "FOLDER", "BATCH", "ACCIDENT"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", metavar="WAY", help="ways with this in their name")
    parser.add_argument("--accident", action="append", metavar="WHAT", help="accidents with this in their name")
    parser.add_argument("--dbt", default="", metavar="PROGRAM", help="of an environment with dbt-core and dbt-postgres")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="so many accidents at a time (2)")
    parser.add_argument("--write", action="store_true", help="write what was found where the documents' test reads it")
    given = parser.parse_args()
    if given.job:
        way, folder, batch, accident = given.job
        ways.job(way, folder, int(batch), accident)
        return 0
    if given.dbt and not os.access(given.dbt, os.X_OK):
        parser.error(
            f"--dbt {given.dbt}: no such program. Install dbt-core and dbt-postgres into an environment of theirs."
        )
    accidents = [one for what in given.accident or [""] for one in Accident if what in one]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with ExitStack() as stack:
        plays = _plays(stack, given.only, given.dbt)
        if not plays or not accidents:
            parser.error("no way or no accident has this in its name")
        found, errors = _all_played(plays, accidents, given.at_once, write=given.write)
    print(report.table(found, accidents))
    print(f"{len(errors)} accidents could not be played", file=sys.stderr)
    wrong = [
        way for way, row in found.items() if way.startswith("ours") for left in row.values() if str(left) != "right"
    ]
    return 1 if wrong or errors else 0


def _plays(stack: ExitStack, only: str, program: str) -> dict[str, Play]:
    """The chosen ways, with what they need started. It ends with the stack."""
    # here, because every job imports this module
    from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
    from benchmarks.aftermath import dbt, operators
    from tests.fixtures.postgres import PostgresServer

    plays: dict[str, Play] = {}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aftermath-", ignore_cleanup_errors=True)))
    if any(only in way for way in operators.OPERATORS):
        deployed = stack.enter_context(operators.deployment(folder))
        for way in operators.OPERATORS:
            plays[way] = partial(deployed.left_by, way)
    if any(only in way for way in ways.WAYS):
        server = EmbeddedZooKeeper(str(folder / "ledger"))
        stack.callback(server.stop)
        hosts = server.start().hosts
        for way in ways.WAYS:
            plays[way] = partial(_job, way, hosts)
    if program and any(only in way for way in dbt.MODELS):
        database = PostgresServer()
        database.start()
        stack.callback(database.stop)
        for number, way in enumerate(dbt.MODELS):
            plays[way] = partial(_dbt, program, way, folder / f"dbt-{number}", database)
    return {way: play for way, play in plays.items() if only in way}


def _all_played(
    plays: dict[str, Play], accidents: list[Accident], at_once: int, *, write: bool
) -> tuple[report.Found, list[str]]:
    """What was found, and which accidents could not be played."""
    found: report.Found = {}
    errors = []
    pool = ThreadPoolExecutor(at_once)
    try:
        going = {pool.submit(_played, way, play, one): (way, one) for one in accidents for way, play in plays.items()}
        for done in as_completed(going):
            way, accident = going[done]
            if error := done.exception():
                errors.append(f"{way}, {accident}: {type(error).__name__}: {error}")
                print(f"error: {errors[-1]}", file=sys.stderr, flush=True)
                continue
            found.setdefault(way, {})[accident] = done.result()
            if write:
                report.write(found)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found, errors


def _played(way: str, play: Play, accident: Accident) -> Left:
    left = play(accident)
    print(f"{way} | {accident} | {left} | {left.ended}", file=sys.stderr, flush=True)
    return left


def _job(way: str, hosts: str, accident: Accident) -> Left:
    return ways.left_by(way, accident, f"{hosts} /aftermath-{accident.name.lower()}")


def _dbt(program: str, way: str, folder: Path, database: PostgresServer, accident: Accident) -> Left:
    from benchmarks.aftermath import dbt

    return dbt.left_by(str(Path(program).absolute()), way, accident, folder / accident.name, database)


if __name__ == "__main__":
    sys.exit(main())
