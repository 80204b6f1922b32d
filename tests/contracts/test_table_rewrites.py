"""Copy-on-write: a row replaces that of its key, whoever commits, dies or writes between processing and commit."""

from __future__ import annotations

import datetime
import json
import math
import pickle
import signal
import struct
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.contracts.state import Applied, BatchKeys, ReplacedFiles, StagedFiles
from airflow_trident.errors import DamagedInputError, FencedError, OutcomeUnknownError, TableChangedError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.staging.table_rewrites import rest_of
from airflow_trident.states.delta.table import described
from airflow_trident.types import Field, names_of, parse_declared
from tests.fixtures.program import run_code
from tests.fixtures.rewrites import (
    KINDS,
    appended,
    files_in,
    found,
    keyed,
    processed,
    remove,
    rows_of,
    two,
    version_without_other_files,
)
from tests.fixtures.state import ticket
from tests.fixtures.table import (
    TABLES,
    ForeignDeltaTable,
    ForeignIcebergTable,
    ForeignTable,
    after_the_commit,
    before_the_commit,
)


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ForeignTable:
    return keyed(tmp_path, request.param)


# ---- what is replaced ------------------------------------------------------------------------------------------


def test_a_row_replaces_that_of_its_key_and_files_without_such_keys_stay(table: ForeignTable) -> None:
    with table.opened() as state:
        two(table, state)
        before = set(files_in(table))
        files = processed(table, state, 3, (2, "new"), (5, "e"))
        assert state.apply_files(ticket(3), files) is Applied.APPLIED
        assert state.apply_files(ticket(3, fence=99), files) is Applied.ALREADY
        assert len(before & set(files_in(table))) == 1, "the one with 3 and 4"
        assert found(table) == [(1, "a"), (2, "new"), (3, "c"), (4, "d"), (5, "e")]
        assert dict(state.items())[(2,)] == ("new", None)
        last = processed(table, state, 4, (1, "x"), (2, "y"), (5, None, True), (7, None, True))
        state.apply_files(ticket(4, fence=100), last)
    assert found(table) == [(1, "x"), (2, "y"), (3, "c"), (4, "d")]


KEYS = parse_declared("id long, word string, at timestamp, day date, n long")
DAY = datetime.date(2024, 1, 1)


def row_of(number: int) -> tuple[Any, ...]:
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 999, datetime.UTC) + datetime.timedelta(hours=number)
    return number, f"{number:05}", at, DAY + datetime.timedelta(days=number), number


@given(
    kind=st.sampled_from(KINDS),
    keys=st.sets(st.sampled_from(KEYS[:4]), min_size=1),
    files=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 40)), min_size=1, max_size=6),
    batch_of=st.sets(st.integers(0, 1050), min_size=1, max_size=4),
)
@settings(max_examples=10)
def test_only_files_whose_bounds_may_have_a_key_of_the_batch_are_opened(
    kind: str, keys: set[Field], files: list[tuple[int, int]], batch_of: set[int]
) -> None:
    """Each other file is made unreadable."""
    key_fields = tuple(sorted(keys, key=KEYS.index))
    with TemporaryDirectory() as name:
        table = TABLES[kind](Path(name), KEYS)
        values = tuple(field for field in KEYS if field not in keys)
        table.spec = replace(table.spec, keys=key_fields, values=values, rewrites=True)
        wanted = set[str]()
        with table.opened() as state:
            before = set[str]()
            for low, width in files:
                appended(table, rows_to_table(KEYS, [row_of(number) for number in range(low, low + width + 1)]))
                (path,) = set(files_in(table)) - before
                before.add(path)
                if any(low <= number <= low + width for number in batch_of):
                    wanted.add(path)
                else:
                    Path(path.removeprefix("file://")).write_bytes(b"")
            committed = state.committed()
            batch_keys = BatchKeys.of(rows_to_table(KEYS, [*map(row_of, batch_of)]).select(names_of(key_fields)))
            chosen = {
                path for place, path in enumerate(committed.paths) if rest_of(committed, place, batch_keys) is not None
            }
        assert {Path(path).name for path in chosen} == {Path(path).name for path in wanted}


