"""States in SQLite files as a user without rights, and on a full disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied
from airflow_trident.errors import (
    StoreUnavailableError,
    TridentError,
    UserCodeError,
)
from airflow_trident.operations.aggregators import Sum
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.state import batch, combined, content, counts, ticket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states.db"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def apply_in_another_process(path: Path) -> str:
    """What a committer without root's rights prints."""
    script = """
import os, sys
import pyarrow, numpy, pandas
import airflow_trident.states.sql.sqlite_table, airflow_trident.states.sql.store  # while this user may read them
from airflow_trident.errors import TridentError
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.state import batch, counts, ticket
spec = counts(SqliteState(sys.argv[1]))
rows = batch(spec, ("a", 1))
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(65534)
try:
    with spec.factory.make_state(spec) as state:
        print(state.apply(ticket(1), rows).value)
except TridentError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    return done.stdout


def test_a_read_only_folder_is_a_configuration_error_with_its_cure(open_folder: Path) -> None:
    folder = open_folder / "closed"
    folder.mkdir(mode=0o555)
    said = apply_in_another_process(folder / "states.db")
    assert said.startswith(f"ConfigurationError the state file '{folder}/states.db' cannot be opened for writing")
    assert "Let this user write to it" in said


def test_a_folder_that_cannot_be_made_is_a_configuration_error_with_its_cure(open_folder: Path) -> None:
    folder = open_folder / "closed"
    folder.mkdir(mode=0o555)
    said = apply_in_another_process(folder / "new" / "states.db")
    assert said.startswith(f"ConfigurationError cannot write into the folder of the state '{folder}/new'")


def test_a_read_only_file_is_a_configuration_error_with_its_cure(open_folder: Path) -> None:
    path = open_folder / "states.db"
    spec = counts(SqliteState(str(path)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
    path.chmod(0o444)
    said = apply_in_another_process(path)
    assert said.startswith(f"ConfigurationError the state file '{path}' cannot be opened for writing")


def test_a_full_disk_is_retryable_and_nothing_was_applied(path: Path) -> None:
    """SQLite's own limit of pages stands for the full disk: it is the same error in the same place."""
    spec = counts(SqliteState(str(path)))
    rows = batch(spec, *((f"word {number}", 1) for number in range(20_000)))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1)))
        before = state.marker(), content(state)
        state.dialect.file.connection.execute("PRAGMA max_page_count = 20")  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailableError, match=r"disk of the state file '.*' is full.*nothing was applied"):
            state.apply(ticket(2), rows)
        assert (state.marker(), content(state)) == before
        state.dialect.file.connection.execute("PRAGMA max_page_count = 100000")  # type: ignore[attr-defined]
        assert state.apply(ticket(2), rows) is Applied.APPLIED


def test_a_write_that_fails_at_the_commit_is_retryable_and_nothing_was_applied(path: Path) -> None:
    """A real failing write: the log may not grow any more when the transaction is committed."""
    script = """
import resource, sys
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures.state import batch, content, counts, ticket
spec = counts(SqliteState(sys.argv[1]))
rows = batch(spec, *((f"word {number}", 1) for number in range(20_000)))
with spec.factory.make_state(spec) as state:
    state.apply(ticket(1), batch(spec, ("a", 1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        state.apply(ticket(2), rows)
    except StoreUnavailableError as error:
        print(error)
    print(content(state))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    print(state.apply(ticket(2), rows).value, len(content(state)))
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    error, after, again = done.stdout.splitlines()
    assert error.startswith(f"the state file '{path}' does not work (disk I/O error). Mend its file system, or free")
    assert (after, again) == ("{('a',): (1,)}", "applied 20001")


def test_every_error_of_a_state_ends_with_a_cure(path: Path) -> None:
    errors: list[TridentError] = []
    spec = combined(SqliteState(str(path)), "word string", "n long", Sum())
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2**63 - 1)))
        with pytest.raises(UserCodeError) as caught:
            state.apply(ticket(2), batch(spec, ("a", 1)))
        errors.append(caught.value)
        assert (caught.value.node, caught.value.fields) == ("counts", "n")
    assert all(error.cure for error in errors)
    assert str(pickle.loads(pickle.dumps(errors[0]))) == str(errors[0])
