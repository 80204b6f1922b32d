"""Kills tasks between the submission of a driver and the moment when they remember it: how many kills leave two drivers
at work, with the provider's SparkSubmitOperator and with a submitted drain?

    make submit-kills KILLS=1000

Each round kills some tasks of each operator at each point. What it found is written to a file, which the next run of
the program goes on from, so the kills need not be of one run: they take hours.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from tests.fixtures.submit_kills import Contender, Outcome, Point, deployment

ROUND = 20
"""Kills of each operator at each point, before what they left is counted."""

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


def play(kills: int, file: Path) -> None:
    """Kill until each operator was killed so often at each point; `file` gets a line for each round of each."""
    found, here = counted(file), dict.fromkeys(CELLS, NOTHING)
    with tempfile.TemporaryDirectory(prefix="submit-kills-") as folder, deployment(Path(folder)) as deployed:
        while any(outcome.kills < kills for outcome in found.values()):
            for cell in CELLS:
                point, contender = cell
                wanted = min(ROUND, kills - found[cell].kills)
                if wanted <= 0:
                    continue
                total = deployed.kill(contender, point, wanted)
                new, here[cell] = added(total, here[cell], -1), total
                found[cell] = added(found[cell], new)
                row = {"point": point, "contender": contender, "outcome": asdict(new)}
                with file.open("a") as lines:
                    print(json.dumps(row), file=lines)
                print(f"{contender} {point}: {found[cell]}", flush=True)


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
    given = parser.parse_args()
    given.done.parent.mkdir(parents=True, exist_ok=True)
    play(given.kills, given.done)
    print("\n".join(table(counted(given.done))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
