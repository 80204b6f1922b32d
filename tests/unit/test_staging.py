"""Staged batches: what is published is read back whole or not at all."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_trident.contracts.state import ReplacedFiles
from airflow_trident.errors import (
    ConfigurationError,
    NewerRecordError,
    StagingError,
)
from airflow_trident.io.arrow import arrow_schema, rows_to_table, table_to_rows
from airflow_trident.staging.answers import answered, as_answer
from airflow_trident.staging.area import StagingArea, reference, write_part
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, TableRewrite, decode, encode
from airflow_trident.types import Schema, ddl, parse_declared

WORDS = parse_declared("word string, n long")
EVERY_TYPE = parse_declared(
    "s string, l long, i int, d double, f float, b boolean, y binary, day date, at timestamp, p decimal(10,2), "
    "a array<string>, aa array<array<long>>, c time, took interval day to second, m map<time,array<date>>"
)
GOLDEN = Path(__file__).parents[1] / "golden" / "records"
SLOT = Slot(topology="words", incarnation="i1", txid=7, attempt=2)


def words(*rows: tuple[object, ...]) -> pa.Table:
    return rows_to_table(WORDS, list(rows))


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "staging"))


def staged(
    area: StagingArea, *tables: pa.Table, state: str = "counts", slot: Slot = SLOT, schema: Schema = WORDS
) -> Manifest:
    files = tuple(area.write(slot, state, table) for table in tables)
    return Manifest(slot=slot, files=files, rows_read=11, sinks={state: ddl(schema)})


def path_of(area: StagingArea, file: StagedFile) -> Path:
    return Path(area.root) / file.path


# ---- write, publish, load, read --------------------------------------------------------------------------------


def test_what_is_published_is_loaded_and_read_back(area: StagingArea) -> None:
    manifest = staged(area, words(("a", 1), ("b", 2)), words((None, None)))
    ref = area.publish(manifest)
    assert ref.manifest == "words/i1/0000000000000000007/2/manifest.json"
    assert (ref.rows_read, ref.rows) == (11, {"counts": 3})
    assert ref.bytes == sum(path_of(area, file).stat().st_size for file in manifest.files)
    for what in (ref, SLOT):
        assert encode(area.load(what)) == encode(manifest)
    assert sorted(table_to_rows(area.read(area.load(ref), "counts", WORDS)), key=repr) == [
        ("a", 1),
        ("b", 2),
        (None, None),
    ]


def test_every_type_survives_staging(area: StagingArea) -> None:
    import datetime
    from decimal import Decimal

    row = (
        "\0é\U0001f600",
        -(2**63),
        2**31 - 1,
        0.1,
        0.5,
        True,
        b"\xff\0",
        datetime.date(1, 1, 1),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.UTC),
        Decimal("-12345678.90"),
        ["", None],
        [[1], [], None],
        datetime.time(23, 59, 59, 999999),
        datetime.timedelta(days=-1, microseconds=1),
        {datetime.time(1): [datetime.date(1, 1, 1), None]},
    )
    nothing = (None,) * len(EVERY_TYPE)
    manifest = staged(area, rows_to_table(EVERY_TYPE, [row, nothing]), schema=EVERY_TYPE)
    table = area.read(manifest, "counts", EVERY_TYPE)
    assert table.schema == arrow_schema(EVERY_TYPE)
    assert table_to_rows(table) == [row, nothing]


def test_a_state_without_staged_rows_reads_as_an_empty_table(area: StagingArea) -> None:
    for manifest in (staged(area), staged(area, words())):
        assert area.read(manifest, "counts", WORDS) == arrow_schema(WORDS).empty_table()


def test_what_was_not_staged_is_another_thing_than_no_rows(area: StagingArea) -> None:
    """`ledger accept` gives a topology another state while batches are staged (c747a8b: it got empty ones)."""
    manifest = staged(area, words(("a", 1)))
    with pytest.raises(StagingError, match=r"attempt 2 of transaction 7 was not staged for 'total'.*had no such state"):
        area.read(manifest, "total", WORDS)
    with pytest.raises(StagingError, match=r"with the fields \(word string, n long\).*topology changed"):
        area.read(manifest, "counts", parse_declared("word string, n double"))


def test_states_are_kept_apart(area: StagingArea) -> None:
    one, two = staged(area, words(("a", 1))), staged(area, words(("b", 2)), state="others")
    both = Manifest(slot=SLOT, files=one.files + two.files, rows_read=-1, sinks={**one.sinks, **two.sinks})
    assert table_to_rows(area.read(both, "others", WORDS)) == [("b", 2)]
    assert reference(both).rows == {"counts": 1, "others": 1}


def test_record_batches_are_written_like_a_table(area: StagingArea) -> None:
    batches = [*words(("a", 1)).to_batches(), *words(("b", 2)).to_batches()]
    manifest = Manifest(
        slot=SLOT, files=(write_part(area.place, SLOT, "counts", batches),), rows_read=2, sinks={"counts": ddl(WORDS)}
    )
    assert table_to_rows(area.read(manifest, "counts", WORDS)) == [("a", 1), ("b", 2)]


def test_files_that_the_manifest_does_not_name_are_not_read(area: StagingArea) -> None:
    manifest = staged(area, words(("a", 1)))
    area.write(SLOT, "counts", words(("zombie", 1)))
    area.publish(manifest)
    assert table_to_rows(area.read(area.load(SLOT), "counts", WORDS)) == [("a", 1)]


def test_a_worker_can_be_sent_the_writer(area: StagingArea) -> None:
    sent = pickle.loads(pickle.dumps((write_part, area, SLOT)))
    assert sent == (write_part, area, SLOT)


def test_a_root_may_be_relative_or_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = StagingArea("~/staging").write(SLOT, "counts", words(("a", 1)))
    assert (tmp_path / "staging" / file.path).exists()
    assert (
        StagingArea("staging")
        .read(Manifest(slot=SLOT, files=(file,), rows_read=1, sinks={"counts": ddl(WORDS)}), "counts", WORDS)
        .num_rows
        == 1
    )


def test_a_name_that_leaves_the_staging_folder_is_refused(area: StagingArea) -> None:
    for bad in ("../x", "..", "", "a/b", "a\0b"):
        with pytest.raises(ConfigurationError, match="staging path"):
            area.write(replace(SLOT, topology=bad), "counts", words())


@pytest.mark.parametrize("label", ["../up", "per day: a b\n", "ä" * 300, "a%2Fb?c#d"])
def test_a_stream_that_is_handed_on_may_have_any_label(area: StagingArea, label: str) -> None:
    file = area.write(SLOT, f"~{label}.each-2", words(("a", 1)))
    folder, _, name = file.path.rpartition("/")
    assert folder == SLOT.path
    assert re.fullmatch(r"~[\w.~-]{,199}-[0-9a-f]{32}\.parquet", name, re.ASCII)
    manifest = Manifest(slot=SLOT, files=(file,), rows_read=1, sinks={file.state: ddl(WORDS)})
    area.publish(manifest)
    assert area.read(area.load(SLOT), file.state, WORDS).num_rows == 1


# ---- one owner -------------------------------------------------------------------------------------------------


def test_publishing_the_same_manifest_again_succeeds(area: StagingArea) -> None:
    manifest = staged(area, words(("a", 1)), words(("b", 1)))
    again = replace(manifest, files=manifest.files[::-1])
    assert area.publish(manifest) == area.publish(again)


def test_a_second_owner_of_an_attempt_is_refused_and_the_first_one_stands(area: StagingArea) -> None:
    first, second = staged(area, words(("a", 1))), staged(area, words(("a", 1)))
    area.publish(first)
    with pytest.raises(StagingError, match=r"has published another staged batch already.*new attempt"):
        area.publish(second)
    assert area.load(SLOT) == first
    assert not list(Path(area.root).rglob("*.tmp"))


def test_of_many_publishers_at_once_exactly_one_wins(tmp_path: Path) -> None:
    """Real processes behind a barrier: a pipe that is closed for all of them at once."""
    script = (
        "import sys; from airflow_trident.io.place import put_if_absent\n"
        "print('ready', flush=True); sys.stdin.read()\n"
        "print(put_if_absent(sys.argv[1], sys.argv[2].encode()), flush=True)"
    )
    target = tmp_path / "manifest.json"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(target), f"racer {n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    outcomes = [racer.communicate(input="")[0].strip() for racer in racers]
    assert sorted(outcomes) == ["False", "False", "False", "True"]
    assert target.read_text() == f"racer {outcomes.index('True')}"
    assert os.listdir(tmp_path) == ["manifest.json"]


# ---- nothing unreadable is guessed at --------------------------------------------------------------------------


def test_a_missing_manifest_says_to_process_again(area: StagingArea) -> None:
    for what in (SLOT, reference(Manifest(slot=SLOT, files=(), rows_read=0, sinks={}))):
        with pytest.raises(StagingError, match=r"is not in the staging folder .* again"):
            area.load(what)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"\xff", b'{"version": 1}', b'{"version": "1"}', b'{"version": 0}'],
)
def test_a_damaged_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(StagingError, match=r"'m\.json' is damaged.*again"):
        decode(content, "m.json")


@pytest.mark.parametrize("name", ["topology", "incarnation", "txid", "attempt", "rows_read", "files", "sinks"])
def test_a_manifest_with_a_wrong_field_is_refused(name: str) -> None:
    record = json.loads(encode(Manifest(slot=SLOT, files=(), rows_read=0, sinks={"counts": "n bigint"})))
    for wrong in (None, True, 1.5, {"counts": 7}):
        with pytest.raises(StagingError, match=rf"field .*\b{name}\b"):
            decode(json.dumps({**record, name: wrong}).encode(), "m.json")


def test_a_newer_manifest_is_refused_by_name() -> None:
    with pytest.raises(NewerRecordError, match=r"'m\.json' has version 4, and this airflow-trident reads 1"):
        decode(b'{"version": 4, "other": []}', "m.json")


def test_version_1_loads_for_ever() -> None:
    golden = b"""{"version": 1, "topology": "t", "incarnation": "i", "txid": 3, "attempt": 0, "rows_read": -1,
      "files": [{"state": "s", "path": "t/i/0000000000000000003/0/s-1.parquet", "rows": 2, "bytes": 10}],
      "sinks": {"s": "n long"}}"""
    assert decode(golden, "m.json") == Manifest(
        slot=Slot(topology="t", incarnation="i", txid=3, attempt=0),
        files=(StagedFile(state="s", path="t/i/0000000000000000003/0/s-1.parquet", rows=2, bytes=10),),
        rows_read=-1,
        sinks={"s": "n long"},
    )


@pytest.mark.parametrize("path", ["../secret/manifest.json", "/etc/hostname", "a/../../secret", "", "a\0b"])
def test_records_that_name_something_outside_of_the_staging_folder_are_refused(area: StagingArea, path: str) -> None:
    secret = Path(area.root).parent / "secret"
    secret.mkdir(parents=True)
    manifest = staged(area, words(("a", 1)))
    (secret / "manifest.json").write_bytes(encode(manifest))
    with pytest.raises(StagingError, match=r"is not below the staging folder.*Run the processing phase"):
        area.load(replace(reference(manifest), manifest=path))
    elsewhere = replace(manifest, files=(replace(manifest.files[0], path=path),))
    for use in (lambda: area.read(elsewhere, "counts", WORDS), lambda: area.publish(elsewhere)):
        with pytest.raises(StagingError, match="is not below the staging folder"):
            use()


def test_a_missing_staged_file_is_an_error_never_fewer_rows(area: StagingArea) -> None:
    manifest = staged(area, words(("a", 1)), words(("b", 1)))
    path_of(area, manifest.files[0]).unlink()
    with pytest.raises(StagingError, match=r"is missing\. Run the processing phase"):
        area.read(manifest, "counts", WORDS)


@pytest.mark.parametrize("damage", ["cut", "longer", "overwritten", "other rows", "other fields"])
def test_a_damaged_staged_file_is_an_error(area: StagingArea, damage: str) -> None:
    manifest = staged(area, words(("a", 1)))
    (file,) = manifest.files
    path = path_of(area, file)
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "longer":
        path.write_bytes(content + b"x")
    elif damage == "overwritten":
        path.write_bytes(b"x" * len(content))
    elif damage == "other rows":
        file = StagedFile(state=file.state, path=file.path, rows=2, bytes=file.bytes)
    else:
        other = rows_to_table(parse_declared("word string, m long"), [("a", 1)])
        file = area.write(SLOT, "counts", other)
    manifest = Manifest(slot=SLOT, files=(file,), rows_read=1, sinks={"counts": ddl(WORDS)})
    with pytest.raises(StagingError, match=r"staged file.*again"):
        area.read(manifest, "counts", WORDS)


# ---- cleaning --------------------------------------------------------------------------------------------------


def test_only_lower_transactions_of_the_same_topology_that_are_not_kept_are_removed(area: StagingArea) -> None:
    slots = [
        Slot(topology=topology, incarnation=incarnation, txid=txid, attempt=0)
        for topology in ("words", "other")
        for incarnation in ("i1", "i2")
        for txid in (1, 2, 3)
    ]
    for slot in slots:
        area.publish(staged(area, words(("a", 1)), slot=slot))
    (Path(area.root) / "words" / "i1" / "notes").mkdir()
    assert area.remove_before("words", "i1", 3, {2}.__contains__) == 1
    assert area.remove_before("words", "i1", 3, {2}.__contains__) == 0
    assert area.remove_before("unknown", "i1", 3, {2}.__contains__) == 0
    for slot in slots:
        gone = (slot.topology, slot.incarnation) == ("words", "i1") and slot.txid < 2
        assert (Path(area.root) / slot.path).exists() is not gone
    assert (Path(area.root) / "words" / "i1" / "notes").exists()


# ---- small batches, which a ledger keeps -----------------------------------------------------------------------


def test_a_small_batch_comes_back_from_its_chunk_and_leaves_nothing_in_the_folder(area: StagingArea) -> None:
    tables = (words(("a", 1)), words((None, None)))
    files = tuple(area.write(SLOT, "counts", table, kept_bytes=10_000) for table in tables)
    manifest = Manifest(slot=SLOT, files=files, rows_read=11, sinks={"counts": ddl(WORDS)})
    ref = area.publish(manifest, chunk_bytes=10_000)
    assert (ref.chunk, ref.rows) == ("0000000000000000007-staged-2", {"counts": 2})
    found = table_to_rows(area.read(area.load(ref, ref.content), "counts", WORDS))
    assert sorted(found, key=repr) == [("a", 1), (None, None)]
    assert not Path(area.root).exists()


def test_rows_that_are_large_in_memory_are_not_packed_to_see(area: StagingArea) -> None:
    file = area.write(SLOT, "counts", words(*[("a", 1)] * 10_000), kept_bytes=10_000)
    assert file.content == b""
    assert path_of(area, file).stat().st_size == file.bytes < 10_000


def test_what_version_1_kept_in_a_ledger_is_read(area: StagingArea) -> None:
    content = (GOLDEN / "v1-staged.chunk").read_bytes()
    manifest = area.load(SLOT, content)
    assert table_to_rows(area.read(manifest, "counts", WORDS)) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 500])
def test_a_damaged_chunk_is_refused(area: StagingArea, content: bytes) -> None:
    with pytest.raises(StagingError, match="is damaged"):
        area.load(SLOT, content)


def test_what_a_batch_replaces_in_its_table_is_in_the_manifest_and_its_files_are_looked_at(area: StagingArea) -> None:
    table, schema = pa.table({"n": [1]}), parse_declared("n long")
    batch, left = area.write(SLOT, "rows", table), area.write(SLOT, "rows", table)
    rewrite = TableRewrite(state="rows", version="id/7", gone=("_data/a", "_data/b"), files=(left,))
    manifest = Manifest(slot=SLOT, files=(batch,), rows_read=1, sinks={"rows": ddl(schema)}, rewrites=(rewrite,))
    assert decode(encode(manifest), "m.json") == manifest
    assert manifest.rows == {"rows": 1}
    published = area.load(area.publish(manifest))
    path = area.place.at(left.path)
    files = area.files(published, "rows", schema)
    assert files is not None
    assert files.replaces == ReplacedFiles(version="id/7", gone=rewrite.gone, left=(path,))
    area.require_there(published, {"rows": schema})
    os.remove(path)
    with pytest.raises(StagingError, match="is missing"):
        area.require_there(published, {"rows": schema})


# ---- batches in the answers of drivers ------------------------------------------------------------------------------


FRUIT = Slot(topology="fruit", incarnation="one", txid=7, attempt=1)


def batch(*contents: bytes) -> Manifest:
    files = tuple(
        StagedFile(state="count", path=f"{FRUIT.path}/count-{n}.parquet", rows=1, bytes=len(content), content=content)
        for n, content in enumerate(contents)
    )
    return Manifest(slot=FRUIT, files=files, rows_read=2, sinks={"count": "n long"})


def test_a_small_batch_travels_whole_and_no_file_is_written(tmp_path: Path) -> None:
    for manifest in (batch(b"one", b"two"), batch()):
        answer = as_answer(StagingArea(str(tmp_path)), manifest, 10_000)
        back = answered(answer, "there")
        assert back == manifest
        assert [file.content for file in back.files] == [file.content for file in manifest.files]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 100])
def test_the_files_of_a_larger_one_are_written_and_those_that_executors_wrote_stay_theirs(
    tmp_path: Path, limit: int
) -> None:
    manifest = batch(b"x" * 200, b"y")
    theirs = replace(manifest, files=(*manifest.files, replace(manifest.files[0], path=f"{FRUIT.path}/t", content=b"")))
    back = answered(as_answer(StagingArea(str(tmp_path)), theirs, limit), "there")
    assert back == theirs
    assert [file.content for file in back.files] == [b"", b"", b""]
    assert [(tmp_path / file.path).read_bytes() for file in manifest.files] == [b"x" * 200, b"y"]
    assert not (tmp_path / FRUIT.path / "t").exists()


def test_a_damaged_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert answered({"more": 1}, "there") is None
    whole = as_answer(StagingArea(str(tmp_path)), batch(b"one"), 10_000)["packed"]
    changed = bytearray(base64.b64decode(whole))
    changed[changed.index(b"one")] ^= 1
    for packed in ("?", whole[: len(whole) // 2 // 4 * 4], base64.b64encode(changed).decode()):
        with pytest.raises(StagingError, match="'there' is damaged"):
            answered({"packed": packed}, "there")
