"""A state that is behind its ledger (P11): restored from an old copy, deleted, or one of several copies. Whatever store
it is, nobody goes on over the gap; what is lacking is replayed into that state alone; and a gap that the ledger knows
of is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FileSpout, FixedBatchSpout, Sum, Topology
from airflow_trident.errors import (
    ConfigurationError,
    LostTransactionsError,
    StateBehindLedgerError,
)
from airflow_trident.ledger.znodes import Delete
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.mending.rebuild import Rebuilt
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis.state import RedisState
from tests.fixtures.behind import Versions, copies_in, give, rebuild, site_of
from tests.fixtures.committing import NAMES, WORDS, Site, expected, two_counts
from tests.fixtures.redis import settings_of_a_new_database, shared_server
from tests.fixtures.runtime import Joined
from tests.fixtures.spout import OpaqueFolderSpout, append
from tests.fixtures.state import FACTORIES

# ---- noticed, and mended, in every store -----------------------------------------------------------------------


@pytest.mark.parametrize("store", FACTORIES)
def test_p11_a_state_that_was_deleted_or_is_another_copy_is_refused_and_replayed(store: str, tmp_path: Path) -> None:
    which: dict[str, int] = {}
    site = site_of(store, tmp_path, which)
    site.run(2)
    processed = site.begin("before the look")
    site.process(processed)
    which["one"] = 1  # deleted, or the disk of another worker
    before = site.ledger.export()
    with pytest.raises(
        StateBehindLedgerError, match=r"'one' of topology 'half' holds nothing and lacks 1 to 2.*rebuild"
    ):
        site.begin("run")
    with pytest.raises(StateBehindLedgerError, match="lacks 1 to 2"):
        site.commit(processed)
    assert site.ledger.export() == before
    assert (site.content("one"), site.content("two")) == ({}, expected(1, 2))
    site.again(lambda: rebuild(site).run(["one"]))
    assert site.content("one") == expected(1, 2)
    assert rebuild(site).run(["one"]) == Rebuilt(replayed={}, lost={})
    site.commit(processed)
    site.run(1)
    assert [site.content(name) for name in NAMES] == [expected(1, 2, 3, 4)] * 2


def test_p11_a_state_that_lost_its_data_and_kept_its_record_is_refused_and_replayed(tmp_path: Path) -> None:
    server = settings_of_a_new_database()
    site = Site(two_counts(RedisState(**server)), tmp_path / "staging")
    site.run(2)
    processed = site.begin("before the look")
    site.process(processed)
    with shared_server().client(server["db"]) as client:
        assert client.delete("{half/one}:data") == 1
    with pytest.raises(StateBehindLedgerError, match="'one' of topology 'half' holds nothing and lacks 1 to 2"):
        site.commit(processed)
    rebuild(site).run()
    site.commit(processed)
    assert [site.content(name) for name in NAMES] == [expected(1, 2, 3)] * 2


def test_p11_states_that_were_restored_together_are_brought_up_together(
    site: Site, restore: Callable[[], None]
) -> None:
    site.run(2)
    restore()
    site.run(3)
    restore()
    with pytest.raises(StateBehindLedgerError, match="up to 2 and lacks 3 to 5"):
        site.begin("run")
    assert rebuild(site).lacks() == {name: Txids.span(3, 5) for name in NAMES}
    assert rebuild(site).run(dry_run=True).replayed == {name: Txids.span(3, 5) for name in NAMES}
    assert rebuild(site).run().replayed == {name: Txids.span(3, 5) for name in NAMES}
    assert site.run(1) == [6]
    assert [site.content(name) for name in NAMES] == [expected(*range(1, 7))] * 2


def test_a_kill_between_any_two_transactions_of_a_rebuild_is_mended_by_running_it_again(
    site: Site, restore: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run(1)
    restore()
    site.run(4)
    restore()

    class Killed(KeyboardInterrupt):
        pass

    for left in (5, 2):
        applied = iter(range(2))

        def dies(milestone: Milestone, txid: int, applied: Iterator[int] = applied) -> None:
            if milestone is Milestone.APPLIED and next(applied, None) is None:
                raise Killed

        with told(dies), pytest.raises(Killed):
            rebuild(site).run()
        assert sum(map(len, rebuild(site).lacks().values())) == left
    rebuild(site).run()
    assert [site.content(name) for name in NAMES] == [expected(*range(1, 6))] * 2


def test_a_replay_reads_the_source_again_where_the_staged_batch_is_gone(
    site: Site, restore: Callable[[], None]
) -> None:
    site.run(1)
    restore()
    site.run(2)
    restore()
    shutil.rmtree(site.staging)
    assert rebuild(site).run().replayed["one"] == Txids.span(2, 3)
    assert site.content("one") == expected(1, 2, 3)
    assert list(site.staging.iterdir()) == []


# ---- what is lost ----------------------------------------------------------------------------------------------


def prune(site: Site, below: int) -> None:
    for txid in range(1, below):
        site.tree.apply([delete_of(site, txid)])


def delete_of(site: Site, txid: int) -> Any:
    life = site.ledger.topology().incarnation
    return Delete(f"/airflow-trident/v1/{site.topology.name}/{life}/tx/{txid:019d}")


def test_what_is_pruned_is_lost_and_only_a_persons_word_goes_on_without_it(tmp_path: Path) -> None:
    which: dict[str, int] = {}
    site = site_of("sqlite", tmp_path, which)
    site.run(4)
    prune(site, below=3)
    which["two"] = 1
    text = r"cannot be replayed any more: state 'two' lacks 1 to 2\. Restore.*rebuild half --state two --accept-loss"
    with pytest.raises(LostTransactionsError, match=text):
        rebuild(site).run()
    assert site.content("two") == {}
    done = rebuild(site).run(accept_loss="the backup is from June")
    assert (done.lost, done.replayed) == ({"two": Txids.span(1, 2)}, {"two": Txids.span(3, 4)})
    assert site.content("two") == expected(3, 4)
    assert "state two goes on without 1 to 2: the backup is from June" in site.said
    (loss,) = site.ledger.topology().lost
    assert (loss.state, loss.txids, loss.reason, loss.by) == (
        "two",
        Txids.span(1, 2),
        "the backup is from June",
        "person",
    )
    assert loss.at_ms > 0
    site.run(1)
    assert [site.content(name) for name in NAMES] == [expected(1, 2, 3, 4, 5), expected(3, 4, 5)]


def ordered_site(tmp_path: Path, which: dict[str, int]) -> Site:
    topology = Topology("half")
    words = topology.new_stream("words", FixedBatchSpout("word string", WORDS, 1))
    words.persistent_aggregate(Versions(copies_in(tmp_path), which), "word", Joined(), "all")
    return Site(topology, tmp_path / "staging")


def all_of(site: Site) -> str:
    spec = site.topology.states["all"]
    with spec.factory.make_state(spec) as state:
        return "".join(value[0] for _, value in state.items())


def test_where_order_matters_what_is_above_is_replayed_in_order(tmp_path: Path) -> None:
    which: dict[str, int] = {}
    site = ordered_site(tmp_path, which)
    site.run(5)
    which["all"] = 1
    rebuild(site).run()
    site.run(1)
    assert all_of(site) == "abacad"


def test_where_order_matters_what_is_below_is_lost(tmp_path: Path) -> None:
    """Two disks in turn: each has what the other lacks, in the middle."""
    which: dict[str, int] = {}
    site = ordered_site(tmp_path, which)
    site.run(4)
    which["all"] = 1
    give(site, "all", 3, 4)
    with pytest.raises(LostTransactionsError, match="'all' lacks 1 to 2"):
        rebuild(site).run(["all"])
    assert "transaction 1 is lost for state all: the state depends on the order of batches and holds 4 already" in (
        site.said
    )
    assert all_of(site) == "ac"


def test_a_source_that_is_gone_is_found_out_only_by_reading_it(tmp_path: Path) -> None:
    which: dict[str, int] = {}
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number, (word,) in enumerate(WORDS[:5]):
        (inputs / f"{number}.txt").write_text(f"{word}\n")
    topology = Topology("half")
    lines = topology.new_stream("lines", FileSpout(str(inputs / "*.txt"), format="text", max_files=1, min_age_s=0))

    lines.group_by("line").persistent_aggregate(Versions(copies_in(tmp_path), which), Count(), "n")
    site = Site(topology, tmp_path / "staging")
    site.run(4)
    shutil.rmtree(site.staging)
    (inputs / "1.txt").unlink()
    which["n"] = 1
    with pytest.raises(LostTransactionsError, match="state 'n' lacks 2"):
        rebuild(site).run()
    assert site.content("n") == expected(1, 3, 4)
    done = rebuild(site).run(accept_loss="withdrawn")
    assert (done.lost, done.replayed) == ({"n": Txids.of(2)}, {})
    assert site.run(1) == [5]
    assert site.content("n") == expected(1, 3, 4, 5)


# ---- opaque sources, levels ------------------------------------------------------------------------------------


def test_an_opaque_source_replays_what_was_recorded_or_says_that_it_is_lost(tmp_path: Path) -> None:
    which: dict[str, int] = {}
    append(tmp_path / "in", "part", [(number, "row") for number in range(6)])
    topology = Topology("half")
    rows = topology.new_stream("rows", OpaqueFolderSpout(tmp_path / "in", at_once=2)).group_by("id")

    rows.persistent_aggregate(Versions(copies_in(tmp_path), which), Count(), "n")
    site = Site(topology, tmp_path / "staging")
    site.run(2)
    which["n"] = 1
    rebuild(site).run()
    assert site.content("n") == dict.fromkeys(range(4), 1)
    shutil.rmtree(site.staging)
    which["n"] = 2
    rebuild(site).run()
    assert site.content("n") == dict.fromkeys(range(4), 1)
    site.run(1)
    assert site.content("n") == dict.fromkeys(range(6), 1)
    shutil.rmtree(site.staging)
    [partition] = (tmp_path / "in").iterdir()
    partition.unlink()
    which["n"] = 3
    with pytest.raises(LostTransactionsError, match="state 'n' lacks 1"):
        rebuild(site).run()
    assert any("of the recorded batch cannot be read" in line for line in site.said)
    assert rebuild(site).run(accept_loss="withdrawn").lost == {"n": Txids.of(1, 2, 3)}


def leveled(tmp_path: Path, which: dict[str, int]) -> Site:
    topology, factory = Topology("half"), Versions(copies_in(tmp_path), which)
    words = topology.new_stream("words", FixedBatchSpout("word string", WORDS, 1))
    counts = words.group_by("word").persistent_aggregate(factory, Count(), "n")
    counts.new_values_stream().persistent_aggregate(factory, "n", Sum(), "sum")
    return Site(topology, tmp_path / "staging")


def sum_of(site: Site) -> int:
    spec = site.topology.states["sum"]
    with spec.factory.make_state(spec) as state:
        return sum(value[0] for _, value in state.items())


def test_what_is_fed_from_another_state_is_rebuilt_with_it_and_is_lost_without_it(tmp_path: Path) -> None:
    which: dict[str, int] = {}
    site = leveled(tmp_path, which)
    site.run(5)
    whole = sum_of(site)
    which |= {"n": 1, "sum": 1}
    rebuild(site).run()
    assert (site.content("n"), sum_of(site)) == (expected(*range(1, 6)), whole)
    which["sum"] = 2
    with pytest.raises(LostTransactionsError, match="'sum' lacks 1 to 4"):
        rebuild(site).run()
    assert "transaction 4 is lost for state sum: it is fed from state n, which has gone on" in site.said
    done = rebuild(site).run(accept_loss="it is only a sum")
    assert done.replayed == {"sum": Txids.of(5)}
    assert sum_of(site) == 3
    site.run(1)


def test_a_state_that_the_topology_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no state 'three'.*one, two"):
        rebuild(Site(two_counts(MemoryState(str(tmp_path))), tmp_path / "staging")).run(["three"])


# ---- windows ---------------------------------------------------------------------------------------------------


def test_a_window_that_is_rebuilt_judges_late_and_early_tuples_by_the_time_when_their_transaction_began(
    tmp_path: Path,
) -> None:
    """One tuple is of tomorrow: without that time it would fire all windows and make the other tuples late."""
    which: dict[str, int] = {}
    now_ms = int(time.time() * 1000)
    times = [now_ms - 300_000 + 60_000 * number for number in range(4)]
    topology, factory = Topology("half"), Versions(copies_in(tmp_path), which)
    spout = FixedBatchSpout("ms long", [times[0], now_ms + 86_400_000, *times[1:]], 2, splits=1)
    topology.new_stream("events", spout).tumbling_window(
        timedelta(minutes=1), factory, Count(), "n", time="ms", bounds=True, name="one"
    )
    site = Site(topology, tmp_path / "staging")
    site.run(3)
    whole = site.content("one")
    which["one"] = 1
    rebuild(site).run()
    assert site.content("one") == whole
