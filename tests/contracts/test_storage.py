"""What the five verbs of a storage promise: a folder, objects in memory, real servers of S3 and of Azure Blob Storage,
and a server of S3 with a translator for Google Cloud Storage. The servers fail, too."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from airflow_trident.errors import Outcome, StoreUnavailableError
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import PROBE, Place, PlaceEntry, PosixPlace, clear, open_ranges, sizes
from airflow_trident.io.places import absolute_root, place_at, temporary_root
from tests.faults.http_proxy import Request, Verdict, first
from tests.fixtures.azurite import Objects
from tests.fixtures.hdfs import Folder
from tests.fixtures.outage import Outage


@dataclass(frozen=True, kw_only=True)
class InMemory(ObjectAddress):
    """obstore's own store in the memory of this process."""

    def store(self) -> Any:
        return _memory(self.bucket)


@cache
def _memory(bucket: str) -> MemoryStore:
    return MemoryStore()


PLACES = ["posix", "memory", "bucket", "bucket with a prefix", "container", "container with a prefix", "gcs"]
ON_HDFS = [pytest.param(one, marks=pytest.mark.rare) for one in ("folder", "folder with a prefix")]


@pytest.fixture(params=[*PLACES, *ON_HDFS])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "posix":
        yield PosixPlace(str(tmp_path / "root"))
    elif request.param == "memory":
        yield ObstorePlace(InMemory(bucket=tmp_path.name))
    else:
        fixture, _, prefix = request.param.partition(" ")
        made: Objects | Folder = request.getfixturevalue(fixture)
        monkeypatch.setenv(made.variable, made.connection(read_timeout_s=30))
        yield place_at(made.uri + ("/some/prefix/" if prefix else ""))


SERVERS = ["bucket", "container", "gcs"]


@pytest.fixture(params=SERVERS)
def objects(request: pytest.FixtureRequest) -> Objects:
    """Behind a proxy that fails as it is told."""
    made: Objects = request.getfixturevalue(request.param)
    return made


def put(storage: Place, name: str, content: bytes) -> int:
    return storage.put(name, lambda file: _write(file, content))


def _write(file: Any, content: bytes) -> None:
    file.write(content)


def names(storage: Place, folder: str) -> list[str]:
    return sorted(entry.name for entry in storage.list(folder))


# ---- the verbs -------------------------------------------------------------------------------------------------


def test_what_was_put_is_read_whole_and_in_ranges(storage: Place) -> None:
    assert put(storage, "a/b/c/f", b"0123456789") == 10
    assert put(storage, "a/b/c/nothing", b"") == 0
    assert storage.read("a/b/c/f") == b"0123456789"
    assert storage.read("a/b/c/f", 3, 7) == b"3456"
    assert storage.read("a/b/c/f", 8) == b"89"
    assert storage.read("a/b/c/f", 8, 13) == b"89"
    assert storage.read("a/b/c/f", 10, 11) == b""
    assert storage.read("a/b/c/f", 2, 2) == b""
    assert storage.read("a/b/c/nothing") == b""


def test_a_name_is_taken_once_and_the_first_content_stands(storage: Place) -> None:
    assert storage.put_once("t/i/1/0/manifest.json", b"one")
    assert not storage.put_once("t/i/1/0/manifest.json", b"two")
    assert storage.put_once("t/i/1/0/manifest.json", b"one")
    assert storage.read("t/i/1/0/manifest.json") == b"one"


def test_what_is_put_again_takes_the_place_of_what_was_there(storage: Place) -> None:
    for content in (b"first", b"second one", b""):
        assert put(storage, "a/f", content) == len(content)
        assert storage.read("a/f") == content
    assert list(storage.names("a")) == ["f"]


def test_what_is_shown_is_moved_whole_over_what_was_there_and_only_once(storage: Place) -> None:
    put(storage, "hidden/f", b"new")
    put(storage, "shown", b"old one")
    assert storage.show("hidden/f", "shown")
    assert (storage.read("shown"), storage.stat("hidden/f"), list(storage.names("hidden"))) == (b"new", None, [])
    assert not storage.show("hidden/f", "shown")
    assert not storage.show("hidden/f", "never")
    storage.sync()
    assert names(storage, "") == ["shown"]


