"""Random lives of a bound topology over files, a database and a table: files come, change, go and are damaged; runs and
redos of days, kills at any milestone, skips, and two requests of one day at once. What a state has of a day is always
one look at its files.

`make rare ARGS=tests/integration/test_partition_lives.py` lives 5,000.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import DeltaTable, FileSpout, SqliteState, Sum, Topology
from airflow_trident.contracts.state import StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TridentError
from airflow_trident.ledger.answers import Begun
from airflow_trident.protocol.records import CommitTicket, Status
from airflow_trident.runtime.milestones import Milestone, told
from tests.conftest import IN_MEMORY
from tests.fixtures.days import DAYS, Rows
from tests.integration.test_partitions import Days, Killed, register

KEYS = ("2026-11-22", "2026-11-23", "2026-11-24")
STEPS = 25
DONE = "_SUCCESS"
DAMAGE = '{"shop": "x", "cents": "oops"}\n'


def topology_of(folder: Path, **done: str) -> Topology:
    """Rows into a table by day, and sums of each shop and day into a file."""
    topology = Topology("shop", partitions=DAYS)
    path = str(folder / "in" / "{partition}" / "*.json")
    orders = topology.new_stream("orders", FileSpout(path, format="json", fields="shop string, cents long", **done))
    orders.persist_table(DeltaTable(str(folder / "rows"), partition_by="day"), name="rows")
    sums = orders.group_by("day, shop")
    sums.persistent_aggregate(SqliteState(str(folder / "sums.db")), "cents", Sum(), "cents", name="sums")
    return topology


class Life:
    """:param seed: with an odd one, a file `_SUCCESS` says that a day is complete: it goes before others change."""

    def __init__(self, folder: Path, engine: LocalEngine, seed: int) -> None:
        self.random = random.Random(seed)
        self.marked = bool(seed % 2)
        self.days = Days(folder, engine, topology_of(folder, **({"done": DONE} if self.marked else {})))
        self.looks: dict[str, list[Rows]] = {key: [[]] for key in KEYS}
        """What a look at the files of each day could have read at some time."""
        self.requests = self.changes = 0
        for key in KEYS:
            (self.days.folder / key).mkdir(parents=True)
        register(self.days)

    def step(self) -> None:
        steps: list[Callable[[str], None]] = [self.change, self.change, self.run, self.run, self.run, self.kill]
        steps += [self.skip, self.interleave, self.look]
        step, key = self.random.choice(steps), self.random.choice(KEYS)
        with suppress(TridentError, Killed):
            step(key)
        if step not in (self.change, self.look, self.skip):
            self.require_whole_looks(f"{step.__name__} {key}")

    # ---- what happens ------------------------------------------------------------------------------------------

    def files(self, key: str) -> list[Path]:
        return sorted((self.days.folder / key).glob("*.json"))

    def change(self, key: str) -> None:
        """A file comes, is corrected, goes or is damaged."""
        chance, files = self.random, self.files(key)
        (self.days.folder / key / DONE).unlink(missing_ok=True)
        what = chance.choice(["new", "new", "correct", "delete", "damage"]) if files else "new"
        name = f"{chance.randrange(10**6)}.json" if what == "new" else chance.choice(files).name
        if what == "delete":
            (self.days.folder / key / name).unlink()
        elif what == "damage":
            self.write(key, name, DAMAGE)
        else:
            rows = [{"shop": chance.choice("xyz"), "cents": chance.randrange(100)} for _ in range(chance.randint(1, 3))]
            self.write(key, name, "".join(json.dumps(row) + "\n" for row in rows))
        if not self.marked or chance.random() < 0.7:
            self.look(key)

    def write(self, key: str, name: str, content: str) -> None:
        """Each time of a file is another one, as if the disk had a finer clock."""
        path = self.days.folder / key / name
        path.write_text(content)
        self.changes += 1
        os.utime(path, (1_700_000_000 + self.changes,) * 2)

    def look(self, key: str) -> None:
        """The day is complete, as it is."""
        if self.marked:
            (self.days.folder / key / DONE).touch()
        lines = [json.loads(line) for path in self.files(key) for line in path.read_text().splitlines()]
        rows = [(line["shop"], line["cents"]) for line in lines]
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
            self.days.run(key, **how)

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
            with suppress(TridentError):
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

    def stored(self, name: str) -> dict[str, Counter[tuple]]:
        """What a state has, by day."""
        spec = self.days.topology.states[name]
        by_key: dict[str, Counter[tuple]] = {key: Counter() for key in KEYS}
        with spec.factory.make_state(spec) as state:
            for keys, values in state.items():
                shop, cents, day = values if name == "rows" else (keys[1], *values, keys[0])
                by_key[day.isoformat()][shop, cents] += 1
        return by_key

    def require_whole_looks(self, what: str) -> None:
        for name, content in (("rows", Counter), ("sums", _sums)):
            for key, found in self.stored(name).items():
                assert any(content(rows) == found for rows in self.looks[key]), f"{what}: {name} has {found} of {key}"

    def end(self) -> None:
        """The files are corrected, and each day is done again."""
        for key in KEYS:
            for path in self.files(key):
                if path.read_text() == DAMAGE:
                    self.write(key, path.name, '{"shop": "x", "cents": 7}\n')
            self.look(key)
        with suppress(TridentError):
            self.days.runner().recover()
        for tx in self.days.ledger.transactions():
            if tx.status is Status.FAILED and not tx.touched:
                self.days.ledger.skip(tx.txid, "a person")
        self.days.run(*KEYS, gone="take", empty="take")
        latest = {key: self.looks[key][-1] for key in KEYS}
        assert self.stored("rows") == {key: Counter(rows) for key, rows in latest.items()}
        assert self.stored("sums") == {key: _sums(rows) for key, rows in latest.items()}


def _sums(rows: Rows) -> Counter[tuple]:
    totals = Counter[str]()
    for shop, cents in rows:
        totals[shop] += cents
    return Counter((shop, totals[shop]) for shop in {shop for shop, _ in rows})


def live(folder: Path, engine: LocalEngine, seed: int) -> None:
    life = Life(folder, engine, seed)
    try:
        for _ in range(STEPS):
            life.step()
        life.end()
    finally:
        life.days.ledger.close()


def _all_of(folder: Path, engine: LocalEngine, seeds: range) -> None:
    for seed in seeds:
        live(folder / str(seed), engine, seed)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, if possible: each life writes a thousand files."""
    with tempfile.TemporaryDirectory(prefix="lives-", dir=IN_MEMORY) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as opened:
        yield opened


@pytest.mark.parametrize("ten", range(10))
def test_a_day_is_always_one_look_at_its_files(folder: Path, engine: LocalEngine, ten: int) -> None:
    _all_of(folder, engine, range(10 * ten, 10 * ten + 10))


@pytest.mark.parametrize("name", ["rows", "sums"])
def test_lives_find_a_state_that_replaces_nothing(
    folder: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replaced_by = StateSpec.replaced_by

    def nothing(self: StateSpec, ticket: CommitTicket) -> Any:
        return () if self.name == name else replaced_by(self, ticket)

    monkeypatch.setattr(StateSpec, "replaced_by", nothing)
    with pytest.raises(AssertionError):
        _all_of(folder, engine, range(10))


@pytest.mark.rare
@pytest.mark.parametrize("hundred", range(1, 50))
def test_a_day_is_one_look_at_its_files_in_5_000_lives(folder: Path, engine: LocalEngine, hundred: int) -> None:
    _all_of(folder, engine, range(100 * hundred, 100 * hundred + 100))
