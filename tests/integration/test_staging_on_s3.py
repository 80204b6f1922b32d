"""Topologies whose results lie in an object store between the phases: on each engine, with the phases in processes of
their own, and with a store that is away or refuses."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_trident import Count, FileSpout, Function, SqliteState, Topology
from airflow_trident.cli.commands.doctor import machine_checks
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark import driver_orders
from airflow_trident.engine.spark.order_takers import Taker, take, take_back
from airflow_trident.engine.spark.submit import SubmitEngine
from airflow_trident.errors import ConfigurationError, StagingError, StoreUnavailableError
from airflow_trident.io import connections
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.places import place_at
from airflow_trident.ledger.ledger import CHUNK_BYTES, MemoryLedger
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.drains import app as drain_app
from airflow_trident.runtime.drains.order import DrainFiles, removing
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging import area as staging_area
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import ddl, parse_declared
from tests.faults.http_proxy import Verdict, each_fails_once, first
from tests.fixtures.azurite import Objects
from tests.fixtures.gcs import GcsBucket
from tests.fixtures.object_store import CONN_ID, VARIABLE, Bucket

LINES = ["the cow jumped", "over the moon", "the man went"]
WORDS = {"the": 3, "cow": 1, "jumped": 1, "over": 1, "moon": 1, "man": 1, "went": 1}


class Split(Function):
    def execute(self, line: str) -> Iterator[str]:
        yield from line.split()


def topology(folder: Path, *, max_files: int = 1) -> Topology:
    """Counts, which the driver stages, and raw rows, which executors stage."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    for number, line in enumerate(LINES):
        (source / f"{number}.txt").write_text(f"{line}\n")
    made = Topology("on_s3")
    words = made.new_stream("lines", FileSpout(str(source), max_files=max_files)).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(SqliteState(str(folder / "c.db")), Count(), "count", name="counts")
    raw = words.each("word", Split(), "key")
    raw.partition_persist(SqliteState(str(folder / "r.db")), "key, line", keys="key", name="last")
    return made


def contents(made: Topology, name: str) -> dict[object, object]:
    """The value of each key; that of a global aggregate is below None."""
    spec = made.states[name]
    with spec.factory.make_state(spec) as state:
        return {key[0] if key else None: value[0] for key, value in state.items()}


def run(made: Topology, engine: Engine, uri: str) -> list[int]:
    with MemoryLedger(made.name) as ledger:
        done = LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=uri).run()
        rows = [tx.staged.rows_read for tx in ledger.transactions() if tx.staged is not None]
        assert rows == [1] * len(done)
    return done


def test_the_local_engine_stages_in_an_object_store(objects: Objects, tmp_path: Path) -> None:
    made = topology(tmp_path)
    assert run(made, LocalEngine(), f"{objects.uri}/some/prefix") == [1, 2, 3]
    assert contents(made, "counts") == WORDS
    staged = [entry.name for entry in place_at(objects.uri).list("some/prefix/on_s3")]
    assert sum(name.endswith("/manifest.json") for name in staged) == 3
    assert sum(name.endswith(".parquet") for name in staged) == 6


