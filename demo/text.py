"""The demonstration's input: source text of Python's standard library on this machine, as a few files of equal size.

This module does not know the topology: `plain_count` is the independent answer to compare the result with.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS = 8
DAMAGED_PART = 5
"""The number of the part that is compressed and gets a damaged block: its transaction must fail."""
DAMAGED_BYTES = 512

_NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}
_FIRST_MTIME_S = 1_700_000_000
_WORD = re.compile("[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The written files: their number, and their lines and bytes before compression."""

    files: int
    lines: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A block of a file that was overwritten. `original`: its original bytes, as hexadecimal digits."""

    file: str
    offset: int
    original: str

    @property
    def length(self) -> int:
        return len(self.original) // 2


def make_text(folder: Path, note: Path, *, lines_of_a_part: int | None = None) -> Text:
    """Write the input folder with its damaged file, if it is not there; `note` records the damage.

    The folder appears complete or not at all, so a run that is killed here leaves no half of an input. The times of
    the files are fixed and rise, because the spout reads the oldest file first.

    :param lines_of_a_part: take at most this number of lines from each part.
    """
    summary = note.with_name("input.json")
    if folder.is_dir():
        return Text(**json.loads(summary.read_text()))
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    sources = _library_files()
    limit = sum(size for _, size in sources) / PARTS
    lines = total = 0
    for number, group in enumerate(_groups(sources, limit), start=1):
        content = b"".join(b"".join(map(_utf8, group)).splitlines(keepends=True)[:lines_of_a_part])
        lines += content.count(b"\n")
        total += len(content)
        _write(partial, number, content)
    text = Text(files=PARTS, lines=lines, bytes=total)
    damage = _damage(partial / part_name(DAMAGED_PART))
    note.write_text(json.dumps({"file": damage.file, "offset": damage.offset, "original": damage.original}))
    summary.write_text(json.dumps({"files": text.files, "lines": text.lines, "bytes": text.bytes}))
    partial.rename(folder)
    return text


def part_name(number: int) -> str:
    return f"part-{number}.txt" + (".gz" if number == DAMAGED_PART else "")


def parts(folder: Path) -> list[Path]:
    return [folder / part_name(number) for number in range(1, PARTS + 1)]


def plain_count(folder: Path) -> Counter[str]:
    """Each word with its count, by a plain loop over the files: no Spark, no transactions."""
    found: Counter[str] = Counter()
    for path in parts(folder):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                found.update(_WORD.findall(line.lower()))
    return found


# ---- damage ----------------------------------------------------------------------------------------------------


def repair(folder: Path, note: Path) -> Damage | None:
    """Put the damaged bytes back; None if that was done before. Size and time of the file do not change."""
    damage = Damage(**json.loads(note.read_text()))
    path = folder / damage.file
    original = bytes.fromhex(damage.original)
    with path.open("rb") as file:
        file.seek(damage.offset)
        if file.read(len(original)) == original:
            return None
    _overwrite(path, damage.offset, original)
    return damage


def _damage(path: Path) -> Damage:
    offset = path.stat().st_size // 2
    with path.open("rb") as file:
        file.seek(offset)
        original = file.read(DAMAGED_BYTES)
    _overwrite(path, offset, bytes(len(original)))
    return Damage(file=path.name, offset=offset, original=original.hex())


def _overwrite(path: Path, offset: int, content: bytes) -> None:
    """Overwrite as a failing disk does: size and time of the file do not change."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# ---- the library -----------------------------------------------------------------------------------------------


def _library_files() -> list[tuple[Path, int]]:
    """Every module of the standard library, with its size in bytes, in an order that does not change."""
    found: list[tuple[Path, int]] = []
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - _NOT_LIBRARY)
        paths = (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
        found.extend((path, path.stat().st_size) for path in paths)
    return found


def _groups(sources: list[tuple[Path, int]], limit: float) -> Iterator[list[Path]]:
    """PARTS groups of about `limit` bytes each."""
    group: list[Path] = []
    given, size = 0, 0
    for path, length in sources:
        group.append(path)
        size += length
        if size >= limit * (given + 1) and given < PARTS - 1:
            yield group
            group, given = [], given + 1
    yield group


def _utf8(path: Path) -> bytes:
    """The file as UTF-8 that ends with a line end. The library's test data has other encodings, too."""
    text = path.read_bytes().decode("utf-8", errors="replace")
    return (text if text.endswith("\n") or not text else text + "\n").encode()


def _write(folder: Path, number: int, content: bytes) -> None:
    path = folder / part_name(number)
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=6, mtime=0)
    path.write_bytes(content)
    os.utime(path, (_FIRST_MTIME_S + number, _FIRST_MTIME_S + number))
