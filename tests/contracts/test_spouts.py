"""What every spout promises (S1 to S5 of `contracts.spout`), over every implementation."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy

from airflow_trident.contracts.spout import Spout
from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema, rows_to_table, table_to_rows
from airflow_trident.io.connections import Connection
from airflow_trident.io.sql import database_url
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.files.spout import FileSpout
from airflow_trident.spouts.fixed import FixedBatchSpout
from airflow_trident.spouts.spool.spout import SpooledSpout
from airflow_trident.spouts.sql.spout import SqlSpout
from airflow_trident.staging.storage import storage_at
from airflow_trident.types import Json, parse_declared
from tests.fixtures.azurite import Objects, lasting_container
from tests.fixtures.object_store import Bucket, lasting_bucket
from tests.fixtures.postgres import running
from tests.fixtures.spout import FIELDS, FileQueue, FolderSpout, ForgetfulSpout, OpaqueFolderSpout, append

NAMES = ["", "a", "x y", 'q"q', "comma,", "é\U0001f600", "last"]
ROWS = [(number, NAMES[number % len(NAMES)] or "zero") for number in range(29)]


@dataclass(frozen=True)
class Source:
    """`rows`: all that it holds, in any order; `take_away`: change what the transactions recorded."""

    spout: Spout
    rows: list[tuple[Any, ...]]
    take_away: Callable[[], Spout]


# ---- the implementations ---------------------------------------------------------------------------------------


def fixed(folder: Path) -> Source:
    def take_away() -> Spout:
        return FixedBatchSpout(FIELDS, ROWS[:3], max_batch_size=7, splits=3)

    return Source(FixedBatchSpout(FIELDS, ROWS, max_batch_size=7, splits=3), ROWS, take_away)


def files(folder: Path, name: str, write: Callable[[Path, list[tuple[Any, ...]]], None], **options: Any) -> Source:
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
    return Source(spout, rows, take_away)


def objects(folder: Path, bucket: Objects, *, versions: bool = False, **options: Any) -> Source:
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

    return Source(spout, ROWS if parquet else local.rows, take_away)


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


def partitions(folder: Path, kind: type[FolderSpout], **limits: Any) -> Source:
    """Four partitions of unequal size, one of them empty."""
    for number, row in enumerate(ROWS):
        append(folder / "in", f"p{number % 7 % 3}", [row])
    append(folder / "in", "p3", [])
    spout = kind(folder / "in", **limits)

    def take_away() -> Spout:
        (folder / "in" / "p1").unlink()
        return spout

    return Source(spout, ROWS, take_away)


def spooled(folder: Path, root: Callable[[], str] | None = None) -> Source:
    """A queue of files that hands out everything again until it is acknowledged.

    :param root: gives the place of an object store in which the spool is.
    """
    queue = FileQueue(folder / "queue")
    queue.put(ROWS)
    where = f"{root() if root else folder}/{uuid.uuid4().hex}"
    spout = SpooledSpout(queue.source(), where, max_rows=7)

    def take_away() -> Spout:
        storage, name = storage_at(where), f"{3:019d}.arrow"
        changed = storage.get(name)[:-1] + b"x"
        storage.remove([name])
        assert storage.put_if_absent(name, changed)
        return spout

    return Source(spout, ROWS, take_away)


def table(folder: Path, where: Connection, **options: Any) -> Source:
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
    return Source(spout, ROWS, take_away)


def sqlite_file(folder: Path) -> Connection:
    return Connection(conn_type="sqlite", host=str(folder / "rows.db"))


SOURCES: dict[str, Callable[[Path], Source]] = {
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
IN_BUCKETS: dict[str, Callable[[Path, Objects], Source]] = {
    "objects": objects,
    "objects in the order of names": lambda folder, bucket: objects(folder, bucket, ordered_names=True),
    "versions of objects": lambda folder, bucket: objects(
        folder, bucket, versions=True, format="parquet", fields=FIELDS
    ),
    "blobs": objects,
}


@pytest.fixture(params=[*SOURCES, *IN_BUCKETS])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """The source of each implementation."""
    name = request.param
    if name in SOURCES:
        return SOURCES[name](tmp_path)
    return IN_BUCKETS[name](tmp_path, request.getfixturevalue("container" if name == "blobs" else "bucket"))


# ---- the promises ----------------------------------------------------------------------------------------------


def metadata_of_all(spout: Spout) -> list[Json]:
    """Transactions until there is nothing new, each by a coordinator of its own, as tasks do, with JSON between."""
    all_metadata: list[Json] = []
    previous: Json = None
    while pickle.loads(pickle.dumps(spout)).coordinator().is_ready(previous):
        coordinator = spout.coordinator()
        previous = coordinator.initialize_transaction(len(all_metadata) + 1, previous)
        coordinator.close()
        assert previous is not None, "ready means that there is a batch"
        assert json.loads(json.dumps(previous)) == previous, "S1: survives JSON"
        all_metadata.append(previous)
    assert spout.coordinator().initialize_transaction(len(all_metadata) + 1, previous) is None, (
        "S1: None is nothing new"
    )
    return all_metadata


def rows_of(spout: Spout, metadata: Json) -> list[tuple[Any, ...]]:
    """The batch, read by emitters that were sent elsewhere, split by split, checked against the schema."""
    rows: list[tuple[Any, ...]] = []
    sent = pickle.dumps(spout.emitter())
    splits = pickle.loads(sent).splits(json.loads(json.dumps(metadata)))
    assert [split.index for split in splits] == list(range(len(splits)))
    for split in pickle.loads(pickle.dumps(splits)):
        for batch in pickle.loads(sent).read(split):
            assert batch.schema == arrow_schema(spout.schema), "S5: exactly the fields of the schema"
            batch.validate(full=True)
            rows.extend(table_to_rows(pa.Table.from_batches([batch])))
    return rows


def check_replay(source: Source) -> None:
    """S2: the batch of a txid is the same, whenever it is read."""
    every = metadata_of_all(source.spout)
    first = [rows_of(source.spout, metadata) for metadata in every]
    assert [rows_of(source.spout, metadata) for metadata in reversed(every)] == first[::-1]


def check_coverage(source: Source) -> None:
    """S3: every row is in exactly one transaction."""
    every = metadata_of_all(source.spout)
    assert len(every) > 1, "the source is cut into several batches"
    rows = [row for metadata in every for row in rows_of(source.spout, metadata)]
    assert sorted(rows) == sorted(source.rows)


def check_changed_source(source: Source) -> None:
    """S4: what is not there any more is an error, never fewer rows."""
    every = metadata_of_all(source.spout)
    changed = source.take_away()
    opaque = source.spout.kind is SpoutKind.OPAQUE
    with pytest.raises(SourceUnavailableError if opaque else (SourceChangedError, DamagedInputError)) as caught:
        [rows_of(changed, metadata) for metadata in every]
    assert caught.value.cure


def check_lag(source: Source) -> None:
    """A spout that says what nobody has claimed says less after each transaction, and nothing in the end; asking has no
    effect."""
    every: list[Json] = [None, *metadata_of_all(source.spout)]
    lags = [source.spout.coordinator().lag(metadata) for metadata in every]
    known = [lag for lag in lags if lag is not None]
    assert all(set(lag) <= {"files", "bytes", "records", "rows"} for lag in known)
    for before, after in pairwise(known):
        assert all(after[unit] <= before[unit] for unit in before)
        assert after != before
    assert not known or not any(known[-1].values())
    check_coverage(source)


CHECKS = [check_replay, check_coverage, check_changed_source, check_lag]


@pytest.mark.parametrize("check", CHECKS)
def test_every_spout_keeps_its_promises(source: Source, check: Callable[[Source], None]) -> None:
    check(source)


def test_a_spout_says_what_it_is_in_one_line(source: Source) -> None:
    spout = source.spout
    assert spout.describe().startswith(type(spout).__name__)
    assert "\n" not in spout.describe()
    assert spout.kind is (SpoutKind.OPAQUE if isinstance(spout, OpaqueFolderSpout) else SpoutKind.TRANSACTIONAL)


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"files": [1]}, {"cursor": 1}])
def test_metadata_of_another_spout_is_an_error_and_not_a_new_beginning(source: Source, metadata: Json) -> None:
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
    assert [rows_of(spout, one) for one in (first, second, second)] == [ROWS[0::3], ROWS[1::3], ROWS[2::3]]
    assert not spout.coordinator().is_ready(second)
    assert spout.coordinator().initialize_transaction(3, second) is None
    with pytest.raises(SourceChangedError, match="is not that of a BatchSpout"):
        spout.coordinator().initialize_transaction(3, {"from": 1})
