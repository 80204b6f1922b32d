"""The spool step by step: what is durable, what is known again, what is acknowledged, and what cannot be."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.metadata import as_json
from airflow_trident.spouts.spool import sources as spool_sources
from airflow_trident.spouts.spool import spout as spout_module
from airflow_trident.spouts.spool.sources import CallableSource, CommandSource, Polled, SpoolSource
from airflow_trident.spouts.spool.spout import SpooledSpout
from airflow_trident.types import Json
from tests.fixtures.spout import FileQueue

ROWS = [(number, f"row {number}") for number in range(10)]


def spooled(folder: Path, source: SpoolSource, **options: Any) -> SpooledSpout:
    return SpooledSpout(source, str(folder / "spool"), **options)


def given_polls(*polls: Polled | list[Any] | None) -> CallableSource:
    """A source that has no memory: each poll gives the next."""
    left = list(polls)
    return CallableSource(lambda max_rows: left.pop(0) if left else None, "id long, name string")


def begin(spout: SpooledSpout, previous: Json) -> Json:
    return spout.coordinator().initialize_transaction(1, previous)


def rows_of(spout: SpooledSpout, metadata: Json) -> list[tuple[Any, ...]]:
    emitter = spout.emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_batch_that_was_spooled_before_a_kill_is_taken_by_the_next_coordinator_without_a_poll(tmp_path: Path) -> None:
    first = begin(spooled(tmp_path, given_polls(ROWS[:3])), None)
    assert begin(spooled(tmp_path, given_polls()), None) == first
    spout = spooled(tmp_path, given_polls(ROWS[3:4]))
    assert rows_of(spout, first) == ROWS[:3]
    assert rows_of(spout, begin(spout, first)) == ROWS[3:4]


def test_the_file_of_a_batch_is_read_once_however_many_parts_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spout_module, "PART_ROWS", 1)
    spout = spooled(tmp_path, given_polls(ROWS))
    metadata = begin(spout, None)
    whole, read = [], spout_module.Spool._read

    def counted(self: spout_module.Spool, number: int) -> bytes:
        whole.append(number)
        return read(self, number)

    monkeypatch.setattr(spout_module.Spool, "_read", counted)
    emitter = spout.emitter()
    splits = emitter.splits(metadata)
    assert len(splits) == len(ROWS)
    assert [tuple(row.values()) for one in splits for part in emitter.read(one) for row in part.to_pylist()] == ROWS
    assert whole == [1]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=6), st.booleans()), max_size=12))
def test_ids_are_known_from_one_reading_of_each_batch_however_many_wait(
    polls: list[tuple[list[int], bool]],
) -> None:
    """Each poll gives items, some of them again; between two, the oldest waiting batch may be committed."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        read: Counter[int] = Counter()
        ids_of = spout_module.Spool._ids
        patch.setattr(spout_module.Spool, "_ids", lambda self, number: (read.update([number]), ids_of(self, number))[1])
        source = given_polls(*(Polled(rows=[(i, "") for i in ids], ids=list(map(str, ids))) for ids, _ in polls))
        spout = spooled(Path(folder), source, keep=1)
        batches: list[list[int]] = []
        committed, previous = 0, None
        for ids, commits in polls:
            kept = {i for batch in batches[max(0, committed - 2) :] for i in batch}
            new = [i for i in dict.fromkeys(ids) if i not in kept]
            metadata = begin(spout, previous)
            assert (metadata is None) is (not new)
            if new:
                batches.append(new)
                assert [row[0] for row in rows_of(spout, metadata)] == new
                previous = metadata
            if commits and committed < len(batches):
                committed += 1
                spout.coordinator().success(committed, as_json(spout._spool.batch(committed)))
        assert set(read.values()) <= {1}
        assert pickle.loads(pickle.dumps(spout._spool)) == spout._spool


