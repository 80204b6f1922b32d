"""Counts the lines of a queue through a spool: ``python -m tests.programs.spooled_words HOSTS ROOT FOLDER [KILL...]``.

The queue is a folder with one file for each line. A shell command lists the lines that are not acknowledged, another
one removes acknowledged ones. A KILL is ``<step>:<number>:<before|after>=<file>``: the process that creates the file
first dies by SIGKILL around the call with this number of the step (poll, ack, link).
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_trident import Count, SpooledSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts import CommandSource
from tools import kills

POLL = 'cd "$QUEUE" && ls items | head -n "$TRIDENT_MAX_ROWS" | tee "tokens/$TRIDENT_TOKEN"'
ACK = 'cd "$QUEUE/items" && xargs rm -f < "../tokens/$TRIDENT_TOKEN"'


def itself(line: str) -> str:
    return line


def put(folder: Path, lines: list[str]) -> None:
    for name in ("items", "tokens"):
        (folder / "queue" / name).mkdir(parents=True, exist_ok=True)
    for line in lines:
        (folder / "queue" / "items" / line).touch()


def topology(folder: Path) -> Topology:
    made = Topology("spooled_words")
    source = CommandSource(
        ["sh", "-c", POLL], ack=["sh", "-c", ACK], env={"QUEUE": str(folder / "queue")}, id_of=itself
    )
    lines = made.new_stream("lines", SpooledSpout(source, str(folder / "spool"), max_rows=4))
    lines.group_by("line").persistent_aggregate(SqliteState(str(folder / "lines.db")), Count(), "count")
    return made


def contents(folder: Path) -> dict[str, int]:
    spec = topology(folder).states["count"]
    with spec.factory.make_state(spec) as state:
        return {str(key[0]): int(value[0]) for key, value in state.items()}


def dying(step: str, call: Callable[..., Any], kills: list[str]) -> Callable[..., Any]:
    calls = Counter[str]()

    def wrapped(*arguments: Any) -> Any:
        calls[step] += 1
        maybe_die(f"{step}:{calls[step]}:before", kills)
        result = call(*arguments)
        maybe_die(f"{step}:{calls[step]}:after", kills)
        return result

    return wrapped


def maybe_die(now: str, kills: list[str]) -> None:
    for kill in kills:
        when, _, marker = kill.partition("=")
        if when != now:
            continue
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


def main(hosts: str, root: str, folder: str, *kills: str) -> None:
    CommandSource.poll = dying("poll", CommandSource.poll, list(kills))  # type: ignore[method-assign]
    CommandSource.ack = dying("ack", CommandSource.ack, list(kills))  # type: ignore[method-assign]
    os.link = dying("link", os.link, list(kills))  # publishes every file: batch, mark, staged manifest
    made = topology(Path(folder))
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
