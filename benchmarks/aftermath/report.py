"""The table of what was found, and the file from which the test of the documents makes it again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from benchmarks.aftermath.accidents import Accident, Left

MEASURED = Path(__file__).with_name("measured.json")
Found: TypeAlias = dict[str, dict[Accident, Left]]


def table(found: Found, accidents: Sequence[Accident] = tuple(Accident)) -> str:
    """As markdown: a line for each way, those of the package last."""
    ordered = sorted(found, key=lambda way: way.startswith("ours"))
    lines = [["", *map(str, accidents)], ["---"] * (len(accidents) + 1)]
    lines += [[way, *(str(found[way].get(one, "not played")) for one in accidents)] for way in ordered]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(found: Found) -> None:
    """What was not played now stays as it was. Several programs may write at once."""
    folder = os.open(MEASURED.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        before = read()
        after = {way: {**before.get(way, {}), **found.get(way, {})} for way in {**before, **found}}
        text = {way: {one: vars(row[one]) for one in Accident if one in row} for way, row in sorted(after.items())}
        MEASURED.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    finally:
        os.close(folder)


def read() -> Found:
    if not MEASURED.exists():
        return {}
    text = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {way: {Accident(one): Left(**left) for one, left in row.items()} for way, row in text.items()}
