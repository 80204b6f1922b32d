"""Tables in a bucket, by a connection: what the contract asks of them, on a server that fails and loses answers."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import DeltaState, DeltaTable, IcebergTable
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import ConfigurationError, FencedError, OutcomeUnknownError
from tests.faults.http_proxy import Verdict
from tests.fixtures.catalog import open_catalog
from tests.fixtures.object_store import CONN_ID, VARIABLE, Bucket, Lake, connection
from tests.fixtures.program import run_code
from tests.fixtures.state import batch, content, counts, ticket
from tests.fixtures.table import TABLES, ForeignDeltaTable, before_the_commit, staged

FACTORIES: dict[str, Callable[[str, Path], Any]] = {
    "delta": lambda bucket, folder: DeltaTable(f"s3://{bucket}/lake/sales", conn_id=CONN_ID),
    "iceberg": lambda bucket, folder: IcebergTable(
        "sales.orders",
        properties={
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"s3://{CONN_ID}@{bucket}/lake",
        },
    ),
}


def table_of(kind: str, bucket: str, folder: Path) -> Any:
    """As tests see it, and its spec."""
    table = TABLES[kind](folder)
    table.spec = replace(table.spec, factory=FACTORIES[kind](bucket, folder))
    return table


def rows_of(spec: StateSpec) -> list[tuple[Any, ...]]:
    """By the library of the format."""
    import deltalake

    factory: Any = spec.factory
    if isinstance(factory, DeltaTable):
        place = factory.place().resolved()
        found = deltalake.DeltaTable(place.where, storage_options=dict(place.options)).to_pyarrow_table()
    else:
        found = open_catalog(**factory.place().resolved().properties).load_table(factory.name)
        found = found.scan().to_arrow()
    return sorted((row["word"], row["n"]) for row in found.to_pylist())


def until_answered(state: Any, txid: int, files: Any) -> Applied:
    """As tasks do."""
    try:
        answer: Applied = state.apply_files(ticket(txid), files)
    except OutcomeUnknownError:
        answer = state.apply_files(ticket(txid), files)
    return answer


@pytest.fixture(params=FACTORIES)
def table(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> Any:
    return table_of(request.param, lake.name, tmp_path)


# ---- what each promises ----------------------------------------------------------------------------------------


def test_each_batch_is_there_once_for_who_reads_with_the_library(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1), files=2)) is Applied.APPLIED
        assert state.apply(ticket(2), batch(table.spec, ("b", 2))) is Applied.APPLIED
    sent = pickle.loads(pickle.dumps(table.spec.factory))
    monkeypatch.delenv(VARIABLE)
    spec = replace(table.spec, factory=sent)
    with sent.make_state(spec) as state:
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("b", 2))) is Applied.ALREADY
        assert sorted(row for _, row in state.items()) == [("a", 1), ("a", 1), ("b", 2)]
    assert rows_of(spec) == [("a", 1), ("a", 1), ("b", 2)]
    assert "secret" not in f"{table.spec.factory!r} {sent!r} {sent.describe()}"


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_batch_replaces_what_is_in_its_partitions(kind: str, lake: Lake, tmp_path: Path) -> None:
    table = TABLES[kind](tmp_path, partition_by=("word",), overwrites=True)
    factory = replace(FACTORIES[kind](lake.name, tmp_path), partition_by=("word",))
    table.spec = replace(table.spec, factory=factory)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
        assert state.apply_files(ticket(2), staged(tmp_path, ("a", 3))) is Applied.APPLIED
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("a", 4))) is Applied.ALREADY
    assert rows_of(table.spec) == [("a", 3), ("b", 2)]


WORKER = """
import os, signal, sys
from pathlib import Path
from tests.contracts.test_tables_on_s3 import table_of
from tests.fixtures.state import ticket
from tests.fixtures.table import staged

kind, bucket, folder, when = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
table = table_of(kind, bucket, folder)
state = table.opened()
owner = table.steps[table.decisive](state)
step = getattr(owner, table.decisive)


