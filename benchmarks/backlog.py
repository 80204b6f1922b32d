"""`python -m benchmarks.backlog`: the cost of a group behind a large backlog, in milliseconds of our own processor
time.

In the ledger, over a tree in memory: the steps of one group while many transactions are pending. In the source: one
look of FileSpout at a folder of many files, with the choice of the batches of one group.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_trident import FileSpout
from airflow_trident.ledger.answers import NextBatches, StagedAttempt
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Claim
from airflow_trident.types import Json
from benchmarks.scale import DEFINITION, STAGED

GROUPS = 5
"""How many groups are measured; the median is shown."""


def spent_ms(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    result = call()
    return (time.thread_time() - began) * 1000, result


def ledger_ms(pending: int, group: int) -> list[float]:
    """Times of `begin`, `processed`, `gate` and `committed` of a group; `pending` transactions wait after `begin`."""
    ledger = MemoryLedger("backlog")
    ledger.register(DEFINITION)
    found: list[list[float]] = [[], [], [], []]
    last = 0

    def batches_of(txid: int, _: dict[str, Json], most: int) -> list[dict[str, Json]]:
        return [{"lines": {"batch": number}} for number in range(txid, txid + most)]

    def begin(most: int) -> float:
        nonlocal last
        claims = [Claim(key=f"{last + number}") for number in range(1, most + 1)]
        ms, begun = spent_ms(
            lambda: ledger.begin(NextBatches(claims, batches_of, max_pending=pending, attempt_by="benchmark"))
        )
        last += len(begun)
        return ms

    while last < pending - group:
        begin(min(group, pending - group - last))
    for _ in range(GROUPS):
        found[0].append(begin(group))
        first = last - pending + 1
        txids = range(first, first + group)
        staged = [StagedAttempt(txid=txid, attempt=0, staged=STAGED) for txid in txids]
        ms, done = spent_ms(lambda staged=staged: ledger.processed(staged).records)
        found[1].append(ms)
        ms, tickets = spent_ms(lambda txids=txids: ledger.gate(txids, owner="benchmark"))
        found[2].append(ms)
        ms, committed = spent_ms(lambda tickets=tickets: ledger.committed(tickets, retention=50).records)
        found[3].append(ms)
        assert len(done) == len(tickets) == len(committed) == group, "a step did not take the whole group"
    return [statistics.median(each) for each in found]


def source_ms(folder: Path, files: int, group: int) -> tuple[float, float, int]:
    """The time of the first look, of a later one (median), and the bytes of the position in between."""
    for number in range(files):
        (folder / f"{number:07}.txt").write_bytes(b"a line\n")
    coordinator = FileSpout(str(folder), max_files=2).coordinator()
    txid, position, taken = 1, None, list[float]()
    for _ in range(1 + GROUPS):
        ms, batches = spent_ms(lambda txid=txid, position=position: coordinator.next_batches(txid, position, group))
        taken.append(ms)
        txid, position = txid + len(batches), batches[-1]
    return taken[0], statistics.median(taken[1:]), len(codec.require_json(position, "the position").__repr__())


def row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(f'{cell:,.1f}' if isinstance(cell, float) else f'{cell:,}' for cell in cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backlog", description=__doc__)
    parser.add_argument("--group", type=int, default=200)
    parser.add_argument("--pending", type=int, nargs="+", default=[1_200, 10_000, 100_000])
    parser.add_argument("--files", type=int, nargs="+", default=[3_000, 20_000, 200_000])
    given = parser.parse_args()
    print(f"groups of {given.group}, ms of processor time of a group\n")
    print("| pending | begin | processed | gate | committed |\n|---|---|---|---|---|")
    for pending in given.pending:
        print(row([pending, *ledger_ms(pending, given.group)]), flush=True)
    print("\n| files waiting | first look | later ones | bytes of the position |\n|---|---|---|---|")
    for files in given.files:
        with tempfile.TemporaryDirectory(prefix="trident-backlog-") as folder:
            print(row([files, *source_ms(Path(folder), files, given.group)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
