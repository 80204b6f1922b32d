"""A storage in a real HDFS: requests that are refused, lost or slow, writers that are killed, name nodes that change,
and what is said of a cluster that cannot be used. Its verbs are tested with those of the others, in test_storage.py."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from threading import Lock
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError, Outcome, StoreUnavailableError, TridentError
from airflow_trident.io.hdfs_place import LEFT_DAYS, UNFINISHED
from airflow_trident.io.place import PROBE, Place, PlaceEntry, clear
from airflow_trident.io.places import place_at
from tests.contracts.test_storage import VERBS, names, put
from tests.faults.http_proxy import Request, Rule, Verdict, pass_all
from tests.fixtures.hdfs import CONN_ID, VARIABLE, Cluster, Folder, ask, connection

pytestmark = pytest.mark.rare


def only(place: int, verdict: Verdict) -> Rule:
    """Harms the request at this place, from 0 on."""
    asked, lock = count(), Lock()

    def rule(request: Request) -> Verdict:
        with lock:
            return verdict if next(asked) == place else Verdict.PASS

    return rule


def operation(name: str) -> str:
    return f"op={name}&"


# ---- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.LOSE, Verdict.HOLD], ids=lambda one: one.name)
@pytest.mark.parametrize("verb", VERBS)
def test_whichever_request_is_refused_lost_or_slow_the_result_is_the_same_and_nothing_is_left(
    verb: str, verdict: Verdict, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, folder.connection(read_timeout_s=1))
    _, call, expected = VERBS[verb]
    for place in count():
        folder.proxy.rule, folder.proxy.harmed = pass_all, 0
        storage = place_at(f"{folder.uri}/{place}")
        put(storage, "t/there", b"12345")
        put(storage, "t/other", b"x")
        folder.proxy.rule = only(place, verdict)
        assert call(storage) == expected, place
        if not folder.proxy.harmed:
            break
        if verb.startswith("put"):
            new = "new" if verb == "put_once" else "unique"
            assert storage.read(f"t/{new}") == b"mine"
            assert sorted(folder.all_names(f"{place}/t")) == sorted([new, "other", "there"])
    assert place >= (3 if verb.startswith("put") else 1)


def test_of_two_who_take_a_name_while_answers_are_lost_one_has_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, folder.connection(max_retries=12))
    storage, chosen = place_at(folder.uri), random.Random(7)
    folder.proxy.rule = lambda request: Verdict.LOSE if chosen.random() < 0.2 else Verdict.PASS
    for number in range(15):
        taken = [storage.put_once(f"t/{number}", content) for content in (b"one", b"two")]
        assert taken == [True, False]
        assert storage.read(f"t/{number}") == b"one"
    assert folder.proxy.harmed > 10


def test_a_name_that_another_one_took_while_the_answer_was_lost_is_not_ours(folder: Folder) -> None:
    storage, stolen = place_at(folder.uri), list[bool]()

    def rule(request: Request) -> Verdict:
        if operation("RENAME") in request.query and not stolen:
            stolen.append(True)  # before the rule answers: the other's own requests pass
            assert storage.put_once("t/m", b"another one's")
            return Verdict.LOSE
        return Verdict.PASS

    folder.proxy.rule = rule
    assert not storage.put_once("t/m", b"mine")
    assert storage.read("t/m") == b"another one's"
    assert folder.all_names("t") == ["m"]


@pytest.mark.parametrize("verb", ["put_once", "put", "read", "list"])
def test_an_hdfs_that_stays_away_is_one_error_that_is_tried_again(verb: str, folder: Folder) -> None:
    folder.proxy.rule = lambda request: Verdict.UNAVAILABLE
    with pytest.raises(StoreUnavailableError, match=rf"in '{folder.uri}' .*run the task again") as caught:
        VERBS[verb][1](place_at(folder.uri))
    assert caught.value.outcome is Outcome.RETRY


KILLED = """
import sys
from airflow_trident.io.places import place_at
place_at(sys.argv[1]).put_once("t/m", b"mine" * (64 << 20))
"""


def leave_unfinished(folder: Folder) -> str:
    """The name that a killed writer leaves in ``t``, where there is another one."""
    direct = {VARIABLE: connection(f"http://{folder.server}", read_timeout_s=60)}
    writer = subprocess.Popen([sys.executable, "-c", KILLED, folder.uri], env=os.environ | direct)
    while len(found := folder.all_names("t")) == 1:
        assert writer.poll() is None
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    (left,) = [name for name in found if name.startswith(UNFINISHED)]
    return left


def test_of_a_writer_that_is_killed_nothing_is_seen(folder: Folder) -> None:
    storage = place_at(folder.uri)
    put(storage, "t/there", b"12345")
    leave_unfinished(folder)
    assert names(storage, "t") == ["t/there"]
    assert len(folder.all_names("t")) == 2
    with pytest.raises(FileNotFoundError):
        storage.read("t/m")
    assert storage.put_once("t/m", b"another one's")
    assert clear(storage, "t") == 2
    assert folder.all_names() == []


def test_what_a_killed_writer_left_is_deleted_after_a_week_when_somebody_begins_there(folder: Folder) -> None:
    """And nothing else: not what may still be renamed, and no file that has its name, however old."""
    storage = place_at(f"{folder.uri}/t")
    storage.check()
    left = leave_unfinished(folder)
    put(storage, "there", b"12345")
    folder.put(f"t/{UNFINISHED}of-a-writer-now", "x")
    for name, days in ((left, LEFT_DAYS - 0.5), ("there", 1_000), (PROBE, 1_000)):
        folder.age(f"t/{name}", days)
    storage.sweep()
    assert left in folder.all_names("t")
    folder.age(f"t/{left}", LEFT_DAYS + 0.5)
    storage.check()  # known to this process
    assert left in folder.all_names("t")
    storage.resolved().check()
    assert sorted(folder.all_names("t")) == [PROBE, f"{UNFINISHED}of-a-writer-now", "there"]
    place_at(f"{folder.uri}/nothing").sweep()


def test_a_writer_that_was_stopped_until_its_unfinished_file_was_deleted_has_put_nothing_and_can_again(
    folder: Folder,
) -> None:
    storage, swept = place_at(folder.uri), list[str]()

    def rule(request: Request) -> Verdict:
        if operation("RENAME") in request.query and not swept:
            swept.extend(folder.all_names("t"))
            folder.age(f"t/{swept[0]}", LEFT_DAYS + 1)
            storage.sweep("t")
        return Verdict.PASS

    folder.proxy.rule = rule
    with pytest.raises(StoreUnavailableError, match="run the task again"):
        storage.put_once("t/m", b"mine")
    assert (len(swept), folder.all_names("t")) == (1, [])
    assert storage.put_once("t/m", b"mine")
    swept.clear()
    with pytest.raises(StoreUnavailableError, match="run the task again"):
        put(storage, "t/f", b"mine")
    put(storage, "t/f", b"mine")
    assert sorted(folder.all_names("t")) == ["f", "m"]


def test_an_hdfs_that_does_not_answer_keeps_what_is_left_there(folder: Folder) -> None:
    folder.proxy.rule = lambda request: Verdict.UNAVAILABLE
    place_at(folder.uri).sweep("t")
    assert folder.proxy.harmed


def test_what_is_put_again_is_replaced_in_one_step(folder: Folder) -> None:
    storage = place_at(folder.uri)
    for content in (b"first", b"second one"):
        put(storage, "t/f", content)
        assert storage.read("t/f") == content
    assert folder.all_names("t") == ["f"]


def test_a_list_is_read_in_pages(folder: Folder) -> None:
    """A page has three names here."""
    storage, given = place_at(folder.uri), [f"t/{number}" for number in range(7)]
    for name in given:
        put(storage, name, b"x")
    folder.proxy.asked.clear()
    assert list(storage.list("t")) == [PlaceEntry(name, 1) for name in given]
    assert folder.proxy.asked == {"GET": 3}


# ---- name nodes ------------------------------------------------------------------------------------------------


@pytest.fixture
def mended(hdfs: Cluster) -> Iterator[Cluster]:
    yield hdfs
    hdfs.hadoop.tell("unsafe 0")
    hdfs.hadoop.tell("active 0")


def both(hdfs: Cluster, **extra: Any) -> str:
    return json.dumps(
        {
            "conn_type": "webhdfs",
            "host": ",".join(hdfs.servers),
            "login": "trident",
            "extra": {"max_retries": 1, **extra},
        }
    )


def test_the_active_one_of_several_name_nodes_is_asked(
    mended: Cluster, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, both(mended))
    storage = place_at(folder.uri)
    assert storage.put_once("t/m", b"one")
    mended.hadoop.tell("active 1")
    assert not storage.put_once("t/m", b"two")
    assert storage.read("t/m") == b"one"


def test_name_nodes_that_are_all_in_standby_are_one_error(
    mended: Cluster, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, both(mended))
    mended.hadoop.tell("standby 0")
    with pytest.raises(StoreUnavailableError, match=r"StandbyException.*haadmin.*run the task again"):
        place_at(folder.uri).check()


def test_safe_mode_is_one_error_that_is_tried_again(mended: Cluster, folder: Folder) -> None:
    storage = place_at(folder.uri)
    storage.put_once("t/m", b"one")
    mended.hadoop.tell("safe 0")
    with pytest.raises(StoreUnavailableError, match=r"(SafeMode|Retriable)Exception.*safe ?mode"):
        storage.put_once("t/n", b"one")
    assert storage.read("t/m") == b"one"


# ---- what cannot be used ---------------------------------------------------------------------------------------


def test_a_folder_of_others_is_one_error_with_its_cure(folder: Folder, hdfs: Cluster) -> None:
    hdfs.administrate("PUT", f"/{folder.name}/own", "MKDIRS&permission=700")
    with pytest.raises(ConfigurationError, match=r"AccessControlException.*Permission denied.*user of the connection"):
        place_at(f"{folder.uri}/own/below").check()
    for verb in (lambda one: one.read("f"), lambda one: list(one.list("t")), lambda one: put(one, "t/f", b"")):
        with pytest.raises(ConfigurationError, match="AccessControlException"):
            verb(place_at(f"{folder.uri}/own"))


@pytest.mark.parametrize(
    ("quota", "text"),
    [("namespacequota=2", r"NSQuotaExceeded.*-setQuota"), ("storagespacequota=1", r"DSQuotaExceeded.*-setSpaceQuota")],
)
def test_a_quota_that_is_used_up_is_one_error_that_is_tried_again(
    quota: str, text: str, folder: Folder, hdfs: Cluster
) -> None:
    storage = place_at(folder.uri)
    put(storage, "f", b"x")
    hdfs.administrate("PUT", f"/{folder.name}", f"SETQUOTA&{quota}")
    with pytest.raises(StoreUnavailableError, match=text):
        put(storage, "t/f", b"x")
    assert storage.read("f") == b"x"


def test_a_file_where_a_folder_should_be_is_one_error(folder: Folder) -> None:
    folder.put("f", "x")
    with pytest.raises(ConfigurationError, match=r"f.*Name a folder: a file has this name"):
        place_at(f"{folder.uri}/f").check()


def host_and_port(address: str) -> dict[str, Any]:
    host, port = address.split(":")
    return {"host": host, "port": int(port)}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"host": "127.0.0.1", "port": 1}, r"'127.0.0.1:1' does not answer .Connection refused.*See host and port"),
        ({"host": "no-such-host.invalid"}, r"'no-such-host.invalid:[0-9]+' does not answer.*See host and port"),
        ({"extra": {"use_ssl": True}}, r"does not answer.*SSL"),
        ({"schema": "gateway/default"}, r"HTTP 40[45].*no WebHDFS answers there.*9870"),
        ({"extra": {"proxy_user": "other"}}, r"AuthorizationException.*hadoop.proxyuser"),
        ({"conn_type": "hdfs"}, r"of type 'hdfs', and hdfs:// needs one of type 'webhdfs'"),
        ({"host": "http://namenode"}, r"no list of hosts.*without http://"),
        ({"extra": {"read_timeout": "soon"}}, r"'soon' as read_timeout, which is no number"),
        ({"extra": {"use_ssl": True, "verify": "/no/such"}}, r"cannot be read from '/no/such'.*on each machine"),
    ],
)
def test_a_connection_that_does_not_fit_is_one_error_with_its_cure(
    written: dict[str, Any], text: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"conn_type": "webhdfs", **host_and_port(folder.server), "login": "trident", **written}
    told["extra"] = {"max_retries": 0, **written.get("extra", {})}
    monkeypatch.setenv(VARIABLE, json.dumps(told))
    with pytest.raises(TridentError, match=text):
        place_at(folder.uri).check()


def test_the_port_of_other_clients_is_named(folder: Folder, hdfs: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, connection(f"http://{hdfs.hadoop.setting('trident.rpc-address.0')}"))
    with pytest.raises(ConfigurationError, match=r"does not speak HTTP.*no WebHDFS answers there.*9870"):
        place_at(folder.uri).check()


def test_a_place_that_works_is_checked_once_and_its_folder_is_private(folder: Folder) -> None:
    for _ in range(3):
        place_at(f"{folder.uri}/staging").check()
    assert folder.status("staging")["permission"] == "700"
    assert folder.proxy.asked["PUT"] == 2 + 2 * 3


def test_a_place_that_was_resolved_needs_no_connection_any_more(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, folder.connection(delegation_token="a-secret-token"))
    assert "a-secret-token" not in repr(place_at(folder.uri).resolved())
    monkeypatch.setenv(VARIABLE, folder.connection())
    sent = pickle.dumps(place_at(folder.uri).resolved())
    monkeypatch.delenv(VARIABLE)
    there: Place = pickle.loads(sent)
    assert there.put_once("t/m", b"x")


def test_without_a_connection_the_address_and_the_user_are_enough(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("HADOOP_USER_NAME", "trident")
    assert place_at(f"webhdfs://{folder.server}/{folder.name}").put_once("t/m", b"x")
    assert ask(folder.server, "GET", f"/{folder.name}/t/m", "GETFILESTATUS")["FileStatus"]["owner"] == "trident"
    monkeypatch.setenv("AIRFLOW_CONN_WEBHDFS_DEFAULT", folder.connection())
    assert place_at(f"hdfs:///{folder.name}").read("t/m") == b"x"
    assert CONN_ID not in place_at(f"hdfs:///{folder.name}").where