def stepped(*args, **kwargs):
    if when == "after":
        step(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


setattr(owner, table.decisive, stepped)
state.apply_files(ticket(1), staged(folder, ("a", 1)))
"""


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.rare), "after"])
def test_a_committer_killed_around_its_commit_leaves_all_or_nothing(
    table: Any, lake: Lake, tmp_path: Path, when: str
) -> None:
    (kind,) = (name for name, made in TABLES.items() if isinstance(table, made))
    table.opened().close()
    assert run_code(WORKER, kind, lake.name, tmp_path, when).returncode == -signal.SIGKILL
    assert rows_of(table.spec) == ([("a", 1)] if when == "after" else [])
    with table.opened() as state:
        answer = state.apply_files(ticket(1, fence=50), staged(tmp_path, ("a", 1)))
    assert answer is (Applied.ALREADY if when == "after" else Applied.APPLIED)
    assert rows_of(table.spec) == [("a", 1)]


def test_a_zombie_changes_nothing(table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(1, fence=9), staged(tmp_path, ("a", 1)))

    with table.opened() as state:
        before_the_commit(table, state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=8), staged(tmp_path, ("zombie", 1)))
    assert rows_of(table.spec) == [("a", 1)]


DECISIVE = {"delta": ("PUT", "_delta_log/"), "iceberg": ("POST", ".metadata.json")}


@pytest.mark.parametrize(
    "verdict", [Verdict.LOSE, Verdict.FAIL, pytest.param(Verdict.UNAVAILABLE, marks=pytest.mark.rare)]
)
def test_a_commit_of_which_the_answer_is_lost_or_refused_is_there_once(
    table: Any, lake: Lake, tmp_path: Path, verdict: Verdict
) -> None:
    (kind,) = (name for name, made in TABLES.items() if isinstance(table, made))
    method, containing = DECISIVE[kind]
    with table.opened() as state:
        for txid in (1, 2):
            lake.server.rule(method, verdict, containing=containing)
            until_answered(state, txid, staged(tmp_path, ("a", txid)))
            again = ticket(txid, fence=10 * txid + 1)
            assert state.apply_files(again, staged(tmp_path, ("a", txid))) is Applied.ALREADY
    assert rows_of(table.spec) == [("a", 1), ("a", 2)]


def test_a_commit_writes_four_objects_at_most_and_reads_do_not_grow_with_the_files(
    table: Any, lake: Lake, tmp_path: Path
) -> None:
    """Besides the files of the batch. Of a Delta table each version since the last checkpoint is read."""
    reads = {}
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        for txid, files in ((2, 1), (3, 30), (4, 1), (5, 1)):
            lake.asked_by_a_commit()
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid), files=files))
            written, read = lake.asked_by_a_commit()
            assert len(written) <= 4, written
            if files == 1:
                reads[txid] = read
    versions = {txid: txid if isinstance(table, ForeignDeltaTable) else 0 for txid in reads}
    bare = [many - versions[txid] for txid, many in reads.items()]
    assert max(bare) - min(bare) <= 2, reads  # one more or less from run to run; 29 files more would show


# ---- what is refused -------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_refused_with_the_cure(table: Any, lake: Lake, tmp_path: Path) -> None:
    (kind,) = (name for name, made in TABLES.items() if isinstance(table, made))
    with pytest.raises(ConfigurationError, match=r"(?i)no.?such.?bucket.*Make the bucket"):
        table_of(kind, f"{lake.name}-not", tmp_path).opened()


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_connection_that_says_what_is_not_followed_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection("http://127.0.0.1:1", role_arn="arn:x"))
    with pytest.raises(ConfigurationError, match="'role_arn', which is not followed"):
        table_of(kind, "bucket", tmp_path).opened()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_certificates_that_a_library_does_not_follow_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, connection("https://127.0.0.1:1", verify="/ca.pem"))
    with pytest.raises(ConfigurationError, match=r"\(verify\).*Let the machine trust"):
        table_of(kind, "bucket", tmp_path).opened()


def test_keys_in_the_uri_of_a_delta_table_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="conn_id=") as caught:
        DeltaTable("s3://an-access-key:a-secret@bucket/sales")
    assert "secret" not in str(caught.value)


def test_a_store_that_takes_names_twice_is_refused_where_the_table_depends_on_it(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.proxy.rule = lambda request: Verdict.UNCONDITIONAL
    with pytest.raises(ConfigurationError, match="takes a name twice"):
        table_of("delta", bucket.name, tmp_path).opened()


# ---- and the state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.FAIL])
def test_a_delta_state_in_a_bucket_counts_once(lake: Lake, verdict: Verdict) -> None:
    spec = counts(DeltaState(f"s3://{lake.name}/states", conn_id=CONN_ID))
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2, 2):
            lake.server.rule("PUT", verdict, containing="_delta_log/")
            state.apply(ticket(txid, fence=9), batch(spec, ("a", txid)))
    with spec.factory.make_state(spec) as state:
        assert content(state) == {("a",): (3,)}


def test_what_a_delta_state_folds_and_shows_stays_though_the_store_says_that_it_failed(lake: Lake) -> None:
    import deltalake

    spec = counts(DeltaState(f"s3://{lake.name}/states", conn_id=CONN_ID))
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2, 3):
            state.apply(ticket(txid, fence=9), batch(spec, ("a", txid)))
        lake.server.rule("PUT", Verdict.FAIL, containing="_delta_log/")
        state.fold()
        lake.server.rule("PUT", Verdict.FAIL, containing="_delta_log/")
        state.publish()
        place = state.place.resolved()
        latest = deltalake.DeltaTable(f"{place.uri}_latest", storage_options=place.options)
        assert latest.to_pyarrow_table().num_rows == 1
    with spec.factory.make_state(spec) as state:
        assert content(state) == {("a",): (6,)}


def test_without_a_connection_a_server_without_tls_is_the_one_of_the_environment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", lake.server.url)
    spec = counts(DeltaState(f"s3://{lake.name}/states"))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1, fence=9), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (1,)}


def test_what_the_connection_says_is_said_in_the_words_of_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, connection("http://127.0.0.1:1", region_name="eu-west-1", aws_session_token="a-token"))
    place = DeltaTable("s3://bucket/sales", conn_id=CONN_ID).place().resolved()
    assert {name: value for name, value in place.options.items() if "KEY" not in name} == {
        "AWS_ENDPOINT": "http://127.0.0.1:1",
        "AWS_REGION": "eu-west-1",
        "AWS_SESSION_TOKEN": "a-token",
        "AWS_ALLOW_HTTP": "true",
        "timeout": "2s",
        "max_retries": "3",
    }
    properties = FACTORIES["iceberg"]("bucket", Path("/lake")).place().resolved().properties
    assert {name: value for name, value in properties.items() if "key" not in name} == {
        "type": "sql",
        "uri": "sqlite:////lake/catalog.db",
        "warehouse": "s3://bucket/lake",
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.region": "eu-west-1",
        "s3.session-token": "a-token",
        "s3.request-timeout": "2",
    }