def test_the_names_of_one_level_are_those_of_files_and_of_folders(storage: Place) -> None:
    for name in ("a/b/1", "a/b/2/3", "a/bc/4", "a/5"):
        put(storage, name, b"x")
    assert sorted(storage.names("a")) == ["5", "b", "bc"]
    assert {"b", "bc"} <= set(storage.names("a", after="5"))
    assert list(storage.names()) == ["a"]
    assert list(storage.names("nowhere")) == []


@pytest.mark.parametrize("storage", [place for place in [*PLACES, *ON_HDFS] if place != "memory"], indirect=True)
def test_a_folder_of_a_place_is_a_place(storage: Place) -> None:
    below = storage.below("a").below("b")
    assert below.put_once("1", b"x")
    assert storage.read("a/b/1") == b"x"
    assert below.at("1") == storage.at("a/b/1")
    assert [*below.list()] == [PlaceEntry("1", 1)]
    assert storage.stat("a/b/1") == PlaceEntry("a/b/1", 1)
    assert storage.stat("a/b") is None


def test_a_place_that_may_be_used_says_so_again(storage: Place) -> None:
    for _ in range(2):
        storage.check()
    assert names(storage, "") in ([], [PROBE])


def test_of_many_who_take_a_name_at_once_one_has_it(storage: Place) -> None:
    barrier = Barrier(6)

    def take(number: int) -> bool:
        barrier.wait()
        return storage.put_once("t/i/1/0/m", b"%d" % number)

    with ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(take, range(6)))
    assert taken.count(True) == 1
    assert storage.read("t/i/1/0/m") == b"%d" % taken.index(True)


def test_what_is_not_there_is_said_so_by_one_error(storage: Place) -> None:
    put(storage, "a/f", b"x")
    for missing in ("a/g", "b/f", "a/f/g"):
        with pytest.raises(FileNotFoundError):
            storage.read(missing)
        with pytest.raises(FileNotFoundError):
            storage.open(missing)
    assert sizes(storage, "a", ["a/f", "a/g"]) == {"a/f": 1}
    assert names(storage, "c") == []


def test_single_names_are_removed_also_those_that_are_not_there(storage: Place) -> None:
    for name in ("a/1", "a/12", "a/2"):
        put(storage, name, b"x")
    storage.delete(["a/1", "a/9", "b/1"])
    assert names(storage, "a") == ["a/12", "a/2"]
    storage.delete([])


def test_a_list_is_of_what_lies_below_the_folder_at_any_depth(storage: Place) -> None:
    for name in ("a/b/1", "a/b/2/3", "a/bc/4", "a/5", "z"):
        put(storage, name, b"x" * len(name))
    assert set(storage.list("a/b")) == {PlaceEntry("a/b/1", 5), PlaceEntry("a/b/2/3", 7)}
    assert names(storage, "a") == ["a/5", "a/b/1", "a/b/2/3", "a/bc/4"]


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    storage, outage = PosixPlace(str(tmp_path)), Outage(tmp_path / "a")
    put(storage, "a/b/1", b"x")
    outage.begin()
    with pytest.raises(StoreUnavailableError, match=r"does not work .*run the task again"):
        names(storage, "a")
    outage.end()
    assert (names(storage, "a"), names(storage, "a/b/1"), names(storage, "b")) == (["a/b/1"], [], [])


def test_deleted_is_what_lies_between_two_parts(storage: Place) -> None:
    for part in ("01", "02", "03", "notes"):
        for file in ("f", "g/h"):
            put(storage, f"t/i/{part}/{file}", b"x")
    put(storage, "t/i2/01/f", b"x")
    assert clear(storage, "t/i", "0", "03", keeps={"01"}.__contains__) == 1
    assert names(storage, "t/i")[:2] == ["t/i/01/f", "t/i/01/g/h"]
    assert clear(storage, "t/i", "0", "03") == 1
    assert names(storage, "t/i") == ["t/i/03/f", "t/i/03/g/h", "t/i/notes/f", "t/i/notes/g/h"]
    assert clear(storage, "t/i", "03", ":") == 1
    assert clear(storage, "t/i", "03", ":") == 0
    assert clear(storage, "nowhere") == 0
    assert clear(storage, "t/i", keeps={"notes"}.__contains__) == 0
    assert clear(storage, "t/i") == 1
    assert names(storage, "t") == ["t/i2/01/f"]