@pytest.mark.parametrize("change", ["another row", "cut off", "no batch at all", "gone"])
def test_a_part_that_changed_since_the_batch_was_looked_at_is_an_error(tmp_path: Path, change: str) -> None:
    spout = spooled(tmp_path, given_polls(ROWS))
    emitter = spout.emitter()
    (split,) = emitter.splits(begin(spout, None))
    path = tmp_path / "spool" / f"{1:019d}.arrow"
    content = path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        changed = {"another row": content.replace(b"row 3", b"row 4"), "cut off": content[:-9], "no batch at all": b""}
        assert changed[change] != content
        path.write_bytes(changed[change])
    with pytest.raises(SourceChangedError, match="replay"):
        list(emitter.read(split))


def test_two_coordinators_that_polled_at_once_lose_nothing_of_either(tmp_path: Path) -> None:
    other = spooled(tmp_path, given_polls(ROWS[5:]))

    def poll(max_rows: int) -> list[tuple[Any, ...]]:
        assert begin(other, None) is not None
        return ROWS[:5]

    slow = spooled(tmp_path, CallableSource(poll, "id long, name string"))
    first = begin(slow, None)
    second = begin(spooled(tmp_path, given_polls()), first)
    assert rows_of(slow, first) == ROWS[5:]
    assert rows_of(slow, second) == ROWS[:5]


def test_two_coordinators_that_were_given_the_same_items_spool_them_once(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "queue", lagging=True)
    queue.put(ROWS)
    other = spooled(tmp_path, queue.source())

    def poll(max_rows: int) -> Polled:
        polled = queue.poll(max_rows)
        assert begin(other, None) is not None
        return polled

    slow = spooled(tmp_path, CallableSource(poll, "id long, name string", ack=queue.ack))
    assert slow.coordinator().initialize_transaction(1, None) is None, "all of its rows are in the other's batch"
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [f"{1:019d}.arrow"]


def test_the_source_is_told_after_the_commit_and_not_before(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "queue")
    queue.put(ROWS)
    spout = spooled(tmp_path, queue.source(), max_rows=5)
    first = begin(spout, None)
    second = begin(spout, first)
    assert len(queue.left()) == 10
    spout.coordinator().success(2, second)
    assert queue.left() == [f"{number:05d}.item" for number in range(5)]
    spout.coordinator().success(1, first)
    spout.coordinator().success(1, first)
    assert queue.left() == []


def test_items_that_come_again_are_known_by_their_ids_and_acknowledged_when_they_are_committed(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "queue", lagging=True)
    queue.put(ROWS[:4])
    spout = spooled(tmp_path, queue.source())
    first = begin(spout, None)
    assert begin(spout, first) is None, "nothing but what is spooled"
    queue.put(ROWS[:6])
    second = begin(spout, first)
    assert rows_of(spout, second) == ROWS[4:6]
    spout.coordinator().success(1, first)
    spout.coordinator().success(2, second)
    queue.put(ROWS[:6])  # as if the queue had forgotten what it was told
    assert begin(spout, second) is None
    assert queue.left() == []


def oldest_of(items: list[tuple[int, str]], hidden: set[int] | None) -> CallableSource:
    """A queue that gives its oldest items; `hidden`: it notes there what it gave, and does not give it again."""

    def poll(max_rows: int) -> Polled | None:
        rows = [row for row in items if hidden is None or row[0] not in hidden][:max_rows]
        if hidden is not None:
            hidden.update(number for number, _ in rows)
        numbers = [number for number, _ in rows]
        return Polled(rows=rows, ids=[str(number) for number in numbers], token=numbers)

    def ack(numbers: list[int]) -> None:
        items[:] = [row for row in items if row[0] not in numbers]

    return CallableSource(poll, "id long, name string", ack=ack)