def test_a_batch_that_nobody_compared_with_the_table_is_by_the_committer(table: ForeignTable) -> None:
    with table.opened() as state:
        two(table, state)
        assert state.apply(ticket(3), rows_of((2, "new"), (3, None, True))) is Applied.APPLIED
        bare = replace(processed(table, state, 4, (4, "e")), replaces=None)
        assert state.apply_files(ticket(4), bare) is Applied.APPLIED
    assert found(table) == [(1, "a"), (2, "new"), (4, "e")]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_others_stay_and_a_key_moves_between_partitions(tmp_path: Path, kind: str) -> None:
    table = keyed(tmp_path, kind, partition_by=("word",))
    with table.opened() as state:
        table.add_column()
        appended(table, rows_of((1, "a"), (2, "a")).append_column("more", pa.array(["x", "y"])))
        state.apply_files(ticket(1), processed(table, state, 1, (1, "b")))
        assert sorted(map(str, table.read().select(["id", "word", "more"]).to_pylist())) == [
            "{'id': 1, 'word': 'b', 'more': None}",
            "{'id': 2, 'word': 'a', 'more': 'y'}",
        ]
        state.apply(ticket(2), rows_of((2, "b")))
    assert found(table) == [(1, "b"), (2, "b")]


def test_keys_of_all_types_are_found_and_a_null_of_others_is_none(tmp_path: Path) -> None:
    from decimal import Decimal

    values = {
        "string": "a", "int": 1, "boolean": True, "date": datetime.date(2024, 1, 2), "binary": b"x",
        "decimal(10,2)": Decimal("1.50"),
        "timestamp": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    }  # fmt: skip
    for place, (kind, value) in enumerate(values.items()):
        fields = parse_declared(f"k {kind}, n long")
        made = ForeignDeltaTable(tmp_path / str(place), fields)
        made.folder.mkdir()
        made.spec = replace(made.spec, keys=fields[:1], values=fields[1:], rewrites=True)
        with made.opened() as state:
            schema = state.committed().schema()
            rows = [pa.Table.from_pylist([{"k": one, "n": n}], schema=schema) for one, n in ((value, 1), (None, 2))]
            for row in rows:
                appended(made, row)
            state.apply(ticket(1), pa.Table.from_pylist([{"k": value, "n": 3}], schema=schema))
        assert sorted(made.read()["n"].to_pylist()) == [2, 3], kind


# ---- others, zombies and kills ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [[0.0, math.nan, 100.0], [100.0, math.nan, 200.0]], ids=["zero", "bounds"])
def test_nan_is_one_key_and_so_are_both_zeros(tmp_path: Path, file: list[float]) -> None:
    """Statistics of a file say nothing of its NaN."""
    fields, negative_nan = parse_declared("id double, word string"), struct.unpack("<d", b"\0\0\0\0\0\0\xf8\xff")[0]
    table = ForeignDeltaTable(tmp_path, fields)
    table.spec = replace(table.spec, keys=fields[:1], values=fields[1:], rewrites=True)
    with table.opened() as state:
        for txid, keys in ((1, file), (2, [-0.0, negative_nan, 5.0])):
            state.apply(ticket(txid), pa.table({"id": keys, "word": [f"{txid}-{key:g}" for key in keys]}))
        old = [f"1-{key:g}" for key in file if key >= 100]
        assert sorted(row[1][0] for row in state.items()) == sorted([*old, "2--0", "2-nan", "2-5"])


def test_rows_that_others_added_since_then_are_never_guessed_at(table: ForeignTable) -> None:
    with table.opened() as state:
        two(table, state)
        for act in (lambda: appended(table, rows_of((2, "theirs"))), table.compact, lambda: table.delete("b")):
            files = processed(table, state, 3, (2, "ours"))
            act()
            before = found(table)
            with pytest.raises(TableChangedError, match="others have written to the"):
                state.apply_files(ticket(3), files)
            assert found(table) == before
            assert state.marker().high == 2
        state.apply_files(ticket(3), processed(table, state, 3, (2, "ours")))
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d")]


