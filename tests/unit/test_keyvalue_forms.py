"""Keys and values of stateful functions that are objects of classes, or bytes of a serializer; and Storm's
configuration of them, as its documents write it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, KeyValueStates, StatefulFunction, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, CorruptRecordError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.state_functions import KeyValues
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm.config import read_config


@dataclass(frozen=True)
class Word:
    text: str
    parts: tuple[int, ...] = (1, 2)


@dataclass
class Seen:
    count: int
    last: str = ""


class Upper:
    """A serializer: words as bytes."""

    def serialize(self, value: str) -> bytes:
        return value.upper().encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode().lower()


class Halves(Upper):
    def serialize(self, value: str) -> Any:
        return value


class NoSerializer:
    pass


HERE = __name__
CLASSES = {"key_class": f"{HERE}:Word", "value_class": f"{HERE}.Seen"}
WORDS = ["a", "b", "a", "a"]


class Counts(StatefulFunction[Any, Any]):
    """Its keys and values are made by `key` and `value`."""

    def init_state(self, state: KeyValues[Any, Any]) -> None:
        self.state = state
        self.before = sorted(state.iterator(), key=repr)

    def execute(self, word: str) -> None:
        self.count(word)
        if word == "b":
            assert self.state.delete(self.key(word)) == self.value(1)
            assert self.state.delete(self.key(word)) is None

    def key(self, word: str) -> Any:
        return Word(word)

    def value(self, count: int) -> Any:
        return Seen(count)

    def count(self, word: str) -> None:
        seen = self.state.get(self.key(word), Seen(0))
        assert isinstance(seen, Seen)
        self.state.put(self.key(word), Seen(seen.count + 1))


class Serialized(Counts):
    def key(self, word: str) -> Any:
        return word

    def value(self, count: int) -> Any:
        return "x" * count

    def count(self, word: str) -> None:
        self.state.put(word, self.state.get(word, "") + "x")


class Dicts(Counts):
    def count(self, word: str) -> None:
        self.state.put({"text": word}, Seen(1))


class Changed(Counts):
    """What its class does not allow in a field."""

    def count(self, word: str) -> None:
        self.state.put(Word(word), Seen(count="many"))  # type: ignore[arg-type]


def run(folder: Path, function: StatefulFunction[Any, Any], config: dict[str, Any]) -> list[Any]:
    """What the state holds as JSON at the end."""
    made = Topology("forms")
    words = made.new_stream("words", FixedBatchSpout("word string", WORDS, 2))
    states = KeyValueStates("sqlite", {"path": str(folder / "forms.db"), **config})
    words.stateful("word", function, provider=states, name="counts")
    with MemoryLedger(made.name) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=str(folder)).run()
    spec = made.states["counts"]
    with spec.factory.make_state(spec) as state:
        return [[key[0], value[0]] for key, value in state.items()]


def test_objects_of_classes_come_back_as_they_were_put(tmp_path: Path) -> None:
    held = run(tmp_path, Counts(), CLASSES)
    assert held == [[{"text": "a", "parts": (1, 2)}, {"count": 3, "last": ""}]]


def test_a_serializer_makes_bytes_of_keys_and_values(tmp_path: Path) -> None:
    names = {"key_serializer": f"{HERE}:Upper", "value_serializer": f"{HERE}:Upper", "key_class": "str"}
    assert run(tmp_path, Serialized(), names) == [["QQ==", "WFhY"]]


@pytest.mark.parametrize(
    ("function", "config", "says"),
    [
        (Dicts(), CLASSES, "the key {'text': 'a'} of a state is no Word"),
        (Changed(), CLASSES, "Expected `int`, got `str`"),
        (Serialized(), {"value_serializer": f"{HERE}:Halves"}, "gave 'x', which is no bytes"),
        (Serialized(), {"value_class": "int"}, "the value 'x' of a state is no int"),
    ],
)
def test_what_would_not_come_back_is_refused_when_it_is_put(
    function: StatefulFunction[Any, Any], config: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserCodeError, match=says.replace("{", r"\{").replace("}", r"\}")):
        run(tmp_path, function, config)


def test_what_was_written_with_another_class_is_damaged_to_this_one(tmp_path: Path) -> None:
    run(tmp_path, Serialized(), {})
    made = Topology("forms")
    words = made.new_stream("words", FixedBatchSpout("word string", WORDS, 2))
    states = KeyValueStates("sqlite", {"path": str(tmp_path / "forms.db"), "value_class": f"{HERE}:Seen"})
    words.stateful("word", Reads(), provider=states, name="counts")
    with pytest.raises(CorruptRecordError, match=r"a value of a state is 'xxx'.*another class"):
        Reads().read(made)


class Reads(StatefulFunction[Any, Any]):
    """Reads all there is, as an open state lets a function do."""

    def init_state(self, state: KeyValues[Any, Any]) -> None:
        self.state = state

    def execute(self, word: str) -> None:
        """Nothing."""

    def read(self, topology: Topology) -> list[Any]:
        from airflow_trident.states.keyvalue.base import Forms
        from airflow_trident.states.keyvalue.stateful_partition import Window

        spec = topology.states["counts"]
        factory = spec.factory
        assert isinstance(factory, KeyValueStates)
        with factory.make_state(spec) as state:
            return list(Window(state._states[0], Forms.of(factory.config)).iterator())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"key_class": "no.such:Class"}, "key_class 'no.such:Class': there is no module 'no'"),
        ({"key_class": f"{HERE}:Missing"}, "is no class"),
        ({"key_serializer": f"{HERE}:NoSerializer"}, r"has no serialize\(\)"),
        ({"value_serializer": f"{HERE}:Word"}, "value_serializer: .*made without arguments"),
    ],
)
def test_a_class_that_cannot_be_used_is_an_error_of_the_dag_file(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        KeyValueStates("memory", config)


def test_classes_are_part_of_the_definition_and_what_has_none_is_described_as_before() -> None:
    assert KeyValueStates("memory").describe() == KeyValueStates("memory", {}).describe()
    assert KeyValueStates("memory", CLASSES).describe().endswith(f", key_class {HERE}:Word, value_class {HERE}.Seen)")


def test_storms_configuration_of_states_is_taken_as_its_document_writes_it() -> None:
    text = {
        "keyClass": f"{HERE}.Word",
        "valueClass": f"{HERE}.Seen",
        "jedisPoolConfig": {"host": "localhost", "port": 6379, "timeout": 2000, "database": 0, "password": "xyz"},
    }
    found = read_config(
        {
            "topology.state.provider": "org.apache.storm.redis.state.RedisKeyValueStateProvider",
            "topology.state.provider.config": json.dumps(text),
            "topology.state.checkpoint.interval.ms": 1000,
        }
    )
    assert found.state_provider == "redis"
    assert found.checkpoint_interval == timedelta(seconds=1)
    assert found.state_provider_config == {
        "key_class": f"{HERE}.Word",
        "value_class": f"{HERE}.Seen",
        "host": "localhost",
        "port": 6379,
        "timeout_s": 2.0,
        "db": 0,
        "password": "xyz",
    }
    made = KeyValueStates(found.state_provider, dict(found.state_provider_config))
    assert "xyz" not in made.describe()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"topology.state.checkpoint.interval.ms": 0}, "topology.state.checkpoint.interval.ms is 0"),
        ({"topology.state.provider.config": {"jedisPoolConfig": {"hosts": "x"}}}, "These are known: host, port"),
        ({"topology.state.provider.config": {"jedisPoolConfig": {"timeout": "2s"}}}, "timeout is '2s'"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(conf: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_config(conf)