def test_a_source_that_gives_what_was_skipped_again_and_nothing_else_is_refused(tmp_path: Path) -> None:
    items = ROWS[:5]
    spout = spooled(tmp_path, oldest_of(items, hidden=None), max_rows=2)
    first = begin(spout, None)
    coordinator = spout.coordinator()
    assert coordinator.initialize_transaction(2, first) is None, "it is being processed"
    coordinator.skipped({1: first})
    with pytest.raises(SourceUnavailableError, match=r"SKIPPED or CLOSED \(transactions: 1\)"):
        coordinator.initialize_transaction(2, first)
    coordinator.skipped({})
    assert coordinator.initialize_transaction(2, first) is None, "it is being backfilled"
    coordinator.success(1, first)
    second = coordinator.initialize_transaction(2, first)
    assert rows_of(spout, second) == ROWS[2:4]
    coordinator.success(2, second)
    third = coordinator.initialize_transaction(3, second)
    coordinator.skipped({3: third})
    assert coordinator.initialize_transaction(4, third) is None, "fewer than it was asked for: there are no others"


def test_a_source_that_hides_what_it_gave_goes_on_when_it_gives_what_was_skipped_once_more(tmp_path: Path) -> None:
    hidden: set[int] = set()
    spout = spooled(tmp_path, oldest_of(ROWS[:6], hidden), max_rows=2)
    first = begin(spout, None)
    second = begin(spout, first)
    hidden.clear()  # the source gives them up
    coordinator = spout.coordinator()
    coordinator.skipped({1: first, 2: second})
    assert rows_of(spout, coordinator.initialize_transaction(3, second)) == ROWS[4:6]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), ValueError("x" * 20_000_000), ValueError("\udcff"), Unprintable()],
    ids=lambda e: type(e).__name__,
)
def test_whatever_a_users_source_raises_is_one_bounded_error_to_retry(tmp_path: Path, error: BaseException) -> None:
    def poll(most: int) -> None:
        raise error

    spout = spooled(tmp_path, CallableSource(poll, "id long, name string"))
    with pytest.raises(SourceUnavailableError, match=rf"poll\) raised {type(error).__name__}") as caught:
        begin(spout, None)
    text = pickle.loads(pickle.dumps(caught.value)).message
    assert len(text.encode()) < 100_000


def test_an_item_twice_in_one_poll_is_one(tmp_path: Path) -> None:
    spout = spooled(tmp_path, given_polls(Polled(rows=[ROWS[0], ROWS[0], ROWS[1]], ids=["a", "a", "b"])))
    assert rows_of(spout, begin(spout, None)) == ROWS[:2]


def test_committed_batches_are_kept_up_to_a_limit_and_others_for_ever(tmp_path: Path) -> None:
    spout = spooled(tmp_path, given_polls(*[[row] for row in ROWS]), keep=2)
    metadata: list[Json] = [None]
    for _ in ROWS:
        metadata.append(begin(spout, metadata[-1]))
    for number in [1, *range(3, 10)]:
        spout.coordinator().success(number, metadata[number])
    files = sorted(int(path.stem) for path in (tmp_path / "spool").glob("*.arrow"))
    assert files == [2, 7, 8, 9, 10]
    for number in range(1, 10):
        spout.coordinator().success(number, metadata[number])
    assert rows_of(spout, metadata[10]) == ROWS[9:]
    with pytest.raises(SourceChangedError, match="is gone"):
        rows_of(spout, metadata[1])


@pytest.mark.parametrize("number", [1, 99])
def test_a_folder_that_is_not_that_of_the_ledger_is_refused(tmp_path: Path, number: int) -> None:
    spout = spooled(tmp_path, given_polls(*[[row] for row in ROWS]), keep=1)
    metadata: Json = None
    for txid in range(1, 5):
        metadata = begin(spout, metadata)
        spout.coordinator().success(txid, metadata)
    previous: Json = None if number == 1 else {"batch": 98, "rows": 1, "sha256": ""}
    with pytest.raises(SourceChangedError, match=f"is number {number} of the spool .* do not belong together"):
        begin(spout, previous)


def test_rows_that_do_not_fit_are_refused_before_anything_is_spooled_or_acknowledged(tmp_path: Path) -> None:
    spout = spooled(tmp_path, given_polls([("no number", "a")]))
    with pytest.raises(DamagedInputError, match=r"does not fit its fields \(id long, name string\)"):
        begin(spout, None)
    assert list((tmp_path / "spool").iterdir()) == []