def test_versions_without_other_files_are_as_good(table: ForeignTable) -> None:
    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "ours"))
        version_without_other_files(table)
        if not isinstance(table, ForeignIcebergTable):  # there a snapshot may delete rows of any file
            remove(table, "c", "d")
        assert state.apply_files(ticket(3), files) is Applied.APPLIED
    assert [row for row in found(table) if row[0] < 3] == [(1, "a"), (2, "ours")]
    assert isinstance(table, ForeignIcebergTable) or len(found(table)) == 2, "what they deleted stays deleted"


def test_a_column_that_others_drop_meanwhile_ends_in_another_attempt(table: ForeignTable) -> None:
    """Else the rewritten file has a column that the table lacks, each time that the commit is run again."""
    with table.opened() as state:
        table.add_column()
        appended(table, rows_of((1, "a"), (2, "b")).append_column("more", pa.array(["x", "y"])))
        files = processed(table, state, 1, (1, "ours"))
        if isinstance(table, ForeignIcebergTable):
            with table.table.update_schema() as update:
                update.delete_column("more")
        else:  # without a mapping of names it takes other files
            deltalake.write_deltalake(
                table.folder / "sales", table.read().drop(["more"]), mode="overwrite", schema_mode="overwrite"
            )
        with suppress(TableChangedError):
            state.apply_files(ticket(1), files)
        state.apply_files(ticket(1, attempt=1, fence=50), processed(table, state, 1, (1, "ours")))
    assert found(table) == [(1, "ours"), (2, "b")]


def test_workers_read_a_local_delta_table_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path, "delta")
    with table.opened() as state:
        two(table, state)
        committed = pickle.loads(pickle.dumps(state.committed()))
    for name in [one for one in sys.modules if one.partition(".")[0] == "deltalake"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert sorted(row["id"] for place in (0, 1) for one in committed.pieces(place) for row in one.to_pylist()) == [
        1, 2, 3, 4,
    ]  # fmt: skip


def test_who_writes_while_it_commits_is_seen(table: ForeignTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.opened() as state:
        two(table, state)
        before_the_commit(table, state, monkeypatch, lambda: appended(table, rows_of((2, "theirs"))))
        with pytest.raises(TableChangedError):
            state.apply_files(ticket(3), processed(table, state, 3, (2, "ours")))
        before_the_commit(table, state, monkeypatch, lambda: appended(table, rows_of((2, "theirs again"))))
        assert state.apply(ticket(3), rows_of((2, "ours"))) is Applied.APPLIED
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d")]
    left = {path.name for path in table.data_files()} - {Path(path).name for path in files_in(table)}
    assert not [name for name in left if name.startswith("trident-0000000000000000003")], "nothing written in vain"


@pytest.mark.parametrize("by", ["files", "rows"])
def test_a_zombie_changes_nothing(table: ForeignTable, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(3, attempt=1, fence=99), processed(table, other, 3, (2, "new"), (5, "e")))

    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "zombie"), (5, "zombie"))
        before_the_commit(table, state, monkeypatch, newer)
        apply = {"files": state.apply_files, "rows": state.apply}[by]
        with pytest.raises(FencedError):
            apply(ticket(3), files if by == "files" else rows_of((2, "zombie")))
        with pytest.raises(FencedError):
            state.apply_files(ticket(3, fence=40), files)
    assert found(table) == [(1, "a"), (2, "new"), (3, "c"), (4, "d"), (5, "e")]


@pytest.mark.parametrize("by", ["files", "rows"])
def test_a_commit_that_got_no_answer_is_there_once(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "ours"))
        after_the_commit(table, state, monkeypatch, table.lost, lambda: appended(table, rows_of((9, "theirs"))))
        done = state.apply_files(ticket(3), files) if by == "files" else state.apply(ticket(3), rows_of((2, "ours")))
        assert done in (Applied.APPLIED, Applied.ALREADY)
        assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d"), (9, "theirs")]
        after_the_commit(table, state, monkeypatch, OSError("lost"))
        files = processed(table, state, 4, (9, "ours"))
        with suppress(OutcomeUnknownError):  # a storage may find out
            state.apply_files(ticket(4), files)
        assert state.apply_files(ticket(4, fence=50), files) is Applied.ALREADY
    assert found(table)[-1] == (9, "ours")


