"""FileSpout on a real S3 server: which objects are meant, what a replay reads, what it costs, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Count, FileSpout, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.drains.order import connections_of
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts.files import object_files
from tests.faults.http_proxy import Answer, Request, Verdict, each_fails_once
from tests.fixtures.azurite import Container, Objects
from tests.fixtures.object_store import CONN_ID, VARIABLE, Bucket
from tests.integration.test_file_spout import MEANT, TREE, begin, lines, names
from tests.integration.test_staging_on_s3 import contents


def rows(spout: FileSpout, metadata: Any) -> list[dict[str, Any]]:
    emitter = spout.emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return [row for batch in batches for row in batch.to_pylist()]


# ---- which objects are meant -----------------------------------------------------------------------------------


@pytest.fixture
def tree(objects: Objects) -> Objects:
    """What stands for folders and what is beside the folder are none of its objects."""
    for name in TREE:
        objects.put(f"in/{name}", "x\n")
    for name in ("in/", "in/sub/", "in/empty", "inside/a.txt", "a.txt"):
        objects.put(name, "" if name.startswith("in/") else "x\n")
    return objects


def test_a_folder_and_a_pattern_mean_the_objects_that_they_mean_among_files(tree: Objects) -> None:
    for path, recursive, expected in MEANT:
        if path in ("x[1].txt", "c.txt.tmp"):
            continue  # a pattern, here; and what is still being written cannot be meant by one
        spout = FileSpout(f"{tree.uri}/in/{path}", recursive=recursive)
        if path in TREE:
            with pytest.raises(ConfigurationError, match=r"is an object.*Write a pattern that means it") as caught:
                begin(spout)
            spout = FileSpout(caught.value.cure.split("'")[1])
        assert sorted(names(begin(spout))) == sorted(expected), path


def test_a_name_may_hold_what_names_may_hold(objects: Objects) -> None:
    backslash = "/" if isinstance(objects, Container) else "\\"  # which is a slash to Azure
    strange = ["a b+c%20é&=#.txt", "[1]*?.txt", f"~a:b{backslash}c|^`<>\"'.txt", "{x}.txt"]
    for name in strange:
        objects.put(f"in/{name}", f"{name}\n")
    spout = FileSpout(f"{objects.uri}/in", recursive=True)
    assert sorted(lines(spout, begin(spout))) == sorted(strange)


@pytest.mark.parametrize("others", [[], ["in/b.txt"], ["in/b.txt", "in/b.txt.gz"], ["in/a", "in/c"]])
def test_an_object_whose_name_ends_in_a_slash_is_an_error_that_names_it(bucket: Bucket, others: list[str]) -> None:
    bucket.put("in/b.txt/", "1\n")
    for name in others:
        bucket.put(name, "2\n")
    spout = FileSpout(f"{bucket.uri}/in")
    with pytest.raises(
        ConfigurationError, match=r"name is 'in/b\.txt/'.*Give the object another name|name is 'b\.txt/'"
    ):
        lines(spout, begin(spout))


def test_nothing_is_there_yet_and_then_something_is(objects: Objects) -> None:
    spout = FileSpout(f"{objects.uri}/in")
    assert begin(spout) is None
    objects.put("in/a", "1\n")
    first = begin(spout)
    objects.put("in/b", "2\n")
    assert lines(spout, begin(spout, first)) == ["2"]


# ---- what a replay reads ---------------------------------------------------------------------------------------


def test_an_object_that_was_put_anew_is_an_error_until_its_content_is_back_or_is_taken(bucket: Bucket) -> None:
    bucket.put("in/a.txt", "1\n2\n")
    spout = FileSpout(f"{bucket.uri}/in", split_bytes=2)
    metadata = begin(spout)
    bucket.put("in/a.txt", "3\n4\n")
    with pytest.raises(
        SourceChangedError,
        match=r"a\.txt' changed since .* recorded it: its content is another\. Put it back .*accept-source",
    ):
        lines(spout, metadata)
    accepted = spout.coordinator().accept_source(metadata)
    assert lines(spout, accepted) == ["3", "4"]
    assert begin(spout, accepted) is None
    with pytest.raises(SourceChangedError, match="was consumed by an earlier transaction and changed since"):
        begin(spout, metadata)
    bucket.put("in/a.txt", "1\n2\n")
    assert lines(spout, metadata) == ["1", "2"]
    bucket.remove("in/a.txt")
    with pytest.raises(SourceChangedError, match=r"a\.txt', which the transaction recorded, is gone"):
        lines(spout, metadata)


def test_on_azure_the_same_content_put_anew_is_another_one(container: Container) -> None:
    """An ETag is of the time, too."""
    container.put("in/a.txt", "1\n2\n")
    spout = FileSpout(f"{container.uri}/in", split_bytes=2)
    metadata = begin(spout)
    assert lines(spout, metadata) == ["1", "2"]
    container.put("in/a.txt", "1\n2\n")
    with pytest.raises(SourceChangedError, match="its content is another"):
        lines(spout, metadata)
    accepted = spout.coordinator().accept_source(metadata)
    assert lines(spout, accepted) == ["1", "2"]
    container.remove("in/a.txt")
    with pytest.raises(SourceChangedError, match=r"a\.txt'"):
        lines(spout, accepted)
    with pytest.raises(SourceChangedError, match=r"a\.txt', which the transaction recorded, is gone"):
        spout.coordinator().accept_source(accepted)


def test_a_bucket_that_keeps_versions_gives_the_recorded_ones(bucket: Bucket) -> None:
    bucket.put("in/0", "0\n")
    bucket.keep_versions()
    bucket.put("in/a", "1\n2\n")
    spout = FileSpout(f"{bucket.uri}/in", split_bytes=2)
    metadata = begin(spout)
    bucket.put("in/a", "3\n4\n")
    assert lines(spout, metadata) == ["0", "1", "2"]
    bucket.remove("in/a")
    assert lines(spout, metadata) == ["0", "1", "2"], "what was deleted is hidden only"
    bucket.remove("in/a", VersionId=bucket.versions("in/a")[-1])
    with pytest.raises(
        SourceChangedError, match=r"version of the object .*/in/a' that .* recorded is gone.*accept-source"
    ):
        lines(spout, metadata)
    with pytest.raises(SourceChangedError, match=r"nothing to take\. Put an object there and run .*accept-source"):
        spout.coordinator().accept_source(metadata)
    bucket.put("in/a", "3\n4\n")
    assert lines(spout, spout.coordinator().accept_source(metadata)) == ["0", "3", "4"]
    with pytest.raises(SourceChangedError, match="A version cannot be put back"):
        lines(spout, metadata)
    bucket.put("in/a", "1\n2\n")
    assert lines(spout, metadata) == ["0", "1", "2"], "the same content in the place of the version"


def test_versions_that_are_switched_off_after_a_claim(bucket: Bucket) -> None:
    """This server drops older versions then, which S3 does not: in both cases the recorded content counts."""
    bucket.keep_versions()
    bucket.put("in/a", "1\n2\n")
    spout = FileSpout(f"{bucket.uri}/in")
    metadata = begin(spout)
    bucket.keep_versions(status="Suspended")
    assert lines(spout, metadata) == ["1", "2"]
    bucket.put("in/a", "1\n2\n")
    assert lines(spout, metadata) == ["1", "2"]
    bucket.put("in/a", "3\n")
    with pytest.raises(SourceChangedError, match="A version cannot be put back"):
        lines(spout, metadata)


def test_versions_that_are_switched_off_before_a_claim(bucket: Bucket) -> None:
    bucket.keep_versions()
    bucket.keep_versions(status="Suspended")
    bucket.put("in/a", "1\n2\n")
    spout = FileSpout(f"{bucket.uri}/in")
    metadata = begin(spout)
    bucket.put("in/a", "3\n")
    with pytest.raises(SourceChangedError, match=r"Put it back as it was \(its content\) and replay"):
        lines(spout, metadata)
    bucket.put("in/a", "1\n2\n")
    assert lines(spout, metadata) == ["1", "2"]


def test_a_version_that_became_a_deletion_is_gone(bucket: Bucket) -> None:
    """S3 calls every version of a bucket without them "null", and a deletion takes that name over."""
    bucket.keep_versions()
    bucket.put("in/a", "1\n")
    spout = FileSpout(f"{bucket.uri}/in")
    metadata = begin(spout)
    bucket.remove("in/a")
    refused = Answer(405, b"<Error><Code>MethodNotAllowed</Code><Message>not allowed</Message></Error>")

    def rule(request: Request) -> Verdict | Answer:
        return refused if "versionId" in request.query else Verdict.PASS

    bucket.proxy.rule = rule
    with pytest.raises(SourceChangedError, match="A version cannot be put back"):
        lines(spout, metadata)
    bucket.put("in/a", "1\n")
    assert lines(spout, metadata) == ["1"]


@pytest.mark.parametrize("versions", [True, False])
def test_an_object_that_is_put_anew_while_it_is_claimed_is_left_for_a_retry(bucket: Bucket, versions: bool) -> None:
    if versions:
        bucket.keep_versions()
    bucket.put("in/a", "1\n")

    def rule(request: Request) -> Verdict:
        if request.method == "HEAD":
            bucket.put("in/a", "2\n")
            bucket.proxy.rule = lambda request: Verdict.PASS
        return Verdict.PASS

    bucket.proxy.rule = rule
    spout = FileSpout(f"{bucket.uri}/in")
    with pytest.raises(SourceUnavailableError, match="/in/a' changed while its transaction was claimed"):
        begin(spout)
    assert lines(spout, begin(spout)) == ["2"]


# ---- reading by ranges -----------------------------------------------------------------------------------------


def test_a_large_object_is_read_in_parts_and_each_byte_once_but_where_lines_are_cut(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_files, "AHEAD_BYTES", 100)
    expected = [f"line {number}" for number in range(100)]
    content = "".join(f"{line}\n" for line in expected)
    objects.put("in/a", content)
    spout = FileSpout(f"{objects.uri}/in", split_bytes=300)
    metadata = begin(spout)
    before = objects.proxy.asked["GET"]
    assert lines(spout, metadata) == expected
    parts = len(spout.emitter().splits(metadata))
    assert parts == 3
    assert objects.proxy.asked["GET"] - before <= len(content) / 100 + 2 * parts


def test_of_a_large_parquet_object_only_the_columns_that_are_used_are_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_files, "AHEAD_BYTES", 1 << 12)
    table = pa.table({"a": list(range(1000)), "wide": [f"{number:02000}" for number in range(1000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=None, use_dictionary=False)
    content = sink.getvalue().to_pybytes()
    bucket.put("in/a", content)
    got: list[int] = []
    read = object_files.ObjectFiles.range_of

    def counted(self: Any, where: str, file: Any, begin: int, end: int) -> bytes:
        got.append(end - begin)
        return read(self, where, file, begin, end)

    monkeypatch.setattr(object_files.ObjectFiles, "range_of", counted)
    spout = FileSpout(f"{bucket.uri}/in", format="parquet", fields="a long, wide string")
    emitter = spout.emitter().prune(("a",))
    [split] = emitter.splits(begin(spout))
    assert sum(batch.num_rows for batch in emitter.read(split)) == 1000
    assert sum(got) < len(content) / 5


# ---- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("versions", "heads"), [(False, 1), (True, 3)])
def test_requests_of_a_transaction_with_three_objects(versions: bool, heads: int, bucket: Bucket) -> None:
    if versions:
        bucket.keep_versions()
    for number in range(6):
        bucket.put(f"in/{number}", f"{number}\n")
    spout = FileSpout(f"{bucket.uri}/in", max_files=3)
    first = begin(spout)
    before = bucket.proxy.asked.copy()
    second = begin(spout, first)
    assert bucket.proxy.asked - before == Counter({"GET": 1, "HEAD": heads}), "one listing"
    assert len(lines(spout, second)) == 3
    assert bucket.proxy.asked - before == Counter({"GET": 4, "HEAD": heads}), "one request for each object"


def test_a_dag_is_built_without_a_connection_and_without_a_request(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    made = Topology("words")
    spout = FileSpout(f"{bucket.uri}/in/*.txt")
    made.new_stream("lines", spout).persistent_aggregate(SqliteState("c.db"), Count(), "count")
    assert f"FileSpout(text, {bucket.uri}/in/*.txt)" in str(made.compile()) + spout.describe()
    pickle.dumps(made)
    assert not bucket.proxy.asked


def test_what_is_sent_to_executors_needs_no_connection(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("in/a", "1\n")
    spout = FileSpout(f"{bucket.uri}/in")
    emitter, metadata = pickle.dumps(spout.emitter()), begin(spout)
    made = Topology("words")
    made.new_stream("lines", spout).persistent_aggregate(SqliteState("c.db"), Count(), "count")
    assert set(connections_of(made)) == {CONN_ID}
    monkeypatch.delenv(VARIABLE)
    there = pickle.loads(emitter)
    [split] = there.splits(metadata)
    assert [batch.num_rows for batch in there.read(split)] == [1]
    assert "a-secret-key" not in repr(there)


# ---- transactions ----------------------------------------------------------------------------------------------


def sums(bucket: Objects, folder: Path) -> Topology:
    """Six objects of which two make a batch."""
    for number in range(6):
        bucket.put(f"in/{number}.json", "".join(json.dumps({"k": f"k{n % 3}", "n": n}) + "\n" for n in range(number)))
    bucket.put("in/0.json", '{"k": "k0", "n": 0}\n')
    made = Topology("sums")
    spout = FileSpout(f"{bucket.uri}/in", format="json", fields="k string, n long", max_files=2)
    made.new_stream("lines", spout).group_by("k").persistent_aggregate(
        SqliteState(str(folder / "s.db")), "n", Sum(), "sum", name="sums"
    )
    return made


SUMS = {"k0": 6, "k1": 8, "k2": 6}


def run(made: Topology, engine: Engine, staging: str) -> list[int]:
    with MemoryLedger(made.name) as ledger:
        return LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()


def test_every_request_may_fail_once_and_nothing_else_comes_of_it(objects: Objects, tmp_path: Path) -> None:
    made, seen = sums(objects, tmp_path), set[tuple[str, str]]()

    objects.proxy.rule = each_fails_once(seen)
    assert run(made, LocalEngine(), str(tmp_path / "staging")) == [1, 2, 3]
    assert contents(made, "sums") == SUMS
    assert objects.proxy.harmed == len(seen) > 7


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["spark_engine", "connect_engine"])
def test_spark_reads_objects_and_stages_beside_them(
    engine: str, bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = sums(bucket, tmp_path)
    assert run(made, request.getfixturevalue(engine), f"{bucket.uri}/staging") == [1, 2, 3]
    assert contents(made, "sums") == SUMS


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "kind", "text"),
    [
        (lambda bucket: Answer(503), SourceUnavailableError, "cannot list the objects in 's3://"),
        (
            lambda bucket: Answer(403, b"<Error><Code>AccessDenied</Code><Message>No.</Message></Error>"),
            ConfigurationError,
            "AccessDenied.*Give this user the right to list and read objects there",
        ),
        (lambda bucket: bucket.put("in/a//b", "x"), ConfigurationError, r"a//b.*Give the object a name without '//'"),
    ],
)
def test_what_cannot_be_listed_is_one_error_with_its_cure(
    spoil: Callable[[Bucket], Any], kind: type[Exception], text: str, bucket: Bucket
) -> None:
    answer = spoil(bucket)
    if isinstance(answer, Answer):
        bucket.proxy.rule = lambda request: answer
    with pytest.raises(kind, match=text):
        begin(FileSpout(f"{bucket.uri}/in"))


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    with pytest.raises(ConfigurationError, match=r"NoSuchBucket.*Make the bucket"):
        begin(FileSpout(f"s3://{CONN_ID}@no-such-bucket/in"))


def test_a_script_gets_the_rows_of_objects_and_not_their_addresses(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a", "1\n")
    spout = FileSpout(f"{bucket.uri}/in")
    assert not spout.gives_files
    for metadata in (begin(spout), None):
        assert spout.emitter().batch_for_script(metadata, str(tmp_path)) is None


# ---- names in the order in which objects come --------------------------------------------------------------------
