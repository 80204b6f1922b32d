"""What Redis alone can meet: its layouts as others read them, what keys and settings are refused, disks, clusters."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    NewerRecordError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TridentError,
    UserCodeError,
)
from airflow_trident.io.redis import RedisServer
from airflow_trident.operations.aggregators import Count, Max, Sum
from airflow_trident.spouts.redis import RedisSpout, RedisStreamSpout
from airflow_trident.states.keyvalue.redis import RedisStateProvider
from airflow_trident.states.redis.map import _require_no_eviction
from airflow_trident.states.redis.state import OpenRedisState, RedisState
from airflow_trident.testing.suites import batch_rows
from tests.fixtures.redis import Server, own_server
from tests.fixtures.state import apply, batch, combined, content, counts, product, ticket


def tables(factory: RedisState) -> StateSpec:
    return combined(factory, "counter string, name string", "n long", Count(), topology="tweets")


# ---- layouts ---------------------------------------------------------------------------------------------------


def test_several_tables_are_hashes_that_others_can_read_and_change_in_one_step(where: Any, client: Any) -> None:
    spec = tables(RedisState(**where, hash_by="counter"))
    rows = [("users", "@a", 1), ("hashtags", "#x:y", 2), ("users:hashtags\\", "@a:#x", 3), (None, None, 4)]
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenRedisState)
        for txid in (1, 2):
            apply(state, ticket(txid, topology="tweets"), batch(spec, *rows))
        assert content(state) == {(counter, name): (2 * n,) for counter, name, n in rows}
        assert state.get_many([("users", "@a"), ("users", "@b"), (None, None)]) == [(2,), None, (8,)]
        assert state.count() == 4
    assert client.hgetall("{tweets/counts}:data:users") == {"@a": "2"}
    assert client.hgetall("{tweets/counts}:data:hashtags") == {"#x:y": "4"}
    assert client.hgetall("{tweets/counts}:data:users\\chashtags\\\\") == {"@a:#x": "6"}
    assert len(client.keys("*")) == 6, "four tables, the name of one of them, one record, nothing staged left"


def test_the_layouts_are_a_hash_or_a_key_each_with_plain_texts(where: Any, client: Any) -> None:
    for layout in ("hash", "string"):
        spec = combined(RedisState(**where, key=f"in [{layout}]*", layout=layout), "word string", "n double", Max())
        with spec.factory.make_state(spec) as state:
            assert isinstance(state, OpenRedisState)
            apply(state, ticket(1), batch(spec, ("a", 0.5), ("*", 2.0), (None, None)))
            assert state.count() == 3
            assert content(state) == {("a",): (0.5,), ("*",): (2.0,), (None,): (None,)}
    assert client.hgetall("{in [hash]*}:data") == {"a": "0.5", "*": "2.0", "\\N": "\\N"}
    assert [client.get(f"{{in [string]*}}:data:{name}") for name in ("a", "*", "\\N")] == ["0.5", "2.0", "\\N"]


def test_several_fields_are_json_arrays(where: Any, client: Any) -> None:
    spec = combined(RedisState(**where), "k int, b binary", "low double, high string", Max(), Max())
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, b"\xff", 0.5, "ü"), (2, None, None, "")))
        assert content(state) == {(1, b"\xff"): (0.5, "ü"), (2, None): (None, "")}
    assert client.hgetall("{words/counts}:data") == {'[1,"ff"]': '[0.5,"ü"]', "[2,null]": '[null,""]'}


def test_sums_beyond_what_a_double_holds_are_exact(where: Any) -> None:
    spec = combined(RedisState(**where), "k long", "total long", Sum())
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, (1, 2**53), (2, -(2**62)), (3, 2**52 - 1)))
        apply(state, ticket(2), batch(spec, (1, 1), (2, -(2**62)), (3, 1), (3, 2)))
        assert content(state) == {(1,): (2**53 + 1,), (2,): (-(2**63),), (3,): (2**52 + 2,)}
        before = state.marker()
        with pytest.raises(UserCodeError, match="beyond the largest 64-bit number"):
            state.apply(ticket(3), batch(spec, (1, 5), (2, -1)))
        assert state.marker() == before
        assert content(state)[(1,)] == (2**53 + 1,)


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_batch_of_many_keys_is_one_step(where: Any, client: Any, layout: str) -> None:
    spec = counts(RedisState(**where, layout=layout))
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            apply(state, ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(12_000))))
        found = content(state)
    assert len(found) == 12_000
    assert set(found.values()) == {(2,)}
    assert client.keys("*stage*") == []


def test_t6_the_work_of_a_batch_does_not_grow_with_the_state(where: Any, client: Any) -> None:
    """Counted in the server's commands and the bytes that it reads and writes, per commit of 50 keys."""
    for make in (counts, product):
        spec = make(RedisState(**where, key=make.__name__))
        work = []
        with spec.factory.make_state(spec) as state:
            for txid, keys in ((1, 2_000), (3, 20_000)):
                apply(state, ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(keys))))
                before = client.info("stats")
                state.apply(ticket(txid + 1), batch(spec, *((f"w{number * 37}", 1) for number in range(50))))
                after = client.info("stats")
                names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes")
                work.append([after[name] - before[name] for name in names])
        (commands, *sizes), (more_commands, *more_sizes) = work
        assert commands == more_commands
        assert all(abs(more - size) < 0.05 * size + 200 for size, more in zip(sizes, more_sizes, strict=True)), work


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"conn_id": "a", "host": "b"}, "both the connection 'a' and the host 'b'"),
        ({"port": "6379"}, "port='6379'"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"layout": "zset"}, "no layout 'zset'.*hash, string"),
        ({"hash_by": "a", "layout": "string"}, "hash_by keeps hashes"),
        ({"key": "a{b"}, "'a{b' cannot be the key"),
        ({"cluster": True, "fsync": True}, "cannot wait for the disks of a cluster"),
    ],
)
def test_settings_that_cannot_be_are_refused_on_the_users_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RedisState(**options)


