"""What a drain's driver answers, as the task reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from airflow_trident.engine.spark import order_takers
from airflow_trident.engine.spark.order_takers import NOBODY_KNOWN, Taker, take, take_back
from airflow_trident.engine.spark.sessions import session
from airflow_trident.errors import FencedError, SparkJobError
from airflow_trident.protocol.records import Command
from airflow_trident.runtime.drains import app
from airflow_trident.runtime.drains.drain import DrainResult
from airflow_trident.runtime.drains.order import DrainFiles, answer, collect, removing


@pytest.fixture
def files(tmp_path: Path) -> DrainFiles:
    return DrainFiles(order=str(tmp_path / "one.order"), result=str(tmp_path / "one.result"))


def test_an_answer_is_read_as_it_was_given(files: DrainFiles) -> None:
    assert collect(files) is None
    result = DrainResult(committed=(3, 4), rows_read=-1)
    answer(files.result, result)
    assert Path(files.result).read_text() == '{"committed": [3, 4], "rows_read": -1}'
    assert collect(files) == result
    held = replace(result, paused_by=Command.PAUSE)
    answer(files.result, held)
    assert collect(files) == held
    answer(files.result, FencedError("somebody newer was here", "Nothing was changed."))
    with pytest.raises(FencedError, match="somebody newer was here"):
        collect(files)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "committed"),
        (b'{"committed": [1]}', "rows_read"),
        (b'{"committed": [true], "rows_read": 1}', r"committed\[0\]"),
    ],
)
def test_a_damaged_answer_is_an_error_that_names_the_file(files: DrainFiles, content: bytes, said: str) -> None:
    Path(files.result).write_bytes(content)
    with pytest.raises(SparkJobError, match=rf"one\.result' is damaged.*{said}"):
        collect(files)


def test_the_driver_that_took_an_order_is_told_to_all_who_come_later(files: DrainFiles) -> None:
    Path(files.order).write_bytes(b"work")
    first, second = Taker.this_process("driver-7"), Taker.this_process()
    assert take(files.order, first) == first
    assert take(files.order, first) == first  # asked again, because the answer was lost
    assert take(files.order, second) == first
    assert take_back(files.order) == first
    assert Path(files.order).read_bytes() == b"work"
    with removing(files):
        pass
    assert list(Path(files.order).parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"v": 1, "host": "here"}'])
def test_an_order_of_which_it_cannot_be_read_who_took_it_is_taken_all_the_same(
    files: DrainFiles, content: bytes
) -> None:
    """Where there are no hard links, a driver that is killed while it takes the order leaves a short file."""
    Path(f"{files.order}.taken").write_bytes(content)
    assert take(files.order, Taker.this_process()) == NOBODY_KNOWN
    assert take_back(files.order) == NOBODY_KNOWN


def test_of_a_driver_and_one_who_takes_the_order_back_only_one_gets_it_each_of_300_times(tmp_path: Path) -> None:
    rounds = [DrainFiles(order=str(tmp_path / f"{n}.order"), result=str(tmp_path / f"{n}.result")) for n in range(300)]
    for one in rounds:
        Path(one.order).touch()
    both, driver = Barrier(2, timeout=60), Taker.this_process("driver-1")

    def at_once(act: Callable[[DrainFiles], Taker | None]) -> list[Taker | None]:
        found = []
        for one in rounds:
            both.wait()
            found.append(act(one))
        return found

    with ThreadPoolExecutor(2) as pool:
        holders = pool.submit(at_once, lambda one: take(one.order, driver))
        others = pool.submit(at_once, lambda one: take_back(one.order))
        won = [(held == driver, back is None) for held, back in zip(holders.result(), others.result(), strict=True)]
    assert {(True, False), (False, True)} >= set(won)
    assert [os.path.exists(one.order) for one in rounds] == [driver_won for driver_won, _ in won]


def test_a_driver_that_was_stopped_until_the_drain_had_ended_begins_nothing(
    files: DrainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the order. Another one takes it, and the task removes order and note: the note can be taken again."""
    Path(files.order).touch(mode=0o600)

    def stopped(order: str, me: Taker) -> Taker:
        with removing(files):
            assert take(order, Taker.this_process()) != me
        return take(order, me)

    monkeypatch.setattr(order_takers, "take", stopped)
    assert order_takers.content_for_driver(files.order, "the order") is None
    assert os.listdir(os.path.dirname(files.order)) == []


@pytest.mark.parametrize("on_yarn", [True, False])
def test_a_driver_without_an_order_makes_a_context_only_where_yarn_waits_for_one(
    on_yarn: bool, files: DrainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []

    class Base:
        def stop(self) -> None:
            did.append("stopped")

    class Builder:
        def getOrCreate(self) -> Base:  # noqa: N802 - Spark's name
            did.append("made")
            return Base()

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(session.Sibling, "of", lambda base: SimpleNamespace(session=base))
    monkeypatch.setattr(app, "content_for_driver", lambda *_: None)
    monkeypatch.setenv(session.YARN_CONTAINER, "1") if on_yarn else monkeypatch.delenv(session.YARN_CONTAINER, False)
    assert app.main(files.order, files.result) == 0
    assert did == (["made", "stopped"] if on_yarn else [])
    assert collect(files) is None
