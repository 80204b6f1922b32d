"""What is of Delta tables alone; what others may do meanwhile is in test_foreign_tables.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.states.delta.table import META
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, staged


@pytest.fixture
def spec(tmp_path: Path) -> StateSpec:
    return TABLES["delta"](tmp_path).spec


def opened(spec: StateSpec) -> Any:
    return spec.factory.make_state(spec)


def foreign(spec: StateSpec) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(spec.factory.path))  # type: ignore[attr-defined]


# ---- what the log says ----------------------------------------------------------------------------------------------


def test_what_the_log_says_of_a_file_leaves_nothing_out(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", -3), (None, 5)))
        state.apply_files(ticket(2), staged(tmp_path, ("x" * 100, 7)))
    table = foreign(spec)
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(one["num_records"] for one in found) == [1, 2]
    assert {(one["min.n"], one["max.n"]) for one in found} == {(-3, 5), (None, None)}
    assert sorted(one["null_count.word"] for one in found) == [0, 1]
    for name, value in (("word", "x" * 100), ("word", "a"), ("n", 5), ("n", 7)):
        assert table.to_pyarrow_table(filters=[(name, "=", value)]).num_rows == 1, "a reader finds it by its statistics"


# ---- tables that are there -------------------------------------------------------------------------------------


def made(spec: StateSpec, ddl: list[Any], **options: Any) -> deltalake.DeltaTable:
    return deltalake.DeltaTable.create(str(spec.factory.path), deltalake.Schema(ddl), **options)  # type: ignore[attr-defined]


def column(name: str, kind: str, *, nullable: bool = True, **metadata: Any) -> deltalake.Field:
    return deltalake.Field(name, deltalake.schema.PrimitiveType(kind), nullable, metadata)


WORD, N = column("word", "string"), column("n", "long")
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a column less": ([WORD], {}, "has no column n"),
    "another type": ([WORD, column("n", "integer")], {}, "its column n is integer, and the field long"),
    "a column more without nulls": ([WORD, N, column("x", "long", nullable=False)], {}, "x takes no nulls"),
    "partitions": ([WORD, N], {"partition_by": ["word"]}, "is partitioned by word"),
    "a retention of transactions": (
        [WORD, N],
        {"configuration": {"delta.setTransactionRetentionDuration": "interval 30 days"}},
        "forgets what was applied",
    ),
    "an invariant": (
        [WORD, column("n", "long", **{"delta.invariants": '{"expression":{"expression":"n > 0"}}'})],
        {},
        "its column n has delta.invariants",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_files_cannot_be_added_to_is_refused(spec: StateSpec, case: str) -> None:
    fields, options, text = REFUSED[case]
    made(spec, fields, **options)
    with pytest.raises(ConfigurationError) as caught:
        opened(spec)
    assert text in str(caught.value)
    assert caught.value.cure


def test_a_constraint_that_comes_later_is_refused_when_it_is_there(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        foreign(spec).alter.add_constraint({"positive": "n > 0"})
        with pytest.raises(ConfigurationError, match="it has the constraint positive"):
            state.apply_files(ticket(2), staged(tmp_path, ("a", -1)))
    assert foreign(spec).to_pyarrow_table()["word"].to_pylist() == ["a"]


def test_columns_that_the_stream_lacks_are_null_and_those_without_nulls_get_none(
    spec: StateSpec, tmp_path: Path
) -> None:
    made(spec, [column("n", "long", nullable=False), WORD, column("more", "string")])
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        with pytest.raises(ConfigurationError, match=r"column 'n' .* takes no nulls, and the batch has some"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", None)))
        marker = state.marker()
        assert marker is not None
        assert marker.high == 1
    assert foreign(spec).to_pyarrow_table().select(["n", "word", "more"]).to_pylist() == [
        {"n": 1, "word": "a", "more": None}
    ]


def test_a_marker_that_is_lost_or_damaged_is_not_guessed_at(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    (path,) = (tmp_path / "sales" / META).rglob("*.json")
    content = json.loads(path.read_text())
    for text in ("", "[]", json.dumps({**content, "of": ["other", "rows"]})):
        path.write_text(text)
        with pytest.raises(CorruptRecordError, match="is damaged"):
            opened(spec)
    path.unlink()
    with pytest.raises(CorruptRecordError, match="has no file"):
        opened(spec)
