"""The data of the benchmarks: lines of eight Zipf distributed words, in batches of two files, and the right result."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

WORDS_PER_LINE = 8
FILES_PER_BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """`lines`: of one batch. `keys`: number of different words to draw from. `parquet`: Parquet files with a column
    `value` instead of text."""

    batches: int
    lines: int
    keys: int = 10_000
    parquet: bool = False

    @property
    def name(self) -> str:
        return f"b{self.batches}_l{self.lines}_k{self.keys}{'_parquet' * self.parquet}"

    @property
    def title(self) -> str:
        return f"{self.batches:,} x {self.lines:,} {'rows' if self.parquet else 'lines'}, {self.keys:,} keys"


@dataclass(frozen=True)
class Made:
    """A corpus on disk: ``<folder>/000001-0.txt``, and the digest of the counts of its words."""

    corpus: Corpus
    folder: Path
    digest: str
    size_bytes: int

    def files_of(self, batch: int) -> list[str]:
        """:param batch: 1, 2, ..."""
        return [str(self.folder / file_name(batch, part)) for part in range(FILES_PER_BATCH)]


def file_name(batch: int, part: int) -> str:
    return f"{batch:06d}-{part}.txt"


def make(corpus: Corpus, below: Path) -> Made:
    """Make the files if they do not exist: the same ones on every machine and day."""
    folder, facts = below / corpus.name, below / f"{corpus.name}.json"
    if facts.is_file():
        known = json.loads(facts.read_text())
        return Made(corpus, folder, known["digest"], known["size_bytes"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    random = np.random.default_rng(20_240_101)
    words = pa.array([f"w{number}" for number in range(corpus.keys)])
    chances = 1.0 / np.arange(1, corpus.keys + 1)
    ladder = np.cumsum(chances / chances.sum())
    counts = np.zeros(corpus.keys, dtype=np.int64)
    size_bytes = 0
    for batch in range(1, corpus.batches + 1):
        for part in range(FILES_PER_BATCH):
            lines = corpus.lines // FILES_PER_BATCH
            drawn = np.searchsorted(ladder, random.random(lines * WORDS_PER_LINE)).clip(max=corpus.keys - 1)
            counts += np.bincount(drawn, minlength=corpus.keys)
            path = folder / file_name(batch, part)
            joined = _lines(words.take(pa.array(drawn)), lines)
            if corpus.parquet:
                pq.write_table(pa.table({"value": joined}), path)
            else:
                path.write_bytes(_text(joined))
            when_ns = (1_700_000_000 + batch * FILES_PER_BATCH + part) * 10**9  # sets the order in which they are read
            os.utime(path, ns=(when_ns, when_ns))
            size_bytes += path.stat().st_size
    known_counts = ((f"w{number}", int(count)) for number, count in enumerate(counts) if count)
    digest = digest_of(known_counts)
    facts.write_text(json.dumps({"digest": digest, "size_bytes": size_bytes}))
    return Made(corpus, folder, digest, size_bytes)


def _lines(words: pa.Array, lines: int) -> pa.Array:
    offsets = pa.array(np.arange(0, lines * WORDS_PER_LINE + 1, WORDS_PER_LINE, dtype=np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")


def _text(lines: pa.Array) -> bytes:
    whole = pc.binary_join(pa.LargeListArray.from_arrays([0, len(lines)], lines), "\n")
    text: bytes = whole[0].as_py().encode()
    return text + b"\n"


def digest_of(counts: Iterable[tuple[str, int]]) -> str:
    content = "\n".join(f"{word} {count}" for word, count in sorted(counts))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def digest_of_state(path: Path) -> str:
    """The digest of a contender's SQLite file: a table `counts` with the columns `word` and `count`."""
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT word, count FROM counts").fetchall()
    connection.close()
    return digest_of(found)
