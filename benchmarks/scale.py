"""`python -m benchmarks.scale`: how many transactions a ledger takes, by topologies, partitions and pending window.

Real ZooKeeper servers from pyspark's jars, one or an ensemble of three. The writers are processes, each with a topology
of its own, which only make the four steps of a transaction (begin, processed, gate, committed). So the figures are the
limit that the ledger sets, whatever the batches cost.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_trident.ledger.answers import NextBatches, StagedAttempt
from airflow_trident.ledger.embedded.server import java_executable, zookeeper_jars
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.diagnose import four_letters
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim, StagedRef
from airflow_trident.protocol.topologies import Definition, SpoutDefinition, StateDefinition
from benchmarks.measure import environment

DEFINITION = Definition(
    spouts={"lines": SpoutDefinition(text="benchmark")}, states={"counts": StateDefinition(text="benchmark")}
)
STAGED = StagedRef(manifest="t/manifest.json", rows_read=1_000, rows={"counts": 100}, bytes=10_000)
START_LIMIT_S = 60


@dataclass(frozen=True, kw_only=True)
class Load:
    """`topologies`: at once, each in a process; `partitions`: offset ranges in the metadata of a batch; `pending`:
    transactions of a topology that have begun before the first one is committed."""

    servers: int
    topologies: int = 1
    partitions: int = 2
    pending: int = 2


LOADS = (
    *(Load(servers=servers, topologies=number) for servers in (1, 3) for number in (1, 2, 4, 8)),
    *(Load(servers=servers, partitions=number) for servers in (1, 3) for number in (10, 100, 1_000, 10_000)),
    *(Load(servers=1, pending=number) for number in (1, 10, 50)),
)


# ---- servers ---------------------------------------------------------------------------------------------------


class Ensemble:
    """ZooKeeper servers on this machine, all on one disk."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._folder = Path(tempfile.mkdtemp(prefix="trident-scale-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> str:
        ports = [[_free_port() for _ in range(3)] for _ in range(self._count)]
        peers = "".join(f"server.{n}=127.0.0.1:{p[1]}:{p[2]}\n" for n, p in enumerate(ports, 1))
        for number, (client, _, _) in enumerate(ports, 1):
            folder = self._folder / str(number)
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "myid").write_text(str(number))
            (folder / "zoo.cfg").write_text(
                f"dataDir={folder / 'data'}\nclientPort={client}\nclientPortAddress=127.0.0.1\ntickTime=2000\n"
                "initLimit=10\nsyncLimit=5\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
                f"{peers if self._count > 1 else ''}"
            )
            main = "ZooKeeperServerMain" if self._count == 1 else "quorum.QuorumPeerMain"
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [
                        java_executable(),
                        *("-Xmx256m", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, zookeeper_jars()))),
                        f"org.apache.zookeeper.server.{main}",
                        str(folder / "zoo.cfg"),
                    ],
                    stdout=log,
                    stderr=log,
                )
            self._processes.append(process)
        end = time.monotonic() + START_LIMIT_S
        for client, _, _ in ports:
            while "Mode:" not in four_letters("127.0.0.1", client, "srvr"):
                assert time.monotonic() < end, f"ZooKeeper did not start; see {self._folder}"
                time.sleep(0.1)
        return ",".join(f"127.0.0.1:{client}" for client, _, _ in ports)

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- writers ---------------------------------------------------------------------------------------------------


def write(hosts: str, name: str, load: dict[str, Any], seconds: float) -> None:
    """The process of one topology: prints how many transactions it committed in `seconds`, and their longest time."""
    ranges = {f"p{number}": [10**9 + number, 10**9 + number + 1_000] for number in range(load["partitions"])}
    with open_ledger(ZooKeeperSettings(hosts=hosts), name, root="/scale") as ledger:
        ledger.register(DEFINITION)
        sys.stdin.readline()  # so that all begin at once
        done, number, longest_s = 0, 0, 0.0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            txids = []
            for _ in range(load["pending"]):
                number += 1
                batches = NextBatches(
                    [Claim(key=f"{number}")],
                    lambda txid, *_: [{"lines": {"ranges": ranges, "batch": txid}}],
                    max_pending=load["pending"],
                    attempt_by="benchmark",
                )
                begun = ledger.begin(batches)
                assert isinstance(begun, tuple)
                txids.append(begun[0].txid)
            for txid in txids:
                began = time.perf_counter()
                ledger.processed([StagedAttempt(txid=txid, attempt=0, staged=STAGED)])
                ledger.committed(ledger.gate([txid], owner="benchmark"))
                longest_s = max(longest_s, time.perf_counter() - began)
                done += 1
    print(json.dumps({"done": done, "longest_s": longest_s}))


def measure(load: Load, hosts: str, seconds: float) -> tuple[float, float]:
    """Transactions a second, of all topologies together, and the longest commit in ms."""
    asked = json.dumps({"partitions": load.partitions, "pending": load.pending})
    stamp = f"{time.time_ns():x}"
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", "--write", hosts, f"t{stamp}-{number}", asked, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for number in range(load.topologies)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    told = [json.loads(writer.communicate(timeout=120)[0]) for writer in writers]
    return sum(one["done"] for one in told) / seconds, 1_000 * max(one["longest_s"] for one in told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--servers", type=int, choices=(1, 3), help="only one, or only three (default: both)")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        hosts, name, load, seconds = given.write
        write(hosts, name, json.loads(load), float(seconds))
        return 0
    print("| servers | topologies | partitions | pending | transactions/s | longest commit ms |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        running: dict[int, str] = {}
        for load in LOADS:
            if given.servers not in (None, load.servers):
                continue
            if load.servers not in running:
                running[load.servers] = stack.enter_context(Ensemble(load.servers))
            rate, longest_ms = measure(load, running[load.servers], given.seconds)
            print(
                f"| {load.servers} | {load.topologies} | {load.partitions:,} | {load.pending} | {rate:.0f} | "
                f"{longest_ms:.0f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