@pytest.mark.spark
@pytest.mark.parametrize(
    ("engine", "fixture"),
    [
        ("spark_engine", "bucket"),
        ("connect_engine", "bucket"),
        # What differs is storage, not the engine, and what a submitted job asks of a bucket is counted below.
        pytest.param("submit_engine", "bucket", marks=pytest.mark.rare),
        pytest.param("submit_engine", "container", marks=pytest.mark.rare),
        pytest.param("spark_engine", "gcs", marks=pytest.mark.rare),
        pytest.param("submit_engine", "gcs", marks=pytest.mark.rare),
    ],
)
def test_spark_stages_in_an_object_store_and_knows_what_it_read(
    engine: str, fixture: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made, objects = topology(tmp_path), request.getfixturevalue(fixture)
    assert run(made, request.getfixturevalue(engine), f"{objects.uri}/p") == [1, 2, 3]
    assert contents(made, "counts") == WORDS
    assert set(contents(made, "last")) == set(WORDS)
    staged = [entry.name for entry in place_at(objects.uri).list("p") if "/on_s3/" in entry.name]
    assert {name.rpartition(".")[2] for name in staged} == {"json", "parquet"}  # no notes, orders and answers are left


def test_every_request_may_fail_once_and_nothing_else_comes_of_it(objects: Objects, tmp_path: Path) -> None:
    made, seen = topology(tmp_path), set[tuple[str, str]]()

    objects.proxy.rule = each_fails_once(seen)
    assert run(made, LocalEngine(), objects.uri) == [1, 2, 3]
    assert objects.proxy.harmed == len(seen) > 10
    assert contents(made, "counts") == WORDS


def costs(folder: Path) -> Topology:
    """Three transactions, each with one staged file."""
    (folder / "in").mkdir()
    made = Topology("costs")
    for number in range(3):
        (folder / "in" / str(number)).write_text("a line\n")
    lines = made.new_stream("lines", FileSpout(str(folder / "in"), max_files=1))
    lines.persistent_aggregate(SqliteState(str(folder / "c.db")), Count(), "count", name="counts")
    return made


@pytest.mark.parametrize("retention", [50, 1])
def test_a_transaction_costs_five_requests_and_two_where_something_is_pruned(
    retention: int, objects: Objects, tmp_path: Path
) -> None:
    made = costs(tmp_path)
    with MemoryLedger(made.name) as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=made, engine=LocalEngine(), staging_root=objects.uri, retention=retention
        )
        runner.run(max_transactions=2)
        before = objects.proxy.asked.copy()
        names = 2 if isinstance(objects, GcsBucket) else 1  # Google deletes one at a time
        more = {"GET": 1, objects.deletes_by: names} if retention == 1 else {}
        runner.run()
        assert objects.proxy.asked - before == Counter({"PUT": 2, "GET": 3}) + Counter(more)


