"""Which code staged a batch is kept beside it, for people: who mended it meanwhile is told, and nothing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, DataFrameSpout, FileSink, FixedBatchSpout, ReducerAggregator, SqliteState, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.plan.nodes import changed_code, code_of
from airflow_trident.runtime.debugging import dry_replay
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.phases import publish
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedMember, decode, encode
from airflow_trident.testing import MemoryLedger

FIELDS = "n long"


def as_it_was(frame: Any) -> Any:
    return frame


def mended(frame: Any) -> Any:
    return frame.where("n > 0")


class Callable:
    def __call__(self, frame: Any) -> Any:
        return frame


def topology_of(function: Any, folder: Path = Path("/out"), **options: Any) -> Topology:
    topology = Topology("numbers")
    made = topology.new_stream("numbers", FixedBatchSpout(FIELDS, [1, 2])).transform(function, FIELDS, **options)
    made.partition_persist(FileSink(str(folder / "out")), "n", name="out")
    return topology


def code(topology: Topology) -> dict[str, str]:
    return code_of(topology.compile().sinks)


def test_the_same_source_has_the_same_digest_and_another_one_another() -> None:
    assert code(topology_of(as_it_was)) == code(topology_of(as_it_was)) != code(topology_of(mended))
    (name,) = code(topology_of(Callable()))
    assert changed_code(code(topology_of(as_it_was)), code(topology_of(mended))) == [name]
    assert topology_of(as_it_was).definition() == topology_of(mended).definition()


def test_every_function_of_a_user_has_a_digest_and_none_of_this_package() -> None:
    class Longest(ReducerAggregator[int]):
        def init(self) -> int:
            return 0

        def reduce(self, current: int, *values: Any) -> int:
            return max(current, *values)

    def twice(n: int) -> list[int]:
        return [2 * n]

    topology = Topology("numbers")
    numbers = topology.new_stream("numbers", FixedBatchSpout(FIELDS, [1, 2]))
    numbers = numbers.each("n", lambda n: [n], "m long").filter("n", lambda n: n > 0).each("n", twice, "k long")
    numbers.group_by("m").aggregate("k", Longest(), "longest long").project("longest").partition_persist(
        FileSink("/out"), "longest", name="out"
    )
    assert sorted(name.partition("-")[0] for name in code(topology)) == ["aggregate", "each", "each", "filter"]
    counted = Topology("numbers")
    counted.new_stream("numbers", FixedBatchSpout(FIELDS, [1])).group_by("n").persistent_aggregate(
        SqliteState("/s.db"), Count(), "many"
    )
    assert code(counted) == {}


def test_a_group_says_which_code_staged_it_too(tmp_path: Path) -> None:
    topology = topology_of(as_it_was)
    slot = Slot(topology="numbers", incarnation="i", txid=2, attempt=0)
    members = tuple(StagedMember(txid=txid, attempt=0, rows_read=0, rows={}) for txid in (1, 2))
    plan = topology.compile()
    manifest = Manifest(slot=slot, files=(), rows_read=0, sinks=plan.staged_fields, group=members)
    staged = publish(manifest, str(tmp_path), plan, 0)
    assert StagingArea(str(tmp_path)).load(staged[1]).code == code(topology) != {}


def test_what_has_no_source_or_says_it_itself_has_no_digest() -> None:
    made: dict[str, Any] = {}
    exec("def unknown(frame): return frame", made)
    assert code(topology_of(made["unknown"])) == {}
    topology = Topology("numbers")
    numbers = topology.new_stream("numbers", FixedBatchSpout(FIELDS, [1])).sql("SELECT n FROM {numbers}", FIELDS)
    numbers.partition_persist(FileSink("/out"), "n", name="out")
    assert code(topology) == {}
    assert changed_code({"a": "1"}, {}) == changed_code({}, {"a": "1"}) == []


def test_a_file_that_is_changed_while_its_functions_are_used_fails_nothing(tmp_path: Path) -> None:
    path, made = tmp_path / "jobs.py", dict[str, Any]()
    exec(compile("def used(frame):\n    return frame\n", str(path), "exec"), made)
    path.write_text("found = (\n    1,\n")  # somebody is just writing it
    assert code(topology_of(made["used"])) == {}


def test_a_function_that_reads_a_source_has_one() -> None:
    topology = Topology("numbers")
    read = DataFrameSpout(lambda session, position: session.range(3), lambda previous: None, fields=FIELDS)
    topology.new_stream("numbers", read).partition_persist(FileSink("/out"), "n", name="out")
    assert list(code(topology)) == ["read-1"]


class Planned(Engine):
    """Stages what a transform would have given."""

    name = "planned"

    def run(self, job: Job) -> Manifest:
        (sink,) = job.plan.staged
        file = StagingArea(job.staging_root).write(job.slot, sink.name, rows_to_table(sink.schema, [(1,), (2,)]))
        return Manifest(slot=job.slot, files=(file,), rows_read=2, sinks=job.plan.staged_fields)


class Killed(KeyboardInterrupt):
    pass


def dies(milestone: Milestone, txid: int) -> None:
    if milestone is Milestone.PROCESSED:
        raise Killed


@pytest.mark.parametrize(("now", "tells"), [(as_it_was, False), (mended, True)])
def test_who_commits_and_who_replays_is_told_that_the_code_was_another(tmp_path: Path, now: Any, tells: bool) -> None:
    text = "transaction 1, attempt 0: it was staged by other code of transform-1 than the topology has now"
    said: list[str] = []
    root = str(tmp_path / "staging")
    again = topology_of(now, tmp_path)
    with MemoryLedger("numbers") as ledger:
        first = LocalRunner(
            ledger=ledger, topology=topology_of(as_it_was, tmp_path), engine=Planned(), staging_root=root
        )
        with told(dies), pytest.raises(Killed):
            first.run()
        (differences,) = dry_replay(ledger, again, 1, Planned(), root, said.append)
        assert differences.equal
        assert (text in said) is tells
        said.clear()
        LocalRunner(ledger=ledger, topology=again, engine=Planned(), staging_root=root, progress=said.append).run()
    assert said.count(text) == int(tells)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 1


def test_the_manifest_keeps_it_and_older_ones_have_none(tmp_path: Path) -> None:
    manifest = Planned().run(_job(tmp_path))
    assert b'"code"' not in encode(manifest)
    known = Manifest(slot=manifest.slot, files=manifest.files, rows_read=2, sinks=manifest.sinks, code={"t-1": "ab"})
    assert decode(encode(known), "m") == known
    assert decode(encode(manifest), "m").code == {}


def _job(folder: Path) -> Job:
    from tests.fixtures.script import job_of

    return job_of(topology_of(as_it_was), folder)  # type: ignore[arg-type]
