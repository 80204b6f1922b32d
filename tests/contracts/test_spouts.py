"""What every spout promises (S1 to S5 of `contracts.spout`), over every implementation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy

from airflow_trident.contracts.spout import Spout
from airflow_trident.errors import SourceChangedError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.connections import Connection
from airflow_trident.io.places import place_at
from airflow_trident.io.sql import database_url
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.files.spout import FileSpout
from airflow_trident.spouts.memory import FixedBatchSpout
from airflow_trident.spouts.spool.spout import SpooledSpout
from airflow_trident.spouts.sql import SqlSpout
from airflow_trident.testing.suites import SPOUT_CHECKS, SpoutCase, batch_rows
from airflow_trident.types import Json, parse_declared
from tests.fixtures.azurite import Objects, lasting_container
from tests.fixtures.object_store import Bucket, lasting_bucket
from tests.fixtures.postgres import running
from tests.fixtures.spout import FIELDS, FileQueue, FolderSpout, ForgetfulSpout, OpaqueFolderSpout, append

NAMES = ["", "a", "x y", 'q"q', "comma,", "é\U0001f600", "last"]
ROWS = [(number, NAMES[number % len(NAMES)] or "zero") for number in range(29)]


# ---- the implementations ---------------------------------------------------------------------------------------


def fixed(folder: Path) -> SpoutCase:
    def take_away() -> Spout:
        return FixedBatchSpout(FIELDS, ROWS[:3], max_batch_size=7, splits=3)

    return SpoutCase(FixedBatchSpout(FIELDS, ROWS, max_batch_size=7, splits=3), ROWS, take_away)


def files(folder: Path, name: str, write: Callable[[Path, list[tuple[Any, ...]]], None], **options: Any) -> SpoutCase:
    """Five files of unequal size."""
    cuts = [0, 1, 8, 8, 20, len(ROWS)]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        write(folder / f"{number}{name}", ROWS[begin:end])
    spout = FileSpout(str(folder), max_files=2, **options)

    def take_away() -> Spout:
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes() + b"\n")
        return spout

    rows: list[tuple[Any, ...]] = [(text_of(row),) for row in ROWS] if spout.schema[0].name == "line" else ROWS
    return SpoutCase(spout, rows, take_away)


def objects(folder: Path, bucket: Objects, *, versions: bool = False, **options: Any) -> SpoutCase:
    """The same files as objects."""
    if versions:
        assert isinstance(bucket, Bucket)
        bucket.keep_versions()
    parquet = "format" in options
    local = files(folder, ".parquet" if parquet else ".txt", write_parquet if parquet else write_text)
    for path in folder.iterdir():
        bucket.put(f"in/{path.name}", path.read_bytes())
    spout = FileSpout(f"{bucket.uri}/in", max_files=2, split_bytes=7, **options)

    def take_away() -> Spout:
        for path in folder.iterdir():
            for version in bucket.versions(f"in/{path.name}") if isinstance(bucket, Bucket) else ():
                bucket.remove(f"in/{path.name}", **({"VersionId": version} if versions else {}))
            bucket.put(f"in/{path.name}", path.read_bytes() + b"\n")
        return spout

    return SpoutCase(spout, ROWS if parquet else local.rows, take_away)


def text_of(row: tuple[Any, ...]) -> str:
    return f"{row[0]} {row[1]}"


def write_text(path: Path, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("\r\n".join(map(text_of, rows)), newline="")


def write_gzip(path: Path, rows: list[tuple[Any, ...]]) -> None:
    import gzip

    path.write_bytes(gzip.compress("".join(text_of(row) + "\n" for row in rows).encode()))


def write_csv(path: Path, rows: list[tuple[Any, ...]]) -> None:
    import csv

    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "id"), *((name, number) for number, name in rows)])


def write_json(path: Path, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("".join(json.dumps({"name": name, "id": number}) + "\n" for number, name in rows))


def write_parquet(path: Path, rows: list[tuple[Any, ...]]) -> None:
    pq.write_table(rows_to_table(parse_declared(FIELDS), rows), path)


def partitions(folder: Path, kind: type[FolderSpout], **limits: Any) -> SpoutCase:
    """Four partitions of unequal size, one of them empty."""
    for number, row in enumerate(ROWS):
        append(folder / "in", f"p{number % 7 % 3}", [row])
    append(folder / "in", "p3", [])
    spout = kind(folder / "in", **limits)

    def take_away() -> Spout:
        (folder / "in" / "p1").unlink()
        return spout

    return SpoutCase(spout, ROWS, take_away)


def spooled(folder: Path, root: Callable[[], str] | None = None) -> SpoutCase:
    """A queue of files that hands out everything again until it is acknowledged.

    :param root: gives the place of an object store in which the spool is.
    """
    queue = FileQueue(folder / "queue")
    queue.put(ROWS)
    where = f"{root() if root else folder}/{uuid.uuid4().hex}"
    spout = SpooledSpout(queue.source(), where, max_rows=7)

    def take_away() -> Spout:
        storage, name = place_at(where), f"{3:019d}.arrow"
        changed = storage.read(name)[:-1] + b"x"
        storage.delete([name])
        assert storage.put_once(name, changed)
        return spout

    return SpoutCase(spout, ROWS, take_away)


def table(folder: Path, where: Connection, **options: Any) -> SpoutCase:
    """Rows with keys in a table of a database."""
    name = f"rows_{folder.name}"[:40]
    engine = sqlalchemy.create_engine(database_url(where), poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f'CREATE TABLE "{name}" (id integer PRIMARY KEY, name varchar(99))'))
        insert = sqlalchemy.text(f'INSERT INTO "{name}" VALUES (:id, :name)')
        connection.execute(insert, [{"id": number, "name": text} for number, text in ROWS])

    def take_away() -> Spout:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(f'DELETE FROM "{name}" WHERE id = 3'))
        return spout

    what = options or {"table": name}
    what = {key: value.format(name=name) if isinstance(value, str) else value for key, value in what.items()}
    spout = SqlSpout("db", fields=FIELDS, connection=where, max_rows=7, **what)
    return SpoutCase(spout, ROWS, take_away)


def sqlite_file(folder: Path) -> Connection:
    return Connection(conn_type="sqlite", host=str(folder / "rows.db"))


SOURCES: dict[str, Callable[[Path], SpoutCase]] = {
    "fixed rows": fixed,
    "text": lambda folder: files(folder, ".txt", write_text),
    "text in parts": lambda folder: files(folder, ".txt", write_text, split_bytes=7),
    "gzipped text": lambda folder: files(folder, ".txt.gz", write_gzip),
    "csv": lambda folder: files(folder, ".csv", write_csv, format="csv", fields=FIELDS),
    "json": lambda folder: files(folder, ".json", write_json, format="json", fields=FIELDS),
    "json in parts": lambda folder: files(folder, ".json", write_json, format="json", fields=FIELDS, split_bytes=30),
    "parquet": lambda folder: files(folder, ".parquet", write_parquet, format="parquet", fields=FIELDS),
    "partitions": lambda folder: partitions(folder, FolderSpout),
    "partitions within limits": lambda folder: partitions(folder, FolderSpout, max_partitions=2, max_rows=4),
    "spooled queue": spooled,
    "spooled queue in a bucket": lambda folder: spooled(folder, lasting_bucket),
    "spooled queue in a container": lambda folder: spooled(folder, lasting_container),
    "sqlite table": lambda folder: table(folder, sqlite_file(folder)),
    "postgres table": lambda folder: table(folder, running().connection),
    "postgres query": lambda folder: table(folder, running().connection, query='SELECT * FROM "{name}"', settle_s=0),
    "opaque partitions": lambda folder: partitions(folder, OpaqueFolderSpout, max_rows=7),
}
IN_BUCKETS: dict[str, Callable[[Path, Objects], SpoutCase]] = {
    "objects": objects,
    "objects in the order of names": lambda folder, bucket: objects(folder, bucket, ordered_names=True),
    "versions of objects": lambda folder, bucket: objects(
        folder, bucket, versions=True, format="parquet", fields=FIELDS
    ),
    "blobs": objects,
}


@pytest.fixture(params=[*SOURCES, *IN_BUCKETS])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> SpoutCase:
    """The source of each implementation."""
    name = request.param
    if name in SOURCES:
        return SOURCES[name](tmp_path)
    return IN_BUCKETS[name](tmp_path, request.getfixturevalue("container" if name == "blobs" else "bucket"))


# ---- the promises ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_every_spout_keeps_its_promises(source: SpoutCase, check: Callable[[SpoutCase], None]) -> None:
    check(source)


def test_a_spout_says_what_it_is_in_one_line(source: SpoutCase) -> None:
    spout = source.spout
    assert spout.describe().startswith(type(spout).__name__)
    assert "\n" not in spout.describe()
    assert spout.kind is (SpoutKind.OPAQUE if isinstance(spout, OpaqueFolderSpout) else SpoutKind.TRANSACTIONAL)


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"files": [1]}, {"cursor": 1}])
def test_metadata_of_another_spout_is_an_error_and_not_a_new_beginning(source: SpoutCase, metadata: Json) -> None:
    spout = source.spout
    with pytest.raises(SourceChangedError, match=r"is not that of a .*stream a new name"):
        spout.coordinator().initialize_transaction(2, metadata)
    with pytest.raises(SourceChangedError, match="is not that of a"):
        spout.emitter().splits(metadata)


def test_a_spout_without_promises_gives_rows_of_its_schema_and_metadata_of_json(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        append(tmp_path / "in", f"p{number % 3}", [row])
    spout = ForgetfulSpout(tmp_path / "in")
    assert spout.kind is SpoutKind.NON_TRANSACTIONAL
    first = spout.coordinator().initialize_transaction(1, None)
    second = spout.coordinator().initialize_transaction(2, first)
    assert second != first
    assert [batch_rows(spout, one) for one in (first, second, second)] == [ROWS[0::3], ROWS[1::3], ROWS[2::3]]
    assert not spout.coordinator().is_ready(second)
    assert spout.coordinator().initialize_transaction(3, second) is None
    with pytest.raises(SourceChangedError, match="is not that of a BatchSpout"):
        spout.coordinator().initialize_transaction(3, {"from": 1})
