"""Which histories were played, and with which commit: a file that is kept with the code, so that the counts of several
runs, also on several machines, add up. A seed is counted once, with the commit that played it first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("played.json")
BEGIN, END = "<!-- counted by `make histories`: begin -->", "<!-- end -->"
PAGE = Path(__file__).with_name("README.md")


@dataclass(frozen=True)
class Part:
    """Seeds `first` to `last` - 1 of a kind, played with the code of this commit. `broken`: seed -> the broken
    promise."""

    kind: str
    first: int
    last: int
    transactions: int
    steps: int
    cpu_s: float
    broken: dict[int, str]
    commit: str = ""

    @property
    def histories(self) -> int:
        return self.last - self.first


def commit() -> str:
    """The commit that is checked out; with a + where files differ from it, and empty without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def load(file: Path = FILE) -> list[Part]:
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [Part(**{**row, "broken": {int(seed): why for seed, why in row["broken"].items()}}) for row in rows]


def save(parts: Iterable[Part], file: Path = FILE) -> None:
    """A line each; who stops in the middle leaves the file as it was."""
    lines = ",\n".join(json.dumps(asdict(part)) for part in merged(parts))
    draft = file.with_suffix(".draft")
    draft.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    os.replace(draft, file)


def merged(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one kind and one commit become one."""
    found: list[Part] = []
    for part in sorted(parts, key=lambda one: (one.kind, one.commit, one.first)):
        before = found[-1] if found else None
        if before is None or (before.kind, before.commit, before.last) != (part.kind, part.commit, part.first):
            found.append(part)
            continue
        found[-1] = replace(
            before,
            last=part.last,
            transactions=before.transactions + part.transactions,
            steps=before.steps + part.steps,
            cpu_s=round(before.cpu_s + part.cpu_s, 1),
            broken=before.broken | part.broken,
        )
    return found


def is_played(parts: Iterable[Part], kind: str, first: int, last: int) -> bool:
    """Were all of these seeds played, with one code or with several?"""
    at = first
    for part in sorted((one for one in parts if one.kind == kind), key=lambda one: one.first):
        if part.first <= at < part.last:
            at = part.last
    return at >= last


def table(kinds: Sequence[str], parts: Sequence[Part]) -> list[str]:
    """A row for each kind."""
    lines = ["| kind | histories | transactions | steps | broken |", "|---|---|---|---|---|"]
    rows = []
    for kind in kinds:
        mine = [part for part in parts if part.kind == kind]
        counts = [sum(getattr(part, name) for part in mine) for name in ("histories", "transactions", "steps")]
        rows.append([*counts, sum(len(part.broken) for part in mine)])
        lines.append(_row(kind, rows[-1]))
    lines.append(_row("all", [sum(column) for column in zip(*rows, strict=True)]))
    counted = dict.fromkeys(sorted({part.commit for part in parts}), 0)
    for part in parts:
        counted[part.commit] += part.histories
    by = ", ".join(f"{commit or 'unknown'} {count:,}" for commit, count in counted.items())
    return [*lines, "", f"By commit: {by or 'none'}."]


def _row(kind: str, counts: Sequence[int]) -> str:
    name = kind if kind == "all" else f"`{kind}`"
    return f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |"


def write_page(lines: Sequence[str], page: Path = PAGE) -> None:
    """Replaces the table on the page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join((before + BEGIN, *lines, END + after)), encoding="utf-8")
