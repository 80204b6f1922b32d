"""Kills tasks between the submission of a driver and the moment when they remember it: how many kills leave two drivers
at work, with the provider's SparkSubmitOperator and with a submitted drain?

    make submit-kills KILLS=1000
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.fixtures.submit_kills import Contender, Point, deployment


def main(kills: int) -> None:
    """:param kills: number of kills of each contender at each point."""
    with tempfile.TemporaryDirectory(prefix="submit-kills-") as folder, deployment(Path(folder)) as deployed:
        print("| killed | operator | kills | drivers started | two at work | runs that succeeded |")
        print("|---|---|---|---|---|---|")
        for point in (Point.SUBMITTED, Point.SUBMITTING):
            for contender in Contender:
                found = deployed.kill(contender, point, kills)
                cells = (point, contender, found.kills, found.drivers, found.doubles, found.succeeded)
                print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
