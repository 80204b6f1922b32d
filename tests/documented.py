"""Numbers in the documentation, for the tests that count them, so that page and code cannot differ."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def documented(page: str, pattern: str) -> int:
    """The number on a page: the only match of a pattern with one group. Thousands are divided by commas."""
    found = re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"))
    assert len(found) == 1, f"docs/{page} says {pattern!r} {len(found)} times; a test counts what it says there"
    return int(found[0].replace(",", ""))