@pytest.mark.parametrize("name", ["with blank", "ü ñ 日", "a=b,c:d", "100%41", "#?&+~[]{}^|<>'\"`"])
def test_names_come_back_as_they_were_given(storage: Place, name: str) -> None:
    put(storage, f"folder/{name}/{name}", b"1")
    assert storage.put_once(f"folder/{name}/m", b"2")
    assert names(storage, "folder") == sorted([f"folder/{name}/{name}", f"folder/{name}/m"])
    assert names(storage, f"folder/{name}") == names(storage, "folder")
    assert storage.read(f"folder/{name}/{name}") == b"1"
    assert clear(storage, "folder") == 1
    assert names(storage, "folder") == []


def test_what_is_opened_can_be_sought_in(storage: Place) -> None:
    table = pa.table({"n": list(range(1000))})
    storage.put("t/i/1/0/f.parquet", lambda file: pq.write_table(table, file))
    with storage.open("t/i/1/0/f.parquet") as file:
        assert file.seek(0, io.SEEK_END) == sizes(storage, "t/i/1/0", ["t/i/1/0/f.parquet"])["t/i/1/0/f.parquet"]
        assert pq.read_table(file) == table


def test_what_is_read_by_ranges_is_asked_for_when_it_is_read(storage: Place) -> None:
    put(storage, "f/g", b"0123456789")
    with open_ranges(storage, "f/g", 10) as file:
        file.seek(-3, io.SEEK_END)
        assert (file.read(2), file.tell(), file.read()) == (b"78", 9, b"9")
    longer, missing = open_ranges(storage, "f/g", 11), open_ranges(storage, "f/h", 10)
    with longer, pytest.raises(OSError, match="fewer than 11 bytes"):
        longer.read()
    with missing, pytest.raises(FileNotFoundError):
        missing.read(1)


def test_content_of_many_pieces_is_whole(storage: Place) -> None:
    """More than one request can carry: objects go in parts then."""
    content = bytes(range(256)) * 50_000
    put(storage, "t/large", content)
    assert storage.read("t/large") == content
    assert storage.read("t/large", 6_000_000, 6_001_000) == content[6_000_000:6_001_000]


# ---- a store that fails ----------------------------------------------------------------------------------------

VERBS: dict[str, tuple[str, Callable[[Place], object], object]] = {
    "put_once": ("PUT", lambda one: one.put_once("t/new", b"mine"), True),
    "put": ("PUT", lambda one: put(one, "t/unique", b"mine"), 4),
    "read": ("GET", lambda one: one.read("t/there"), b"12345"),
    "range": ("GET", lambda one: one.read("t/there", 1, 3), b"23"),
    "list": ("GET", lambda one: [*one.list("t")], [PlaceEntry("t/other", 1), PlaceEntry("t/there", 5)]),
    "delete": ("deletes", lambda one: (clear(one, "t", "other", "p"), names(one, "t")), (1, ["t/there"])),
}
"""Name -> method of the request that is harmed, the call, and what it gives."""


def faults(*verdicts: Verdict, rare_on_gcs: Verdict) -> list[Any]:
    """:param rare_on_gcs: where a client only waits, as it does on the others."""
    return [
        pytest.param(
            where,
            fault,
            id=f"{where}-{fault.name}",
            marks=pytest.mark.rare if where == "gcs" and fault is rare_on_gcs else (),
        )
        for where in SERVERS
        for fault in verdicts
    ]


