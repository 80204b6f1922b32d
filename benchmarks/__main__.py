"""`python -m benchmarks`: every contender of every scenario, interleaved, as tables with ratios.

python -m benchmarks                    some two minutes, to see that all work (profile ci)
python -m benchmarks --profile main     the main targets in some twelve minutes on two idle cores
python -m benchmarks --profile full     everything, five rounds each: hours
python -m benchmarks --profile full --only "100 x 1e4"
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.report import as_json, machine, table, write
from benchmarks.rounds import Bench
from benchmarks.scenarios import CONTENDERS, SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours against what people use today.")
    parser.add_argument("--profile", choices=("ci", "main", "full"), default="ci", help="how much (default: ci)")
    parser.add_argument("--quick", action="store_true", help="the same as --profile ci")
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="leave out all others")
    parser.add_argument(
        "--among", action="append", default=[], metavar="CONTENDER", choices=CONTENDERS, help="leave out all others"
    )
    parser.add_argument("--runs", type=int, help="rounds, instead of what the profile says")
    parser.add_argument("--folder", type=Path, default=Path(".trident-bench"), help="for data and results")
    given = parser.parse_args()
    profile = "ci" if given.quick else given.profile
    wanted = [one for one in SCENARIOS if (one.name in given.only if given.only else profile in one.runs)]
    chosen = [one for one in (scenario.among(given.among) for scenario in wanted) if one.contenders]
    if not chosen:
        names = ", ".join(repr(one.name) for one in SCENARIOS)
        parser.error(f"no such scenario, or none with such a contender; there are {names}")
    facts, tables, results = {**machine(), "profile": profile}, [], []
    began, void = time.perf_counter(), False
    folder = given.folder.absolute()
    with Bench(folder, lambda line: print(line, flush=True)) as bench:
        for scenario in chosen:
            print(f"{scenario.name} ({time.perf_counter() - began:.0f} s so far)", flush=True)
            measured = bench.measure(scenario, given.runs or scenario.runs.get(profile, 1))
            void |= bool(measured.wrong)
            tables.append(table(measured))
            results.append(as_json(measured))
            print("\n" + tables[-1], flush=True)
            # After each one, so that no result is lost when somebody stops the run.
            path = write(folder / "results", f"benchmarks-{profile}", facts, tables, results)
    print(f"{path} ({time.perf_counter() - began:.0f} s)")
    return 1 if void else 0


if __name__ == "__main__":
    raise SystemExit(main())
