"""Ledger records as bytes: what was written once loads for ever, and nothing unreadable is guessed at (P11)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, CorruptRecordError, NewerRecordError
from airflow_trident.protocol import codec, metadata
from airflow_trident.protocol.durable_format import PARTITIONS
from airflow_trident.protocol.durable_format import RECORDS as FORMAT
from airflow_trident.protocol.metadata import BlobRef
from airflow_trident.protocol.partition_keys import encode_keys
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    Command,
    CommitPointer,
    Exceptions,
    Owner,
    StagedRef,
    Status,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.topologies import Definition, SpoutDefinition, StateDefinition
from airflow_trident.protocol.txids import Txids
from tests.fixtures.record import (
    BASE,
    BEGUN,
    CHECKED,
    CLAIM_KEY,
    CLAIMED,
    COMMITTED,
    COMMITTED_2,
    EXCEPTIONS,
    GOLDEN,
    GOLDEN_RECORDS,
    IN_LEDGER,
    IN_PARTITION,
    KEYS,
    LARGE,
    POINTER,
    SHARED,
    TOPOLOGY,
    TOPOLOGY_2,
    TOPOLOGY_BOUND,
    TOPOLOGY_TOLD,
    tx_path,
    unpacked,
)


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_what_a_version_wrote_loads_for_ever(name: str) -> None:
    decode, path, expected = GOLDEN_RECORDS[name]
    assert decode((GOLDEN / name).read_bytes(), path) == expected


def test_every_golden_record_is_loaded_here_or_where_deployments_and_events_are() -> None:
    elsewhere = {
        "test_deployments.py": {"v1-acknowledgement.json", "v1-deployment.json", "v1-registration.json"},
        "test_asset_of_topology.py": {"v1-events.json"},
    }
    for file, names in elsewhere.items():
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        assert [name for name in names if name not in text] == []
    others = set().union(*elsewhere.values())
    chunks = {f"{one}.chunk-0" for one in ("v1-tx-base", "v1-tx-shared")} | {"v1-staged.chunk"}
    assert {path.name for path in GOLDEN.iterdir()} == {*GOLDEN_RECORDS, *chunks} | others


def test_version_1_is_what_is_written() -> None:
    written = {
        "v1-topology.json": codec.encode_topology(TOPOLOGY_2, op="aaaaaaaaaaaaaaaa"),
        "v1-topology-told.json": codec.encode_topology(TOPOLOGY_TOLD, op="aaaaaaaaaaaaaaaa"),
        "v1-tx-committed.json": codec.encode_tx(COMMITTED_2),
        "v1-tx-in-ledger.json": codec.encode_tx(IN_LEDGER),
        "v1-tx-begun.json": codec.encode_tx(BEGUN),
        "v1-tx-checked.json": codec.encode_tx(CHECKED),
        "v1-tx-claimed.json": codec.encode_tx(CLAIMED),
        "v1-head.json": codec.encode_head(45),
        "v1-commit.json": codec.encode_pointer(POINTER),
        "v1-exceptions.json": codec.encode_exceptions(EXCEPTIONS),
        "v1-claim.json": codec.encode_claim(CLAIM_KEY),
        "v1-tx-partition.json": codec.encode_tx(IN_PARTITION),
        "v1-topology-bound.json": codec.encode_topology(TOPOLOGY_BOUND, op="aaaaaaaaaaaaaaaa"),
        "v1-keys.json": encode_keys(KEYS),
    }
    for name, record in (("v1-tx-base.json", LARGE), ("v1-tx-shared.json", SHARED)):
        ref = codec.blob_of((GOLDEN / name).read_bytes(), tx_path(record.txid))
        written[name] = codec.encode_tx(record, ref)
    for name, data in written.items():
        assert json.loads(data) == json.loads((GOLDEN / name).read_bytes()), name


def test_a_version_without_partitions_refuses_a_bound_topology() -> None:
    older = replace(FORMAT, features=FORMAT.features - {PARTITIONS})
    with pytest.raises(NewerRecordError, match="'partitions'"):
        older.load((GOLDEN / "v1-topology-bound.json").read_bytes(), BASE)


# ---- round trips -----------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(2**63), 2**63)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
METADATA = st.dictionaries(TEXTS, JSON, max_size=3)
STAGED_REFS = st.builds(
    StagedRef, manifest=TEXTS, rows_read=NUMBERS, rows=st.dictionaries(TEXTS, NUMBERS, max_size=3), bytes=NUMBERS
)
CLAIMS = st.builds(
    Claim,
    key=TEXTS,
    dag_id=TEXTS,
    run_id=TEXTS,
    map_index=NUMBERS,
    run_ms=NUMBERS,
    cleared=st.booleans(),
    task_ids=st.dictionaries(TEXTS, TEXTS, max_size=2),
    coordinator=TEXTS,
)
RECORDS = st.builds(
    TxRecord,
    txid=st.integers(1, 10**18),
    status=st.sampled_from(Status),
    attempt=st.integers(0, 2**40),
    metadata=METADATA,
    carried=METADATA,
    claim=CLAIMS,
    op=TEXTS,
    owner=st.builds(Owner, dag_id=TEXTS, run_id=TEXTS, program=TEXTS, user=TEXTS, host=TEXTS, pid=NUMBERS),
    fence=st.integers(0, 2**63),
    touched=st.booleans(),
    staged=STAGED_REFS,
    error=TEXTS,
    times_ms=st.dictionaries(TEXTS, NUMBERS, max_size=3),
)


@given(RECORDS)
def test_any_transaction_comes_back_as_it_was(record: TxRecord) -> None:
    assert codec.decode_tx(codec.encode_tx(record), tx_path(record.txid)) == record
    assert codec.op_of(codec.encode_tx(record), "p") == record.op


@settings(max_examples=25)
@given(RECORDS, st.integers(3_000, 6_000), st.integers(1_000, 50_000))
def test_large_metadata_comes_back_as_it_was_from_chunks_of_any_size(
    record: TxRecord, length: int, chunk_bytes: int
) -> None:
    record = replace(record, metadata={"files": [f"{index:x}" * 3 for index in range(length * 4)]})
    packed = metadata.pack_metadata(record, chunk_bytes=chunk_bytes)
    assert packed is not None
    ref, chunks = packed
    data = codec.encode_tx(record, ref)
    assert (len(chunks), codec.blob_of(data, "p")) == (ref.chunks, ref)
    assert all(len(chunk) <= chunk_bytes for chunk in chunks)
    path = tx_path(record.txid)
    assert codec.decode_tx(data, path, unpacked(b"".join(chunks), path)) == record


@given(
    TEXTS,
    TEXTS,
    st.dictionaries(TEXTS, TEXTS),
    st.sampled_from(Command),
    st.integers(0, 2**40),
    NUMBERS,
    st.none() | st.sets(st.integers(1), max_size=9),
)
def test_any_topology_comes_back_as_it_was(
    name: str, incarnation: str, parts: dict[str, str], command: Command, epoch: int, time_ms: int, told: set | None
) -> None:
    record = TopologyRecord(
        name=name.replace("/", "_"),
        incarnation=incarnation or "x",
        definition=Definition(
            spouts={name: SpoutDefinition(text=text, adapts=name) for name, text in parts.items()},
            states={
                name: StateDefinition(text=text, notes=(name,), transforms=(text,)) for name, text in parts.items()
            },
        ),
        command=command,
        epoch=epoch,
        floor_ms=time_ms,
        created_ms=time_ms,
        told=None if told is None else Txids.of(*told),
    )
    assert codec.decode_topology(codec.encode_topology(record, op="o"), f"/v1/{record.name}") == record


@given(st.integers(1), st.integers(0), st.integers(0), st.sets(st.integers(1), max_size=9))
def test_pointers_heads_and_lists_come_back_as_they_were(head: int, committed: int, fence: int, txids: set) -> None:
    ordered = sorted(txids)
    exceptions = Exceptions(
        failed=tuple(ordered[:2]),
        skipped=Txids.of(*ordered[2:5]),
        late=tuple(ordered[5:6]),
        replaying=tuple(ordered[6:7]),
        closed=Txids.of(*ordered[7:]),
    )
    assert codec.decode_head(codec.encode_head(head), "p") == head
    assert codec.decode_exceptions(codec.encode_exceptions(exceptions), "p") == exceptions
    pointer = CommitPointer(committed=committed, fence=fence)
    assert codec.decode_pointer(codec.encode_pointer(pointer), "p") == pointer


def test_small_metadata_stays_in_its_record() -> None:
    assert metadata.pack_metadata(COMMITTED) is None
    assert codec.blob_of(codec.encode_tx(COMMITTED), "p") is None


# ---- nothing unreadable is guessed at --------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_a_newer_version_is_refused_by_name(name: str) -> None:
    decode, path, _ = GOLDEN_RECORDS[name]
    newer = json.loads((GOLDEN / name).read_bytes()) | {"v": 3, "what": "is new"}
    with pytest.raises(NewerRecordError, match=f"{path} has version 3.*reads 1"):
        decode(json.dumps(newer).encode(), path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"{}", b'{"v":0}', b'{"v":"1"}', b'{"v":true}']
)
@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_bytes_that_are_no_record_are_refused_by_name(name: str, data: bytes) -> None:
    decode, path, _ = GOLDEN_RECORDS[name]
    with pytest.raises(CorruptRecordError, match=f"{path} is damaged"):
        decode(data, path)


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_a_field_that_is_missing_or_of_another_type_is_refused(name: str) -> None:
    decode, path, _ = GOLDEN_RECORDS[name]
    body = json.loads((GOLDEN / name).read_bytes())
    changed: list[dict[str, Any]] = []
    for field in body.keys() - {"v"}:
        if field not in ("since", "plan", "features", "told", "partition", "checks"):  # fields that came later
            changed.append({key: value for key, value in body.items() if key != field})
        changed.append(body | {field: object_of_another_type(body[field])})
    for one in changed:
        with pytest.raises(CorruptRecordError, match=path):
            decode(json.dumps(one).encode(), path)


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_what_a_newer_worker_adds_is_tolerated(name: str) -> None:
    decode, path, expected = GOLDEN_RECORDS[name]
    body = json.loads((GOLDEN / name).read_bytes()) | {"of_2031": {"n": 1}, "features": []}
    read = decode(json.dumps(body).encode(), path)
    if isinstance(read, TxRecord | TopologyRecord):
        assert read.extra == {"of_2031": {"n": 1}}
        read = replace(read, extra={})
    assert read == expected


def test_what_a_newer_worker_added_is_kept_when_an_older_one_writes_the_record() -> None:
    topology, record = (json.loads((GOLDEN / name).read_bytes()) for name in ("v1-topology.json", "v1-tx-begun.json"))
    paused = replace(codec.decode_topology(json.dumps(topology | {"of_2031": [7]}).encode(), BASE), epoch=4)
    assert json.loads(codec.encode_topology(paused, op="aaaaaaaaaaaaaaaa")) == topology | {"of_2031": [7], "epoch": 4}
    failed = replace(codec.decode_tx(json.dumps(record | {"of_2031": [7]}).encode(), tx_path(43)), error="x")
    assert json.loads(codec.encode_tx(failed)) == record | {"of_2031": [7], "error": "x"}


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_a_feature_that_is_not_known_is_refused_by_name(name: str) -> None:
    decode, path, _ = GOLDEN_RECORDS[name]
    body = json.loads((GOLDEN / name).read_bytes())
    with pytest.raises(NewerRecordError, match=f"{path} uses what this airflow-trident does not know: 'two heads'"):
        decode(json.dumps(body | {"features": ["two heads"]}).encode(), path)
    for damaged in ("two heads", [1], {}):
        with pytest.raises(CorruptRecordError, match=f"{path} is damaged: its features are"):
            decode(json.dumps(body | {"features": damaged}).encode(), path)


def test_a_damaged_field_is_named() -> None:
    body = json.loads((GOLDEN / "v1-tx-committed.json").read_bytes())
    body["claim"]["run_ms"] = "today"
    with pytest.raises(CorruptRecordError, match=r"field 'claim\.run_ms': expected int, got str"):
        codec.decode_tx(json.dumps(body).encode(), tx_path(42))


def object_of_another_type(value: object) -> object:
    return 1.5 if not isinstance(value, float) else "text"


@pytest.mark.parametrize(
    "change",
    [
        {"txid": 41},
        {"txid": 0},
        {"attempt": -2},
        {"fence": -1},
        {"status": "DONE"},
        {"staged": None},
        {"attempt": NO_ATTEMPT},
        {"touched": 1},
        {"times_ms": {"begun": "today"}},
        {"claim": {}},
    ],
    ids=str,
)
def test_a_transaction_that_contradicts_itself_or_its_place_is_refused(change: dict[str, Any]) -> None:
    body = json.loads(codec.encode_tx(COMMITTED)) | change
    with pytest.raises(CorruptRecordError, match=tx_path(42)):
        codec.decode_tx(json.dumps(body).encode(), tx_path(42))


def test_a_topology_under_another_name_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="speaks of topology 'words'"):
        codec.decode_topology(codec.encode_topology(TOPOLOGY, op="o"), "/v1/other")


def test_a_transaction_that_is_two_exceptions_at_once_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="twice"):
        codec.decode_exceptions(codec.encode_exceptions(Exceptions(failed=(3,), skipped=Txids.of(3))), "p")


@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: b"", lambda packed: packed[::-1]])
def test_damaged_chunks_are_refused(damage: Callable[[bytes], bytes]) -> None:
    ref, chunks = metadata.pack_metadata(LARGE)  # type: ignore[misc]
    with pytest.raises(CorruptRecordError, match=f"{tx_path(44)} metadata"):
        metadata.unpack_metadata(ref, damage(b"".join(chunks)), tx_path(44))


def test_chunks_of_another_transaction_are_refused() -> None:
    ref, _ = metadata.pack_metadata(LARGE)  # type: ignore[misc]
    _, others = metadata.pack_metadata(replace(LARGE, carried={"a": 1}))  # type: ignore[misc]
    with pytest.raises(CorruptRecordError, match="sha256 differs"):
        metadata.unpack_metadata(ref, b"".join(others), tx_path(44))


def test_a_patch_of_another_base_is_refused() -> None:
    text = (GOLDEN / "v1-tx-shared.json").read_bytes()
    ref = codec.blob_of(text, tx_path(45))
    assert ref is not None
    packed = (GOLDEN / "v1-tx-shared.chunk-0").read_bytes()
    for base in (b"", metadata.plain_metadata(SHARED)):
        with pytest.raises(CorruptRecordError, match="sha256 differs"):
            metadata.unpack_metadata(ref, packed, tx_path(45), base)
    with pytest.raises(CorruptRecordError, match="its patch is damaged: it is no list"):
        metadata.unpack_metadata(ref, zlib.compress(b"{}"), tx_path(45), b"")


def test_metadata_that_is_kept_apart_cannot_be_done_without() -> None:
    ref, _ = metadata.pack_metadata(LARGE)  # type: ignore[misc]
    with pytest.raises(CorruptRecordError, match="kept apart"):
        codec.decode_tx(codec.encode_tx(LARGE, ref), tx_path(44))


@pytest.mark.parametrize("value", [{1: 2}, (1, 2), {"a": {1}}, float("inf"), object(), {"a": (1,)}])
def test_what_json_would_change_is_refused_before_it_is_written(value: object) -> None:
    with pytest.raises(ConfigurationError, match="the metadata"):
        codec.require_json(value, "the metadata")


def test_chunk_names_sort_by_transaction_and_tell_their_content() -> None:
    ref = BlobRef(sha256="abcdef0123", bytes=1, chunks=2)
    assert metadata.chunk_name(7, ref, 1) == "0000000000000000007-abcdef01-1"