def test_fields_that_changed_since_are_named(tmp_path: Path) -> None:
    metadata = begin(spooled(tmp_path, given_polls(ROWS)), None)
    other = SpooledSpout(CallableSource(lambda most: None, "id string"), str(tmp_path / "spool"))
    with pytest.raises(SourceChangedError, match="has other fields than the source declares"):
        other.emitter().splits(metadata)


def test_a_large_batch_is_read_in_several_parts(tmp_path: Path) -> None:
    rows = [(number, "x") for number in range(25_000)]
    spout = spooled(tmp_path, given_polls(Polled(rows=rows, ids=[str(number) for number, _ in rows])))
    metadata = begin(spout, None)
    assert len(spout.emitter().splits(metadata)) == 3
    assert rows_of(spout, metadata) == rows


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SpooledSpout(given_polls(), ""), "without a path"),
        (lambda: SpooledSpout(given_polls(), "x", keep=0), "keep=0"),
        (lambda: SpooledSpout("queue", "x"), "Give it a CallableSource"),  # type: ignore[arg-type]
        (lambda: CommandSource("ls -l"), "Give program and arguments"),
        (lambda: CommandSource([]), "Give program and arguments"),
        (lambda: CommandSource(["ls"], "a long"), "one string field"),
        (lambda: CommandSource(["ls"], timeout_s=0), "above 0"),
        (lambda: CommandSource(["ls"], encoding_errors="guess"), "encoding_errors='guess'. Use one of error, replace"),
        (lambda: Polled(rows=[(1,)], ids=[]), "1 rows and 0 ids"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


# ---- commands --------------------------------------------------------------------------------------------------


def sh(script: str, **options: Any) -> CommandSource:
    return CommandSource(["sh", "-c", script], **options)


def test_a_commands_lines_are_the_rows_and_its_environment_says_how_many() -> None:
    polled = sh('printf "a\\r\\n%s\\nlast" "$TRIDENT_MAX_ROWS$OTHER"', env={"OTHER": "!"}).poll(7)
    assert polled is not None
    assert list(polled.rows) == [("a",), ("7!",), ("last",)]
    assert polled.token is None
    assert sh("true").poll(7) is None


def test_a_command_that_fails_gives_nothing_and_says_why_without_its_environment() -> None:
    source = sh("echo taken; echo broken pipe >&2; exit 3", env={"PASSWORD": "secret"})
    with pytest.raises(SourceUnavailableError, match="ended with code 3: broken pipe") as caught:
        source.poll(1)
    assert "secret" not in str(caught.value) + source.describe()
    with pytest.raises(SourceUnavailableError, match="cannot be run"):
        CommandSource(["/no/such/program"]).poll(1)


def test_a_command_that_does_not_end_is_ended_and_its_whole_lines_are_taken() -> None:
    program = "import sys, time; print('one'); print('two'); print('unfinis', end='', flush=True); time.sleep(600)"
    source = CommandSource([sys.executable, "-S", "-c", program], timeout_s=2.0)
    polled = source.poll(10)
    assert polled is not None
    assert list(polled.rows) == [("one",), ("two",)]


def test_a_command_that_ignores_being_told_to_end_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool_sources, "_END_S", 0.5)
    polled = sh("trap '' TERM; sleep 600 & echo one; wait; wait", timeout_s=1.0).poll(10)
    # Were the sleeping one alive, its end of the pipe would be open, and nothing would have come back.
    assert polled is not None
    assert list(polled.rows) == [("one",)]


def test_the_commands_token_comes_to_its_acknowledging_command(tmp_path: Path) -> None:
    source = sh(
        f'echo x; echo "$TRIDENT_TOKEN" > {tmp_path}/polled',
        ack=["sh", "-c", f'echo "$TRIDENT_TOKEN" > {tmp_path}/acked'],
    )
    polled = source.poll(1)
    assert polled is not None
    source.ack(polled.token)
    assert (tmp_path / "polled").read_text() == (tmp_path / "acked").read_text() == f"{polled.token}\n"


