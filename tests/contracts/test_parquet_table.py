"""What is of Parquet tables alone; what others may do meanwhile is in test_foreign_tables.py."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_trident import ParquetTable
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError, FencedError, NewerRecordError
from airflow_trident.staging import parquet_versions as versions
from tests.faults.http_proxy import Verdict, first
from tests.fixtures.object_store import VARIABLE, Bucket
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import FIELDS, ForeignParquetTable, before_the_commit, staged


@pytest.fixture
def table(tmp_path: Path) -> ForeignParquetTable:
    return ForeignParquetTable(tmp_path)


@pytest.fixture(
    params=[
        "tmp_path",
        "bucket",
        "bucket with a prefix",
        "container",
        pytest.param("gcs", marks=pytest.mark.rare),
        pytest.param("folder", marks=pytest.mark.rare, id="hdfs"),
    ]
)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StateSpec:
    if request.param == "tmp_path":
        return spec_of(ParquetTable(str(tmp_path / "sales")))
    fixture, _, prefix = request.param.partition(" ")
    return spec_of(ParquetTable(request.getfixturevalue(fixture).uri + ("/lake/sales/" if prefix else "")))


def spec_of(factory: ParquetTable, **more: Any) -> StateSpec:
    partitions = tuple(factory.partition_by)
    return StateSpec(
        topology="words",
        name="rows",
        keys=(),
        values=FIELDS,
        staged=FIELDS,
        factory=factory,
        partition_by=partitions,
        **more,
    )


def opened(spec: StateSpec) -> Any:
    return spec.factory.make_state(spec)


def rows(factory: Any, version: int | None = None) -> list[tuple[Any, ...]]:
    return sorted((row["word"], row["n"]) for row in factory.dataset(version).to_table().to_pylist())


# ---- readers ---------------------------------------------------------------------------------------------------


def test_each_version_is_read_whole_in_a_folder_and_in_a_bucket(spec: StateSpec, tmp_path: Path) -> None:
    factory: Any = spec.factory
    with opened(spec) as state:
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1), files=2)) is Applied.APPLIED
        assert state.apply(ticket(2), batch(spec, ("b", 2))) is Applied.APPLIED
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("b", 2))) is Applied.ALREADY
        assert sorted(row for _, row in state.items()) == [("a", 1), ("a", 1), ("b", 2)]
    assert factory.versions() == [1, 2, 3, 4]
    assert [rows(factory, version) for version in (1, 2, 3)] == [
        [],
        [("a", 1), ("a", 1)],
        [("a", 1), ("a", 1), ("b", 2)],
    ]
    assert rows(factory) == rows(factory, 4) == rows(factory, 3)
    assert len(factory.files(2)) == 2
    assert all(
        path.startswith(("/", "s3://bucket-", "gs://bucket-", "abfs://container-", "hdfs:///folder-"))
        and path.endswith(".parquet")
        for path in factory.files()
    )


def test_who_has_json_alone_finds_the_files(table: ForeignParquetTable, tmp_path: Path) -> None:
    """The program of the reference."""
    text = (Path(__file__).parents[2] / "docs/reference/sinks.md").read_text()
    program = text.partition("<!-- read without us -->\n```python\n")[2].partition("```")[0]
    with table.opened() as state:
        for txid in range(1, 4):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid), files=versions.INLINE // 2))
    names: dict[str, Any] = {}
    exec(program.replace("/lake/clicks", str(table.root)), names)
    factory: Any = table.spec.factory
    assert sorted(names["files"]) == sorted(factory.files())
    assert len(set(names["files"])) == 3 * (versions.INLINE // 2)


def test_filters_open_only_the_files_of_their_partitions(tmp_path: Path) -> None:
    factory = ParquetTable(str(tmp_path / "sales"), partition_by=("word",))
    spec = spec_of(factory)
    with opened(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2), (None, 3)))
    (path,) = (one for one in factory.files() if pq.read_table(one)["word"].to_pylist() == ["b"])
    os.remove(path)
    dataset = factory.dataset()
    assert dataset.to_table(filter=pc.field("word") == "a")["n"].to_pylist() == [1]
    assert dataset.to_table(filter=pc.field("word").is_null())["n"].to_pylist() == [3]
    with pytest.raises(FileNotFoundError):
        dataset.to_table(filter=pc.field("word") == "b")


def test_a_table_or_a_version_that_is_not_there_is_said_so(table: ForeignParquetTable) -> None:
    factory: Any = table.spec.factory
    with pytest.raises(ConfigurationError, match="there is no Parquet table"):
        factory.files()
    table.opened().close()
    with pytest.raises(ConfigurationError, match="there is no version 7 of the Parquet table"):
        factory.dataset(7)


# ---- versions --------------------------------------------------------------------------------------------------


def test_a_version_stays_small_however_many_files_there_are(table: ForeignParquetTable, tmp_path: Path) -> None:
    sizes = []
    with table.opened() as state:
        for txid in range(1, 12):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid), files=100))
            sizes.append(len(json.dumps(table.version())))
    assert len(table.rows()) == 1100
    assert len(table.version()["files"]) <= versions.INLINE
    assert max(sizes[6:]) < 1.1 * max(sizes[:6])


def test_old_versions_go_and_what_only_they_name_goes_with_them(tmp_path: Path) -> None:
    table = ForeignParquetTable(tmp_path, partition_by=("word",), overwrites=True)
    factory: Any = replace(table.spec.factory, keep_versions=3)  # type: ignore[type-var]
    with factory.make_state(replace(table.spec, factory=factory)) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("kept", 0)))
        for txid in range(2, 20):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
            assert rows(factory) == [("a", txid), ("kept", 0)]
    assert 3 <= len(factory.versions()) < 6
    for version in factory.versions():
        assert rows(factory, version) == [("a", version - 1), ("kept", 0)]
    assert len(table.data_files()) <= 6, "of 19"


def test_what_somebody_restored_does_not_go_with_the_version_that_replaced_it(tmp_path: Path) -> None:
    table = ForeignParquetTable(tmp_path, partition_by=("word",), overwrites=True)
    factory: Any = replace(table.spec.factory, keep_versions=2)  # type: ignore[type-var]
    with factory.make_state(replace(table.spec, factory=factory)) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        first_files = table.version()["files"]
        state.apply_files(ticket(2), staged(tmp_path, ("a", 2)))
        table.publish(files=first_files)
        for txid in range(3, 9):
            state.apply_files(ticket(txid), staged(tmp_path, ("b", txid)))
    assert factory.versions()[0] > 3
    assert rows(factory) == [("a", 1), ("b", 8)]


@pytest.mark.parametrize("inline", [1, 256], ids=["in lists", "in the version"])
def test_files_are_replaced_wherever_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr("airflow_trident.states.parquet.table.INLINE", inline)
    table = ForeignParquetTable(tmp_path, partition_by=("word",), overwrites=True)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
        state.apply_files(ticket(2), staged(tmp_path, ("c", 3), ("d", 4)))
        untouched = table.version()["lists"][1:]
        state.apply_files(ticket(3), staged(tmp_path, ("a", 5)))
    assert table.rows() == [("a", 5), ("b", 2), ("c", 3), ("d", 4)]
    version = table.version()
    assert set(untouched) <= set(version["lists"])
    assert bool(version["lists"]) is (inline == 1)
    assert len(version["removed"]) == (2 if inline == 1 else 1), "the file, and the list that named it"


@pytest.mark.parametrize("behind", [1, 30], ids=["one behind", "so late that the versions of then are gone"])
def test_a_committer_that_was_stopped_before_its_version_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    table = ForeignParquetTable(tmp_path)
    factory: Any = replace(table.spec.factory, keep_versions=2)  # type: ignore[type-var]
    spec = replace(table.spec, factory=factory)

    def others() -> None:
        with opened(spec) as other:
            for txid in range(1, behind + 1):
                other.apply_files(ticket(txid, fence=10 + txid), staged(tmp_path, ("a", txid)))

    with opened(spec) as state:
        before_the_commit(table, state, monkeypatch, others)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=9), staged(tmp_path, ("zombie", 1)))
        assert table.rows() == [("a", txid) for txid in range(1, behind + 1)]
        assert state.apply_files(ticket(behind + 1, fence=99), staged(tmp_path, ("b", 0))) is Applied.APPLIED


def test_a_version_that_is_damaged_is_not_guessed_at(table: ForeignParquetTable, tmp_path: Path) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    path = max((table.root / "_versions").glob("*.json"))
    content = json.loads(path.read_text())
    (name,) = content["states"]
    state_of = content["states"][name]
    for changes in (
        {"files": [{**content["files"][0], "path": "../outside.parquet"}]},
        {"files": [{**content["files"][0], "partition": ["a"]}]},
        {"lists": ["_lists/gone.json"]},
        {"version": 7},
        {"states": {name: {**state_of, "of": ["other", "rows"]}}},
        {"states": {name: {**state_of, "marker": {}}}},
    ):
        path.write_text(json.dumps({**content, **changes}))
        with pytest.raises(CorruptRecordError, match="is damaged"), table.opened() as state:
            list(state.items())
    for text, error in (("", CorruptRecordError), ('{"format": 9}', NewerRecordError)):
        path.write_text(text)
        with pytest.raises(error):
            table.opened()


def test_what_is_applied_is_missed_where_the_next_version_does_not_say_it(
    table: ForeignParquetTable, tmp_path: Path
) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        states = table.version()["states"]
        table.publish(states={})
        for act in (state.marker, table.opened):
            with pytest.raises(CorruptRecordError, match="restored to a version before 2"):
                act()
        table.publish(states=states)
        assert state.apply_files(ticket(1, fence=50), staged(tmp_path, ("a", 1))) is Applied.ALREADY


def test_another_topology_finds_a_table_with_other_columns_or_adds_to_some_of_them(
    table: ForeignParquetTable, tmp_path: Path
) -> None:
    table.opened().close()
    table.publish(fields="word string, n int")
    with pytest.raises(ConfigurationError, match="its column n is int, and the field long"):
        table.opened()
    table.publish(fields="more double, n long, word string")
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    assert table.read().to_pylist() == [{"more": None, "n": 1, "word": "a"}]


# ---- in a bucket -----------------------------------------------------------------------------------------------


def test_what_a_commit_asks_of_a_bucket_does_not_depend_on_the_number_of_files(bucket: Bucket, tmp_path: Path) -> None:
    spec, asked = spec_of(ParquetTable(f"{bucket.uri}/sales")), []
    with opened(spec) as state:
        for txid in range(1, 9):
            before = bucket.proxy.asked.copy()
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid), files=50))
            asked.append(dict(bucket.proxy.asked - before))
    plain = {"PUT": 50 + 1, "GET": 4}  # the last version between two lists of names; a list of names
    assert [one for one in asked if one != plain] == [{**plain, "PUT": 50 + 2}], "once, a list of 300 files"


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.LOSE])
@pytest.mark.parametrize("part", ["_data", "_versions"])
def test_a_bucket_that_fails_or_loses_answers_gets_each_batch_once(
    bucket: Bucket, tmp_path: Path, part: str, verdict: Verdict
) -> None:
    factory = ParquetTable(f"{bucket.uri}/sales")
    spec = spec_of(factory)
    with opened(spec) as state:
        bucket.proxy.rule = first("PUT", verdict, times=2, containing=part)
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1))) is Applied.APPLIED
    assert bucket.proxy.harmed == 2
    assert rows(factory) == [("a", 1)]


def test_a_table_in_a_bucket_is_sent_with_what_its_connection_says(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = ParquetTable(f"{bucket.uri}/sales")
    sent = pickle.loads(pickle.dumps(factory))
    monkeypatch.delenv(VARIABLE)
    with opened(spec_of(sent)) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    assert rows(sent) == [("a", 1)]
    assert "secret" not in f"{factory!r} {sent!r} {sent.describe()}"
    with pytest.raises(ConfigurationError, match="there is no connection 'objects'"):
        opened(spec_of(factory))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": ""}, "a Parquet table without a path"),
        ({"path": "ftp://host/x"}, "a Parquet table cannot use"),
        ({"path": "s3://key:secret@bucket/x"}, "a Parquet table has keys in its URI"),
        ({"path": "/lake/x", "keep_versions": 0}, "keep_versions=0"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_the_dag_is_built(options: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ParquetTable(**options)


def test_a_folder_that_may_not_be_written_to_is_refused_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "sales").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"a Parquet table .*sales"):
        opened(spec_of(ParquetTable(str(tmp_path / "sales"))))