WORKER = """
import sys
from pathlib import Path
from tests.fixtures.rewrites import keyed, processed
from pyiceberg.table.update.snapshot import _OverwriteFiles
from tests.fixtures.state import ticket
from tests.fixtures.table import die_at

folder, kind, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = keyed(folder, kind)
state = table.opened()
files = processed(table, state, 3, (2, "ours"), (5, "e"))
die_at(_OverwriteFiles if name == "commit" else table.steps[name](state), name, when)
state.apply_files(ticket(3), files)
"""
CUTS = [(kind, when, step) for kind in KINDS for step in TABLES[kind].steps for when in ("before", "after")]


@pytest.mark.parametrize(("kind", "when", "step"), CUTS, ids=[" ".join(cut) for cut in CUTS])
def test_a_commit_killed_anywhere_is_there_whole_or_not_at_all(tmp_path: Path, kind: str, when: str, step: str) -> None:
    table = keyed(tmp_path, kind)
    with table.opened() as state:
        two(table, state)
    dead = run_code(WORKER, table.folder, kind, when, step)
    assert dead.returncode == -signal.SIGKILL
    steps = list(table.steps)
    is_there = steps.index(step) + (when == "after") > steps.index(table.decisive)
    assert ((2, "ours") in found(table)) is is_there
    with table.opened() as state:
        again = processed(table, state, 3, (2, "ours"), (5, "e"))
        done = state.apply_files(ticket(3, attempt=1, fence=77), again)
    assert done is (Applied.ALREADY if is_there else Applied.APPLIED)
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d"), (5, "e")]


# ---- its files -------------------------------------------------------------------------------------------------


def test_a_rewritten_file_has_the_rows_in_few_row_groups(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    with table.opened() as state:
        many = pa.table({"id": range(300_000), "word": ["w"] * 300_000, "gone": pa.nulls(300_000, pa.bool_())})
        appended(table, many)
        files = processed(table, state, 1, (7, "x"))
        (left,) = files.replaces.left
        assert pq.read_metadata(left).num_rows == 299_999
        assert pq.read_metadata(left).num_row_groups <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_calendar_is_not_written_anew_as_if_it_were_of_this_one(tmp_path: Path, kind: str) -> None:
    """Spark 2 counts days before 1582 in the Julian calendar: 1001-01-01 would become 1001-01-07, for good."""
    fields = parse_declared("id long, day date")
    table = TABLES[kind](tmp_path, fields)
    table.spec = replace(table.spec, keys=fields[:1], values=fields[1:], rewrites=True)
    rows = rows_to_table(fields, [(1, datetime.date(1001, 1, 7)), (2, datetime.date(1001, 1, 7))])
    path = tmp_path / "old.parquet"
    pq.write_table(rows.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), path)
    with table.opened() as state:
        state.apply_files(
            ticket(1),
            StagedFiles(paths=(str(path),), num_rows=2, replaces=ReplacedFiles(version=state.committed().version)),
        )
        before = files_in(table)
        with pytest.raises(DamagedInputError, match=r"has to be written anew.*calendar"):
            state.apply(ticket(2), rows_to_table(fields, [(1, None)]))
        assert files_in(table) == before
        assert state.apply(ticket(2), rows_to_table(fields, [(3, None)])) is Applied.APPLIED


def test_a_moment_that_python_does_not_have_has_no_statistics_in_a_delta_table(tmp_path: Path) -> None:
    path = tmp_path / "late.parquet"
    pq.write_table(pa.table({"at": pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))}), path)
    entry = described(pq.read_metadata(path), "late.parquet", 1, ["at"], {}).entry
    assert json.loads(entry.stats) == {"numRecords": 1, "nullCount": {"at": 0}}