def test_an_acknowledging_command_that_was_ended_by_its_time_out_has_acknowledged_nothing(tmp_path: Path) -> None:
    quick = tmp_path / "quick"
    script = f"test -e {quick} || sleep 600; touch {tmp_path}/acked"
    spout = spooled(tmp_path, sh("echo x", ack=["sh", "-c", script], timeout_s=0.5))
    metadata = begin(spout, None)
    with pytest.raises(SourceUnavailableError, match=r"acknowledging command 'sh' ran longer than 0\.5 s.*timeout_s"):
        spout.coordinator().success(1, metadata)
    assert not list((tmp_path / "spool").glob("*.acked"))
    quick.touch()
    spout.coordinator().success(1, metadata)
    assert (tmp_path / "acked").exists()
    assert len(list((tmp_path / "spool").glob("*.acked"))) == 1


@pytest.mark.parametrize("rest", ["sleep 600", "exit 0", "echo said >&2; exit 3"])
def test_a_process_that_left_the_commands_session_does_not_hold_anybody_up(
    rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_sources, "_END_S", 0.3)
    script = f"setsid sleep 30 & echo one; printf unfinis; {rest}"
    source = sh(script, ack=["sh", "-c", script], timeout_s=1.0)
    began, pipes = time.monotonic(), open_pipes()
    if rest.endswith("3"):
        with pytest.raises(SourceUnavailableError, match="ended with code 3: said"):
            source.poll(10)
    else:
        polled = source.poll(10)
        assert polled is not None
        assert list(polled.rows) == [("one",)]
    if rest == "exit 0":
        source.ack("token")  # it ended by itself, so it has done what it is for
    else:
        with pytest.raises(SourceUnavailableError, match="ran longer" if rest == "sleep 600" else "code 3"):
            source.ack("token")
    assert time.monotonic() - began < 15
    assert not open_pipes() - pipes  # what tests before this one left may be closed meanwhile


def open_pipes() -> set[str]:
    """Which pipes this process has."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {one for one in found if one.startswith("pipe:")}


def test_a_line_that_is_no_text_is_an_error_that_names_it() -> None:
    source = sh(r"printf 'good\na\377\n'", id_of=str, encoding_errors="error")
    said = r"line 2 that the command 'sh' printed is no UTF-8: b'a\\xff'\. Nothing of this poll.*encoding_errors="
    with pytest.raises(DamagedInputError, match=said):
        source.poll(10)
    with pytest.raises(DamagedInputError, match="line 2"):
        sh(r"printf 'good\na\377\n'").poll(10)


def test_different_lines_that_are_no_text_are_different_items(tmp_path: Path) -> None:
    script = r"printf 'a\377\na\376\na\\udcff\na\377\r\n\351\251\n\303\251\n'"
    spout = spooled(tmp_path, sh(script, id_of=str, encoding_errors="replace", ack=["true"]))
    metadata = begin(spout, None)
    rows = [("a\ufffd",), ("a\ufffd",), (r"a\udcff",), ("\ufffd",), ("é",)]
    assert rows_of(spout, metadata) == rows
    assert begin(spout, metadata) is None, "all of them are known when they come again"
    polled = sh(r"printf '7 \377\n8 good\n'", id_of=lambda line: line.split()[0], encoding_errors="replace").poll(1)
    assert polled is not None
    assert polled.ids == ["7", "8"]
    with pytest.raises(DamagedInputError, match=r'line 1 .*errors="surrogateescape"'):
        sh(r"printf '\377\n'", id_of=lambda line: line.encode().hex(), encoding_errors="replace").poll(1)


def test_a_function_that_raises_is_a_source_that_does_not_answer() -> None:
    def poll(max_rows: int) -> None:
        raise OSError("line is busy")

    with pytest.raises(SourceUnavailableError, match="raised OSError: line is busy"):
        CallableSource(poll, "a string").poll(1)
