"""Whatever a user's code raises is caught where it is raised, and carried as short, clean data with its place."""

from __future__ import annotations

import json
import pickle
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, errors
from airflow_trident.engine.spark.errors import from_json, to_json, to_worker_error, translate
from airflow_trident.errors import FailedException, TridentError, UserCodeError, cleaned, error_text, text_of
from airflow_trident.protocol.records import ERROR_CHARACTERS, TxRecord
from airflow_trident.states.sql.store import SqlStore
from tests.fixtures.runtime import World

UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
TEXTS = [
    "",
    "no such word",
    "\0",
    "\x1b]0;title\x07\x1b[2J",
    "\udcff",
    "\u202eedoc",
    "a\r\nb\tc",
    "é" * 999,
    "x" * 20_000_000,
]


class Silent:
    def __repr__(self) -> str:
        raise SystemExit(3)


class Endless:
    def __repr__(self) -> str:
        threading.Event().wait()
        return ""


class Shouting(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("cut me")

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("encode me")


class Texts:
    def __init__(self, said: Any) -> None:
        self.said = said

    def __str__(self) -> Any:
        return self.said


def an_error(draw: random.Random, depth: int = 2) -> BaseException:
    """An error of a class of its own, with a text, attributes and causes that hurt."""
    base = draw.choice(
        [Exception, BaseException, ValueError, OSError, KeyError, SystemExit, UnicodeError, StopIteration]
    )
    lock = threading.Lock()
    recursive: list[Any] = []
    recursive.append(recursive)
    thing = draw.choice(
        [*TEXTS, Shouting("x" * 5000), Silent(), Endless(), recursive, lock, object(), b"\xff" * 3, None]
    )
    names = ["Broken", "B" * 5_000, "B\udc80", "B\x1b[0m"]
    methods: dict[str, Any] = draw.choice([{}, {}, {"__str__": Silent.__repr__}, {"__str__": Endless.__repr__}])
    kind = type(draw.choice(names), (base,), methods) if draw.random() < 0.7 or methods else base
    error = kind(thing)
    if draw.random() < 0.5:
        error.keeps = lock
    if depth and draw.random() < 0.3:
        members = [one for one in (an_error(draw, depth - 1) for _ in range(3)) if isinstance(one, Exception)]
        error = ExceptionGroup(draw.choice(TEXTS), members) if members else error
    if depth and draw.random() < 0.5:
        error.__cause__ = an_error(draw, depth - 1)
    elif draw.random() < 0.2:
        error.__cause__ = error
    return error


class Raises:
    """Raises anew each time: an error keeps the way that it went."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> None:
        raise an_error(random.Random(self.seed))


def of_function(world: World, hurt: Callable[[], None], _: pytest.MonkeyPatch) -> Topology:
    def split(line: str) -> Iterator[str]:
        hurt()
        yield line

    return counted(world, lambda lines: lines.each("line", split, "word"))


def of_filter(world: World, hurt: Callable[[], None], _: pytest.MonkeyPatch) -> Topology:
    def keeps(line: str) -> bool:
        hurt()
        return True

    return counted(world, lambda lines: lines.filter("line", keeps).each("line", str.split, "word string"))


def of_reader(world: World, hurt: Callable[[], None], patch: pytest.MonkeyPatch) -> Topology:
    made = counted(world)
    patch.setattr(type(made.spouts["lines"].emitter()), "read", lambda self, split: hurt())
    return made


def of_state(world: World, hurt: Callable[[], None], patch: pytest.MonkeyPatch) -> Topology:
    patch.setattr(SqlStore, "apply_staged", lambda self, ticket, batch: hurt())
    return counted(world)


def counted(
    world: World, through: Callable[[Any], Any] = lambda lines: lines.each("line", str.split, "word string")
) -> Topology:
    made = Topology("world")
    words = through(made.new_stream("lines", FixedBatchSpout("line string", [("a b",)], 1)))
    words.group_by("word").persistent_aggregate(SqliteState(str(world.folder / "words.db")), Count(), "count")
    return made


PLACES = {of_function: "each-", of_filter: "filter-", of_reader: "stream 'lines'", of_state: "state 'count'"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "TEXT_S", 0.05)


@pytest.mark.parametrize("place", PLACES, ids=[place.__name__ for place in PLACES])
def test_whatever_is_raised_is_recorded_short_and_clean_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[..., Topology]
) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with monkeypatch.context() as patch:
            world = World(folder)
            world.topology = place(world, Raises(seed), patch)
            world.begin("run")
            with pytest.raises(UserCodeError) as caught:
                run(world)
            require_carried(caught.value, seed)
            record = world.ledger.view(1).tx
            assert record is not None
            require_clean(record, PLACES[place])


@pytest.mark.parametrize(
    "kind", [errors.StaleAttemptError, errors.BlockedError, errors.HeldError, errors.PassedOverError]
)
def test_an_error_of_another_ledger_out_of_a_function_is_the_functions(
    tmp_path: Path, kind: type[TridentError]
) -> None:
    """It says nothing about this attempt, which would end without a word in its record."""

    def hurt() -> None:
        raise kind("transaction 7 of topology other")

    world = World(tmp_path)
    for place in (of_function, of_filter):
        world.topology = place(world, hurt, pytest.MonkeyPatch())
        world.begin("run")
        with pytest.raises(
            UserCodeError, match=f"raised {kind.__name__}: transaction 7 of topology other.*transaction 1"
        ):
            world.process(1)


def run(world: World) -> None:
    world.process(1)
    world.committer().commit(1)


def require_clean(record: TxRecord, place: str) -> None:
    assert len(record.error) <= ERROR_CHARACTERS
    assert not UNCLEAN.search(record.error)
    assert place in record.error
    assert "transaction 1" in record.error


def require_carried(error: UserCodeError, seed: int) -> None:
    """By pickle, by Spark's worker, and by a log that prints the chain."""
    assert error.txid == 1
    assert error.__cause__ is None
    assert error.__suppress_context__
    for carried in (
        pickle.loads(pickle.dumps(error)),
        from_json(json.loads(json.dumps(to_json(error)))),
        translate(RuntimeError(f"Py4J: {to_worker_error(error)}"), "a job"),
    ):
        assert (type(carried), str(carried), carried.txid) == (UserCodeError, str(error), 1), seed
    assert sum(map(len, error.__notes__)) < 2 * errors.MESSAGE_CHARACTERS


def test_texts_are_bounded_clean_and_keep_both_ends() -> None:
    for text in TEXTS:
        once = cleaned(text, 1_000)
        assert not UNCLEAN.search(once)
        assert once.encode().decode() == once
        assert len(once) < 10_000
        assert cleaned(once, 10_000) == once
    assert cleaned("a" + "x" * 5_000 + "z", 100).endswith("xz")
    assert error_text(ValueError("zu alt: ü")) == "ValueError: zu alt: ü"
    assert text_of(Texts(Shouting("x" * 5_000))).startswith("x")


class Mine(FailedException):
    """A user's own kind of a published one: another process need not have its class, nor what it holds."""

    def __str__(self) -> str:
        raise SystemExit(3)


def test_an_error_of_the_users_own_kind_travels_as_the_one_of_this_package_that_it_is() -> None:
    error = Mine("not\x1b[1m yet", retry=False)
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    for carried in (pickle.loads(pickle.dumps(error)), from_json(to_json(error))):
        assert (type(carried), str(carried)) == (FailedException, "not\\x1b[1m yet")
        assert carried.outcome is error.outcome
    assert "SystemExit in Mine.__str__" in error_text(error)
    assert isinstance(error, TridentError)
