"""The report at the end: the ledger, the kills, the most frequent words, and the comparison with a plain count."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing

from airflow_trident.protocol.records import Status, TxRecord
from demo.changes import batch_of, rows_read, staged_rows
from demo.folder import DemoFolder
from demo.kills import KILLS, Kill, ending
from demo.screen import Colour, Screen
from demo.text import plain_count

TABLE = "word_count__count"
TOP_WORDS = 12
DIFFERENCES = 5


def stored_words(folder: DemoFolder) -> Counter[str]:
    """The content of the state, read as any SQLite client reads it."""
    with closing(sqlite3.connect(f"file:{folder.state}?mode=ro", uri=True)) as connection:
        return Counter(dict(connection.execute(f"SELECT word, count FROM {TABLE}")))


def report_words(screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord]) -> bool:
    """Print the report. True if every transaction is committed and every word has the right count."""
    show_ledger(screen, records, read="lines", staged="words staged")
    show_kills(screen, folder, records, KILLS)
    stored, plain = stored_words(folder), plain_count(folder.input)
    screen.title("The most frequent words")
    screen.line("  " + "   ".join(f"{word} {count:,}" for word, count in stored.most_common(TOP_WORDS)))
    equal = compare(screen, stored, plain)
    return equal and all(record.status is Status.COMMITTED for record in records.values())


def show_ledger(screen: Screen, records: Mapping[int, TxRecord], *, read: str, staged: str) -> None:
    screen.title("The ledger, as ZooKeeper has it")
    heads = ("tx", "<batch", "<status", "attempts", read, staged, "processed after", "committed after")
    screen.table(heads, [_row(record) for _, record in sorted(records.items())])


def _row(record: TxRecord) -> tuple[str, ...]:
    return (
        str(record.txid),
        batch_of(record),
        str(record.status),
        str(record.attempt + 1),
        rows_read(record),
        f"{staged_rows(record):,}",
        _since_begun(record, Status.PROCESSED),
        _since_begun(record, Status.COMMITTED),
    )


def _since_begun(record: TxRecord, status: Status) -> str:
    begun, then = record.times_ms.get("begun"), record.times_ms.get(status)
    return f"{(then - begun) / 1000:.1f} s" if begun is not None and then is not None else "-"


def show_kills(screen: Screen, folder: DemoFolder, records: Mapping[int, TxRecord], kills: Sequence[Kill]) -> None:
    screen.title("What went wrong on purpose, and how it ended")
    for kill in kills:
        record = records.get(kill.txid)
        if record is not None and kill.marker(folder.kills).exists():
            screen.line(f"  tx {kill.txid}  {kill.story};")
            screen.line(f"        {ending(kill, record)}.")
    for record in records.values():
        if folder.failure(record.txid).exists():
            screen.line(f"  tx {record.txid}  FAILED: {folder.failure(record.txid).read_text()};")
            screen.line(f"        repaired and backfilled: {record.status} with attempt {record.attempt}.")


def compare(
    screen: Screen, stored: Counter[str], plain: Counter[str], what: str = "words", where: str = "files"
) -> bool:
    """Compare every single count, not only the sums."""
    screen.title(f"Every one of the {what} compared with a plain count of the same {where}")
    for name, words in (("exactly-once batches", stored), ("plain loop in Python", plain)):
        screen.line(f"  {name}  {len(words):>8,} different {what}  {words.total():>12,} in all")
    if stored == plain:
        screen.line("  " + screen.paint("EQUAL, to the last unit", Colour.GREEN))
        return True
    wrong = sorted(word for word in stored.keys() | plain.keys() if stored[word] != plain[word])
    screen.line("  " + screen.paint(f"DIFFERENT: {len(wrong):,} {what}", Colour.RED))
    for word in wrong[:DIFFERENCES]:
        screen.line(f"    {word}: {stored[word]:,} instead of {plain[word]:,}")
    return False
