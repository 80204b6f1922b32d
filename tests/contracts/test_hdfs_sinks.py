"""A FileSink and a spool in a real HDFS: every request may be lost, and committers are killed and overtaken."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import FencedError
from airflow_trident.io.hdfs_place import WebHdfsPlace
from airflow_trident.io.place import PROBE, Place
from airflow_trident.states.files.sink import META, FileSink, OpenFileSink
from tests.contracts.test_sinks import OTHER, ROWS, batch, expected, rows_of, spec_of
from tests.faults.http_proxy import Answer, Request, Verdict, each_fails_once, pass_all
from tests.fixtures.hdfs import Folder
from tests.fixtures.program import run_code
from tests.fixtures.spout import FileQueue
from tests.fixtures.state import ticket
from tests.integration.test_spool_on_objects import ROWS as SPOOLED
from tests.integration.test_spool_on_objects import again, begin, spooled
from tests.integration.test_spool_on_objects import rows_of as rows_of_spool

pytestmark = pytest.mark.rare
_UNIQUE = re.compile("[0-9a-f]{32}")


def spec_on(folder: Folder | str, tmp_path: Path) -> StateSpec:
    uri = folder if isinstance(folder, str) else folder.uri
    return replace(spec_of("files", tmp_path), factory=FileSink(f"{uri}/out"))


WORKER = """
import os, signal, sys
from pathlib import Path
from airflow_trident.io.hdfs_place import WebHdfsPlace
from tests.contracts.test_hdfs_sinks import spec_on
from tests.contracts.test_sinks import OTHER, batch
from tests.fixtures.state import ticket

folder, where, uri = sys.argv[1:]
spec = spec_on(uri, Path(folder))
state = spec.factory.make_state(spec)
steps = []


def watched(name):
    step = getattr(WebHdfsPlace, name)

    def stepped(self, *given):
        steps.append(name)
        number = len(steps)
        if where == f"before {number}":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = step(self, *given)
        if where == f"after {number}":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(WebHdfsPlace, name, stepped)


for name in ("put", "put_once", "show"):
    watched(name)
state.apply(ticket(2), batch(spec, *OTHER))
"""


@pytest.mark.parametrize(
    ("where", "is_applied"),
    [("after 2", False), ("before 3", False), ("after 3", True), ("after 4", True)],
    ids=["prepared", "before the record", "the record", "the rename"],
)
def test_a_committer_killed_between_record_and_file_is_finished_by_the_next(
    folder: Folder, tmp_path: Path, where: str, is_applied: bool
) -> None:
    spec = spec_on(folder, tmp_path)
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenFileSink)
        state.apply(ticket(1), batch(spec, *ROWS))
        killed = run_code(WORKER, tmp_path, where, folder.uri)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert rows_of(state) in (expected(spec, ROWS), expected(spec, ROWS, OTHER)), "whole transactions only"
        answer = state.apply(ticket(2), batch(spec, *OTHER))
        assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
        assert rows_of(state) == expected(spec, ROWS, OTHER)
        assert all(name.startswith("words-rows.000") for name in state.files.names(META) if name != PROBE)


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.LOSE], ids=lambda one: one.name)
def test_every_request_of_a_commit_may_fail_once_and_it_is_applied_once(
    folder: Folder, tmp_path: Path, verdict: Verdict
) -> None:
    spec, places = spec_on(folder, tmp_path), 0
    with spec.factory.make_state(spec) as state:
        for txid in range(1, 40):
            left = iter([Verdict.PASS] * (txid - 1) + [verdict])
            folder.proxy.harmed, folder.proxy.rule = 0, lambda request: next(left, Verdict.PASS)  # noqa: B023
            assert state.apply(ticket(txid), batch(spec, *OTHER)) is Applied.APPLIED
            folder.proxy.rule = pass_all
            assert rows_of(state) == expected(spec, *[OTHER] * txid)
            if not folder.proxy.harmed:
                break
            places += 1
    assert places > 9
    assert not [name for name in folder.all_names(f"out/{META}") if name.startswith(".trident-unfinished")]


def test_a_late_rename_of_a_committer_that_was_overtaken_brings_nothing_back(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(spec_on(folder, tmp_path), opaque=True)
    show, held = WebHdfsPlace.show, list[tuple[str, str]]()
    with spec.factory.make_state(spec) as state, spec.factory.make_state(spec) as other:
        assert isinstance(state, OpenFileSink)
        with monkeypatch.context() as patch:
            patch.setattr(WebHdfsPlace, "show", lambda self, *names: held.append(names))
            state.apply(ticket(1, fence=1), batch(spec, *ROWS))
        other.apply(ticket(1, fence=2, attempt=1), batch(spec, *OTHER))
        assert isinstance(state.files, WebHdfsPlace)
        show(state.files, *held[-1])
        assert rows_of(other) == expected(spec, OTHER)


def test_a_committer_that_was_stopped_before_its_atomic_step_changes_nothing(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, take = spec_on(folder, tmp_path), WebHdfsPlace.put_once

    def others_first(self: Place, name: str, content: bytes) -> bool:
        monkeypatch.setattr(WebHdfsPlace, "put_once", take)
        with spec.factory.make_state(spec) as other:
            other.apply(ticket(1, fence=11), batch(spec, *ROWS))
        assert isinstance(self, WebHdfsPlace)
        return take(self, name, content)

    with spec.factory.make_state(spec) as state:
        monkeypatch.setattr(WebHdfsPlace, "put_once", others_first)
        with pytest.raises(FencedError):
            state.apply(ticket(1, fence=9), batch(spec, *OTHER))
        assert rows_of(state) == expected(spec, ROWS)


def test_every_request_of_a_spool_may_fail_once_and_nothing_is_lost_or_twice(folder: Folder, tmp_path: Path) -> None:
    queue, seen = FileQueue(tmp_path / "queue", lagging=True), set[tuple[str, str]]()
    queue.put(SPOOLED)
    each = each_fails_once(seen)

    def rule(request: Request) -> Verdict | Answer:
        """Unfinished files are all the same one here."""
        return each(replace(request, path=_UNIQUE.sub("", request.path), query=_UNIQUE.sub("", request.query)))

    folder.proxy.rule = rule
    spout, metadata, read = spooled(folder, queue.source(), max_rows=7, keep=1), None, list[tuple[object, ...]]()
    while (found := again(lambda: begin(spout, metadata))) is not None:  # noqa: B023 - called at once
        metadata = found
        read += again(lambda: rows_of_spool(spout, metadata))  # noqa: B023
        again(lambda: spout.coordinator().success(1, metadata))  # noqa: B023
    assert read == SPOOLED
    assert queue.left() == []
    assert folder.proxy.harmed == len(seen) > 9
