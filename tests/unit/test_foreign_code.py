"""Foreign code at a border ends itself alone: not its process, not the others in it; and nobody waits for ever."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_trident
from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.ledger.workers import Worker, is_alive
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.user_code import Border, copied
from airflow_trident.protocol.records import Claim, Owner
from airflow_trident.runtime.phases import Attempts
from airflow_trident.storm.workers.worker import Means, NamedWorker, RunningTopology, _Served

ENDS = ["raise SystemExit(3)", "class Own(BaseException): pass\nraise Own('all of it')", "import sys; sys.exit()"]


@pytest.mark.parametrize("ends", ENDS)
def test_a_module_that_ends_its_process_ends_no_trigger(tmp_path: Path, ends: str) -> None:
    from airflow_trident.triggers.batch import TridentBatchTrigger

    (tmp_path / "ending.py").write_text(f"{ends}\n")
    others: list[int] = []

    async def other() -> None:
        for step in range(20):
            await asyncio.sleep(0)
            others.append(step)

    async def triggerer() -> None:
        trigger = TridentBatchTrigger("orders", f"{tmp_path / 'ending.py'}:topology")
        looks = asyncio.create_task(trigger._look(None))  # type: ignore[arg-type]
        await asyncio.gather(looks, asyncio.create_task(other()))
        assert looks.result() is None

    asyncio.run(triggerer())
    assert len(others) == 20
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        TridentBatchTrigger("orders", f"{tmp_path / 'ending.py'}:topology")._topology()


@pytest.mark.parametrize("ends", [SystemExit(3), KeyError("no such name"), type("Own", (BaseException,), {})("all")])
def test_a_named_worker_reports_what_ends_a_topology_s_code_and_goes_on(ends: BaseException) -> None:
    def code_of(_name: str) -> Any:
        raise ends

    reports: list[Any] = []
    worker = NamedWorker.__new__(NamedWorker)
    attempts = Attempts(owner="worker")
    changes = {
        "means": types.SimpleNamespace(code_of=code_of, attempts=attempts),
        "patience": types.SimpleNamespace(poll_s=1.0),
        "progress": reports.append,
        "_answer": lambda roster, status, error="": reports.append((status, error)) or True,
    }
    for name, value in changes.items():
        object.__setattr__(worker, name, value)
    roster: Any = types.SimpleNamespace(deployment=types.SimpleNamespace(topology="t", incarnation="i", epoch=1))
    assert NamedWorker._initialise(worker, roster, _Served())
    assert type(ends).__name__ in reports[-1][1]


def test_a_topology_s_thread_says_what_ended_its_work_and_tries_again() -> None:
    opened, again = [], threading.Event()

    def open_ledger(*_: Any) -> Any:
        opened.append(1)
        if len(opened) > 1:
            again.set()
        raise SystemExit("the user's")

    means = Means(
        code_of=None,  # type: ignore[arg-type]
        open_ledger=open_ledger,
        engine_of=None,  # type: ignore[arg-type]
        staging_root="",
        attempts=Attempts(owner="worker"),
        claim=Claim(key="k"),
    )
    said: list[str] = []
    topology: Any = types.SimpleNamespace(name="t")
    running = RunningTopology(topology, "i", None, means, poll_s=0.01, progress=said.append)  # type: ignore[arg-type]
    assert again.wait(30)
    running.finish()
    assert running.join(30)
    assert "SystemExit: the user's" in running.error
    assert said == ["topology t: SystemExit: the user's"]


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_deadline_keeps_the_scheduler_no_longer_than_it_may(
    silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_trident.tasks import deadline

    calls: list[float] = []
    monkeypatch.setattr(deadline, "within", lambda seconds, call: calls.append(seconds) or original(0.05, call))
    from airflow_trident.errors import within as original

    connection = json.dumps({"conn_type": "zookeeper", "host": f"127.0.0.1:{silent_server}"})
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", connection)
    monkeypatch.setattr(deadline, "_SILENT_SINCE", {})
    for _ in range(2):
        alert = deadline.OldestUncommittedDeadline("orders")
        assert alert._evaluate_with(session=None) is not None  # type: ignore[arg-type]
    assert calls == [deadline.READ_S], "one limit for all that it waits for, and the next run does not wait again"


def test_a_backend_that_hangs_silences_only_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_trident.plugin import airflow_runs

    hangs, asked = threading.Event(), []

    def of_backend(value: str) -> list[str]:
        asked.append(value)
        if value == "hangs":
            hangs.wait()
        return [value]

    monkeypatch.setattr(airflow_runs, "_of_backend", of_backend)
    monkeypatch.setattr(airflow_runs, "DEADLINE_S", 0.05)
    for _ in range(3 * airflow_runs.MOST_READ):
        assert airflow_runs._fetched({"run-1": "hangs"}) == {}
    assert asked == ["hangs"], "what hangs is not asked again"
    monkeypatch.setattr(airflow_runs, "DEADLINE_S", 30)
    assert airflow_runs._fetched({"run-2": "fine"}) == {"run-2": ["fine"]}
    hangs.set()
    assert airflow_runs._fetched({"run-1": "hangs"}) == {"run-1": ["hangs"]}


def test_submitters_change_nothing_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_trident.tasks.spark_submit import _our_python_first

    before = dict(os.environ)
    child = _our_python_first(os.environ)
    assert child["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
    assert dict(os.environ) == before
    assert _our_python_first({})["PATH"] == os.path.dirname(sys.executable)


def test_an_owner_is_not_taken_for_another_process_with_the_same_host_and_id() -> None:
    dead = Owner(dag_id="d", run_id="r", task_id="commit", try_number=1, host="worker-0", pid=42)
    at_ms = time.time_ns() // 10**6
    other = Worker(host="worker-0", pid=42, task="e/r2/emit try 1", txid=9, since_ms=at_ms, is_task=True, name="w-42-a")
    assert not is_alive([other], dead)
    assert is_alive([Worker.of(dead)], dead)


# ---- a rule of the house -----------------------------------------------------------------------------------------

FOREIGN = {
    *("coordinator", "emitter", "initialize_transaction", "next_batches", "is_ready", "success", "skipped"),
    *("cleanup_before", "accept_source", "follow_source", "lag", "size_bytes", "splits", "push_filters", "prune"),
    *("batch_for_script", "make_state", "apply", "apply_group", "marker", "bar", "apply_batch"),
    *("lineage_datasets", "lineage_dataset", "exec_module", "code_of"),
}
"""Methods that users implement, and what runs their modules."""
BORDERS = {"guarded", "spout_code", "state_code", "user_code", "_calling"}
ROOMS = ("runtime", "engine", "tasks", "triggers", "operators", "plugin", "sensors")
OWN = {
    ("ledger", "coordinator"),  # the ledger's record of it
    ("here", "coordinator"),
    ("ledger", "bar"),
    ("ledger", "accept_source"),  # `MendedStreams` has the border
    ("_columns", "apply"),
    ("loader", "exec_module"),  # `_loaded_from`, whose caller has the border
}


def unguarded(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())

    def look(node: ast.AST, inside: bool, function: str) -> Iterator[str]:
        if isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items]
            names = {
                getattr(one.func, "id", getattr(one.func, "attr", "")) for one in calls if isinstance(one, ast.Call)
            }
            inside = inside or bool(names & BORDERS)
        if isinstance(node, ast.Try):
            inside = inside or any("is_foreign" in ast.dump(handler) for handler in node.handlers)
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and not inside:
            of, _, name = ast.unparse(node.func).rpartition(".")
            owner = of.rpartition(".")[2]
            if (
                (of or name == "apply_batch")
                and name in FOREIGN
                and name != function
                and function != "apply_batch"
                and (owner, name) not in OWN
            ):
                yield f"{path.parent.name}/{path.name}:{node.lineno} {ast.unparse(node.func)}"
        for child in ast.iter_child_nodes(node):
            yield from look(child, inside, function)

    yield from look(tree, False, "")


def test_no_call_of_foreign_code_is_without_its_border() -> None:
    root = Path(airflow_trident.__file__).parent
    found = [line for room in ROOMS for path in sorted((root / room).rglob("*.py")) for line in unguarded(path)]
    assert found == []


def test_what_a_border_lets_through_is_an_error_of_this_package() -> None:
    from airflow_trident.errors import guarded

    with pytest.raises(TridentError, match="the module raised SystemExit: 3"), guarded("the module"):
        raise SystemExit(3)


def test_a_function_is_copied_while_another_thread_imports_modules() -> None:
    """Passes run in threads, and a function may import what it needs when it runs."""
    ended = threading.Event()
    names = [f"imported_beside_{number}" for number in range(200)]

    def importing() -> None:
        while not ended.is_set():
            sys.modules.update((name, types.ModuleType(name)) for name in names)
            for name in names:
                del sys.modules[name]

    interval, thread = sys.getswitchinterval(), threading.Thread(target=importing)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(2000):
            assert copied(Count(), Border("count", "Count", (), 1)) is not None
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
