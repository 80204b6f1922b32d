"""Kills tasks between the submission of a driver and the moment when they remember it: how many kills leave two drivers
at work, with the provider's SparkSubmitOperator and with a submitted drain?

    make submit-kills KILLS=1000

Each round kills some tasks of both operators at one point, at the same time. What it found is written to a file, which
the next run of the program goes on from, so the kills need not be of one run: they take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from tests.fixtures.submit_kills import Contender, Outcome, Point, deployment

Cell = tuple[Point, Contender]
CELLS: Sequence[Cell] = [(point, contender) for point in (Point.SUBMITTED, Point.SUBMITTING) for contender in Contender]
NOTHING = Outcome(kills=0, drivers=0, at_work=0, succeeded=0)


def added(one: Outcome, other: Outcome, sign: int = 1) -> Outcome:
    """The sum of two counts, or with ``sign=-1`` their difference."""
    return Outcome(
        **{count.name: getattr(one, count.name) + sign * getattr(other, count.name) for count in fields(one)}
    )


def counted(file: Path) -> dict[Cell, Outcome]:
    """What earlier rounds have found."""
    found = dict.fromkeys(CELLS, NOTHING)
    for line in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(line)
        cell = Point(row["point"]), Contender(row["contender"])
        found[cell] = added(found[cell], Outcome(**row["outcome"]))
    return found


def play(kills: int, file: Path, points: Sequence[Point], folder: Path, at_once: int, of_a_round: int) -> None:
    """Kill until each operator was killed so often at each of these points; `file` gets a line for each round of each.

    :param of_a_round: kills of each operator, before what they left is counted.
    :param folder: where Airflow and the cluster are; at the end it has the logs of all tasks and drivers.
    """
    found, here = counted(file), dict.fromkeys(CELLS, NOTHING)
    cells = [cell for cell in CELLS if cell[0] in points]
    with deployment(folder, at_once=at_once) as deployed:
        while wanted := next_round(found, cells, kills, of_a_round):
            for (point, contender), number in wanted.items():
                deployed.begin(contender, point, number)
            for cell in wanted:
                total = deployed.outcome(cell[1], cell[0])
                new, here[cell] = added(total, here[cell], -1), total
                found[cell] = added(found[cell], new)
                write(file, cell, new)
                print(f"{cell[1]} {cell[0]}: {found[cell]}", flush=True)


def next_round(found: dict[Cell, Outcome], cells: Sequence[Cell], kills: int, most: int) -> dict[Cell, int]:
    """How many of the first point that wants kills; empty if none does."""
    wanted = {cell: min(most, kills - found[cell].kills) for cell in cells if found[cell].kills < kills}
    point = next((cell[0] for cell in wanted), None)
    return {cell: number for cell, number in wanted.items() if cell[0] is point}


def write(file: Path, cell: Cell, new: Outcome) -> None:
    """With when it was, and how many processes wanted a core."""
    conditions = {"ended": time.strftime("%Y-%m-%d %H:%M:%S"), "load": round(os.getloadavg()[1], 1)}
    row = {"point": cell[0], "contender": cell[1], "outcome": asdict(new), **conditions}
    with file.open("a") as lines:
        print(json.dumps(row), file=lines)


def table(found: dict[Cell, Outcome]) -> list[str]:
    lines = [
        "| killed | operator | kills | drivers started | two at work | runs that succeeded |",
        "|---|---|---|---|---|---|",
    ]
    for (point, contender), one in found.items():
        cells = (point, contender, one.kills, one.drivers, one.doubles, one.succeeded)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit_kills", description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=10, help="of each operator at each point")
    parser.add_argument("--done", type=Path, default=Path(".trident-bench/submit-kills.jsonl"), help="what was played")
    parser.add_argument("--points", type=Point, nargs="+", default=list(Point), help="where they are killed")
    parser.add_argument("--at-once", type=int, default=4, help="runs of each operator, and tasks of both")
    parser.add_argument(
        "--round", type=int, default=10, help="kills of each operator, before what they left is counted"
    )
    parser.add_argument("--folder", type=Path, help="an empty one that is kept, with the logs of all tasks and drivers")
    given = parser.parse_args()
    given.done.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="submit-kills-") as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        play(given.kills, given.done, given.points, folder, given.at_once, given.round)
    print("\n".join(table(counted(given.done))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
