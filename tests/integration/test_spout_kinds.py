"""Spouts of every kind through ledger, phases and states: what is recorded, what is told of success, and when."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SpooledSpout, SqliteState, Topology
from airflow_trident.contracts.partitioned_spout import PartitionedSpout
from airflow_trident.contracts.spout import Spout
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import Ledger, MemoryLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, process
from airflow_trident.spouts import CallableSource, Polled
from airflow_trident.storm import (
    BatchOutputCollector,
    OutputFieldsDeclarer,
    TopologyContext,
    TransactionalSpout,
    TransactionAttempt,
)
from airflow_trident.storm.spouts import adapted
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.spout import FolderSpout, append
from tests.unit.test_partitioned import Counters

ATTEMPTS = Attempts(owner="test")


def counting(spout: Spout, folder: Path) -> Topology:
    made = Topology("kinds")
    made.new_stream("rows", spout).persistent_aggregate(SqliteState(str(folder / "count.db")), Count(), "count")
    return made


def counted(topology: Topology) -> int:
    spec = topology.states["count"]
    with spec.factory.make_state(spec) as state:
        return int(dict(state.items()).get((), (0,))[0])


def begin(ledger: Ledger, topology: Topology, key: str) -> int:
    begun = single.coordinate(ledger, topology, Claim(key=key), max_pending=10)
    assert isinstance(begun, Begun)
    return begun.txid


def commit(ledger: Ledger, topology: Topology, txid: int, staging: Path, **options: Any) -> None:
    process(ledger, topology, txid, LocalEngine(), str(staging), ATTEMPTS)
    committer = Committer(
        ledger=ledger, topology=topology, staging_root=str(staging), attempts=ATTEMPTS, engine=LocalEngine, **options
    )
    assert committer.commit(txid).committed == (txid,)


def told(folder: Path) -> dict[int, Json]:
    return {int(path.name): json.loads(path.read_text()) for path in folder.glob("*")}


def test_success_is_told_of_committed_transactions_alone_and_again_until_it_gets_through(tmp_path: Path) -> None:
    append(tmp_path / "in", "a", [(number, "a") for number in range(7)])
    said = tmp_path / "told"
    topology = counting(FolderSpout(tmp_path / "in", told=said), tmp_path)
    with MemoryLedger("kinds") as ledger:
        begin(ledger, topology, "one")
        begin(ledger, topology, "two")
        assert told(said) == {}, "nothing is committed"
        commit(ledger, topology, 1, tmp_path / "staging")
        assert told(said) == {}, "the commit asks nothing of the source"
        begin(ledger, topology, "three")
        assert told(said) == {1: {"a": {"from": 0, "to": 3}}}
        (said / "1").unlink()  # as if killed before the word arrived
        commit(ledger, topology, 2, tmp_path / "staging")
        begin(ledger, topology, "three")
        assert told(said) == {1: {"a": {"from": 0, "to": 3}}, 2: {"a": {"from": 3, "to": 6}}}


def test_success_is_told_of_each_however_many_were_committed_since_a_coordinator_last_ran(tmp_path: Path) -> None:
    append(tmp_path / "in", "a", [(number, "a") for number in range(30)])
    said, staging = tmp_path / "told", tmp_path / "staging"
    topology = counting(FolderSpout(tmp_path / "in", told=said), tmp_path)
    with MemoryLedger("kinds") as ledger:
        for txid in (1, 2, 3, 4):
            begin(ledger, topology, str(txid))
        ledger.skip(2, "test")
        for txid in (1, 3, 4):
            commit(ledger, topology, txid, staging, retention=1)
        begin(ledger, topology, "5")
        assert told(said).keys() == {1, 3, 4}
        commit(ledger, topology, 2, staging, retention=1)
        commit(ledger, topology, 5, staging, retention=1)  # 2 is beyond what is kept
        begin(ledger, topology, "6")
        assert told(said).keys() == {1, 2, 3, 4, 5}
        commit(ledger, topology, 6, staging, retention=1)
        assert [one.txid for one in ledger.transactions()] == [6], "the others were told"


def test_success_is_told_of_a_drain_whose_groups_are_larger_than_what_is_kept(tmp_path: Path) -> None:
    append(tmp_path / "in", "a", [(number, "a") for number in range(24)])
    said = tmp_path / "told"
    topology = counting(FolderSpout(tmp_path / "in", told=said), tmp_path)

    def drain(most: int | None) -> tuple[int, ...]:
        one = Drain(
            ledger=ledger,
            topology=topology,
            engine=LocalEngine(),
            staging_root=str(tmp_path / "staging"),
            attempts=ATTEMPTS,
            claim=Claim(key=f"drain-{most}"),
            limits=DrainLimits(group=4, max_transactions=most),
            retention=2,
        )
        return one.run().committed

    with MemoryLedger("kinds") as ledger:
        assert len(drain(8)) == 8
        assert drain(None) == (), "nothing is new"
        assert told(said).keys() == set(range(1, 9))


def test_what_was_kept_to_tell_a_spout_goes_when_the_next_one_wants_to_hear_nothing(tmp_path: Path) -> None:
    append(tmp_path / "in", "a", [(number, "a") for number in range(30)])

    class Silent(FolderSpout):
        success = PartitionedSpout.success

    said, staging = tmp_path / "told", tmp_path / "staging"
    before, after = (counting(made(tmp_path / "in", told=said), tmp_path) for made in (FolderSpout, Silent))
    with MemoryLedger("kinds") as ledger:
        for txid in (1, 2, 3):
            begin(ledger, before, str(txid))
        for txid in (1, 2):
            commit(ledger, before, txid, staging, retention=1)
        ledger.register(after.definition(), accept_change=True)
        begin(ledger, after, "4")
        commit(ledger, after, 3, staging, retention=1)
        assert [one.txid for one in ledger.transactions()] == [3, 4]


def test_a_source_that_does_not_take_the_word_of_success_fails_the_coordinator_and_not_the_commit(
    tmp_path: Path,
) -> None:
    append(tmp_path / "in", "a", [(number, "a") for number in range(7)])

    class Deaf(FolderSpout):
        def success(self, txid: int, parts: Any) -> None:
            raise SourceUnavailableError("it does not answer", "Try again.")

    topology = counting(Deaf(tmp_path / "in"), tmp_path)
    with MemoryLedger("kinds") as ledger:
        begin(ledger, topology, "one")
        commit(ledger, topology, 1, tmp_path / "staging")
        with pytest.raises(SourceUnavailableError, match="does not answer"):
            begin(ledger, topology, "two")
        assert ledger.view(0).pointer.committed == 1
        assert ledger.view(0).next_txid == 2
    assert counted(topology) == 3


def test_a_queue_that_gives_only_what_was_skipped_fails_the_coordinator_instead_of_standing_still(
    tmp_path: Path,
) -> None:
    items = list(range(5))

    def poll(max_rows: int) -> Polled:
        given = items[:max_rows]
        return Polled(rows=[(item,) for item in given], ids=list(map(str, given)), token=given)

    queue = CallableSource(poll, "id long", ack=lambda given: [items.remove(one) for one in given])
    topology = counting(SpooledSpout(queue, str(tmp_path / "spool"), max_rows=2), tmp_path)
    with MemoryLedger("kinds") as ledger:
        begin(ledger, topology, "one")
        ledger.skip(1, "test")
        with pytest.raises(SourceUnavailableError, match="transactions: 1"):
            begin(ledger, topology, "two")
        commit(ledger, topology, 1, tmp_path / "staging")
        begin(ledger, topology, "two")
    assert (counted(topology), items) == (2, [2, 3, 4])


class FilesOfTransactions(TransactionalSpout[Json]):
    """Each transaction has a file with its one row, which is removed when the spout may forget it."""

    repeats_metadata = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    class Coordinator(TransactionalSpout.Coordinator[Json]):
        def initialize_transaction(self, txid: int, prev_metadata: Json) -> Json:
            return {}

    class Emitter(TransactionalSpout.Emitter[Json]):
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def emit_batch(self, tx: TransactionAttempt, coordinator_meta: Json, collector: BatchOutputCollector) -> None:
            if (self.folder / str(tx.txid)).exists():
                collector.emit([tx, "row"])

        def cleanup_before(self, txid: int) -> None:
            for file in self.folder.iterdir():
                if int(file.name) < txid:
                    file.unlink()

    def get_coordinator(self, conf: Any, context: TopologyContext) -> Coordinator:
        return self.Coordinator()

    def get_emitter(self, conf: Any, context: TopologyContext) -> Emitter:
        return self.Emitter(self.folder)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("txid, name string")


def test_a_source_cleans_up_before_what_can_still_be_backfilled(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for txid in range(1, 8):
        (tmp_path / "in" / str(txid)).touch()
    topology = counting(adapted("spout", FilesOfTransactions(tmp_path / "in"), {}, tasks=1), tmp_path)

    def kept_when_another_begins(ledger: Ledger) -> list[int]:
        begin(ledger, topology, str(ledger.view(0).next_txid))
        return sorted(int(file.name) for file in (tmp_path / "in").iterdir())

    with MemoryLedger("kinds") as ledger:
        for txid in (1, 2, 3):
            begin(ledger, topology, str(txid))
            if txid == 2:
                ledger.skip(2, "test")
            else:
                commit(ledger, topology, txid, tmp_path / "staging")
        assert kept_when_another_begins(ledger) == [2, 3, 4, 5, 6, 7], "2 is SKIPPED"
        commit(ledger, topology, 2, tmp_path / "staging")
        assert counted(topology) == 3
        commit(ledger, topology, 4, tmp_path / "staging")
        assert kept_when_another_begins(ledger) == [4, 5, 6, 7]
        ledger.skip(5, "test")
        begin(ledger, topology, "6")
        commit(ledger, topology, 6, tmp_path / "staging")
        ledger.close_transaction(5, "test")
        assert kept_when_another_begins(ledger) == [6, 7], "5 is closed for good"


def test_the_partitions_of_a_transactional_txid_stay_what_they_were_when_it_began(tmp_path: Path) -> None:
    for name in "ab":
        append(tmp_path / "in", name, [(1, name)])
    topology = counting(FolderSpout(tmp_path / "in"), tmp_path)
    staging = tmp_path / "staging"
    with MemoryLedger("kinds") as ledger:
        begin(ledger, topology, "one")
        append(tmp_path / "in", "c", [(1, "c")])
        (tmp_path / "in" / "a").rename(tmp_path / "a")
        with pytest.raises(SourceChangedError, match="partition 'a' of the recorded batch cannot be read"):
            process(ledger, topology, 1, LocalEngine(), str(staging), ATTEMPTS)
        (tmp_path / "a").rename(tmp_path / "in" / "a")
        commit(ledger, topology, 1, staging)
        assert counted(topology) == 2
        LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(staging)).run()
    assert counted(topology) == 3


@pytest.mark.zookeeper
def test_five_thousand_partitions_fit_in_one_record_and_too_many_are_refused_before_anything_is_written(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    """The server takes requests below 1 MB: what is larger would end the connection, with no word of why."""
    names = tuple(hashlib.sha256(b"%d" % number).hexdigest() for number in range(40_000))
    topology = counting(Counters(there=names[:5_000]), tmp_path)
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), "kinds", root=ledger_root) as ledger:
        for txid in (1, 2, 3):
            assert begin(ledger, topology, f"run {txid}") == txid
            commit(ledger, topology, txid, tmp_path / "staging")
        folder = f"{ledger_root}/v1/kinds/{ledger.topology().incarnation}/m"
        assert ledger.znodes.read([], [folder]).folders[folder], "the metadata is kept in chunks"
        before = ledger.export()
        with pytest.raises(ConfigurationError, match=r"bytes \(all of its step: \d+\); at most \d+ are sent"):
            begin(ledger, counting(Counters(there=names), tmp_path), "too many")
        assert ledger.export() == before
        last = ledger.view(3).tx
    assert last is not None
    metadata = last.metadata["rows"]
    assert isinstance(metadata, dict)
    assert metadata["parts"] == dict.fromkeys(names[:5_000], 3)
    assert counted(topology) == 15_000
