"""The commit phase beyond the staged batch: new values, what is downstream of them, queries. Exactly once, whatever is
done again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, Function, MemoryState, SqliteState, Sum, Topology
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError, StoreUnavailableError, TransitionError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.downstream import apply_downstream
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.area import StagingArea
from tests.fixtures import single
from tests.fixtures.spout import OpaqueFolderSpout, append
from tests.fixtures.state import Forgetful, content

WORDS = ["a", "b", "a", "c", "a", "b", "d", "a"]


def words(topology: Topology, rows: Sequence[str] = WORDS, size: int = 3) -> Any:
    return topology.new_stream("words", FixedBatchSpout("word string", list(rows), size))


def run(topology: Topology, folder: Path | str, ledger: MemoryLedger | None = None) -> None:
    """To the end; when the answer of a state is lost, again."""
    with ledger or MemoryLedger(topology.name) as opened, LocalEngine() as engine:
        runner = LocalRunner(ledger=opened, topology=topology, engine=engine, staging_root=str(folder))
        while True:
            try:
                runner.run()
            except StoreUnavailableError:
                continue
            return


def held(topology: Topology, name: str) -> dict[Any, Any]:
    spec = topology.states[name]
    with spec.factory.make_state(spec) as state:
        return content(state)


@pytest.fixture(params=["sqlite", "memory that loses its answers"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateFactory:
    if request.param == "sqlite":
        return SqliteState(str(tmp_path / "states.db"))
    return Forgetful(MemoryState(str(tmp_path)))


def test_what_an_upsert_refuses_leaves_every_state_as_it_was(store: StateFactory, tmp_path: Path) -> None:
    """Of equal keys with different values none may win by chance; with an order the newest wins."""
    rows = [(1, "old", 1), (2, "b", 1), (1, "new", 2)]

    def made(**order: str) -> Topology:
        topology = Topology("t")
        changes = topology.new_stream("changes", FixedBatchSpout("id long, city string, at long", rows))
        changes.persistent_aggregate(store, Count(), "n")
        changes.partition_persist(store, "id, city", keys="id", name="cities", **order)
        return topology

    with pytest.raises(UserCodeError, match=r"\(id=1\).*'old'\) and \(city='new'.*order_by="):
        run(made(), tmp_path / "staging")
    assert held(made(), "n") == held(made(), "cities") == {}
    run(made(order_by="at"), tmp_path / "staging")
    assert held(made(), "n") == {(): (3,)}
    assert held(made(), "cities") == {(1,): ("new",), (2,): ("b",)}


# ---- new values ------------------------------------------------------------------------------------------------


def test_only_a_state_whose_new_values_somebody_reads_is_bound_to_the_batchs_keys(
    store: StateFactory, tmp_path: Path
) -> None:
    def with_total(state: Any, tuples: Any) -> None:
        words = [word for (word,) in tuples]
        state.multi_put([(word,) for word in words] + [("total",)], [(1,)] * (len(words) + 1))

    def made(name: str) -> tuple[Topology, Any]:
        topology = Topology(name)
        arguments = {"keys": "word", "values": "n long", "name": "kept"}
        return topology, words(topology).partition_persist(store, "word", with_total, **arguments)

    quiet, _ = made("quiet")
    run(quiet, tmp_path / "staging")
    assert ("total",) in held(quiet, "kept")
    topology, kept = made("told")
    kept.new_values_stream().partition_persist(store, "word, n", keys="word", name="seen")
    with pytest.raises(
        UserCodeError, match=r"the key \(word='total'\) of state 'kept', which no tuple of the batch has"
    ):
        run(topology, tmp_path / "staging")
    assert held(topology, "kept") == held(topology, "seen") == {}


def test_new_values_are_those_of_the_batches_keys_after_the_batch(store: StateFactory, tmp_path: Path) -> None:
    topology = Topology("t")
    counts = words(topology).group_by("word").persistent_aggregate(store, Count(), "n")
    changed = counts.new_values_stream().each("n", lambda n: [n], "same long")
    seen = changed.partition_persist(store, "word, n, same", keys="word, n", name="seen")
    assert seen.spec.in_order
    run(topology, tmp_path / "staging")
    assert set(held(topology, "seen")) == {("a", 2), ("b", 1), ("c", 1), ("a", 3), ("b", 2), ("d", 1), ("a", 4)}


def test_levels_of_states_follow_each_other_and_a_plain_stream_joins_them(store: StateFactory, tmp_path: Path) -> None:
    topology = Topology("t")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(store, Count(), "n")
    updates = counts.new_values_stream().group_by("word").persistent_aggregate(store, Count(), "updates")
    most = updates.new_values_stream().persistent_aggregate(store, "updates", Sum(), "all_updates")
    sizes = stream.aggregate(Count(), "size")  # of the processing phase: STORM-2523
    joined = topology.merge([most.new_values_stream().project("all_updates"), sizes], "number")
    joined.persistent_aggregate(store, "number", Sum(), "total")
    run(topology, tmp_path / "staging")
    batches = [WORDS[0:3], WORDS[3:6], WORDS[6:8]]
    updated: Counter[str] = Counter()
    all_updates = total = 0
    for batch in batches:
        updated.update(set(batch))
        all_updates += sum(updated[word] for word in set(batch))
        total += all_updates + len(batch)
    assert held(topology, "updates") == {(word,): (number,) for word, number in updated.items()}
    assert held(topology, "all_updates") == {(): (all_updates,)}
    assert held(topology, "total") == {(): (total,)}


def test_a_stream_that_is_handed_on_comes_to_the_partitions_that_it_had(tmp_path: Path) -> None:
    """Of both streams the tuples of a word must be in one partition when they are merged partition by partition."""
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    stream = words(topology, WORDS, len(WORDS))
    counts = stream.group_by("word").persistent_aggregate(store, Count(), "n").new_values_stream()
    ones = stream.each("", lambda: [1], "n long").partition_by("word").filter("word", lambda word: word != "d")
    both = topology.merge([counts.partition_by("word"), ones]).group_by("word").partition_aggregate("n", Sum(), "twice")
    both.group_by("word").persistent_aggregate(store, ("twice", Sum(), "all"), (Count(), "parts"), name="twice")
    run(topology, tmp_path / "staging")
    assert held(topology, "twice") == {("a",): (8, 1), ("b",): (4, 1), ("c",): (2, 1), ("d",): (1, 1)}


def test_a_state_without_keys_gives_its_one_row_also_for_an_empty_batch(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    count = words(topology).filter("word", lambda word: word == "a").persistent_aggregate(store, Count(), "n")
    count.new_values_stream().persistent_aggregate(store, "n", Sum(), "sum")
    run(topology, tmp_path / "staging")
    assert held(topology, "sum") == {(): (2 + 3 + 4,)}


@settings(max_examples=15)
@given(rows=st.lists(st.sampled_from("abc"), min_size=1, max_size=12), size=st.integers(1, 4))
def test_whatever_the_batches_are_and_whatever_is_done_again_it_ends_the_same(
    rows: list[str], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("again")
    ends: list[Any] = []
    for store in (MemoryState(f"{folder}/plain"), Forgetful(MemoryState(f"{folder}/forgetful"))):
        topology = Topology("t")
        stream = words(topology, rows, size)
        counts = stream.group_by("word").persistent_aggregate(store, Count(), "n")
        counts.new_values_stream().persistent_aggregate(store, "n", Sum(), "sum")
        windows = stream.sliding_window(4, 2, store, Count(), "tuples", bounds=True)
        windows.partition_persist(store, "window_end, tuples", keys="window_end", name="windows")
        run(topology, folder / "staging")
        ends.append([held(topology, name) for name in ("n", "sum", "windows")])
    assert ends[0] == ends[1]
    assert ends[0][2] == {(end,): (min(end, 4),) for end in range(2, len(rows) + 1, 2)}


def test_a_late_batch_is_refused_before_anything_changes(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    counts = words(topology).group_by("word").persistent_aggregate(store, Count(), "n")
    counts.new_values_stream().persistent_aggregate(store, "n", Sum(), "sum")
    with MemoryLedger("t") as ledger, LocalEngine() as engine:
        coordinate(ledger, topology, [Claim(key="first")])
        ledger.skip(1, "a test")
        run(topology, tmp_path / "staging", ledger)
        backfill = Backfill(
            ledger=ledger, topology=topology, engine=lambda: engine, staging_root=str(tmp_path / "staging"), owner="me"
        )
        (result,) = backfill.run(Selection(first=1, last=1))
    assert result.outcome is BackfillOutcome.FAILED
    assert "depends on the order of batches" in result.detail
    assert held(topology, "n") == {("a",): (2,), ("b",): (1,), ("c",): (1,), ("d",): (1,)}


def test_an_error_of_a_function_in_the_commit_phase_is_mended_and_committed_again(tmp_path: Path) -> None:
    class Broken(Function):
        def execute(self, number: int) -> Iterator[int]:
            if not (tmp_path / "mended").exists():
                raise ValueError("broken")
            yield number

    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    counts = words(topology).group_by("word").persistent_aggregate(store, Count(), "n")
    counts.new_values_stream().each("n", Broken(), "m long").persistent_aggregate(store, "m", Sum(), "sum")
    with MemoryLedger("t") as ledger:
        with pytest.raises(UserCodeError, match="broken"):
            run(topology, tmp_path / "staging", ledger)
        assert held(topology, "n") == {("a",): (2,), ("b",): (1,)}
        record = ledger.view(1).tx
        assert record is not None
        assert (record.status, record.error.partition(":")[0]) == (Status.COMMITTING, "UserCodeError")
        with pytest.raises(TransitionError, match="a state may hold it"):
            ledger.skip(1, "it is in one of two states")
        (tmp_path / "mended").touch()
        run(topology, tmp_path / "staging", ledger)
    assert held(topology, "n") == {(word,): (number,) for word, number in Counter(WORDS).items()}
    assert held(topology, "sum") == {(): (2 + 1 + 1 + 3 + 2 + 1 + 4,)}


# ---- another batch, an old committer ---------------------------------------------------------------------------


def opaque(store: StateFactory, folder: Path) -> Topology:
    topology = Topology("t")
    stream = topology.new_stream("rows", OpaqueFolderSpout(folder))
    counts = stream.group_by("name").persistent_aggregate(store, Count(), "n")
    counts.new_values_stream().persistent_aggregate(store, "n", Sum(), "sum")
    windows = stream.tumbling_window(2, store, "id", Sum(), "ids", bounds=True)
    windows.partition_persist(store, "window_end, ids", keys="window_end", name="windows")
    return topology


def test_another_batch_of_an_opaque_spout_replaces_the_first_at_every_level(tmp_path: Path) -> None:
    """Everything is applied, then the staged batch is gone, and the new attempt finds more data."""
    folder, staging = tmp_path / "source", tmp_path / "staging"
    append(folder, "p", [(1, "a"), (2, "b")])
    topology = opaque(Forgetful(MemoryState(str(tmp_path))), folder)
    replaced = 0
    with MemoryLedger("t") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(staging))
        while True:
            try:
                runner.run()
            except StoreUnavailableError:
                if held(topology, "windows") and not replaced:
                    assert held(topology, "sum") == {(): (2,)}
                    assert held(topology, "windows") == {(2,): (3,)}
                    append(folder, "p", [(3, "b")])
                    shutil.rmtree(staging)
                    replaced += 1
                continue
            break
        assert ledger.view(1).tx.attempt == 1  # type: ignore[union-attr]
        assert held(topology, "n") == {("a",): (1,), ("b",): (2,)}
        assert held(topology, "sum") == {(): (1 + 2,)}
        append(folder, "p", [(4, "a")])
        run(topology, staging, ledger)
    assert replaced
    assert held(topology, "sum") == {(): (1 + 2 + 2,)}
    assert held(topology, "windows") == {(2,): (1 + 2,), (4,): (3 + 4,)}


def test_a_committer_that_was_overtaken_writes_nothing_downstream(tmp_path: Path) -> None:
    """It has applied the first state; others commit this transaction and the next; it goes on and reads the wrong
    values, and is refused where it would write them."""
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    counts = words(topology).group_by("word").persistent_aggregate(store, Count(), "n")
    counts.new_values_stream().persistent_aggregate(store, "n", Sum(), "sum")
    plan, staging = topology.compile(), str(tmp_path / "staging")
    attempts = Attempts(owner="me")
    with MemoryLedger("t") as ledger, LocalEngine() as engine, ExitStack() as opened:
        coordinate(ledger, topology, [Claim(key="first")])
        process(ledger, topology, 1, engine, staging, attempts)
        ticket = single.gate(ledger, 1, owner="me")
        states = {name: opened.enter_context(spec.factory.make_state(spec)) for name, spec in topology.states.items()}
        area = StagingArea(staging)
        batch = area.read(area.load(ticket.staged), "n", plan.sinks[0].state.staged)
        states["n"].apply(ticket, batch)
        run(topology, staging, ledger)
        before = held(topology, "sum")
        with pytest.raises(FencedError):
            apply_downstream(
                plan,
                ticket,
                states,
                {"n": batch},
                lambda name, rows: states[name].apply(ticket, rows),
                lambda line: None,
            )
    assert held(topology, "sum") == before == {(): (2 + 1 + 1 + 3 + 2 + 1 + 4,)}