@pytest.mark.parametrize("retention", [50, 1])
def test_the_same_transaction_costs_five_fsyncs_in_a_folder(
    retention: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, fsync, synced = costs(tmp_path), os.fsync, list[str]()

    def counted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    with MemoryLedger(made.name) as ledger:
        root = str(tmp_path / "staging")
        runner = LocalRunner(ledger=ledger, topology=made, engine=LocalEngine(), staging_root=root, retention=retention)
        runner.run(max_transactions=2)
        monkeypatch.setattr(os, "fsync", counted)
        runner.run()
    assert sum(path.startswith(root) for path in synced) == 5, synced


@pytest.mark.spark
def test_a_submitted_job_costs_eight_requests_more_and_a_small_batch_none_else(
    bucket: Bucket, submit_engine: SubmitEngine, tmp_path: Path
) -> None:
    """The order is put, read, taken and read again, the answer put and read; then the order goes, and after it who took
    it and the answer."""
    made, order = costs(tmp_path), Counter({"PUT": 3, "GET": 3, "POST": 2})
    with MemoryLedger(made.name) as ledger:
        runner = LocalRunner(ledger=ledger, topology=made, engine=submit_engine, staging_root=bucket.uri)
        runner.run(max_transactions=1)  # asks once more, whether the place will do
        for chunk_bytes, batch in ((0, Counter({"PUT": 2, "GET": 3})), (CHUNK_BYTES, Counter())):
            ledger.chunk_bytes = chunk_bytes
            before = bucket.proxy.asked.copy()
            assert len(runner.run(max_transactions=1)) == 1
            assert bucket.proxy.asked - before == order + batch
    assert contents(made, "counts") == {None: 3}


def test_a_commit_asks_once_what_is_there_and_for_an_object_when_its_rows_are_due(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_area, "_SMALL_BYTES", 0)
    area, schema = StagingArea(f"{objects.uri}/p"), parse_declared("n long")
    slot = Slot(topology="t", incarnation="i", txid=1, attempt=0)
    files = tuple(area.write(slot, "rows", rows_to_table(schema, [(number,)])) for number in range(3))
    manifest = Manifest(slot=slot, files=files, rows_read=3, sinks={"rows": ddl(schema)})
    area.publish(manifest)
    before = objects.proxy.asked.copy()
    area.require_there(manifest, {"rows": schema})
    pieces = area.batch(manifest, "rows", schema, 1).pieces()
    assert objects.proxy.asked - before == Counter({"GET": 1})
    assert next(pieces).to_pylist() == [{"n": 0}]
    assert objects.proxy.asked - before == Counter({"GET": 2})
    assert [row["n"] for piece in pieces for row in piece.to_pylist()] == [1, 2]
    assert objects.proxy.asked - before == Counter({"GET": 4})
    area.place.delete([files[1].path])
    with pytest.raises(StagingError, match=r"is missing\. Run the processing phase"):
        area.batch(manifest, "rows", schema, 1).table()
    with pytest.raises(StagingError, match=r"is missing\. Run the processing phase"):
        area.require_there(manifest, {"rows": schema})


# ---- phases in processes of their own --------------------------------------------------------------------------

PHASE = """
import sys
from pathlib import Path
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from tests.integration.test_staging_on_s3 import topology
phase, hosts, root, folder, uri = sys.argv[1:]
made = topology(Path(folder))
with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger:
    if phase == "coordinate":
        coordinate(ledger, made, [Claim(key="run")])
    elif phase == "emit":
        process(ledger, made, 1, LocalEngine(), uri, Attempts(owner="emitter"))
    else:
        Committer(
            ledger=ledger, topology=made, staging_root=uri, attempts=Attempts(owner="c"), engine=LocalEngine
        ).commit(1)
"""


@pytest.mark.zookeeper
def test_phases_in_processes_of_their_own_share_nothing_but_the_store(
    zookeeper: object, ledger_root: str, bucket: Bucket, tmp_path: Path
) -> None:
    hosts: str = zookeeper.hosts  # type: ignore[attr-defined]
    for phase in ("coordinate", "emit", "commit"):
        where = tmp_path / phase  # nothing relative is shared, either
        where.mkdir()
        command = [sys.executable, "-c", PHASE, phase, hosts, ledger_root, str(tmp_path), f"{bucket.uri}/p"]
        environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            command, check=False, cwd=where, env={**os.environ, **environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert not list(where.iterdir())
    assert contents(topology(tmp_path), "counts") == {"the": 1, "cow": 1, "jumped": 1}


# ---- what travels to drivers ------------------------------------------------------------------------------------


def test_an_order_comes_as_it_was_placed_and_goes_with_its_answer(objects: Objects) -> None:
    folder = f"{objects.uri}/drains"
    order, result = driver_orders.place(folder, "one", ".order", b"pickled"), f"{folder}/one.result"
    assert driver_orders.read_order(order, "the order") == b"pickled"
    assert driver_orders.collect(result) is None
    driver_orders.answer(result, {"committed": [1]})
    assert driver_orders.collect(result) == b'{"committed": [1]}'
    driver_orders.remove(order)
    assert [entry.name for entry in place_at(objects.uri).list("")] == ["drains/one.result"]
    driver_orders.remove(result)
    assert not list(place_at(objects.uri).list(""))


def test_an_order_that_somebody_else_put_in_its_place_is_not_unpickled(bucket: Bucket, tmp_path: Path) -> None:
    order = driver_orders.place(bucket.uri, "one", ".order", b"pickled")
    harm = pickle.dumps(Harm(str(tmp_path / "harm")))
    place_at(bucket.uri).put(order.rpartition("/")[2], lambda file: file.write(harm) and None)
    assert drain_app.main(order, f"{bucket.uri}/one.result") == 1
    assert b"somebody has changed it" in (driver_orders.collect(f"{bucket.uri}/one.result") or b"")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("lost", [None, Verdict.LOSE, Verdict.UNAVAILABLE])
def test_an_order_is_taken_once_whatever_becomes_of_the_answer(objects: Objects, lost: Verdict | None) -> None:
    files = DrainFiles(
        order=driver_orders.place(f"{objects.uri}/drains", "one", ".order", b"x"), result=f"{objects.uri}/r"
    )
    driver = Taker.this_process("driver-1")
    if lost is not None:
        objects.proxy.rule = first("PUT", lost, containing=".taken")
    assert take(files.order, driver) == driver
    assert take(files.order, Taker.this_process()) == driver
    assert take_back(files.order) == driver
    with removing(files):
        pass
    assert not list(place_at(objects.uri).list(""))


def test_a_driver_whose_order_on_s3_was_taken_back_begins_nothing(
    bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    files = DrainFiles(
        order=driver_orders.place(bucket.uri, "one", ".order", b"no pickle"), result=f"{bucket.uri}/one.result"
    )
    assert take_back(files.order) is None
    assert drain_app.main(files.order, files.result) == 0
    assert "begins nothing" in capfd.readouterr().out
    assert driver_orders.collect(files.result) is None


@dataclass(frozen=True)
class Harm:
    path: str

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


def test_a_driver_that_this_machine_starts_is_lent_the_connection(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = connections.from_environment(CONN_ID)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    connections.install(lambda conn_id: written)
    try:
        driver_orders.place(bucket.uri, "one", ".order", b"x")
    finally:
        connections.install(None)
    assert connections.from_environment(CONN_ID) == written


# ---- a store that cannot be used -------------------------------------------------------------------------------


class Watched(LocalEngine):
    ran = False

    def run(self, job: Job) -> Manifest:
        self.ran = True
        return super().run(job)


@pytest.mark.parametrize("uri", ["s3://objects@no-such-bucket/p", "unconditional"])
def test_what_cannot_be_staged_is_said_before_any_work_and_the_transaction_waits_for_its_cure(
    uri: str, bucket: Bucket, tmp_path: Path
) -> None:
    made, engine = topology(tmp_path), Watched()
    if uri == "unconditional":
        bucket.proxy.rule, uri = (lambda request: Verdict.UNCONDITIONAL), bucket.uri
    with MemoryLedger(made.name) as ledger:
        coordinate(ledger, made, [Claim(key="run")])
        with pytest.raises(ConfigurationError, match=r"NoSuchBucket|takes a name twice"):
            process(ledger, made, 1, engine, uri, Attempts(owner="t"))
        assert not engine.ran
        tx = ledger.view(1).tx
        assert tx is not None
        assert tx.status is Status.FAILED
        assert "NoSuchBucket" in tx.error or "takes a name twice" in tx.error
        bucket.proxy.rule = first("none", Verdict.PASS)
        process(ledger, made, 1, engine, f"{bucket.uri}/another", Attempts(owner="t", replays=True))
        assert ledger.view(1).tx.status is Status.PROCESSED  # type: ignore[union-attr]


def test_a_store_that_goes_away_is_tried_again_by_the_next_attempt(objects: Objects, tmp_path: Path) -> None:
    made = topology(tmp_path)
    with MemoryLedger(made.name) as ledger:
        coordinate(ledger, made, [Claim(key="run")])
        objects.proxy.rule = lambda request: Verdict.UNAVAILABLE
        with pytest.raises(StoreUnavailableError, match="SlowDown"):
            process(ledger, made, 1, LocalEngine(), objects.uri, Attempts(owner="t"))
        objects.proxy.rule = first("none", Verdict.PASS)
        result = process(ledger, made, 1, LocalEngine(), objects.uri, Attempts(owner="t"))
        assert result.attempt == 1


def test_the_doctor_asks_the_store(objects: Objects, tmp_path: Path) -> None:
    def said(uri: str) -> tuple[str, str]:
        (found,) = [one for one in machine_checks(uri) if one.subject == "staging"]
        return found.level.name, found.text

    assert said(objects.uri) == ("OK", f"{objects.uri} takes names once, and is read, listed and deleted from")
    probe = ".airflow-trident-takes-names-once"
    assert sorted(entry.name for entry in place_at(objects.uri).list("")) == [probe, f"sources/{probe}"]
    level, text = said(objects.uri.replace(objects.name, "not-there"))
    assert level == "FAIL"
    assert "Make the " in text
    assert said("gs://bucket")[0] == "FAIL"
