"""What every spout promises, over the spouts of Redis; and what those alone can meet."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.spout import Spout
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.spouts.redis import RedisSpout, RedisStreamSpout
from airflow_trident.testing.suites import SPOUT_CHECKS, SpoutCase, batch_rows, metadata_of_all
from airflow_trident.types import Json
from tests.fixtures.redis import settings_of_a_new_database, shared_server

TEXTS = ["", "a", "x y", "é\U0001f600", "@user #tag", "null", "last"]


def client_of(where: dict[str, Any]) -> Any:
    return shared_server().client(where["db"])


def write(where: dict[str, Any], texts: list[str], counter: str = "NEXT_WRITE", keys: str = "{n}") -> None:
    with client_of(where) as client:
        for text in texts:
            client.set(keys.replace("{n}", str(client.incr(counter))), text)


def add(where: dict[str, Any], stream: str, entries: list[dict[str, Any]]) -> list[str]:
    with client_of(where) as client:
        return [client.xadd(stream, entry).decode() for entry in entries]


def numbered(opaque: bool, **options: Any) -> SpoutCase:
    where = settings_of_a_new_database()
    texts = [TEXTS[number % len(TEXTS)] for number in range(29)]
    write(where, texts)
    spout = RedisSpout(**where, opaque=opaque, max_rows=7, **options)

    def take_away() -> Spout:
        client_of(where).delete("11")
        return spout

    return SpoutCase(spout, list(enumerate(texts, 1)), take_away)


def partitioned(opaque: bool) -> SpoutCase:
    where = settings_of_a_new_database()
    rows = []
    for partition, count in (("0", 12), ("1", 0), ("2", 5)):
        texts = [f"{partition}-{number}" for number in range(1, count + 1)]
        write(where, texts, f"last:{partition}", f"tweet:{partition}:{{n}}")
        rows += [(int(partition), number, text) for number, text in enumerate(texts, 1)]
    spout = RedisSpout(
        **where,
        opaque=opaque,
        counter="last:{partition}",
        keys="tweet:{partition}:{n}",
        num_partitions=3,
        max_rows=4,
        max_splits=2,
    )

    def take_away() -> Spout:
        client_of(where).delete("tweet:2:3")
        return spout

    return SpoutCase(spout, rows, take_away)


def streams(opaque: bool) -> SpoutCase:
    where = settings_of_a_new_database()
    rows = []
    for number in range(29):
        stream, entry = f"s{number % 3 % 2}", {"n": number, "text": TEXTS[number % len(TEXTS)], "more": "x"}
        (entry_id,) = add(where, stream, [entry])
        rows.append((entry_id, number, entry["text"]))
    spout = RedisStreamSpout(
        **where,
        opaque=opaque,
        streams=["s0", "s1", "none"],
        fields="id string, n long, text string",
        id_field="id",
        max_rows=5,
    )

    def take_away() -> Spout:
        client_of(where).xtrim("s0", maxlen=8, approximate=False)
        return spout

    return SpoutCase(spout, rows, take_away)


SOURCES: dict[str, Callable[[], SpoutCase]] = {
    "numbered keys": lambda: numbered(opaque=False),
    "opaque numbered keys": lambda: numbered(opaque=True),
    "partitions of numbered keys": lambda: partitioned(opaque=False),
    "opaque partitions of numbered keys": lambda: partitioned(opaque=True),
    "streams": lambda: streams(opaque=False),
    "opaque streams": lambda: streams(opaque=True),
}


@pytest.mark.parametrize("check", SPOUT_CHECKS)
@pytest.mark.parametrize("name", SOURCES)
def test_every_spout_keeps_its_promises(name: str, check: Callable[[SpoutCase], None]) -> None:
    check(SOURCES[name]())


@pytest.mark.parametrize("name", SOURCES)
def test_a_spout_says_what_it_is_in_one_line_and_no_secrets(name: str) -> None:
    spout = SOURCES[name]().spout
    assert spout.describe().startswith(type(spout).__name__)
    assert "\n" not in spout.describe()
    assert str(spout.kind) == ("opaque" if name.startswith("opaque") else "transactional")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("part", [7, {}, {"from": 3, "to": 1}, {"after": 1, "to": 2, "rows": 3, "added": 4, "lost": 0}])
def test_parts_of_another_spout_are_an_error_and_not_a_new_beginning(name: str, part: Json) -> None:
    spout = SOURCES[name]().spout
    partition = spout.partitions()[0]  # type: ignore[attr-defined]
    with pytest.raises(SourceChangedError, match=r"is not that of a Redis.*stream a new name"):
        spout.coordinator().initialize_transaction(2, {"parts": {partition: part}, "kept": {}, "behind": ""})


def test_what_is_shipped_to_executors_needs_no_connection_there_and_shows_no_password(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(where, ["a"])
    monkeypatch.setattr("airflow_trident.io.connections._Installed.resolver", None)  # tasks that ran here ask Airflow
    monkeypatch.setenv("AIRFLOW_CONN_TWEETS", f"redis://default:secret-9@127.0.0.1:{where['port']}/?db={where['db']}")
    spout = RedisSpout(conn_id="tweets")
    shipped = pickle.dumps(spout.emitter())
    monkeypatch.delenv("AIRFLOW_CONN_TWEETS")
    emitter = pickle.loads(shipped)
    assert "secret-9" not in f"{spout!r} {emitter!r} {spout.describe()}"
    with pytest.raises(ConfigurationError, match="no connection 'tweets'"):
        spout.coordinator().is_ready(None)
    (split,) = emitter.splits({"parts": {"0": {"from": 1, "to": 2}}, "kept": {}, "behind": "0"})
    assert [batch.to_pylist() for batch in emitter.read(split)] == [[{"id": 1, "value": "a"}]]


# ---- numbered keys ---------------------------------------------------------------------------------------------


def test_a_batch_ends_before_a_number_that_is_given_out_and_not_written(where: dict[str, Any]) -> None:
    spout = RedisSpout(**where)
    assert not spout.coordinator().is_ready(None)
    write(where, ["one", "two"])
    client = client_of(where)
    client.incr("NEXT_WRITE")
    write(where, ["four"])
    first = spout.coordinator().initialize_transaction(1, None)
    assert batch_rows(spout, first) == [(1, "one"), (2, "two")]
    assert not spout.coordinator().is_ready(first)
    client.set("3", "three")
    (second,) = metadata_of_all_after(spout, first)
    assert batch_rows(spout, second) == [(3, "three"), (4, "four")]


def metadata_of_all_after(spout: Spout, metadata: Json) -> list[Json]:
    found = []
    while (metadata := spout.coordinator().initialize_transaction(len(found) + 2, metadata)) is not None:
        found.append(metadata)
    return found


def test_an_opaque_batch_is_decided_anew_from_the_keys_that_are_there(where: dict[str, Any]) -> None:
    write(where, ["one", "two", "three"])
    spout = RedisSpout(**where, opaque=True)
    batch = spout.coordinator().initialize_transaction(1, None)
    client_of(where).delete("3")
    with pytest.raises(SourceUnavailableError, match=r"'3' .* is gone.*next attempt"):
        batch_rows(spout, batch)
    assert batch_rows(spout, spout.coordinator().initialize_transaction(1, None)) == [(1, "one"), (2, "two")]


def test_numbers_and_partitions_may_be_texts_and_records_bytes(where: dict[str, Any]) -> None:
    with client_of(where) as client:
        client.set("last:0", 1)
        client.set("0/1", b"\xff")
    options = {"counter": "last:{partition}", "keys": "{partition}/{n}", "num_partitions": 1}
    spout = RedisSpout(**where, **options, fields="p string, tweet_id string, tweet binary")
    assert batch_rows(spout, metadata_of_all(spout)[0]) == [("0", "1", b"\xff")]
    spout = RedisSpout(**where, **options)
    with pytest.raises(DamagedInputError, match=r"'0/1' of RedisSpout.*no UTF-8"):
        batch_rows(spout, metadata_of_all(spout)[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": "tweet"}, "keys='tweet'"),
        ({"num_partitions": 2}, "for partitions"),
        ({"keys": "{partition}:{n}", "num_partitions": 2}, "counter='NEXT_WRITE'"),
        ({"fields": "value string"}, "cannot give the fields 'value string'"),
        ({"fields": "id double, value string"}, "cannot give the fields"),
        ({"host": "h", "max_bytes": 0}, r"RedisSpout\(h:6379, {n}\) with max_bytes=0.*at least 1"),
        ({"max_rows": -1}, "with max_rows=-1"),
    ],
)
def test_settings_that_cannot_be_are_refused_on_the_users_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RedisSpout(**options)


def test_a_counter_that_is_no_number_and_a_server_that_is_gone_are_named(where: dict[str, Any]) -> None:
    client_of(where).set("NEXT_WRITE", "many")
    with pytest.raises(ConfigurationError, match=r"'NEXT_WRITE' of RedisSpout.* is no number"):
        RedisSpout(**where).coordinator().is_ready(None)
    with pytest.raises(SourceUnavailableError, match=r"Redis at 127.0.0.1:1 does not work now"):
        RedisSpout(host="127.0.0.1", port=1).coordinator().is_ready(None)


@pytest.mark.parametrize("opaque", [False, True])
def test_a_counter_that_went_back_is_never_taken_for_one_with_nothing_new(where: dict[str, Any], opaque: bool) -> None:
    write(where, ["x"] * 5)
    client = client_of(where)
    coordinator = RedisSpout(**where, opaque=opaque).coordinator()
    first = coordinator.initialize_transaction(1, None)
    assert not coordinator.is_ready(first)
    assert coordinator.lag(first) == {"records": 0}
    client.set("NEXT_WRITE", 3)
    said = r"counter 'NEXT_WRITE' of .*RedisSpout.* is 3, and the numbers up to 5 were read.*SET it to 5"
    for ask in (lambda: coordinator.initialize_transaction(2, first), lambda: coordinator.lag(first)):
        with pytest.raises(SourceChangedError, match=said):
            ask()
    client.delete("NEXT_WRITE")
    with pytest.raises(SourceChangedError, match="is 0, and the numbers up to 5"):
        coordinator.is_ready(first)
    assert not RedisSpout(**where, opaque=opaque, first=9).coordinator().is_ready(None), "nothing was read yet"


# ---- streams ---------------------------------------------------------------------------------------------------


def test_entries_that_are_trimmed_before_they_are_read_are_never_lost_in_silence(
    where: dict[str, Any], tmp_path: Path
) -> None:
    add(where, "s", [{"n": number} for number in range(10)])
    strict = RedisStreamSpout(**where, streams="s", fields="n long", max_rows=4)
    opaque = RedisStreamSpout(**where, opaque=True, streams="s", fields="n long", max_rows=4)
    first = strict.coordinator().initialize_transaction(1, None)
    client = client_of(where)
    client.xtrim("s", maxlen=6, approximate=False)
    assert batch_rows(strict, strict.coordinator().initialize_transaction(2, first)) == [(4,), (5,), (6,), (7,)]
    client.xtrim("s", maxlen=3, approximate=False)
    with pytest.raises(SourceChangedError, match=r"3 entries of stream 's' .* trimmed or deleted before any"):
        strict.coordinator().initialize_transaction(2, first)
    second = opaque.coordinator().initialize_transaction(2, first)
    assert isinstance(second, dict)
    assert second["parts"]["s"]["lost"] == 3  # type: ignore[index,call-overload]
    assert batch_rows(opaque, second) == [(7,), (8,), (9,)]
    client.xtrim("s", maxlen=0)
    assert not strict.coordinator().is_ready(second), "what was read may be trimmed"
    add(where, "s", [{"n": 10}])
    assert batch_rows(strict, strict.coordinator().initialize_transaction(3, second)) == [(10,)]


def test_an_opaque_batch_of_a_stream_that_was_trimmed_is_decided_anew(where: dict[str, Any]) -> None:
    add(where, "s", [{"n": number} for number in range(5)])
    spout = RedisStreamSpout(**where, opaque=True, streams="s", fields="n long")
    batch = spout.coordinator().initialize_transaction(1, None)
    client_of(where).xtrim("s", maxlen=2, approximate=False)
    with pytest.raises(SourceUnavailableError, match=r"has 2 of the 5 entries.*next attempt"):
        batch_rows(spout, batch)
    assert batch_rows(spout, spout.coordinator().initialize_transaction(1, None)) == [(3,), (4,)]


def test_a_field_that_an_entry_has_twice_is_an_error_where_the_spout_reads_it(where: dict[str, Any]) -> None:
    client = client_of(where)
    client.xadd("s", {"n": 1, "text": "a"})
    entry = client.execute_command("XADD", "s", "*", "n", "2", "text", "b", "text", "b", "more", "x", "more", "y")
    spout = RedisStreamSpout(**where, streams="s", fields="n long, text string")
    batch = spout.coordinator().initialize_transaction(1, None)
    with pytest.raises(DamagedInputError, match=f"the entry {entry.decode()} of stream 's' has the field 'text' sev"):
        batch_rows(spout, batch)
    without = RedisStreamSpout(**where, streams="s", fields="n long")
    assert batch_rows(without, batch) == [(1,), (2,)]


def test_a_stream_that_is_made_anew_is_not_read_as_the_old_one(where: dict[str, Any]) -> None:
    client = client_of(where)
    client.xadd("s", {"n": 1}, id="5-1")
    spout = RedisStreamSpout(**where, streams="s", fields="n long")
    first = spout.coordinator().initialize_transaction(1, None)
    client.delete("s")
    client.xadd("s", {"n": 2}, id="4-1")
    with pytest.raises(SourceChangedError, match="made anew: its newest id is 4-1, and 5-1 was read"):
        spout.coordinator().initialize_transaction(2, first)


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(
    ("more", "said"),
    [(3, "was given 3 entries in all, and 8 were counted"), (20, "0 entries were removed from it, and .* the 8 up to")],
)
def test_a_stream_that_is_made_anew_with_later_ids_is_told_by_what_it_counts(
    where: dict[str, Any], opaque: bool, more: int, said: str
) -> None:
    add(where, "s", [{"n": number} for number in range(10)])
    spout = RedisStreamSpout(**where, opaque=opaque, streams="s", fields="n long", max_rows=8)
    coordinator = spout.coordinator()
    first = coordinator.initialize_transaction(1, None)
    assert coordinator.lag(first) == {"records": 2}
    client_of(where).delete("s")
    add(where, "s", [{"n": number} for number in range(more)])
    for ask in (lambda: coordinator.initialize_transaction(2, first), lambda: coordinator.lag(first)):
        with pytest.raises(SourceChangedError, match=f"'s' of .* was made anew: .*{said}.*XSETID"):
            ask()


def test_one_and_the_same_stream_is_never_taken_for_another_one(where: dict[str, Any]) -> None:
    client = client_of(where)
    spout = RedisStreamSpout(**where, opaque=True, streams="s", fields="n long", max_rows=4)
    ids = add(where, "s", [{"n": number} for number in range(10)])
    client.xdel("s", ids[7])  # counted as removed before it is reached
    first = spout.coordinator().initialize_transaction(1, None)
    client.xdel("s", ids[5])
    client.xtrim("s", maxlen=4, approximate=False)
    second = spout.coordinator().initialize_transaction(2, first)
    assert batch_rows(spout, second) == [(4,), (6,), (8,), (9,)]
    client.xtrim("s", maxlen=0)
    assert not spout.coordinator().is_ready(second)
    client.xdel("s", *add(where, "s", [{"n": 10}, {"n": 11}]))
    add(where, "s", [{"n": 12}])
    assert batch_rows(spout, spout.coordinator().initialize_transaction(3, second)) == [(12,)]


def test_a_copy_of_a_stream_goes_on_when_it_counts_like_the_old_one(where: dict[str, Any]) -> None:
    client = client_of(where)
    ids = add(where, "s", [{"n": number} for number in range(10)])
    spout = RedisStreamSpout(**where, streams="s", fields="n long", max_rows=8)
    first = spout.coordinator().initialize_transaction(1, None)
    client.delete("s")
    for number in range(6, 10):
        client.xadd("s", {"n": number}, id=ids[number])
    with pytest.raises(SourceChangedError, match="was made anew: it was given 4 entries"):
        spout.coordinator().is_ready(first)
    client.execute_command("XSETID", "s", ids[-1], "ENTRIESADDED", 10)
    assert batch_rows(spout, spout.coordinator().initialize_transaction(2, first)) == [(8,), (9,)]


def test_fields_of_entries_have_types_and_what_is_missing_is_null(where: dict[str, Any]) -> None:
    add(where, "s", [{"n": "7", "x": "0.5", "yes": "true", "at": "2024-02-29T12:00:00Z", "b": b"\xff"}, {"other": 1}])
    add(where, "s", [{"clock": "12:30:00.5", "took": "-5"}])
    fields = (
        "n int, x double, yes boolean, at timestamp, b binary, missing string, clock time, took interval day to second"
    )
    spout = RedisStreamSpout(**where, streams="s", fields=fields)
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert batch_rows(spout, metadata_of_all(spout)[0]) == [
        (7, 0.5, True, at, b"\xff", None, None, None),
        (None,) * 8,
        (*(None,) * 6, time(12, 30, 0, 500_000), timedelta(microseconds=-5)),
    ]
    add(where, "bad", [{"n": "seven"}])
    spout = RedisStreamSpout(**where, streams="bad", fields="n long")
    with pytest.raises(DamagedInputError, match=r"the entry \d+-\d+ of stream 'bad' has no long in its field 'n'"):
        batch_rows(spout, metadata_of_all(spout)[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "streams=\\(\\)"),
        ({"streams": "s"}, "fields=''"),
        ({"streams": "s", "fields": "n long", "id_field": "n"}, "id_field='n' is no string"),
        ({"streams": "s", "fields": "n long", "max_bytes": 0}, r"RedisStreamSpout\(.* with max_bytes=0.*at least 1"),
        ({"streams": "s", "fields": "n long", "max_rows": 0}, "with max_rows=0"),
    ],
)
def test_streams_that_cannot_be_are_refused_on_the_users_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RedisStreamSpout(**options)


def test_max_bytes_ends_a_batch_and_a_larger_record_is_one_by_itself(where: dict[str, Any]) -> None:
    write(where, ["12345", "12345", "1", "x" * 99, "12345"])
    add(where, "s0", [{"t": "1234"}, {"t": "1234"}, {"t": "x" * 99}])
    add(where, "s1", [{"t": "1234"}])
    stream = RedisStreamSpout(**where, streams=["s0", "s1"], fields="t string", max_bytes=12)
    for spout, lengths in (
        (RedisSpout(**where, fields="id long, value string", max_bytes=12), [[5, 5, 1], [99], [5]]),
        (stream, [[4, 4], [4], [99]]),  # each stream is the first one in turn
    ):
        found, previous = [], None
        while (metadata := spout.coordinator().initialize_transaction(len(found) + 1, previous)) is not None:
            found.append([len(row[-1]) for row in batch_rows(spout, metadata)])
            previous = metadata
        assert found == lengths
