"""The spool of a SpooledSpout in an object store: nothing is lost or spooled twice, whatever the store does."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_trident import Count, SpooledSpout, SqliteState, Topology
from airflow_trident.errors import ConfigurationError, SourceUnavailableError, StoreUnavailableError
from airflow_trident.io import object_place
from airflow_trident.runtime.drains.order import connections_of
from airflow_trident.spouts import CallableSource
from airflow_trident.spouts.spool import spout as spout_module
from airflow_trident.types import Json
from tests.faults.http_proxy import Request, Verdict, each_fails_once
from tests.fixtures.azurite import Objects
from tests.fixtures.hdfs import Folder
from tests.fixtures.object_store import CONN_ID, VARIABLE, Bucket
from tests.fixtures.spout import FileQueue

ROWS = [(number, f"row {number}") for number in range(20)]
_T = TypeVar("_T")


def spooled(objects: Objects | Folder, source: CallableSource, **options: Any) -> SpooledSpout:
    return SpooledSpout(source, f"{objects.uri}/spool", **options)


def given(*polls: list[Any]) -> CallableSource:
    """A source that has no memory: each poll gives the next."""
    left = list(polls)
    return CallableSource(lambda max_rows: left.pop(0) if left else None, "id long, name string")


def begin(spout: SpooledSpout, previous: Json = None) -> Json:
    return spout.coordinator().initialize_transaction(1, previous)


def rows_of(spout: SpooledSpout, metadata: Json) -> list[tuple[Any, ...]]:
    emitter = spout.emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def again(call: Callable[[], _T]) -> _T:
    """As a task's tries do."""
    for _ in range(20):
        try:
            return call()
        except (StoreUnavailableError, SourceUnavailableError):
            continue
    return call()


def test_every_request_may_fail_once_and_nothing_is_lost_or_twice(objects: Objects, tmp_path: Path) -> None:
    queue, seen = FileQueue(tmp_path / "queue", lagging=True), set[tuple[str, str]]()
    queue.put(ROWS)

    objects.proxy.rule = each_fails_once(seen)
    spout, metadata, read = spooled(objects, queue.source(), max_rows=7, keep=1), None, list[tuple[Any, ...]]()
    while (found := again(lambda: begin(spout, metadata))) is not None:  # noqa: B023 - called at once
        metadata = found
        read += again(lambda: rows_of(spout, metadata))  # noqa: B023
        again(lambda: spout.coordinator().success(1, metadata))  # noqa: B023
    assert read == ROWS
    assert queue.left() == []
    assert objects.proxy.harmed == len(seen) > 9


def test_two_processes_that_put_equal_rows_at_once_lose_neither(objects: Objects) -> None:
    other, began = spooled(objects, given(ROWS[:2])), list[Json]()

    def rule(request: Request) -> Verdict:
        """The other one puts its batch between the listing of the slow one and its put."""
        if request.method == "PUT" and request.path.endswith(".arrow") and not began:
            began.append(None)
            began[0] = begin(other)
        return Verdict.PASS

    objects.proxy.rule = rule
    first = begin(spooled(objects, given(ROWS[:2])))
    assert began == [first]
    spout = spooled(objects, given())
    second = begin(spout, first)
    assert second is not None, "content alone does not tell whose batch it is"
    assert rows_of(spout, first) == rows_of(spout, second) == ROWS[:2]
    assert begin(spout, second) is None


def test_a_large_batch_is_read_by_its_parts(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spout_module, "PART_ROWS", 3)
    monkeypatch.setattr(object_place, "_FIRST_BYTES", 50)
    spout = spooled(objects, given(ROWS))
    metadata = begin(spout)
    assert len(spout.emitter().splits(metadata)) == 7
    assert rows_of(spout, metadata) == ROWS


def test_requests_of_a_transaction(objects: Objects, tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "queue")
    queue.put(ROWS)
    spout = spooled(objects, queue.source(), max_rows=5, keep=1)
    first = begin(spout)
    assert len(rows_of(spout, first)) == 5
    spout.coordinator().success(1, first)
    before = objects.proxy.asked.copy()
    second = begin(spout, first)
    assert objects.proxy.asked - before == Counter({"GET": 4, "PUT": 1}), "two listings, the ids kept, and what was put"
    assert len(rows_of(spout, second)) == 5
    assert objects.proxy.asked - before == Counter({"GET": 6, "PUT": 1}), "one to look at it, and one for its one part"
    spout.coordinator().success(2, second)
    assert objects.proxy.asked - before == Counter({"GET": 9, "PUT": 2}), "two listings, the token, and the mark"
    third, before = begin(spout, second), objects.proxy.asked.copy()
    spout.coordinator().success(3, third)
    assert objects.proxy.asked - before == Counter({"GET": 3, "PUT": 1, objects.deletes_by: 2}), (
        "an old batch, its mark"
    )


def test_a_dag_is_built_without_a_connection_and_executors_need_none(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    spout = spooled(bucket, given(ROWS))
    emitter, metadata = pickle.dumps(spout.emitter()), begin(spout)
    made = Topology("rows")
    made.new_stream("rows", spouts := spooled(bucket, given())).persistent_aggregate(
        SqliteState("c.db"), Count(), "count"
    )
    assert set(connections_of(made)) == {CONN_ID}
    monkeypatch.delenv(VARIABLE)
    there = pickle.loads(emitter)
    assert [batch.num_rows for split in there.splits(metadata) for batch in there.read(split)] == [len(ROWS)]
    assert "a-secret-key" not in f"{there!r} {metadata}"
    before = bucket.proxy.asked.copy()
    pickle.dumps(spouts.emitter())
    assert f"{bucket.uri}/spool" in str(made.compile()) + spouts.describe()
    assert bucket.proxy.asked == before


def test_a_store_that_takes_a_name_twice_is_refused_before_anything_is_polled_away(bucket: Bucket) -> None:
    bucket.proxy.rule = lambda request: Verdict.UNCONDITIONAL
    with pytest.raises(ConfigurationError, match="takes a name twice"):
        begin(spooled(bucket, given(ROWS)))


@pytest.mark.parametrize(
    ("change", "text"), [("gone", "is gone"), ("another", "changed since"), ("no bucket", "NoSuchBucket")]
)
def test_what_is_no_longer_there_is_named(change: str, text: str, bucket: Bucket) -> None:
    spout = spooled(bucket, given(ROWS))
    metadata, name = begin(spout), f"spool/{1:019d}.arrow"
    if change == "gone":
        bucket.remove(name)
    elif change == "another":
        bucket.put(name, b"x")
    else:
        spout = SpooledSpout(given(), f"s3://{CONN_ID}@no-such-bucket/spool")
    with pytest.raises(Exception, match=text) as caught:
        rows_of(spout, metadata)
    assert "spool" in str(caught.value)