def test_hash_by_names_the_first_of_several_keys(where: Any) -> None:
    for factory in (RedisState(**where, hash_by="name"), RedisState(**where, hash_by="counter")):
        spec = tables(factory) if factory.hash_by == "name" else counts(factory)
        with pytest.raises(ConfigurationError, match="names the first of several key fields"):
            factory.make_state(spec)


def test_a_state_says_where_it_is_and_never_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    explicit = RedisState(host="cache", db=2, username="u", password="secret-1", key="k", hash_by="c")
    monkeypatch.setenv("AIRFLOW_CONN_TWEETS", "redis://u:secret-1@cache:7000/?db=3")
    named = RedisState(conn_id="tweets")
    assert explicit.describe() == "RedisState(cache:6379/2, hash, k, by c)"
    assert (named.describe(), RedisState().describe()) == (
        "RedisState(tweets, hash)",
        "RedisState(redis_default, hash)",
    )
    assert named.resolve().options["password"] == "secret-1"
    assert named.resolve().options["port"] == 7000
    assert pickle.loads(pickle.dumps(named.resolve())).options["db"] == 3
    for shown in (explicit, named, explicit.resolve(), named.resolve()):
        assert "secret-1" not in f"{shown!r} {shown}"


def test_a_state_made_otherwise_or_by_another_is_not_touched(where: Any, client: Any) -> None:
    factory = RedisState(**where, key="shared")
    spec = counts(factory)
    with factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1)))
    before = client.hgetall("{shared}:data"), client.get("{shared}:record")
    with pytest.raises(
        ConfigurationError, match=r"belongs to state 'counts' of topology 'words', not to state 'other'"
    ):
        factory.make_state(counts(factory, name="other"))
    with pytest.raises(DefinitionChangedError, match=r"was made as \(word string\) -> \(n long\) as hash, and now"):
        factory.make_state(combined(factory, "word string", "n double", Sum()))
    with pytest.raises(DefinitionChangedError, match="as string"):
        replace(factory, layout="string").make_state(spec)
    assert (client.hgetall("{shared}:data"), client.get("{shared}:record")) == before


