"""Small staged batches in the ledger: no staging area is asked, and it ends as it does with files, whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.places import place_at
from airflow_trident.ledger.ledger import CHUNK_BYTES, MemoryLedger
from airflow_trident.ledger.znodes import Delete, Set
from airflow_trident.protocol.codec import staged_chunk_name
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.debugging import dry_replay
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts
from tests.fixtures.object_store import Bucket
from tests.fixtures.runtime import ALL, World

PLACES = ["a folder", "S3"]


@pytest.fixture(params=PLACES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "S3":
        bucket: Bucket = request.getfixturevalue("bucket")
        return f"{bucket.uri}/staging"
    return str(tmp_path / "staging")


def world_at(root: str, tmp_path: Path, chunk_bytes: int = CHUNK_BYTES, **more: Any) -> World:
    made = World(tmp_path, **more)
    made.staging, made.ledger.chunk_bytes = root, chunk_bytes
    return made


def run(world: World, retention: int = 50) -> None:
    LocalRunner(
        ledger=world.ledger,
        topology=world.topology,
        engine=LocalEngine(),
        staging_root=world.staging,
        retention=retention,
    ).run()


def staged_at(root: str) -> list[str]:
    return [entry.name for entry in place_at(root).list("")]


def chunks(world: World) -> list[str]:
    folder = world.ledger.paths().chunks
    return sorted(world.ledger.znodes.read([], [folder]).folders[folder] or ())


def test_small_batches_need_no_staging_area_and_are_pruned_with_their_transactions(root: str, tmp_path: Path) -> None:
    world = world_at(root, tmp_path)
    run(world, retention=2)
    assert world.counts() == ALL
    assert staged_at(root) == []
    assert chunks(world) == [staged_chunk_name(txid, 0) for txid in (4, 5)]


def test_not_one_request_goes_to_the_object_store(bucket: Bucket, tmp_path: Path) -> None:
    run(world_at(bucket.uri, tmp_path))
    assert bucket.proxy.asked == Counter()


@pytest.mark.parametrize("chunk_bytes", [100, 1_000])
def test_larger_batches_go_to_the_staging_area_as_ever(chunk_bytes: int, root: str, tmp_path: Path) -> None:
    """Of 100 bytes no file is small, of 1,000 each file is, and the batch is not."""
    world = world_at(root, tmp_path, chunk_bytes)
    run(world)
    assert world.counts() == ALL
    assert chunks(world) == []
    assert sum(name.endswith("manifest.json") for name in staged_at(root)) == 5


def test_a_drain_commits_groups_from_the_ledger(root: str, tmp_path: Path) -> None:
    world = world_at(root, tmp_path)
    done = Drain(
        ledger=world.ledger,
        topology=world.topology,
        engine=LocalEngine(),
        staging_root=root,
        attempts=Attempts(owner="drain"),
        claim=Claim(key="run"),
        limits=DrainLimits(),
        retention=50,
    ).run()
    assert len(done.committed) == 5
    assert world.counts() == ALL
    assert staged_at(root) == []


@pytest.mark.parametrize("harm", ["gone", "damaged", "cut"])
def test_a_chunk_that_cannot_be_read_is_emitted_again(harm: str, tmp_path: Path) -> None:
    world = world_at(str(tmp_path / "staging"), tmp_path)
    txid = world.begin("run")
    world.process(txid)
    path = world.ledger.paths().chunk(staged_chunk_name(txid, 0))
    znodes = world.ledger.znodes
    node = znodes.read([path]).nodes[path]
    assert node is not None
    middle = len(node.data) // 2
    changed = node.data[:middle] + bytes([node.data[middle] ^ 1]) + node.data[middle + 1 :]
    written = {"damaged": changed, "cut": node.data[:middle]}
    znodes.multi([Delete(path) if harm == "gone" else Set(path, written[harm], node.version)])
    world.ledger.transactor.cache.forget()
    world.committer().commit(txid)
    record = world.ledger.view(txid).tx
    assert record is not None
    assert (record.status, record.attempt) == (Status.COMMITTED, 1)
    assert world.counts() == {"a": 1, "b": 1}


def test_who_keeps_nothing_in_the_ledger_commits_what_another_kept_there_and_the_other_way_round(
    root: str, tmp_path: Path
) -> None:
    world = world_at(root, tmp_path)
    first, second = world.begin("1"), world.begin("2")
    world.process(first)
    world.ledger.chunk_bytes = 0
    world.process(second)
    world.committer().commit(first)
    world.ledger.chunk_bytes = CHUNK_BYTES
    world.committer().commit(second)
    assert world.statuses() == [Status.COMMITTED] * 2
    assert world.counts() == {"a": 1, "b": 2}


def test_a_version_that_knows_no_chunks_emits_again_what_it_cannot_find(tmp_path: Path) -> None:
    """It drops the field when it writes the record of a transaction again."""
    world = world_at(str(tmp_path / "staging"), tmp_path)
    txid = world.begin("run")
    world.process(txid)
    snapshot = world.ledger.transactor.fresh(world.ledger.paths(), [world.ledger.paths().tx(txid)])
    record = snapshot.tx(txid)
    assert record is not None
    assert record.staged is not None
    world.ledger.znodes.multi([snapshot.set_tx(replace(record, staged=replace(record.staged, chunk="")))])
    world.ledger.transactor.cache.forget()
    world.committer().commit(txid)
    assert world.counts() == {"a": 1, "b": 1}
    assert world.ledger.view(txid).tx.attempt == 1  # type: ignore[union-attr]


def test_a_dry_replay_compares_with_the_chunk(tmp_path: Path) -> None:
    world = world_at(str(tmp_path / "staging"), tmp_path)
    world.process(world.begin("run"))
    (found,) = dry_replay(world.ledger, world.topology, 1, LocalEngine(), world.staging)
    assert (found.staged_rows, found.missing_rows, found.extra_rows) == (2, 0, 0)


def test_an_unusable_bucket_is_said_when_it_is_needed(bucket: Bucket, tmp_path: Path) -> None:
    run(world_at("s3://objects@no-such-bucket/p", tmp_path))
    large = tmp_path / "large"
    large.mkdir()
    world = world_at("s3://objects@no-such-bucket/p", large, 100)
    assert isinstance(world.ledger, MemoryLedger)
    with pytest.raises(ConfigurationError, match="NoSuchBucket"):
        run(world)
