"""A stateful function emits, exactly once: seed 003's WordCountBolt and its picture."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, KeyValueStates, MemoryState, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.states.keyvalue.stateful import OpenStateful
from tests.fixtures.program import run_program
from tests.fixtures.state import ticket
from tests.seeds import stateful_words as seed
from tools.kills import VARIABLE


def run(topology: Topology, folder: Path) -> None:
    with MemoryLedger(topology.name) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(folder)).run()


def expected() -> dict[str, list[object]]:
    counts = sorted(((word,), (count,)) for word, count in Counter(seed.WORDS).items())
    records = [((1,), ("STORM",)), ((2,), ("STORM",)), ((3,), ("STORM",)), ((4,), ("STORM",))]
    return {
        "WordCountBolt": counts,
        "HighestBolt": [(("highest",), (4,)), (("seen",), (len(seed.WORDS),))],
        "records": records,
    }


def test_stateful_bolt_bolt_stateful_bolt_each_tuple_is_counted_once(tmp_path: Path) -> None:
    run(seed.topology(tmp_path), tmp_path)
    found = seed.contents(tmp_path)
    assert found["WordCountBolt"] == expected()["WordCountBolt"]
    assert found["HighestBolt"] == expected()["HighestBolt"]
    assert [key for key, _ in found["records"]] == [key for key, _ in expected()["records"]]  # type: ignore[misc,str-unpack]


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "point", [Milestone.GATE_OPENED, Milestone.APPLIED, Milestone.NEW_VALUES, Milestone.APPLIED_DOWNSTREAM]
)
def test_killed_between_what_is_emitted_and_what_follows_it_ends_like_a_run_that_was_not(
    point: Milestone, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    run(seed.topology(undisturbed), undisturbed)
    arguments = (zookeeper.hosts, ledger_root, tmp_path)
    assert run_program("stateful_chain", *arguments, **{VARIABLE: f"{point}@2:{tmp_path}/died"}) == -signal.SIGKILL
    assert run_program("stateful_chain", *arguments) == 0
    assert seed.contents(tmp_path) == seed.contents(undisturbed)


def test_what_was_emitted_for_another_transaction_is_not_given_out(tmp_path: Path) -> None:
    made = seed.topology(tmp_path)
    run(made, tmp_path)
    spec = made.states["WordCountBolt"]
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenStateful)
        assert state.emitted(ticket(5)).num_rows == 1
        with pytest.raises(FencedError, match="for transaction 5, not for 4"):
            state.emitted(ticket(4))


def test_hints_and_loads_can_be_said_of_a_state(tmp_path: Path) -> None:
    made = Topology("hints")
    words = made.new_stream("words", FixedBatchSpout("word string", ["a"]))
    grouped = words.group_by("word").persistent_aggregate(SqliteState(str(tmp_path / "n.db")), Count(), "n")
    grouped.parallelism_hint(6).set_cpu_load(50).set_memory_load(300)
    (last,) = [stage for stage in made.compile().stages if stage.sinks]
    assert (last.partitions, last.cpu_percent, last.memory_mb) == (6, 50, 300)


def test_outputs_are_part_of_the_definition() -> None:
    def text(outputs: str) -> str:
        made = Topology("t")
        words = made.new_stream("words", FixedBatchSpout("word string", ["a"]))
        states = KeyValueStates("memory")
        words.stateful("word", seed.WordCountBolt(), provider=states, outputs=outputs, name="s")
        words.persistent_aggregate(MemoryState(), Count(), "n")
        return made.definition().states["s"].text

    assert text("word string, count long").endswith("WordCountBolt in 1 partition -> (word string, count long)")