def test_keys_that_belong_to_something_else_are_not_touched(where: Any, client: Any) -> None:
    spec = counts(RedisState(**where))
    with spec.factory.make_state(spec) as state:
        client.hset("{words/counts}:data", "a", "7")
        with pytest.raises(ConfigurationError, match="without a record of state 'counts'"):
            state.apply(ticket(1), batch(spec, ("a", 1)))
        client.delete("{words/counts}:data")
        apply(state, ticket(1), batch(spec, ("a", 1)))
        client.delete("{words/counts}:data")
        client.set("{words/counts}:data", "text")
        with pytest.raises(ConfigurationError, match="Its keys belong to something else"):
            state.apply(ticket(2), batch(spec, ("a", 1)))
        with pytest.raises(ConfigurationError, match="Its keys belong to something else"):
            state.marker()
    assert json.loads(client.get("{words/counts}:record"))["high"] == 1
    assert client.get("{words/counts}:data") == "text"


LAYOUTS: dict[str, dict[str, Any]] = {
    "hash": {},
    "string": {"layout": "string"},
    "several hashes": {"hash_by": "counter"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_p11_data_and_record_that_lost_each_other_are_noticed(where: Any, client: Any, layout: str) -> None:
    spec = tables(RedisState(**where, **LAYOUTS[layout], key="k"))
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1, topology="tweets"), batch(spec, ("a", "b", 1), ("c", "d", 1), ("e", "f", 1)))
        state.apply(ticket(1, topology="tweets", fence=11), batch(spec))  # changes only the record
        copies = {name: client.dump(name) for name in client.keys("{k}:*")}
        record = client.get("{k}:record")
        if layout == "hash":
            client.hdel("{k}:data", '["a","b"]')
        else:
            client.delete(*(name for name in copies if name.startswith("{k}:data:")))
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match=r"removed or written by somebody else.*rebuild"):
                state.marker()
            with pytest.raises(CorruptRecordError, match="removed or written by somebody else"):
                state.apply(ticket(2, topology="tweets"), batch(spec, ("a", "b", 1)))
        assert client.get("{k}:record") == record
        for name, copied in copies.items():
            client.restore(name, 0, copied, replace=True)
        client.delete("{k}:record")
        with pytest.raises(ConfigurationError, match="the record was removed"):
            state.apply(ticket(1, topology="tweets"), batch(spec, ("a", "b", 1)))


@pytest.mark.parametrize("lost", ["committed", "prepared", "record", "a key"])
def test_data_and_record_of_a_namespace_that_lost_each_other_are_noticed(where: Any, client: Any, lost: str) -> None:
    with RedisStateProvider(**where).new_state("n") as state:
        for txid in (1, 2):
            state.put("a", txid)
            state.put("b", txid)
            state.prepare_commit(txid, fence=1)
            if txid == 1:
                state.commit(1, fence=1)
        if lost == "a key":
            client.hdel("trident{n}:committed", '"a"')
        else:
            client.delete(f"trident{{n}}:{lost}")
        with pytest.raises(CorruptRecordError, match="removed or written by somebody else"):
            state.commit(2, fence=1)


def test_what_somebody_else_wrote_into_a_namespace_is_named(where: Any, client: Any) -> None:
    with RedisStateProvider(**where).new_state("n") as state:
        state.put("a", 1)
        state.prepare_commit(1, fence=1)
        state.commit(1, fence=1)
        (name,) = [name for name in client.keys("*") if name.endswith("committed")]
        for text in (b"\xff", b'"\xff"', b"abc"):
            client.hset(name, client.hkeys(name)[0], text)
            for read in (lambda: state.get("a"), lambda: list(state.committed_items())):
                with pytest.raises(CorruptRecordError, match=r"no UTF-8|not JSON"):
                    read()


def test_who_may_only_read_looks_up_keys(where: Any, client: Any) -> None:
    spec = counts(RedisState(**where))
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1)))
    name = f"reader-{where['db']}"
    client.execute_command("ACL SETUSER", name, "on", ">secret", "~*", "+@read", "+select")
    spec = counts(RedisState(**where, username=name, password="secret"))
    with spec.factory.make_state(spec) as state:
        assert state.get_many([("a",)]) == [(1,)]
        assert content(state) == {("a",): (1,)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_record_of_a_version_that_did_not_count_keys_is_read(where: Any, client: Any, layout: str) -> None:
    spec = tables(RedisState(**where, **LAYOUTS[layout], key="k"))
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1, topology="tweets"), batch(spec, ("a", "b", 1)))
        record = json.loads(client.get("{k}:record"))
        client.set("{k}:record", json.dumps({name: record[name] for name in record if name != "keys"} | {"op": "old"}))
        assert apply(state, ticket(1, topology="tweets", fence=11), batch(spec)) is Applied.ALREADY
        assert apply(state, ticket(2, topology="tweets"), batch(spec, ("a", "c", 1))) is Applied.APPLIED
        assert len(content(state)) == 2
        assert (json.loads(client.get("{k}:record")).get("keys"), layout) in ((2, "hash"), (None, layout))


