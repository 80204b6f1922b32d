"""What is of Delta tables alone; what others may do meanwhile is in test_foreign_tables.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import ConfigurationError, CorruptRecordError, OutcomeUnknownError
from airflow_trident.states.delta.table import META, next_version
from airflow_trident.states.tables.appending import Overtaken
from tests.fixtures.deletion_vectors import commit
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


Protocol = dict[str, Any]


def of_features(*writer: str, reader: tuple[str, ...] = ()) -> Protocol:
    names = {"writerFeatures": [*writer, *reader]} | ({"readerFeatures": [*reader]} if reader else {})
    return {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7, **names}


def by_another(spec: StateSpec, protocol: Protocol, configuration: dict[str, str], of_n: dict[str, Any]) -> None:
    """A table as a writer with more features than deltalake makes it. `of_n`: what its column n is to have."""
    made(spec, [WORD, N])
    (path,) = (Path(foreign(spec).table_uri.removeprefix("file://")) / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = protocol
        if "metaData" in line:
            line["metaData"]["configuration"] |= configuration
            schema = json.loads(line["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                if "delta.columnMapping.maxColumnId" in configuration:
                    names = {"id": number, "physicalName": f"col-{number}"}
                    field["metadata"] |= {f"delta.columnMapping.{name}": value for name, value in names.items()}
                field["metadata"] |= of_n if field["name"] == "n" else {}
            line["metaData"]["schemaString"] = json.dumps(schema)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


MAPPED = {"delta.columnMapping.mode": "name"}
BY_OTHERS: dict[str, tuple[Protocol, dict[str, str], dict[str, Any], str]] = {
    "generated columns": (
        of_features("generatedColumns"),
        {},
        {"delta.generationExpression": "length(word)"},
        "its column n has delta.generationExpression",
    ),
    "identity columns": (
        of_features("identityColumns"),
        {},
        {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False},
        "its column n has delta.identity",
    ),
    "identity columns, of old": ({"minReaderVersion": 1, "minWriterVersion": 6}, {}, {}, "its writer version is 6"),
    "row tracking": (
        of_features("rowTracking", "domainMetadata"),
        {"delta.enableRowTracking": "true"},
        {},
        "it tracks rows",
    ),
    "a column mapping": (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {**MAPPED, "delta.columnMapping.maxColumnId": "2"},
        {},
        "it maps names of columns",
    ),
    "a column mapping without names": (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        MAPPED,
        {},
        "lacks the delta.columnMapping.physicalName",
    ),
    "clustering": (of_features("clustering", "domainMetadata"), {}, {}, "not written here: clustering, domainMetadata"),
    "wider types": (of_features(reader=("typeWidening",)), {}, {}, "not written here: typeWidening"),
    "times in commits": (
        of_features("inCommitTimestamp"),
        {"delta.enableInCommitTimestamps": "true"},
        {},
        "not written here: inCommitTimestamp",
    ),
    "collations": (of_features("collations-preview"), {}, {}, "not written here: collations-preview"),
    "Iceberg beside it": (of_features("icebergCompatV2"), {}, {}, "not written here: icebergCompatV2"),
    "a reader of the future": ({"minReaderVersion": 9, "minWriterVersion": 9}, {}, {}, "minimum reader version 9"),
}


@pytest.mark.parametrize("case", BY_OTHERS)
def test_a_table_with_a_feature_that_is_not_written_here_is_refused(spec: StateSpec, case: str) -> None:
    protocol, configuration, of_n, text = BY_OTHERS[case]
    by_another(spec, protocol, configuration, of_n)
    with pytest.raises(ConfigurationError) as caught:
        opened(spec)
    assert text in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize(
    "protocol",
    [
        of_features("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        of_features(reader=("v2Checkpoint", "timestampNtz", "variantType")),
    ],
)
def test_a_table_with_features_that_change_no_file_is_written(
    spec: StateSpec, tmp_path: Path, protocol: Protocol
) -> None:
    by_another(spec, protocol, {"delta.enableChangeDataFeed": "true", "delta.appendOnly": "true"}, {})
    with opened(spec) as state:
        assert state.apply_files(ticket(1), staged(tmp_path, ("a", 1))) is Applied.APPLIED
    assert foreign(spec).count() == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Unsupported table features required: [ClusteredTable]", ConfigurationError),
        ("Transaction failed: the lock table does not answer", OutcomeUnknownError),
        ("Failed to commit transaction: 0", Overtaken),
    ],
)
def test_what_deltalake_says_of_a_commit_is_told_apart(spec: StateSpec, said: str, error: type[Exception]) -> None:
    undone: list[int] = []
    place = spec.factory.place()  # type: ignore[attr-defined]
    with pytest.raises(error), next_version(place, lambda: undone.append(1)):
        raise CommitFailedError(said)
    assert bool(undone) is (error is ConfigurationError), "a file of a commit that may be there stays"


def test_a_feature_that_comes_later_is_refused_before_the_commit(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        commit(tmp_path / "sales", {"protocol": of_features("clustering", "domainMetadata")})
        with pytest.raises(ConfigurationError, match="not written here: clustering"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
    assert foreign(spec).count() == 1


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


@pytest.mark.parametrize("is_new", [True, False])
def test_an_application_transaction_of_ours_that_somebody_else_wrote_is_found(
    spec: StateSpec, tmp_path: Path, is_new: bool
) -> None:
    """As `foreachBatch` does with this `txnAppId`: its version is a number of a batch, and no token of ours."""
    with opened(spec) as state:
        if not is_new:
            state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        app = f"airflow-trident/{spec.topology}/{spec.name}"
        commit(tmp_path / "sales", {"txn": {"appId": app, "version": 2, "lastUpdated": 0}})
        version = foreign(spec).version()
        for found in (lambda: state.apply_files(ticket(2), staged(tmp_path, ("b", 2))), lambda: opened(spec)):
            with pytest.raises(CorruptRecordError, match=r"has no file .* with what is applied of state"):
                found()
    assert foreign(spec).version() == version
    assert foreign(spec).count() == (0 if is_new else 1)
