"""What a FileSink promises besides: on a file system and in a bucket, killed or stopped between its steps, and for who
reads what it writes."""

from __future__ import annotations

import datetime
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    NewerRecordError,
    StoreUnavailableError,
)
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.place import PROBE, Place, PosixPlace
from airflow_trident.runtime.drains.order import connections_of
from airflow_trident.spouts.files.spout import FileSpout
from airflow_trident.states.files.sink import KEEP, META, FileSink, OpenFileSink
from airflow_trident.types import parse_declared
from tests.contracts.test_sinks import CLOCK, OTHER, ROWS, TOOK, batch, expected, rows_of, spec_of
from tests.faults.http_proxy import Answer, Request, Verdict
from tests.fixtures.azurite import Container
from tests.fixtures.object_store import CONN_ID, Bucket
from tests.fixtures.program import run_code
from tests.fixtures.state import ticket

WORKER = """
import os, signal, sys
from pathlib import Path
from tests.contracts.test_sinks import OTHER, spec_of
from tests.fixtures.state import batch, ticket

folder, where = sys.argv[1:]
spec = spec_of("files", Path(folder))
state = spec.factory.make_state(spec)
steps = []


def watched(step):
    def stepped(source, target):
        steps.append(target)
        if where == f"before {len(steps)}":
            os.kill(os.getpid(), signal.SIGKILL)
        step(source, target)
        if where == f"after {len(steps)}":
            os.kill(os.getpid(), signal.SIGKILL)

    return stepped


os.link, os.replace = watched(os.link), watched(os.replace)
state.apply(ticket(2), batch(spec, *OTHER))
"""


@pytest.mark.parametrize(
    ("where", "is_applied"), [("before 2", False), ("after 2", True), ("before 3", True), ("after 3", True)]
)
def test_a_committer_killed_between_record_and_file_is_finished_by_the_next(
    tmp_path: Path, where: str, is_applied: bool
) -> None:
    spec = spec_of("files", tmp_path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
    killed = run_code(WORKER, tmp_path, where)
    assert killed.returncode == -signal.SIGKILL
    # Whoever looks at the folder meanwhile sees whole transactions only.
    for path in (tmp_path / "out").glob("*.parquet"):
        assert pq.read_table(path).num_rows in (len(ROWS), len(OTHER))
    with spec.factory.make_state(spec) as state:
        answer = state.apply(ticket(2), batch(spec, *OTHER))
        assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
        assert rows_of(state) == expected(spec, ROWS, OTHER)
    left = {path.name for path in (tmp_path / "out" / META).iterdir()}
    assert all(name.startswith("words-rows.000") for name in left), left
    assert not any(name.startswith(".") for name in left), "what was prepared is cleaned away"


WORKER_ON_OBJECTS = """
import os, signal, sys
from pathlib import Path
from airflow_trident.io.object_place import ObstorePlace
from tests.contracts.test_sinks import OTHER, spec_of
from tests.fixtures.state import batch, ticket

folder, where, sink = sys.argv[1:]
spec = spec_of(sink, Path(folder))
state = spec.factory.make_state(spec)
steps = []


def watched(name):
    step = getattr(ObstorePlace, name)

    def stepped(self, *given):
        steps.append(name)
        number = len(steps)
        if where == f"before {number}":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = step(self, *given)
        if where == f"after {number}":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(ObstorePlace, name, stepped)


for name in ("put", "put_once", "show", "delete"):
    watched(name)
state.apply(ticket(2), batch(spec, *OTHER))
"""


@pytest.mark.parametrize("sink", ["objects", "blobs"])
@pytest.mark.parametrize(
    ("where", "is_applied"),
    [("after 2", False), ("before 3", False), ("after 3", True), ("before 5", True), ("after 5", True)],
    ids=["prepared", "before the record", "the record", "the copy", "the end"],
)
def test_a_committer_killed_between_record_and_object_is_finished_by_the_next(
    tmp_path: Path, where: str, is_applied: bool, sink: str
) -> None:
    spec = spec_of(sink, tmp_path)
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenFileSink)
        state.apply(ticket(1), batch(spec, *ROWS))
        killed = run_code(WORKER_ON_OBJECTS, tmp_path, where, sink)
        assert killed.returncode == -signal.SIGKILL
        assert rows_of(state) in (expected(spec, ROWS), expected(spec, ROWS, OTHER)), "whole transactions only"
        answer = state.apply(ticket(2), batch(spec, *OTHER))
        assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
        assert rows_of(state) == expected(spec, ROWS, OTHER)
        assert all(name.startswith("words-rows.000") for name in state.files.names(META) if name != PROBE)


