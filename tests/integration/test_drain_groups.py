"""A drain that takes several transactions at a time leaves what one leaves that takes each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Function, SqliteState, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, SparkJobError, TridentError, UserCodeError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.verbs import begin, group_steps
from airflow_trident.names import DEFAULT_RETENTION
from airflow_trident.protocol.records import Claim, OnFailure, Status
from airflow_trident.runtime.drains import limits as limits_module
from airflow_trident.runtime.drains.drain import Drain, DrainResult
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.mending.rebuild import Rebuild
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.manifest import Manifest
from tests.fixtures import single

Group = tuple[int, ...]


class Refuses(Function):
    def __init__(self, words: set[str]) -> None:
        self.words = words

    def execute(self, word: str) -> Iterator[str]:
        if word in self.words:
            raise ValueError(f"cannot stand {word}")
        yield word.upper()


@dataclass
class Passes(LocalEngine):
    """Notes which transactions went together, and what is done before a pass.

    :param breaks: a pass over one of these ends with an error that names nobody, so often.
    """

    breaks: Counter[int] = field(default_factory=Counter)
    before: Callable[[Group], None] = lambda _: None
    passes: list[Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def run(self, job: Job) -> Manifest:
        self._begins((job.slot.txid,))
        return super().run(job)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        if len(jobs) > 1:
            self._begins(tuple(job.slot.txid for job in jobs))
        return super().run_group(jobs)

    def _begins(self, group: Group) -> None:
        self.passes.append(group)
        self.before(group)
        for txid in group:
            if self.breaks[txid] > 0:
                self.breaks[txid] -= len(group) == 1
                raise SparkJobError("the job broke", "Run it again.")


@dataclass
class Place:
    """A topology of one word a transaction in two states, and what is around it."""

    folder: Path
    count: int = 40
    sick: set[str] = field(default_factory=set)
    tree: MemoryTree = field(default_factory=MemoryTree)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topology = Topology("groups")
        spout = FixedBatchSpout("word string", [f"w{number}" for number in range(1, self.count + 1)], 1)
        words = self.topology.new_stream("words", spout).each("word", Refuses(self.sick), "loud").group_by("loud")
        for name in ("one", "two"):
            store = SqliteState(str(self.folder / f"{name}.db"))
            words.persistent_aggregate(store, Count(), "n", name=name)
        self.ledger = self.client()

    def client(self) -> ZNodeLedger:
        return ZNodeLedger(MemoryZNodes(self.tree), "groups")

    def drain(
        self,
        engine: LocalEngine | None = None,
        on_failure: OnFailure = OnFailure.BLOCK,
        retention: int = DEFAULT_RETENTION,
        **limits: Any,
    ) -> DrainResult:
        return Drain(
            ledger=self.ledger,
            topology=self.topology,
            engine=engine or LocalEngine(),
            staging_root=str(self.folder / "staging"),
            attempts=Attempts(owner="drain", on_failure=on_failure),
            claim=Claim(key="drain"),
            limits=DrainLimits(**limits),
            retention=retention,
            progress=self.said.append,
        ).run()

    def holds(self, *without: int) -> bool:
        expected = {f"W{number}": 1 for number in range(1, self.count + 1) if number not in without}
        found = []
        for spec in self.topology.states.values():
            with spec.factory.make_state(spec) as state:
                found.append({key: count for (key,), (count,) in state.items()})
        return found == [expected, expected]

    def statuses(self) -> Counter[Status]:
        return Counter(tx.status for tx in self.ledger.transactions())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


ALL = tuple(range(1, 41))


@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        ({"group": 40}, 40),
        ({"group": 7}, 7),
        ({"group": 1}, 1),
        ({"max_pending": 10}, 5),
        ({"max_pending": 1}, 1),
        ({"group": 10, "max_pending": 10}, 10),
    ],
)
def test_everything_is_committed_once_whatever_goes_together(
    place: Place, limits: dict[str, Any], largest: int
) -> None:
    engine = Passes()
    assert place.drain(engine, **limits).committed == ALL
    assert max(map(len, engine.passes)) == largest
    assert place.holds()
    assert place.drain(**limits).committed == ()


def test_a_source_that_does_not_say_how_much_there_is_is_known_by_what_was_read_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes of 8 begin before anything is known."""
    monkeypatch.setattr(limits_module, "LONG_S", 1e9)  # no machine is too busy for this
    engine = Passes()
    assert place.drain(engine).committed == ALL
    assert [len(group) for group in engine.passes] == [8, 8, 24]


