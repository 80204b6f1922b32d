"""A committer to a Parquet table that was stopped for so long that the number of its version was removed: others
committed, and removed old versions. It takes that number again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import ParquetTable
from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    OutcomeUnknownError,
    SourceChangedError,
    StoreUnavailableError,
)
from airflow_trident.spouts.parquet.added_files import ParquetLog
from airflow_trident.staging.parquet_versions import ParquetVersions
from airflow_trident.states.parquet.table import OpenParquetTable
from tests.fixtures.outage import Outage
from tests.fixtures.state import ticket
from tests.fixtures.table import FIELDS, ForeignParquetTable, staged

_ZOMBIE = 2
"""The number of its version. With two kept versions, versions 3 and 4 are kept when it publishes."""


@pytest.fixture(params=["folder", "bucket"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StateSpec:
    if request.param == "folder":
        return spec_of(str(tmp_path / "sales"))
    return spec_of(request.getfixturevalue("bucket").uri + "/sales")


def spec_of(path: str) -> StateSpec:
    factory = ParquetTable(path, keep_versions=2)
    return StateSpec(topology="words", name="rows", keys=(), values=FIELDS, staged=FIELDS, factory=factory)


def opened(spec: StateSpec) -> OpenParquetTable:
    return spec.factory.make_state(spec)  # type: ignore[return-value]


def rows(spec: StateSpec, version: int | None = None) -> list[tuple[Any, ...]]:
    factory: Any = spec.factory
    return sorted((row["word"], row["n"]) for row in factory.dataset(version).to_table().to_pylist())


def others_commit(spec: StateSpec, folder: Path, topology: str = "others", first: int = 1, number: int = 3) -> None:
    with opened(replace(spec, topology=topology)) as other:
        for txid in range(first, first + number):
            other.apply_files(ticket(txid, fence=10 + txid), staged(folder, ("a", txid)))


def stop_at_the_name(
    state: Any, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, answers: bool, after: bool = False
) -> None:
    """`act` runs before the state's commit takes its name, or after that, once.

    :param answers: else the committer does not learn that it has taken it, and does no more.
    """
    kind = type(state._storage)
    take = kind.put_if_absent

    def stopped(storage: Any, name: str, content: bytes) -> bool:
        monkeypatch.setattr(kind, "put_if_absent", take)
        if not after:
            act()
        assert take(storage, name, content)
        if after:
            act()
        if not answers:
            raise StoreUnavailableError("the network broke", "Mend it.")
        return True

    monkeypatch.setattr(kind, "put_if_absent", stopped)


def leave_a_late_version(spec: StateSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(spec) as state:
        stop_at_the_name(state, monkeypatch, lambda: others_commit(spec, folder), answers=False)
        with pytest.raises(OutcomeUnknownError):
            state.apply_files(ticket(1, fence=9), staged(folder, ("zombie", 1)))
        assert state._versions.numbers() == [_ZOMBIE, 3, 4]


def test_a_late_version_counts_for_nobody_and_the_next_commit_removes_it(
    spec: StateSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_a_late_version(spec, tmp_path, monkeypatch)
    factory: Any = spec.factory
    assert factory.versions() == [3, 4]
    assert rows(spec) == [("a", 1), ("a", 2), ("a", 3)]
    with pytest.raises(ConfigurationError, match="there is no version 2"):
        factory.dataset(_ZOMBIE)
    log = ParquetLog(factory.place())
    with pytest.raises(SourceChangedError, match="no longer has version 2"):
        list(log.versions(3, None))
    with opened(spec) as state:
        assert state.marker() is None, "the batch was not applied"
        assert state.apply_files(ticket(1, fence=50), staged(tmp_path, ("b", 1))) is Applied.APPLIED
        assert state._versions.numbers() == [3, 4, 5]
    assert rows(spec) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_late_committer_learns_it_and_takes_its_version_away(
    spec: StateSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(spec) as state:
        stop_at_the_name(state, monkeypatch, lambda: others_commit(spec, tmp_path, "words"), answers=True)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=9), staged(tmp_path, ("zombie", 1)))
        assert state._versions.numbers() == [3, 4]
        assert len([name for name, _ in state._storage.list("_data")]) == 3, "nor is its file left"
    assert rows(spec) == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.parametrize("number", [None, _ZOMBIE], ids=["the last version", "the number"])
def test_who_was_stopped_before_it_read_a_version_does_not_take_the_late_one_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    spec = spec_of(str(tmp_path / "sales"))
    read, storage = ParquetVersions.read, spec.factory.place()  # type: ignore[attr-defined]
    late: list[bytes] = []
    with opened(spec) as state:
        take = type(state._storage).put_if_absent

        def stop(_storage: Any, _name: str, content: bytes) -> bool:
            monkeypatch.setattr(type(state._storage), "put_if_absent", take)
            late.append(content)
            raise StoreUnavailableError("it is stopped here", "Go on.")

        monkeypatch.setattr(type(state._storage), "put_if_absent", stop)
        with pytest.raises(OutcomeUnknownError):
            state.apply_files(ticket(1, fence=9), staged(tmp_path, ("zombie", 1)))
    others_commit(spec, tmp_path, number=1)

    def stopped(versions: ParquetVersions, found: int) -> Any:
        """It saw version 2 of another. Then old versions go, and the late one comes."""
        assert found == _ZOMBIE
        monkeypatch.setattr(ParquetVersions, "read", read)
        others_commit(spec, tmp_path, first=2, number=2)
        assert storage.put_if_absent(f"_versions/{found:019d}.json", late[0])
        return read(versions, found)

    monkeypatch.setattr(ParquetVersions, "read", stopped)
    if number is None:
        assert rows(spec) == [("a", 1), ("a", 2), ("a", 3)]
    else:
        with pytest.raises(ConfigurationError, match="there is no version 2"):
            rows(spec, number)


def test_what_a_late_version_wanted_to_remove_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ForeignParquetTable(tmp_path, partition_by=("word",), overwrites=True)
    spec = replace(table.spec, factory=replace(table.spec.factory, keep_versions=2))  # type: ignore[type-var]
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 0)))

        def others() -> None:
            with opened(replace(spec, topology="others")) as other:
                for txid in range(1, 4):
                    other.apply_files(ticket(txid), staged(tmp_path, ("b", txid)))
                other.apply_files(ticket(4), staged(tmp_path, ("a", 4)))

        stop_at_the_name(state, monkeypatch, others, answers=False)
        with pytest.raises(OutcomeUnknownError):
            state.apply_files(ticket(2, fence=20), staged(tmp_path, ("a", 1)))
        assert state._versions.numbers() == [3, 5, 6]
    with opened(spec) as state:
        state.apply_files(ticket(2, fence=50), staged(tmp_path, ("c", 1)))
    factory: Any = spec.factory
    for version in factory.versions():
        assert any(row[0] == "a" for row in rows(spec, version))


def test_files_of_a_commit_that_counted_stay_though_its_version_went_before_it_had_its_answer(
    spec: StateSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(spec) as state:
        stop_at_the_name(
            state,
            monkeypatch,
            lambda: others_commit(spec, tmp_path, "words", first=2, number=5),
            answers=True,
            after=True,
        )
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=9), staged(tmp_path, ("first", 1)))
    assert rows(spec) == [*(("a", txid) for txid in range(2, 7)), ("first", 1)]


def test_files_of_a_commit_stay_though_nobody_could_list_the_versions_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, outage = spec_of(str(tmp_path / "sales")), Outage(tmp_path / "sales" / "_versions")
    files = staged(tmp_path, ("a", 1))
    with opened(spec) as state:
        stop_at_the_name(state, monkeypatch, outage.begin, answers=True, after=True)
        with pytest.raises(OutcomeUnknownError, match="without an answer"):
            state.apply_files(ticket(1), files)
        with pytest.raises(StoreUnavailableError):
            opened(spec)
        outage.end()
        assert state.apply_files(ticket(1), files) is Applied.ALREADY
    assert rows(spec) == [("a", 1)]


def test_a_table_that_went_back_is_still_missed_beside_a_late_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ForeignParquetTable(tmp_path)
    spec = replace(table.spec, factory=replace(table.spec.factory, keep_versions=2))  # type: ignore[type-var]
    leave_a_late_version(spec, tmp_path, monkeypatch)
    with opened(spec) as state:
        state.apply_files(ticket(1, fence=50), staged(tmp_path, ("b", 1)))
    table.publish(**table.version(4))
    with pytest.raises(CorruptRecordError, match="restored to a version before 5"):
        opened(spec)
