"""Staged objects become files of a table in the same bucket without passing through the committer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, StagedFiles
from airflow_trident.errors import StagingError
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.parquet import footer_bytes, write_parquet
from airflow_trident.io.place import PlacedFile, open_ranges
from tests.contracts.test_tables_on_s3 import FACTORIES, rows_of, table_of
from tests.faults.http_proxy import Answer, Request, Verdict
from tests.fixtures.object_store import CONN_ID, Bucket, Lake, make_bucket
from tests.fixtures.state import ticket
from tests.fixtures.table import rows_table

NAMES = ("words/0001/rows-1.parquet", "words/0001/rows-2.parquet")


def staged_in(place: str, *rows: tuple[Any, ...], names: tuple[str, ...] = NAMES) -> StagedFiles:
    """As the staging area gives them: each object has all of the rows."""
    storage = ObstorePlace(ObjectAddress.parse("the staging folder", place))
    footers, sizes = list[Any](), dict[str, int]()
    for name in names:
        sizes[storage.at(name)] = storage.put(
            name, lambda file: write_parquet(rows_table(*rows), file, metadata_collector=footers)
        )
    named = dict(zip(sizes, names, strict=True))
    return StagedFiles(
        paths=tuple(sizes),
        num_rows=len(rows) * len(names),
        opener=lambda path: open_ranges(storage, named[path], sizes[path]),
        stored=lambda path: PlacedFile(storage, named[path]),
        footers={path: footer_bytes(footer) for path, footer in zip(sizes, footers, strict=True)},
    )


def asked_for(lake: Lake, part: str) -> list[tuple[str, str]]:
    return [(method, path) for method, path in lake.server.asked() if part in path]


@pytest.fixture(params=FACTORIES)
def table(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> Any:
    return table_of(request.param, lake.name, tmp_path)


def test_nobody_reads_the_staged_objects_of_the_same_bucket(table: Any, lake: Lake) -> None:
    files = staged_in(f"s3://{CONN_ID}@{lake.name}/staging", ("a", 1), ("b", 2))
    with table.opened() as state:
        lake.server.asked()
        assert state.apply_files(ticket(1), files) is Applied.APPLIED
        assert asked_for(lake, "/staging/") == []
        assert state.apply_files(ticket(1, fence=99), files) is Applied.ALREADY
    assert rows_of(table.spec) == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]


def test_those_of_another_bucket_are_read_and_written(table: Any, lake: Lake) -> None:
    files = staged_in(f"s3://{CONN_ID}@{make_bucket(lake.server.direct)}/staging", ("a", 1))
    with table.opened() as state:
        lake.server.asked()
        assert state.apply_files(ticket(1), files) is Applied.APPLIED
        assert {method for method, _ in asked_for(lake, "/staging/")} == {"GET"}
    assert rows_of(table.spec) == [("a", 1), ("a", 1)]


def test_a_staged_object_that_is_gone_commits_nothing(table: Any, lake: Lake) -> None:
    files = staged_in(f"s3://{CONN_ID}@{lake.name}/staging", ("a", 1))
    ObstorePlace(ObjectAddress.parse("it", f"s3://{CONN_ID}@{lake.name}/staging")).delete(NAMES[1:])
    with table.opened() as state:
        with pytest.raises(StagingError, match=r"rows-2.parquet' is missing"):
            state.apply_files(ticket(1), files)
        assert state.apply_files(ticket(1), staged_in(f"s3://{CONN_ID}@{lake.name}/again", ("b", 1))) is Applied.APPLIED
    assert rows_of(table.spec) == [("b", 1), ("b", 1)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_copy_that_the_table_does_not_see_is_no_copy(
    kind: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own settings may lead to another store with a bucket of this name."""
    monkeypatch.setattr(PlacedFile, "copied_to", lambda self, target: True)
    table = table_of(kind, lake.name, tmp_path)
    with table.opened() as state:
        state.apply_files(ticket(1), staged_in(f"s3://{CONN_ID}@{lake.name}/staging", ("a", 1)))
    assert rows_of(table.spec) == [("a", 1), ("a", 1)]


def test_who_may_not_copy_reads_and_writes(bucket: Bucket, tmp_path: Path) -> None:
    table = table_of("iceberg", bucket.name, tmp_path)
    files = staged_in(f"{bucket.uri}/staging", ("a", 1))
    with table.opened() as state:
        bucket.proxy.rule = refusing_once_each()
        assert state.apply_files(ticket(1), files) is Applied.APPLIED
        assert bucket.proxy.harmed == len(NAMES)
    assert rows_of(table.spec) == [("a", 1), ("a", 1)]


def refusing_once_each() -> Callable[[Request], Verdict | Answer]:
    """The first request about each file of the table."""
    seen = set[str]()

    def rule(request: Request) -> Verdict | Answer:
        if request.method != "PUT" or "/trident-" not in request.path or request.path in seen:
            return Verdict.PASS
        seen.add(request.path)
        return Answer(403, b"<Error><Code>AccessDenied</Code><Message>no copies</Message></Error>")

    return rule
