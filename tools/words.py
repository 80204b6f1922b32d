"""Counts breaches of the rules for words, in documents and in the texts of the package.

    python -m tools.words              the counts of each page and room
    python -m tools.words --list       each breach, as file:line
    python -m tools.words --write      the counts as the new ceiling, where they fell

A ceiling (`tools/words.json`) may only fall: a page or a room of the package with more breaches than it had fails
`tests/unit/test_words.py`. A new page begins at none.

Documents: prose, list items, headings and table cells. Code blocks and generated blocks are left out; `code` counts as
one word. Python: docstrings of modules and public names, texts of raised errors, and help of commands.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILING = Path(__file__).with_name("words.json")
SENTENCE_WORDS = 25
CELL_WORDS = 30
NO_RULES = ("docs/changelog.md", "docs/decisions/")
"""Records of what was: they are neither counted nor judged."""

BANNED = re.compile(
    r"\b(said|told|mend(?:s|ed|ing)?|whoever|whatever|whichever|brought|brings?|stands?|stood|rests?|goes on|go on"
    r"|gone on|anew|nobody|somebody|for ever|for good|held against|hold against|given out|dealt|greet(?:s|ed)?|besides"
    r"|meanwhile)\b",
    re.IGNORECASE,
)
"""Words that hide who acts, or that say nothing: docs/contributing says what to write instead."""
NO_SUBJECT = re.compile(r"^(Who|Whoever|What|Whatever|Of|Else|Nor)\b(?![^.?!]*\?$)")

_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9`])")
_WORD = re.compile(r"[^\W_](?:[\w'.,:/-]*\w)?")


@dataclass(frozen=True, slots=True)
class Text:
    """A run of prose. `limit`: the most words of one of its sentences."""

    file: str
    line: int
    body: str
    limit: int = SENTENCE_WORDS


@dataclass(frozen=True, slots=True)
class Breach:
    file: str
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.sentence[:140]}"


# ---- texts of documents ----------------------------------------------------------------------------------------


def documents() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if not page.relative_to(ROOT).as_posix().startswith(NO_RULES)]


def texts_of_page(page: Path) -> Iterator[Text]:
    """Paragraphs, list items and headings as one text each, table cells by themselves."""
    file = page.relative_to(ROOT).as_posix()
    paragraph: list[str] = []
    begin, fence, generated = 1, "", False
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        stripped = line.strip()
        if fence or stripped.startswith(("```", "~~~")):
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
            stripped = ""
        elif "<!-- generated" in stripped or "<!-- /generated" in stripped:
            generated = "<!-- generated" in stripped
            stripped = ""
        is_code = line.startswith("    ") and not paragraph
        is_row = stripped.startswith("|")
        begins = is_row or not stripped or generated or is_code or re.match(r"([-*+]|\d+\.|#+|>) ", stripped)
        if begins and paragraph:
            yield Text(file, begin, " ".join(paragraph))
            paragraph = []
        if not stripped or generated or is_code or stripped.startswith("<"):
            continue
        if is_row:
            cells = re.split(r"(?<!\\)\|", stripped.strip("|"))
            yield from (Text(file, number, cell.strip(), CELL_WORDS) for cell in cells if cell.strip(" :-"))
            continue
        if not paragraph:
            begin = number
        paragraph.append(re.sub(r"^([-*+]|\d+\.|#+|>) ", "", stripped))


# ---- texts of the package --------------------------------------------------------------------------------------


def modules() -> list[Path]:
    return sorted((ROOT / "airflow_trident").rglob("*.py"))


def texts_of_module(module: Path) -> Iterator[Text]:
    file = module.relative_to(ROOT).as_posix()
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = isinstance(node, ast.Module) or not node.name.startswith("_")
            if is_public and (docstring := ast.get_docstring(node)):
                line = node.body[0].lineno
                yield from (Text(file, line, part) for part in _prose(docstring))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (Text(file, node.lineno, text) for text in map(_literal, node.exc.args) if text)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description") and (text := _literal(node.value)):
            yield Text(file, node.value.lineno, text)


def _prose(docstring: str) -> Iterator[str]:
    """Its paragraphs; each ``:param:`` line is one."""
    lines = re.sub(r"\n[ ]*(?=:\w)", "\n\n", docstring).split("\n\n")
    for part in lines:
        text = re.sub(r"^:\w+[^:]*:", "", " ".join(part.split()))
        if text and not text.startswith((">>>", "python -m")):
            yield re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)


def _literal(node: ast.expr) -> str:
    """The text of a string; what is computed in it is one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "`x`" for part in node.values)
        return "".join(map(str, parts))
    return ""


