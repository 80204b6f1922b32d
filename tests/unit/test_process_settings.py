"""What foreign code changes of the whole process is noticed at its border and set back: no row of others depends on it,
and none of what this package does."""

from __future__ import annotations

import contextlib
import decimal
import locale
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident import CombinerAggregator, Count, FixedBatchSpout, Function, MemoryState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import UserCodeError, guarded, spout_code, state_code
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.process_settings import MANNERS, Watch, _decimals, _mask, _zone
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.phases import Attempts, process
from tests.fixtures import single


@dataclass(frozen=True)
class Change:
    """`name`: in the error."""

    name: str
    do: Callable[[], object]
    read: Callable[[], object]


def another_locale() -> None:
    now = locale.setlocale(locale.LC_ALL)
    locale.setlocale(locale.LC_ALL, "C")
    if locale.setlocale(locale.LC_ALL) == now:
        locale.setlocale(locale.LC_ALL, "C.UTF-8")


def another_zone() -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


VALUES = (
    Change("the working folder", lambda: os.chdir("/"), os.getcwd),
    Change("the locale", another_locale, lambda: locale.setlocale(locale.LC_ALL)),
    Change("the default time zone", another_zone, _zone),
    Change("the umask", lambda: os.umask(0o127), _mask),
    Change("the decimal context", lambda: setattr(decimal.getcontext(), "prec", 3), _decimals),
)
MANNERS_CHANGED = (
    Change("sys.stdout", lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
    Change("sys.stderr", lambda: setattr(sys, "stderr", None), lambda: sys.stderr),
    Change("sys.excepthook", lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
    Change("threading.excepthook", lambda: setattr(threading, "excepthook", print), lambda: threading.excepthook),
    Change("the default time-out of sockets", lambda: socket.setdefaulttimeout(0.001), socket.getdefaulttimeout),
    Change("the environment", lambda: os.environ.update(PATH="/nowhere", NEW="x"), lambda: dict(os.environ)),
)

# ---- borders -----------------------------------------------------------------------------------------------------

Act = Callable[[], object]


class Doing(Function):
    """:param method: where it does it."""

    def __init__(self, act: Act, method: str) -> None:
        self.act, self.method = act, method

    def __deepcopy__(self, memo: object) -> Doing:
        return self

    def at(self, method: str) -> None:
        if method == self.method:
            self.act()

    def prepare(self, context: object) -> None:
        self.at("prepare")

    def execute(self, word: str) -> Iterator[str]:
        self.at("execute")
        yield word
        self.at("after a row")

    def cleanup(self) -> None:
        self.at("cleanup")


class Combining(CombinerAggregator[int]):
    def __init__(self, act: Act) -> None:
        self.act = act

    def __deepcopy__(self, memo: object) -> Combining:
        return self

    def init(self, *values: Any) -> int:
        self.act()
        return 1

    def combine(self, one: int, other: int) -> int:
        return one + other

    def zero(self) -> int:
        return 0


COUNT = Count()


def processed(build: Callable[[Any], object]) -> None:
    topology = Topology("settings")
    build(topology.new_stream("words", FixedBatchSpout("word string", [("a",), ("b",)], 2)))
    ledger = MemoryLedger("settings")
    single.coordinate(ledger, topology, Claim(key="run"))
    with tempfile.TemporaryDirectory() as staging:
        process(ledger, topology, 1, LocalEngine(), staging, Attempts(owner="test"))


def counted(stream: Any, aggregator: Any = COUNT) -> object:
    return stream.group_by("word").persistent_aggregate(MemoryState(), aggregator, "n long")


def of_function(method: str) -> Callable[[Act], None]:
    def run(act: Act) -> None:
        doing = Doing(act, method)
        processed(lambda words: counted(words.each("word", doing, "again string").filter("again", lambda word: True)))

    return run


def within(border: Callable[[], contextlib.AbstractContextManager[None]]) -> Callable[[Act], None]:
    def run(act: Act) -> None:
        with border():
            act()

    return run


BORDERS: dict[str, Callable[[Act], None]] = {
    **{method: of_function(method) for method in ("prepare", "execute", "after a row", "cleanup")},
    "a filter": lambda act: processed(lambda words: counted(words.filter("word", lambda word: act() is None))),
    "an aggregator": lambda act: processed(lambda words: counted(words, Combining(act))),
    "a spout": within(lambda: spout_code("words", 7)),
    "a state": within(lambda: state_code("counts", 7)),
    "a hook": within(lambda: guarded("the hook")),
}
INSIDE = tuple(border for border in BORDERS if border not in ("a spout", "a state", "a hook"))

# ---- tests -------------------------------------------------------------------------------------------------------


def lived(changes: list[Change], border: str) -> None:
    """Does all of it inside of a border."""

    def act() -> None:
        for change in changes:
            change.do()

    BORDERS[border](act)


@settings(max_examples=60)
@given(changes=st.lists(st.sampled_from(VALUES), min_size=1, unique=True), border=st.sampled_from(list(BORDERS)))
def test_what_rows_depend_on_is_refused_and_set_back_at_each_border(changes: list[Change], border: str) -> None:
    before = [change.read() for change in changes]
    with pytest.raises(UserCodeError) as refused:
        lived(changes, border)
    assert [change.read() for change in changes] == before
    named = [change.name in str(refused.value) for change in changes]
    assert all(named) if border not in INSIDE else any(named), "a part of it is noticed first, and ends the pass"
    assert "set back" in str(refused.value)
    if border in ("prepare", "execute", "after a row", "cleanup"):
        assert "Doing in each-1 changed" in str(refused.value), "not the function behind it"


@settings(max_examples=60)
@given(changes=st.lists(st.sampled_from(MANNERS_CHANGED), min_size=1, unique=True), border=st.sampled_from(INSIDE))
def test_manners_are_set_back_without_an_error(changes: list[Change], border: str) -> None:
    before = [change.read() for change in changes]
    lived(changes, border)
    assert [change.read() for change in changes] == before


def test_each_setting_is_drawn_here() -> None:
    assert {setting.name for setting in MANNERS} == {change.name for change in MANNERS_CHANGED}


@pytest.mark.parametrize("border", BORDERS)
def test_the_handlers_of_signals_stay_those_of_the_task(border: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    BORDERS[border](lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("change", VALUES, ids=lambda change: change.name)
def test_an_error_of_the_function_itself_is_not_hidden_and_all_is_set_back(change: Change) -> None:
    before = change.read()

    def act() -> None:
        change.do()
        raise ValueError("its own error")

    for border in BORDERS:
        with pytest.raises(UserCodeError, match="its own error"):
            BORDERS[border](act)
        assert change.read() == before


def test_what_is_set_back_by_the_function_itself_is_its_own() -> None:
    def act() -> None:
        with decimal.localcontext() as context, contextlib.chdir("/"):
            context.prec = 3

    for border in BORDERS.values():
        border(act)


def test_modules_that_are_loaded_for_a_command_hold_their_settings() -> None:
    with guarded("the DAG file", loads=True):
        decimal.getcontext().prec = 30
    try:
        assert decimal.getcontext().prec == 30
    finally:
        decimal.getcontext().prec = 28


def test_who_ran_beside_a_change_is_told_and_nothing_is_set_to_what_it_saw(tmp_path: Path) -> None:
    """The second one came in after the change; it goes out after that was set back."""
    folder, changed, is_in, refused = os.getcwd(), threading.Event(), threading.Event(), threading.Event()
    errors: list[str] = []

    def first() -> None:
        try:
            with guarded("the first"):
                os.chdir(tmp_path)
                changed.set()
                is_in.wait()
        except UserCodeError as error:
            errors.append(str(error))
        refused.set()

    thread = threading.Thread(target=first)
    thread.start()
    changed.wait()

    def second() -> None:
        with guarded("the second"):
            is_in.set()
            refused.wait()

    with pytest.raises(UserCodeError, match="the second ran while other code changed settings"):
        second()
    thread.join()
    assert len(errors) == 1
    assert f"the first changed the working folder (now '{tmp_path}')" in errors[0]
    assert os.getcwd() == folder
    with guarded("the third"):
        pass


def test_a_pass_that_is_thrown_away_elsewhere_takes_no_decimals_with_it() -> None:
    def left_open() -> Iterator[None]:
        with Watch():
            yield

    opened = left_open()
    next(opened)
    with decimal.localcontext(decimal.Context(prec=99)):
        del opened
        assert decimal.getcontext().prec == 99


FORKING = """
import os, sys
from airflow_trident import FixedBatchSpout, MemoryState, Topology
from airflow_trident.functions import lit
from airflow_trident.testing import MemoryLedger
from airflow_trident.engine.local import LocalEngine
from airflow_trident.runtime.local import LocalRunner

def forks(word):
    if child := os.fork():
        return os.waitpid(child, 0)[1] >> 8
    {child}

topology = Topology("t")
words = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b"])).map(forks, "code long")
words.each(lit(1), "times long").partition_persist(MemoryState("t"), "code, times", keys="code", name="codes")
LocalRunner(topology=topology, ledger=MemoryLedger("t"), engine=LocalEngine(1), staging_root=sys.argv[1]).run()
from airflow_trident.states import memory
print("ended", *next(iter(memory._STORES["t"].states.values())).data)
"""


@pytest.mark.parametrize(
    ("child", "code"), [("sys.exit(3)", 3), ("return 7", 0), ("raise ValueError('in the child')", 1), ("sys.exit()", 0)]
)
def test_a_child_that_a_function_forked_does_not_go_on_with_the_work_of_its_parent(
    child: str, code: int, tmp_path: Path
) -> None:
    program = FORKING.replace("{child}", child)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("ended")] == [f"ended ({code},)"]
    assert ("in the child" in done.stderr) == ("ValueError" in child)


def test_a_watch_may_end_while_another_one_of_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python collects a generator, and so ends its watch, at any moment: the thread must not wait for itself."""

    def watched() -> Iterator[None]:
        with Watch(quick=True):
            yield

    def one_in_the_other() -> None:
        folder, suspended = os.getcwd, [watched()]
        next(suspended[0])

        def collecting() -> str:
            if suspended:
                suspended.pop().close()
            return folder()

        with Watch(quick=True):
            monkeypatch.setattr(os, "getcwd", collecting)

    thread = threading.Thread(target=one_in_the_other, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
