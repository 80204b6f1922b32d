"""`python -m benchmarks.group_steps`: counts the syncs of the disk and the round trips to the ledger of one group.

A drain of a word count runs over a number of groups, and once more over three times as many. The difference is the cost
of the groups, without the steps that are done once. Syncs are those of the drain, its Spark and its SQLite state that
`strace` sees, not those of ZooKeeper. Each of the six drains starts a Spark under strace, which takes some minutes in
all; a line is printed when a drain has ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Op, ReadResult
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from benchmarks.data import Corpus, make
from benchmarks.measure import environment

MORE = 3
ALONE = 10
"""Transactions of the smaller drain that takes one at a time."""
WAYS: dict[str, dict[str, Any]] = {"by key": {}, "by transaction": {"by_transaction": True}, "one by one": {"group": 1}}


class Counting(ZooKeeperZNodes):
    """Counts the requests."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        super().__init__(settings)
        self.trips = Counter[str]()

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.trips["reads"] += 1
        return super().read(paths, folders)

    def multi(self, ops: Sequence[Op]) -> None:
        self.trips["steps"] += 1
        super().multi(ops)


def drain_counted(path: Path) -> None:
    """Runs in a process of its own, under strace."""
    from benchmarks.ours import drained

    task = json.loads(path.read_text())
    client = Counting(ZooKeeperSettings(hosts=task["zookeeper"]))
    with ZNodeLedger(client, "bench", task["root"]) as ledger:
        drained(task, ledger)
        path.with_name("trips.json").write_text(json.dumps(client.trips))


def counts_of(task: dict[str, Any], batches: int, folder: Path, lines: int) -> Counter[str]:
    """The counts of a whole drain over `batches` transactions."""
    began = time.monotonic()
    folder.mkdir()
    made = make(Corpus(batches=batches, lines=lines), folder.parents[1] / "data")
    whole = {
        **task,
        "data": str(made.folder),
        "batches": batches,
        "state": str(folder / "counts.db"),
        "staging": str(folder / "staging"),
        "root": f"/{folder.name}",
    }
    path, calls = folder / "task.json", folder / "calls"
    path.write_text(json.dumps(whole))
    tracing = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", str(calls)]
    child = [sys.executable, "-m", "benchmarks.group_steps", "--task", str(path)]
    subprocess.run([*tracing, *child], env=environment(), check=True)
    syncs = sum("sync" in line and "resumed>" not in line for line in calls.read_text().splitlines())
    counts = Counter({"syncs": syncs, **json.loads((folder / "trips.json").read_text())})
    print(
        f"{batches} transactions, group {task['group']}: {time.monotonic() - began:.0f} s, {dict(counts)}",
        file=sys.stderr,
    )
    return counts


def table(counts: Mapping[str, Counter[str]], groups: Mapping[str, int]) -> list[str]:
    lines = ["| way | syncs | steps of the ledger | reads of the ledger |", "|---|---|---|---|"]
    for way, each in counts.items():
        cells = (f"{each[what] / groups[way]:.1f}" for what in ("syncs", "steps", "reads"))
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_steps", description=__doc__)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group", type=int, default=10, help="transactions in a group")
    parser.add_argument("--lines", type=int, default=1_000, help="of a transaction")
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task is not None:
        drain_counted(given.task)
        return 0
    if shutil.which("strace") is None:
        parser.error("strace is missing, which counts the syncs (Debian: apt install strace)")
    counts, groups = {}, {}
    with tempfile.TemporaryDirectory(prefix="trident-steps-") as folder:
        server = EmbeddedZooKeeper(Path(folder) / "zookeeper", heap_mb=512)
        server.start()
        try:
            for number, (way, options) in enumerate(WAYS.items()):
                task = {"group": given.group, **options, "zookeeper": server.hosts}
                runs = Path(folder) / f"way-{number}"
                runs.mkdir()
                groups_of_first = ALONE if task["group"] == 1 else given.groups
                few, many = (
                    counts_of(task, groups_of_first * task["group"] * times, runs / f"{number}-{times}", given.lines)
                    for times in (1, MORE)
                )
                counts[way] = Counter({what: many[what] - few[what] for what in many})
                groups[way] = (MORE - 1) * groups_of_first
        finally:
            server.stop()
    print(f"{given.group} transactions in a group; of one group, or of one transaction:\n")
    print("\n".join(table(counts, groups)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