# ---- rules -----------------------------------------------------------------------------------------------------


def sentences(body: str) -> Iterator[str]:
    plain = _LINK.sub(r"\1", _CODE_SPAN.sub("`c`", body))
    yield from (sentence for sentence in _END.split(plain) if sentence.strip())


def words(body: str) -> int:
    return len(_WORD.findall(body))


def breaches(text: Text) -> Iterator[Breach]:
    for sentence in sentences(text.body):
        if words(sentence) > text.limit:
            yield Breach(text.file, text.line, "long", sentence)
        if NO_SUBJECT.match(sentence.lstrip("*_\"'(")):
            yield Breach(text.file, text.line, "no subject", sentence)
        yield from (
            Breach(text.file, text.line, "banned", f"{word[0]!r} in {sentence}") for word in BANNED.finditer(sentence)
        )


def room_of(file: str) -> str:
    """Where breaches are counted: a page, or a room of the package, since files of a room move."""
    parts = file.split("/")
    return file if parts[0] != "airflow_trident" else "/".join(parts[:2]) if len(parts) > 2 else "airflow_trident"


def every_breach() -> list[Breach]:
    texts = [*(text for page in documents() for text in texts_of_page(page))]
    texts += [text for module in modules() for text in texts_of_module(module)]
    return [breach for text in texts for breach in breaches(text)]


def counts(found: list[Breach]) -> dict[str, dict[str, int]]:
    """Page or room -> rule -> breaches."""
    by_room: dict[str, Counter[str]] = {}
    for breach in found:
        by_room.setdefault(room_of(breach.file), Counter())[breach.rule] += 1
    return {room: dict(sorted(rules.items())) for room, rules in sorted(by_room.items())}


def words_of_documents() -> int:
    return sum(words(_CODE_SPAN.sub("`c`", text.body)) for page in documents() for text in texts_of_page(page))


def ceiling() -> tuple[int, dict[str, dict[str, int]]]:
    recorded = json.loads(CEILING.read_text(encoding="utf-8"))
    return recorded["words"], recorded["breaches"]


def risen(found: list[Breach]) -> dict[tuple[str, str], int]:
    """(Page or room, rule) -> how many breaches above the ceiling."""
    _, limits = ceiling()
    above = {
        (room, rule): number - limits.get(room, {}).get(rule, 0)
        for room, rules in counts(found).items()
        for rule, number in rules.items()
    }
    return {place: number for place, number in above.items() if number > 0}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.words", description="Counts breaches of the rules for words."
    )
    parser.add_argument("--list", action="store_true", help="print each breach")
    parser.add_argument("--write", action="store_true", help="lower the ceiling to what is there now")
    asked = parser.parse_args()
    found, total = every_breach(), words_of_documents()
    if asked.list:
        print(*found, sep="\n")
        return 0
    rules = Counter(breach.rule for breach in found)
    print(f"{total:,} words in documents; " + ", ".join(f"{rule} {number}" for rule, number in sorted(rules.items())))
    if asked.write:
        if CEILING.exists() and (above := risen(found)):
            print(
                "not written, these rose:",
                *(f"{room}: {rule} +{number}" for (room, rule), number in above.items()),
                sep="\n",
            )
            return 1
        CEILING.write_text(json.dumps({"words": total, "breaches": counts(found)}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
