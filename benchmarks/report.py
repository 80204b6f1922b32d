"""Tables and files of results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rounds import Measured
from benchmarks.scenarios import CONTENDERS, Target


def machine() -> dict[str, str]:
    """The facts on which the figures depend."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java[0] if java else "?",
        "pyspark": version("pyspark"),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


def table(measured: Measured) -> str:
    """Runs and targets of a scenario as markdown. A contender with another result makes the table void."""
    corpus, runs = measured.scenario.corpus, measured.runs
    lines = [f"### {measured.scenario.name}", "", f"{corpus.title}; n = {max(map(len, runs.values()))}", ""]
    if measured.wrong:
        return "\n".join([*lines, f"VOID: another result from {', '.join(sorted(set(measured.wrong)))}", ""])
    base = measured.scenario.contenders[0]
    lines += [
        f"| contender | whole process s | work s | work / {base} | CPU s | CPU / {base} | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in measured.scenario.contenders:
        facts = runs[name][0].facts
        reckoned = f" (reckoned from {facts['reckoned_from']} batches)" if "reckoned_from" in facts else ""
        lines.append(
            f"| {name}{reckoned} | {spread([run.wall_s for run in runs[name]])} | "
            f"{spread([run.work_s for run in runs[name]])} | "
            f"{spread(measured.ratios(name, base, 'work_s'), digits=2)} | "
            f"{spread([run.cpu_s for run in runs[name]])} | "
            f"{spread(measured.ratios(name, base, 'cpu_s'), digits=2)} | {measured.median(name, 'peak_mb'):.0f} |"
        )
    if measured.scenario.targets:
        lines += ["", "| target | at most | median (lowest - highest) | |", "|---|---|---|---|"]
        lines += [_judged(measured, target) for target in measured.scenario.targets]
    return "\n".join([*lines, ""])


def _judged(measured: Measured, target: Target) -> str:
    ratios = measured.ratios(target.ours, target.theirs, target.measure)
    if target.most is None:
        return f"| {target.title} | | {spread(ratios, digits=3)} | |"
    reached = "reached" if sorted(ratios)[len(ratios) // 2] <= target.most else "**missed**"
    return f"| {target.title} | {target.most:.2f} | {spread(ratios, digits=3)} | {reached} |"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median (lowest - highest)."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
    if len(ordered) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({ordered[0]:.{digits}f} - {ordered[-1]:.{digits}f})"


def legend() -> str:
    """A line for each contender, from the docstring of its function."""
    from benchmarks import ours, peers

    lines = []
    for name, (function, options) in CONTENDERS.items():
        found = getattr(peers, function, None) or getattr(ours, function)
        more = ", ".join(f"{key}={value}" for key, value in options.items())
        lines.append(f"- **{name}**: {found.__doc__.splitlines()[0]}{f' ({more})' if more else ''}")
    return "\n".join(lines)


def write(folder: Path, name: str, facts: dict[str, str], tables: list[str], results: list[dict[str, Any]]) -> Path:
    """Write `NAME.md` and `NAME.json` to the folder, and return the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    about = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    path = folder / f"{name}.md"
    path.write_text("\n".join([f"# {name}", "", about, "", legend(), "", *tables]))
    (folder / f"{name}.json").write_text(json.dumps({"machine": facts, "results": results}, indent=1))
    return path


def as_json(measured: Measured) -> dict[str, Any]:
    return {
        "scenario": measured.scenario.name,
        "corpus": asdict(measured.scenario.corpus),
        "void": sorted(set(measured.wrong)),
        "runs": {name: [asdict(run) for run in runs] for name, runs in measured.runs.items()},
    }
