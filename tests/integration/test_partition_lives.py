"""Random lives of a bound topology: files come, change, go and are damaged; runs and redos of days, kills at any
milestone, skips, and two requests of one day at once. What a state has of a day is always one look at its sources."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TridentError
from airflow_trident.ledger.answers import Begun
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.milestones import Milestone, told
from tests.fixtures.days import Rows, delivered, sums_of
from tests.integration.test_partitions import Days, Killed, register

KEYS = ("2026-11-22", "2026-11-23", "2026-11-24")
STEPS = 25
DAMAGE = '[["x", "oops"]]'


class Life:
    def __init__(self, folder: Path, engine: LocalEngine, seed: int) -> None:
        self.random = random.Random(seed)
        self.days = Days(folder, engine)
        self.looks: dict[str, list[Rows]] = {key: [[]] for key in KEYS}
        """What a look at the sources of each day could have found at some time."""
        self.requests = 0
        register(self.days)

    def step(self) -> None:
        steps: list[Callable[[str], None]] = [self.change, self.change, self.run, self.run, self.run, self.kill]
        steps += [self.skip, self.interleave]
        step, key = self.random.choice(steps), self.random.choice(KEYS)
        with suppress(TridentError, Killed):
            step(key)
        self.require_whole_looks(f"{step.__name__} {key}")

    # ---- what happens ------------------------------------------------------------------------------------------

    def change(self, key: str) -> None:
        """A file comes, is corrected, goes or is damaged."""
        chance, days = self.random, self.days
        files = sorted((days.folder / key).glob("*.json"))
        what = chance.choice(["new", "new", "correct", "delete", "damage"]) if files else "new"
        rows = [(chance.choice("xyz"), chance.randrange(100)) for _ in range(chance.randint(1, 3))]
        if what == "new":
            days.deliver(key, *rows, name=str(chance.randrange(10**6)))
        elif what == "delete":
            chance.choice(files).unlink()
        elif what == "damage":
            chance.choice(files).write_text(DAMAGE)
        else:
            days.deliver(key, *rows, name=chance.choice(files).stem.removeprefix(f"{key}-"))
        self.look(key)

    def look(self, key: str) -> None:
        rows = delivered(self.days.folder, key)
        if all(isinstance(cents, int) for _, cents in rows):
            self.looks[key].append(rows)

    def run(self, key: str, at: Milestone | None = None) -> None:
        changes = self.random.random() < 0.3

        def reached(milestone: Milestone, txid: int) -> None:
            if milestone is at:
                raise Killed
            if changes and milestone is Milestone.ATTEMPT_STARTED and self.random.random() < 0.5:
                self.change(key)

        how: dict[str, Any] = {"redo": self.random.choice(["asked", "changed"])}
        how |= {"gone": self.random.choice(["take", "take", "error"]), "empty": "take"}
        with told(reached):
            self.days.run(key, *self.random.sample(KEYS, self.random.randrange(3)), **how)

    def kill(self, key: str) -> None:
        self.run(key, self.random.choice(list(Milestone)))

    def skip(self, key: str) -> None:
        open_ones = [tx.txid for tx in self.days.ledger.transactions() if not tx.status.lets_others_pass]
        if open_ones:
            self.days.ledger.skip(self.random.choice(open_ones), "a person")

    def interleave(self, key: str) -> None:
        """Two requests of a day at once, and their emitters and committers in any order."""
        txids = []
        for _ in range(2):
            self.requests += 1
            result = self.days.asked(key, f"request-{self.requests}", gone="take", empty="take")
            txids += [result.txid] if isinstance(result, Begun) else []
            if self.random.random() < 0.5:
                self.change(key)
        work: list[tuple[Callable[[int], Any], int]] = [(self.days.emit, txid) for txid in txids]
        work += [(self.days.commit, txid) for txid in txids]
        for verb, txid in self.random.sample(work, len(work)):
            with suppress(TridentError):
                verb(txid)

    # ---- what must hold ----------------------------------------------------------------------------------------

    def require_whole_looks(self, what: str) -> None:
        sums = self.days.sums
        for key in KEYS:
            mine = {row: value for row, value in sums.items() if row[0].isoformat() == key}
            assert any(sums_of(key, rows) == mine for rows in self.looks[key]), f"{what}: {key} has {mine}"

    def end(self) -> None:
        """The files are corrected, and each day is done again."""
        for key in KEYS:
            for path in (self.days.folder / key).glob("*.json"):
                if path.read_text() == DAMAGE:
                    path.write_text('[["x", 7]]')
            self.look(key)
        with suppress(TridentError):
            self.days.runner().recover()
        for tx in self.days.ledger.transactions():
            if tx.status is Status.FAILED and not tx.touched:
                self.days.ledger.skip(tx.txid, "a person")
        self.days.run(*KEYS, gone="take", empty="take")
        assert self.days.sums == self.days.expected(*KEYS)
        records = [tx for tx in self.days.ledger.transactions() if tx.partition]
        for key in KEYS:
            numbers = [tx.partition.n for tx in records if tx.partition and tx.partition.key == key]
            assert numbers == sorted(set(numbers))


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as opened:
        yield opened


@pytest.mark.parametrize("seed", range(10))
def test_a_day_is_always_one_look_at_its_sources(tmp_path: Path, engine: LocalEngine, seed: int) -> None:
    life = Life(tmp_path, engine, seed)
    for _ in range(STEPS):
        life.step()
    life.end()