@pytest.mark.parametrize("layout", ["hash", "string"])
@pytest.mark.parametrize("make", [counts, product])
@given(text=st.text(st.sampled_from("0123456789.exX+-_ naif\\[]"), max_size=25))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_that_somebody_else_wrote_is_a_number_or_an_error(
    where: Any, client: Any, layout: str, make: Any, text: str
) -> None:
    """Lua reads 1.5, 1e3 and 0x10 as numbers, and Python 1_0: what is added to them is another value."""
    client.flushdb()
    spec = make(RedisState(**where, layout=layout))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2), ("b", 2)))
        data = "{words/counts}:data"
        client.hset(data, "a", text) if layout == "hash" else client.set(f"{data}:a", text)
        is_number = re.fullmatch("0|-?[1-9][0-9]*", text, re.ASCII) and -(2**63) <= int(text) < 2**61
        with nullcontext() if is_number else pytest.raises(CorruptRecordError, match=r"at b'a' of .*n long"):
            assert state.get_many([("a",)]) == [(int(text),)]
        with nullcontext() if is_number else pytest.raises((CorruptRecordError, UserCodeError)):
            state.apply(ticket(2), batch(spec, ("a", 1), ("b", 2)))
        assert state.get_many([("b",)]) == [(4 if is_number else 2,)]


def test_a_record_that_cannot_be_read_is_not_guessed_at(where: Any, client: Any) -> None:
    spec = replace(counts(RedisState(**where)), opaque=True)
    with spec.factory.make_state(spec) as state:
        apply(state, ticket(1), batch(spec, ("a", 1), ("b", 1)))
        record = json.loads(client.get("{words/counts}:record"))
        client.hdel("{words/counts}:before", "b")
        with pytest.raises(CorruptRecordError, match="does not hold the 2 values"):
            state.apply(replace(ticket(1, fence=11), attempt=1), batch(spec, ("a", 1)))
        client.set("{words/counts}:record", json.dumps({**record, "v": 2}))
        with pytest.raises(NewerRecordError, match="version 2"):
            state.marker()
        client.set("{words/counts}:record", json.dumps({**record, "holes": 7}))
        with pytest.raises(CorruptRecordError, match="cannot be read"):
            state.marker()


def test_a_server_that_removes_keys_or_refuses_the_login_is_refused(tmp_path: Path) -> None:
    with own_server(tmp_path, maxmemory="50mb") as server:
        server.client().config_set("requirepass", "secret-2")
        factory = RedisState(host="127.0.0.1", port=server.port, password="secret-2", timeout_s=5.0)
        with factory.make_state(counts(factory)) as state:
            assert state.marker() is None
        rights: Any = {"passwords": ["+secret-4"], "categories": ["+@all"], "commands": ["-eval"], "keys": ["*"]}
        server.client(password="secret-2").acl_setuser("reader", enabled=True, **rights)
        spec = counts(replace(factory, username="reader", password="secret-4"))
        with (
            spec.factory.make_state(spec) as state,
            pytest.raises(ConfigurationError, match=r"refused the login or the command.*the right user"),
        ):
            state.apply(ticket(1), batch(spec, ("a", 1)))
        server.client(password="secret-2").config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigurationError, match=r"removes keys.*allkeys-lru.*noeviction"):
            factory.make_state(counts(factory))
        for wrong in (None, "secret-3"):
            with pytest.raises(ConfigurationError, match="refused the login") as caught:
                replace(factory, password=wrong).make_state(counts(factory))
            assert "secret" not in str(caught.value)


