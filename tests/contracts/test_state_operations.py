"""T10 of `contracts.state`: what users wrote is prepared where a batch is merged, over every store.

Airflow runs the phases as tasks of their own, so everything is made anew for each of them here: factory, topology,
spec, state. What only one process would remember is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, StateUpdater, Topology
from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import StoreUnavailableError, UserCodeError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.decide import AlreadyCommitted
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, process
from airflow_trident.states import MapState
from airflow_trident.types import parse_declared
from tests.fixtures import single
from tests.fixtures.life import Alone, Most, Total
from tests.fixtures.state import FACTORIES, apply, batch, combined, content, ticket


class Latest(Alone, StateUpdater):
    """k -> how many tuples it had, and who came last."""

    def update_state(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        context = self.used()
        for key, _ in tuples:
            (known,) = state.multi_get([(key,)])
            state.multi_put([(key,)], [((known[0] if known else 0) + 1, context.txid, context.attempt)])


def most(factory: StateFactory) -> StateSpec:
    return combined(factory, "k string", "n long", Most())


def total(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "k string", "n long")
    return replace(spec, reducer=Total(), staged=parse_declared("k string, x long"), reads=("x",))


def latest(factory: StateFactory) -> StateSpec:
    spec = combined(factory, "k string", "n long, txid long, attempt int")
    return replace(spec, updater=Latest(), staged=parse_declared("k string, x long"))


Spec = Callable[[StateFactory], StateSpec]
RESULTS: dict[Spec, dict[tuple[Any, ...], tuple[Any, ...]]] = {
    most: {("a",): (30,), ("b",): (2,)},
    total: {("a",): (1 + 1 + 10 + 20 + 30,), ("b",): (1 + 2,)},
    latest: {("a",): (4, 3, 1), ("b",): (1, 1, 0)},
}


@pytest.mark.parametrize("spec_of", RESULTS)
@pytest.mark.parametrize("store", FACTORIES)
@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
def test_every_commit_prepares_operations_of_its_own(store: str, spec_of: Spec, opaque: bool, tmp_path: Path) -> None:
    def commit(txid: int, attempt: int, *rows: tuple[Any, ...]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        spec = replace(spec_of(FACTORIES[store](tmp_path)), opaque=opaque)
        with spec.factory.make_state(spec) as state:
            apply(state, ticket(txid, attempt=attempt), batch(spec, *rows))
            return content(state)

    commit(1, 0, ("a", 1), ("b", 2))
    commit(2, 0, ("a", 10), ("a", 20))
    assert commit(3, 1, ("a", 30)) == RESULTS[spec_of]


@pytest.mark.parametrize("store", FACTORIES)
def test_a_batch_that_is_replaced_or_late_prepares_them_too(store: str, tmp_path: Path) -> None:
    spec = replace(most(FACTORIES[store](tmp_path)), opaque=True)
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(2), batch(spec, ("a", 7), ("b", 7)))
        apply(state, ticket(2, attempt=1, fence=21), batch(spec, ("a", 5), ("b", 7)))
        apply(state, ticket(1, fence=22, late=True), batch(spec, ("a", 6), ("b", 1)))
        apply(state, ticket(2, attempt=2, fence=23), batch(spec, ("a", 4)))
        assert content(state) == {("a",): (6,), ("b",): (1,)}


class CannotPrepare(Latest):
    def prepare(self, context: Any) -> None:
        raise ConnectionError("no database")


@pytest.mark.parametrize("store", FACTORIES)
def test_a_prepare_that_raises_is_named_and_nothing_is_applied(store: str, tmp_path: Path) -> None:
    spec = replace(latest(FACTORIES[store](tmp_path)), updater=CannotPrepare())
    with spec.factory.make_state(spec) as state:
        with pytest.raises(UserCodeError, match="CannotPrepare in counts raised ConnectionError in prepare"):
            state.apply(ticket(1), batch(spec, ("a", 1)))
        assert content(state) == {}
        assert state.marker() is None


class LatestOfACall(Alone):
    """No StateUpdater, and it has a life as one."""

    def __call__(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        Latest.update_state(self, state, tuples)  # type: ignore[arg-type]


def test_an_updater_that_is_called_is_prepared_and_cleaned_up_as_any_operation(tmp_path: Path) -> None:
    spec = replace(latest(FACTORIES["memory"](tmp_path)), updater=LatestOfACall())
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1)))
        apply(state, ticket(2, attempt=3), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (2, 2, 3)}


# ---- the whole topology, made anew for each phase --------------------------------------------------------------


def topology_over(factory: StateFactory) -> Topology:
    """Operations before a state, in it, and behind it: those behind run in the commit phase."""
    topology = Topology("lives")
    rows = [("a", 1), ("b", 2), ("a", 10), ("a", 20)]
    stream = topology.new_stream("numbers", FixedBatchSpout("k string, x long", rows, 2))
    kept = stream.group_by("k").persistent_aggregate(factory, "x", Most(), "n", name="most")
    stream.group_by("k").persistent_aggregate(factory, "x", Total(), "n", name="total")
    stream.partition_persist(
        factory, "k, x", Latest(), keys="k", values="n long, txid long, attempt int", name="latest"
    )
    new = kept.new_values_stream().aggregate("n", Most(), "m")
    new.persistent_aggregate(factory, "m", Most(), "n", name="behind")
    windows = stream.tumbling_window(3, factory, "x", Total(), "n", name="window")
    windows.persistent_aggregate(factory, "n", Most(), "n", name="of_windows")
    return topology


@pytest.mark.parametrize("store", FACTORIES)
def test_each_phase_of_a_topology_has_operations_of_its_own(store: str, tmp_path: Path) -> None:
    staging, attempts = str(tmp_path / "staging"), Attempts(owner="test")
    with MemoryLedger("lives") as ledger:
        for run in ("first", "second"):
            begun = single.coordinate(ledger, topology_over(FACTORIES[store](tmp_path)), Claim(key=run), max_pending=2)
            assert isinstance(begun, Begun)
            topology = topology_over(FACTORIES[store](tmp_path))
            process(ledger, topology, begun.txid, LocalEngine(), staging, attempts)
            assert isinstance(_commit(ledger, store, tmp_path, begun.txid, staging), AlreadyCommitted)
    found = {}
    for name, spec in topology_over(FACTORIES[store](tmp_path)).states.items():
        if name != "window":
            with spec.factory.make_state(spec) as state:
                found[name] = content(state)
    assert found["most"] == {("a",): (22,), ("b",): (3,)}
    assert found["total"] == {("a",): (1 + 1 + 10 + 20,), ("b",): (1 + 2,)}
    assert found["latest"] == {("a",): (3, 2, 0), ("b",): (1, 1, 0)}
    assert found["behind"] == {(): (22 + 2 + 2,)}
    assert found["of_windows"] == {(): (2 + 13 + 2,)}


def _commit(ledger: MemoryLedger, store: str, folder: Path, txid: int, staging: str) -> Any:
    for _ in range(20):  # of those that lose their answers
        try:
            return (
                Committer(
                    ledger=ledger,
                    topology=topology_over(FACTORIES[store](folder)),
                    staging_root=staging,
                    attempts=Attempts(owner="test"),
                    engine=LocalEngine,
                )
                .commit(txid)
                .own
            )
        except StoreUnavailableError:
            continue
    raise AssertionError("it never came through")