def test_each_transaction_keeps_its_claim_and_its_attempt(place: Place) -> None:
    place.drain(group=20)
    records = place.ledger.transactions()
    assert {tx.attempt for tx in records} == {0}
    assert len({tx.claim.key for tx in records}) == len(records)


@pytest.mark.parametrize(("group", "passes"), [(20, 2), (1, 40)])
def test_what_ends_alone_and_has_its_turn_is_processed_and_at_the_gate_in_one_step(
    place: Place, group: int, passes: int
) -> None:
    verbs: list[str] = []
    place.ledger.listener = lambda _ledger, verb, _answer: verbs.append(verb)
    place.drain(group=group, max_pending=group)
    assert place.holds()
    counted = Counter(verbs)
    assert (counted["processed"], counted["gate"]) == (passes, 0)
    # The first of them is begun by itself; the last one is committed in a step that finds nothing to begin.
    assert (counted["begin"], counted["committed"]) == (1, passes)


def test_steps_that_are_full_before_anything_is_begun_leave_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few bytes take one or two transactions."""
    monkeypatch.setattr(group_steps, "GROUP_BYTES", 1_500)
    monkeypatch.setattr(begin, "GROUP_BYTES", 1_500)
    assert place.drain(group=10).committed == ALL
    assert place.holds()


def test_a_source_that_fails_when_the_next_group_is_asked_for_keeps_nobody_from_committing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def next_batches(self: Any, txid: int, position: Any, most: int) -> Any:
        asked.append(txid)
        if txid > 10:
            raise OSError("the source is away")
        return original(self, txid, position, most)

    spouts = type(place.topology.spouts["words"].coordinator())
    original = spouts.next_batches
    with monkeypatch.context() as patch:
        patch.setattr(spouts, "next_batches", next_batches)
        with pytest.raises(UserCodeError, match="stream 'words' raised OSError: the source is away"):
            place.drain(group=10, max_pending=10)
    assert asked[:3] == [1, 11, 11], "then it is tried again, as what a function raises is"
    assert place.statuses() == {Status.COMMITTED: 10}
    assert place.drain(group=10).committed == ALL[10:]
    assert place.holds()


def test_coordinators_are_told_of_all_though_little_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    told: set[int] = set()
    spouts = type(place.topology.spouts["words"].coordinator())
    monkeypatch.setattr(spouts, "success", lambda self, txid, metadata: told.add(txid))
    place.drain(group=10, max_pending=10, retention=1)
    assert told == set(ALL)


@pytest.mark.parametrize("group", [40, 1])
def test_what_cannot_be_looked_at_before_the_gate_is_processed_and_costs_no_try(place: Place, group: int) -> None:
    """A store that is away for a moment says nothing about a batch."""
    away = iter([True])

    def before(txids: Group) -> None:
        if next(away, False):
            for name in ("one", "two"):
                (place.folder / f"{name}.db").write_bytes(b"no database" * 100)

    with pytest.raises(TridentError):
        place.drain(Passes(before=before), group=group, max_pending=group, tries=1)
    assert place.statuses()[Status.PROCESSED] == group
    for name in ("one", "two"):
        (place.folder / f"{name}.db").unlink()
    place.drain(group=group)
    assert place.holds()


def test_it_begins_no_more_than_it_may(place: Place) -> None:
    assert place.drain(max_transactions=13).committed == ALL[:13]
    assert place.drain(max_transactions=3, group=20).committed == ALL[13:16]


def test_a_transaction_that_the_error_names_fails_alone(place: Place) -> None:
    place.sick.add("w23")
    engine = Passes()
    with pytest.raises(UserCodeError, match="cannot stand w23"):
        place.drain(engine, group=40, tries=2)
    assert engine.passes[0] == ALL
    assert sorted(engine.passes[1:]) == sorted([(23,), (23,), (*ALL[:22], *ALL[23:])])
    assert place.holds(*range(23, 41))
    place.sick.clear()


def test_with_on_failure_skip_the_others_of_its_group_are_committed(place: Place) -> None:
    place.sick |= {"w3", "w38"}
    assert len(place.drain(on_failure=OnFailure.SKIP, group=40, tries=1).committed) == 38
    assert place.holds(3, 38)
    assert place.statuses() == {Status.COMMITTED: 38, Status.SKIPPED: 2}


@pytest.mark.parametrize("bad", [1, 17, 40])
def test_a_transaction_that_no_error_names_is_found_by_halves(place: Place, bad: int) -> None:
    engine = Passes(breaks=Counter({bad: 3}))
    with pytest.raises(SparkJobError):
        place.drain(engine, group=40, tries=3)
    more = len(engine.passes) - 1 - 2  # the first pass, and two more tries of the one by itself
    assert more <= 2 * 6 + 1  # log2 of 40, rounded up
    tx = place.ledger.view(bad).tx
    assert tx is not None
    assert tx.status is Status.FAILED
    assert place.holds(*range(bad, 41))


def test_a_fault_that_passes_costs_no_try(place: Place) -> None:
    broken = iter([True, True])

    def once(group: Group) -> None:
        if len(group) > 1 and next(broken, False):
            raise SparkJobError("an executor was lost", "Run it again.")

    assert place.drain(Passes(before=once), group=40, tries=1).committed == ALL
    assert place.holds()


def test_what_somebody_skips_while_its_group_is_processed_goes_its_own_way(place: Place) -> None:
    other = place.client()

    def skip(group: Group) -> None:
        if group == ALL:
            other.skip(5, "nobody needs it")

    assert place.drain(Passes(before=skip), group=40).committed == (*ALL[:4], *ALL[5:])
    assert place.holds(5)


def test_what_somebody_else_attempts_meanwhile_is_his(place: Place) -> None:
    other = place.client()

    def take(group: Group) -> None:
        if group == ALL:
            single.attempt(other, 7, owner="a person")
            other.fail(7, 1, "gave up")

    place.drain(Passes(before=take), group=40, wait_s=0.0)
    assert place.ledger.view(0).pointer.committed == 6
    assert place.holds(*range(7, 41))


def test_what_a_drain_left_is_taken_up_in_groups(place: Place) -> None:
    def stop(group: Group) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.drain(Passes(before=stop), group=16)
    engine = Passes()
    assert place.drain(engine, group=10).committed == ALL
    assert engine.passes[0] == tuple(range(1, 11))
    assert place.holds()


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"group": 0}, "from 1 to 200"),
        ({"group": 201}, "from 1 to 200"),
        ({"group": "many"}, "from 1 to 200"),
        ({"group": True}, "from 1 to 200"),
        ({"max_pending": 0}, "max_pending=0"),
        ({"tries": 0}, "tries=0"),
        ({"max_transactions": 0}, "max_transactions=0"),
        ({"group": 20, "max_pending": 10}, "group=20 and max_pending=10"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DrainLimits(**limits)


def test_a_state_is_rebuilt_from_its_part_of_a_groups_batch_without_a_replay(place: Place) -> None:
    place.drain(group=10, max_pending=10)
    (place.folder / "two.db").unlink()
    engine, said = Passes(), list[str]()
    rebuilt = Rebuild(
        ledger=place.ledger,
        topology=place.topology,
        engine=lambda: engine,
        staging_root=str(place.folder / "staging"),
        progress=said.append,
    ).run(["two"])
    assert rebuilt.replayed["two"].highest == place.count
    assert engine.passes == []
    assert place.holds()