@pytest.mark.parametrize("sink", ["objects", "blobs"])
def test_a_late_copy_of_a_committer_that_was_overtaken_brings_nothing_back(
    sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object was replaced meanwhile: what it would copy is not hidden any more."""
    spec = replace(spec_of(sink, tmp_path), opaque=True)
    show = ObstorePlace.show
    held: list[tuple[str, str]] = []
    with spec.factory.make_state(spec) as state, spec.factory.make_state(spec) as other:
        assert isinstance(state, OpenFileSink)
        with monkeypatch.context() as patch:
            patch.setattr(ObstorePlace, "show", lambda self, *names: held.append(names))
            state.apply(ticket(1, fence=1), batch(spec, *ROWS))
        other.apply(ticket(1, fence=2, attempt=1), batch(spec, *OTHER))
        assert isinstance(state.files, ObstorePlace)
        show(state.files, *held[-1])
        assert rows_of(other) == expected(spec, OTHER)


def test_a_sink_whose_records_vanish_while_it_is_open_begins_no_new_ones(tmp_path: Path) -> None:
    """As a share that is unmounted: the batch would be published again later, by who does not know its marker."""
    spec = spec_of("files", tmp_path)
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenFileSink)
        state.apply(ticket(1), batch(spec, *ROWS))
        os.rename(state.files.at(META), tmp_path / "unmounted")
        with pytest.raises(StoreUnavailableError, match=r"the records of sink 'rows' .* are gone"):
            state.apply(ticket(2), batch(spec, *OTHER))
        os.rename(tmp_path / "unmounted", state.files.at(META))
        state.apply(ticket(2), batch(spec, *OTHER))
        assert rows_of(state) == expected(spec, ROWS, OTHER)


def test_a_driver_elsewhere_is_told_the_connection_of_a_sink(bucket: Bucket) -> None:
    topology = Topology("letters")
    letters = topology.new_stream("letters", FixedBatchSpout("letter string", ["a"]))
    letters.partition_persist(FileSink(f"{bucket.uri}/out"), "letter")
    letters.partition_persist(FileSink(f"s3://{bucket.name}/by-role"), "letter", name="more")
    assert set(connections_of(topology)) == {CONN_ID}


@pytest.mark.parametrize(
    ("service", "others"), [("bucket", {"POST": 1}), ("container", {"POST": 1, "HEAD": 2}), ("gcs", {"DELETE": 1})]
)
def test_requests_of_a_commit_into_a_bucket(
    service: str, others: dict[str, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    objects = request.getfixturevalue(service)
    factory = FileSink(f"{objects.uri}/out")
    spec = replace(spec_of("files", tmp_path), factory=factory)
    with factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
    before = objects.proxy.asked.copy()
    with factory.make_state(spec) as state:
        state.apply(ticket(2), batch(spec, *OTHER))
    assert objects.proxy.asked - before == Counter({"GET": 8, "PUT": 4, **others})


def test_what_is_copied_later_stays_hidden_until_it_is_there(container: Container, tmp_path: Path) -> None:
    factory = FileSink(f"{container.uri}/out")
    spec = replace(spec_of("files", tmp_path), factory=factory)
    with factory.make_state(spec) as state:
        assert isinstance(state, OpenFileSink)
        container.proxy.rule = lambda request: Answer(202) if is_copy(request) else Verdict.PASS
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="is still being copied"):
                state.apply(ticket(1), batch(spec, *ROWS))
        container.proxy.rule = lambda request: Verdict.PASS
        assert state.apply(ticket(1), batch(spec, *ROWS)) is Applied.ALREADY
        assert rows_of(state) == expected(spec, ROWS)


def is_copy(request: Request) -> bool:
    """Of a hidden object to where it appears."""
    return request.method == "PUT" and request.path.endswith(".parquet") and META not in request.path


@pytest.mark.parametrize(("sink", "kind"), [("files", PosixPlace), ("objects", ObstorePlace), ("blobs", ObstorePlace)])
def test_who_was_first_hears_so_although_others_wrote_before_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, kind: type[Place]
) -> None:
    """Who finds a batch applied writes a record, too."""
    spec, take = spec_of(sink, tmp_path), kind.put_once

    def others_next(self: Place, name: str, content: bytes) -> bool:
        monkeypatch.setattr(kind, "put_once", take)
        taken = take(self, name, content)
        with spec.factory.make_state(spec) as other:
            assert other.apply(ticket(1), batch(spec, *ROWS)) is Applied.ALREADY
        return taken

    with spec.factory.make_state(spec) as state:
        monkeypatch.setattr(kind, "put_once", others_next)
        assert state.apply(ticket(1), batch(spec, *ROWS)) is Applied.APPLIED
        assert rows_of(state) == expected(spec, ROWS)


@pytest.mark.parametrize("behind", [1, KEEP + 5], ids=["one behind", "so late that the records of then are gone"])
@pytest.mark.parametrize(("sink", "kind"), [("files", PosixPlace), ("objects", ObstorePlace), ("blobs", ObstorePlace)])
def test_a_committer_that_was_stopped_before_its_atomic_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, kind: type[Place], behind: int
) -> None:
    """T3 by comparing, not by a lock: the others neither wait for it nor are overwritten by it."""
    spec = spec_of(sink, tmp_path)
    take = kind.put_once

    def others_first(self: Place, name: str, content: bytes) -> bool:
        monkeypatch.setattr(kind, "put_once", take)
        with spec.factory.make_state(spec) as other:
            for txid in range(1, behind + 1):
                other.apply(ticket(txid, fence=10 + txid), batch(spec, *ROWS))
        return take(self, name, content)

    with spec.factory.make_state(spec) as state:
        monkeypatch.setattr(kind, "put_once", others_first)
        with pytest.raises(FencedError):
            state.apply(ticket(1, fence=9), batch(spec, *OTHER))
        assert rows_of(state) == expected(spec, *[ROWS] * behind)
        assert state.apply(ticket(behind + 1, fence=99), batch(spec, *OTHER)) is Applied.APPLIED
        assert isinstance(state, OpenFileSink)
        left = [name for name in state.files.names(META) if name != PROBE]
    assert len(left) <= KEEP + 1
    assert all(name.endswith(".json") for name in left)


def test_who_was_stopped_before_it_read_the_record_does_not_take_a_late_one_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("files", tmp_path)
    take, read, late = PosixPlace.put_once, PosixPlace.read, list[tuple[str, bytes]]()

    def stop(self: Place, name: str, content: bytes) -> bool:
        late.append((name, content))
        raise StoreUnavailableError("it is stopped here", "Go on.")

    def others(first: int, last: int) -> None:
        with spec.factory.make_state(spec) as other:
            for txid in range(first, last + 1):
                other.apply(ticket(txid, fence=10 + txid), batch(spec, *ROWS))

    def stopped(self: PosixPlace, name: str) -> bytes:
        monkeypatch.setattr(PosixPlace, "read", read)
        assert name == late[0][0]
        others(2, KEEP + 5)
        assert take(self, *late[0]), "the record of then is gone"
        return read(self, name)

    with spec.factory.make_state(spec) as state:
        monkeypatch.setattr(PosixPlace, "put_once", stop)
        with pytest.raises(StoreUnavailableError):
            state.apply(ticket(1, fence=9), batch(spec, *OTHER))
        monkeypatch.setattr(PosixPlace, "put_once", take)
        others(1, 1)
        monkeypatch.setattr(PosixPlace, "read", stopped)
        marker = state.marker()
    assert marker is not None
    assert marker.high == KEEP + 5


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b"])
def test_a_record_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    spec = spec_of("files", tmp_path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
    (record,) = (tmp_path / "out" / META).glob("*.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "remove": name}))
    with pytest.raises(CorruptRecordError, match="it names files elsewhere"):
        spec.factory.make_state(spec)


def test_what_appears_in_the_folder_is_one_file_per_transaction(tmp_path: Path) -> None:
    texts = parse_declared("word string, n long")
    for form, shown in (("csv", '"word","n"\n"a",1\n'), ("json", '{"word": "a", "n": 1}\n')):
        factory = FileSink(str(tmp_path / form), form)
        spec = StateSpec(topology="t", name=form, keys=(), values=texts, staged=texts, factory=factory)
        with factory.make_state(spec) as state:
            state.apply(ticket(3, attempt=2), batch(spec, ("a", 1)))
            with pytest.raises(ConfigurationError):
                list(state.items())
        assert sorted(os.listdir(tmp_path / form)) == [META, f"t-{form}-{3:019d}-2.{form}"]
        assert (tmp_path / form / f"t-{form}-{3:019d}-2.{form}").read_text() == shown


@pytest.mark.parametrize(
    ("form", "fields", "rows"),
    [
        ("csv", "clock time, took interval day to second, d decimal(5,2)", [(CLOCK, TOOK, Decimal("1.50"))]),
        ("csv", "clock time", [(CLOCK,), (None,), (CLOCK,)]),
        ("json", "m map<interval day to second,long>", [({TOOK: 1},)]),
        (
            "json",
            "clock time, by map<date,array<time>>, spans map<time,interval day to second>, "
            "yes map<boolean,decimal(5,2)>",
            [
                (CLOCK, {datetime.date(2024, 2, 29): [CLOCK, None]}, {CLOCK: TOOK}, {True: Decimal("1.50")}),
                (None, None, {}, None),
            ],
        ),
        (
            "parquet",
            "clock time, spans array<interval day to second>, by map<time,long>",
            [(CLOCK, [TOOK], {CLOCK: 7})],
        ),
    ],
)
def test_files_of_a_sink_are_read_by_a_spout(tmp_path: Path, form: str, fields: str, rows: list[Any]) -> None:
    schema = parse_declared(fields)
    factory = FileSink(str(tmp_path / "out"), form)
    spec = StateSpec(topology="t", name="s", keys=(), values=schema, staged=schema, factory=factory)
    with factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *rows))
    spout = FileSpout(str(tmp_path / "out"), format=form, fields=fields)
    emitter = spout.emitter()
    splits = emitter.splits(spout.coordinator().initialize_transaction(1, None))
    assert table_to_rows(pa.Table.from_batches([one for split in splits for one in emitter.read(split)])) == rows


def test_a_record_that_cannot_be_read_is_not_guessed_at(tmp_path: Path) -> None:
    spec = spec_of("files", tmp_path)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
    (record,) = (tmp_path / "out" / META).glob("*.json")
    record.write_text('{"version": 9}')
    with pytest.raises(NewerRecordError, match="has version 9"):
        spec.factory.make_state(spec)
    for text in ("", "[]", '{"version": 1}', "[" * 100_000):
        record.write_text(text)
        with pytest.raises(CorruptRecordError, match=r"of sink 'rows' .*is damaged"):
            spec.factory.make_state(spec)