@pytest.mark.parametrize(
    ("objects", "verdict"),
    faults(Verdict.UNAVAILABLE, Verdict.LOSE, Verdict.HOLD, rare_on_gcs=Verdict.HOLD),
    indirect=["objects"],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_request_that_is_refused_lost_or_slow_is_asked_again_and_gives_the_same(
    verb: str, verdict: Verdict, objects: Objects
) -> None:
    method, call, expected = VERBS[verb]
    storage = place_at(objects.uri)
    put(storage, "t/there", b"12345")
    put(storage, "t/other", b"x")
    method = objects.deletes_by if method == "deletes" else method
    objects.proxy.rule = first(method, verdict, times=1 if verdict is Verdict.HOLD else 2)
    assert call(storage) == expected
    assert objects.proxy.harmed >= 1
    if method == "PUT":
        objects.proxy.rule = first("none", Verdict.PASS)
        assert storage.read("t/new" if verb == "put_once" else "t/unique") == b"mine"


@pytest.mark.parametrize(
    ("objects", "verdict"),
    faults(Verdict.UNAVAILABLE, Verdict.LOSE, rare_on_gcs=Verdict.UNAVAILABLE),
    indirect=["objects"],
)
def test_of_two_who_take_a_name_while_every_second_answer_is_lost_one_has_it(
    verdict: Verdict, objects: Objects
) -> None:
    storage, asked = place_at(objects.uri), iter(range(10_000))
    objects.proxy.rule = lambda request: verdict if next(asked) % 2 == 0 else Verdict.PASS
    for number in range(5):
        taken = [storage.put_once(f"t/{number}", content) for content in (b"one", b"two")]
        assert taken == [True, False]
        assert storage.read(f"t/{number}") == b"one"


@pytest.mark.parametrize("verb", ["put_once", "put", "read", "list"])
def test_a_store_that_stays_away_is_one_error_that_is_tried_again(verb: str, objects: Objects) -> None:
    objects.proxy.rule = lambda request: Verdict.UNAVAILABLE
    with pytest.raises(StoreUnavailableError, match=rf"in '{objects.uri}' .*run the task again") as caught:
        VERBS[verb][1](place_at(objects.uri))
    assert caught.value.outcome is Outcome.RETRY


def test_a_name_that_another_one_took_while_the_answer_was_lost_is_not_ours(objects: Objects) -> None:
    storage, other = place_at(objects.uri), b"another one's"
    stolen: list[bool] = []

    def rule(request: Request) -> Verdict:
        if request.method == "PUT" and not stolen:
            stolen.append(True)  # before the rule answers: the other's own request passes
            assert storage.put_once("t/m", other)
            return Verdict.UNAVAILABLE
        return Verdict.PASS

    objects.proxy.rule = rule
    assert not storage.put_once("t/m", b"mine")
    assert storage.read("t/m") == other


def test_a_place_that_works_costs_two_requests_once_and_one_in_other_processes(objects: Objects) -> None:
    for _ in range(3):
        place_at(objects.uri).check()
    assert objects.proxy.asked == {"PUT": 2}
    script = "import sys; from airflow_trident.io.places import place_at; place_at(sys.argv[1]).check()"
    before = objects.proxy.asked.total()
    subprocess.run([sys.executable, "-c", script, objects.uri], check=True)
    assert objects.proxy.asked.total() == before + 1


def test_a_temporary_root_is_below_the_root_and_gone_afterwards(objects: Objects, tmp_path: Path) -> None:
    for root in (f"{objects.uri}/p", str(tmp_path / "p")):
        with temporary_root(root, "rebuild-") as own:
            assert own.startswith(f"{absolute_root(root)}/rebuild-")
            put(place_at(own), "t/f", b"x")
            assert len(names(place_at(root), "")) == 1
        assert names(place_at(root), "") == []


@pytest.mark.parametrize(
    "objects",
    [where if where == "bucket" else pytest.param(where, marks=pytest.mark.rare) for where in SERVERS],
    indirect=True,
)
def test_more_names_than_one_answer_or_one_request_has_are_listed_and_removed(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores list 1,000 names at once (Azure 5,000), and take 1,000 (Azure 256) in one request to delete."""
    monkeypatch.setenv(objects.variable, objects.connection(read_timeout_s=30))
    storage = place_at(objects.uri)
    assert isinstance(storage, ObstorePlace)
    many = [f"t/{number:04}" for number in range(1_030)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put(storage, name, b"x"), many))
    assert names(storage, "t") == many
    assert clear(storage, "t", "0000", "0005") == 5
    storage.delete(["t/0001", *many[5:-3], "t/none"])
    assert names(storage, "t") == many[-3:]