def test_a_server_that_is_full_or_gone_is_unavailable_and_nothing_is_applied(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        factory = RedisState(host="127.0.0.1", port=server.port, timeout_s=0.2)
        spec = counts(factory)
        with factory.make_state(spec) as state:
            apply(state, ticket(1), batch(spec, ("a", 1)))
            admin = server.client()
            admin.config_set("maxmemory", "1mb")
            with pytest.raises(StoreUnavailableError, match="does not work now"):
                state.apply(ticket(2), batch(spec, ("a", 1)))
            admin.config_set("maxmemory", "0")
            assert apply(state, ticket(2), batch(spec, ("a", 1))) is Applied.APPLIED
            server.kill()
            with pytest.raises(StoreUnavailableError, match="does not work now"):
                state.apply(ticket(3), batch(spec, ("a", 1)))
            server.start()
            assert content(state) == {("a",): (2,)}, "what was acknowledged is on the disk"
            assert apply(state, ticket(3), batch(spec, ("a", 1))) is Applied.APPLIED


@pytest.mark.parametrize("takes_writes", [True, False])
def test_a_replica_is_named_and_keeps_nothing(tmp_path: Path, takes_writes: bool) -> None:
    with own_server(tmp_path) as replica:
        factory = RedisState(host="127.0.0.1", port=replica.port, timeout_s=0.2)
        provider = RedisStateProvider(host="127.0.0.1", port=replica.port, timeout_s=0.2)
        spec = counts(factory)
        with factory.make_state(spec) as state, provider.new_state("ns") as pairs:
            admin = replica.client()
            admin.config_set("replica-read-only", "no" if takes_writes else "yes")
            admin.replicaof("127.0.0.1", 1)  # a primary that is away: what the replica has stays as it is
            with pytest.raises(StoreUnavailableError, match=r"is a replica.*address of the primary"):
                state.apply(ticket(1), batch(spec, ("a", 1)))
            pairs.put("a", 1)
            with pytest.raises(StoreUnavailableError, match=r"is a replica.*address of the primary"):
                pairs.prepare_commit(1, fence=1)
            admin.replicaof("NO", "ONE")
            assert content(state) == {}
            assert apply(state, ticket(1), batch(spec, ("a", 1))) is Applied.APPLIED


DRIVERS_ERRORS = [
    redis.exceptions.ConnectionError("Connection closed by server."),
    redis.exceptions.TimeoutError("Timeout reading from socket"),
    redis.exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1 400'"),
    redis.exceptions.ResponseError("ERR an odd answer"),
    redis.exceptions.NoPermissionError("NOPERM this user has no permissions to run it"),
    redis.exceptions.ReadOnlyError("READONLY You can't write against a read only replica."),
    redis.exceptions.OutOfMemoryError("OOM command not allowed"),
    BrokenPipeError(32, "Broken pipe"),
]


def test_an_error_of_the_driver_is_one_of_this_package_whichever_answer_it_comes_instead_of(
    where: dict[str, Any], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set("NEXT_WRITE", 1)
    client.set("1", "one")
    client.xadd("s", {"n": 1})
    where["timeout_s"] = 2.0
    answered = redis.connection.Connection.read_response
    count, fails_at = 0, 0

    def read_response(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count != fails_at:
            return answered(self, *arguments, **options)
        error = DRIVERS_ERRORS[fails_at % len(DRIVERS_ERRORS)]
        if isinstance(error, redis.exceptions.ResponseError):
            with suppress(redis.exceptions.ResponseError):
                answered(self, *arguments, **options)  # the server says this instead
        else:
            self.disconnect()
        raise error

    def all_calls() -> None:
        factory = RedisState(**where, key=f"k{fails_at}")
        spec = combined(factory, "word string", "n long", Max())
        with factory.make_state(spec) as state:
            state.apply(ticket(1), batch(spec, ("a", 1)))
            state.apply(ticket(2), batch(spec, ("a", 2)))
            assert content(state) == {("a",): (2,)}
            assert (state.get_many([("a",)]), state.count()) == ([(2,)], 1)
        with RedisStateProvider(**where).new_state(f"n{fails_at}") as pairs:
            pairs.put("a", 1)
            pairs.prepare_commit(1, fence=1)
            pairs.commit(1, fence=1)
            assert list(pairs.iterator()) == [("a", 1)]
        for spout in (RedisSpout(**where), RedisStreamSpout(**where, streams="s", fields="n long")):
            metadata = spout.coordinator().initialize_transaction(1, None)
            assert len(batch_rows(spout, metadata)) == 1
            spout.coordinator().lag(metadata)

    monkeypatch.setattr(redis.connection.Connection, "read_response", read_response)
    all_calls()
    total = count
    while fails_at < total:
        count, fails_at = 0, fails_at + 1
        with suppress(TridentError):
            all_calls()


# ---- disks and clusters ----------------------------------------------------------------------------------------


def test_a_commit_waits_for_the_disk_if_it_shall(tmp_path: Path) -> None:
    with own_server(tmp_path, appendfsync="everysec") as server:
        factory = RedisState(host="127.0.0.1", port=server.port, fsync=True)
        spec = counts(factory)
        with factory.make_state(spec) as state:
            assert apply(state, ticket(1), batch(spec, ("a", 1))) is Applied.APPLIED
            assert apply(state, ticket(1), batch(spec, ("a", 1))) is Applied.ALREADY
        spec = counts(replace(factory, replicas=1, timeout_s=0.5))
        with spec.factory.make_state(spec) as state:
            with pytest.raises(OutcomeUnknownError, match="only 1 disk and 0 replicas have it"):
                state.apply(ticket(2), batch(spec, ("a", 1)))
            assert content(state) == {("a",): (2,)}
        server.client().config_set("appendonly", "no")
        with factory.make_state(counts(factory)) as state, pytest.raises(ConfigurationError, match="WAITAOF"):
            state.apply(ticket(3), batch(spec, ("a", 1)))


def test_a_state_lives_in_a_cluster_under_one_hash_tag(tmp_path: Path) -> None:
    with own_server(tmp_path, **{"cluster-enabled": "yes", "databases": 1}) as server:
        _take_all_slots(server)
        for name, options in (("one", {"layout": "string"}), ("two", {"hash_by": "counter"}), ("three", {})):
            factory = RedisState(host="127.0.0.1", port=server.port, cluster=True, key=name, **options)
            spec = replace(tables(factory), opaque=True)
            with factory.make_state(spec) as state:
                apply(state, ticket(1, topology="tweets"), batch(spec, ("users", "@a", 1), ("tags", "#b", 2)))
                replay = replace(ticket(1, topology="tweets", fence=11), attempt=1)
                apply(state, replay, batch(spec, ("users", "@a", 5)))
                assert content(state) == {("users", "@a"): (5,)}


def _take_all_slots(server: Server) -> None:
    with server.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            client.ping()


def test_no_node_of_a_cluster_may_remove_keys(tmp_path: Path) -> None:
    config = {"cluster-enabled": "yes", "databases": 1}
    with own_server(tmp_path / "one", **config) as one, own_server(tmp_path / "two", **config) as two:
        _join(one, two)
        for server in (one, two):
            server.client().config_set("maxmemory", "50mb")
        factory = RedisState(host="127.0.0.1", port=one.port, cluster=True)
        factory.make_state(counts(factory)).close()
        for server in (one, two):
            server.client().config_set("maxmemory-policy", "allkeys-lru")
            with pytest.raises(ConfigurationError, match=rf"at 127\.0\.0\.1:{server.port} removes keys.*allkeys-lru"):
                factory.make_state(counts(factory))
            server.client().config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("error", [redis.exceptions.ConnectionError, redis.exceptions.TimeoutError])
def test_a_node_that_does_not_answer_is_asked_in_vain_unless_it_is_a_primary(error: type[Exception]) -> None:
    class Cluster:
        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(name="a", server_type="primary"), SimpleNamespace(name="b", server_type=hung)]

        def info(self, _: str, target_nodes: Any) -> dict[str, Any]:
            if target_nodes.name == "b":
                raise error("no answer")
            return {}

    server, hung = RedisServer(place="here", options={}, cluster=True), "replica"
    _require_no_eviction(Cluster(), server)
    hung = "primary"
    with pytest.raises(error):
        _require_no_eviction(Cluster(), server)


def _join(one: Server, two: Server) -> None:
    with one.client() as first, two.client() as second:
        first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
        second.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
        first.execute_command("CLUSTER MEET", "127.0.0.1", two.port)
        for client in (first, second):
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                client.ping()
