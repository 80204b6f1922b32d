"""Many keys are asked for in several statements: their values are nevertheless of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_trident.errors import OutcomeUnknownError, StoreUnavailableError
from airflow_trident.states.sql import postgres
from airflow_trident.states.sql.dialect import Dialect
from airflow_trident.states.sql.sqlalchemy_state import SqlAlchemyDialect
from airflow_trident.states.sql.store import SqlStore
from tests.fixtures.state import FACTORIES, batch, counts, ticket

MANY = 1200
"""More keys than one statement asks for."""


@pytest.mark.parametrize("store", ["sqlite", "postgres", "sqlalchemy on sqlite", "sqlalchemy on postgres"])
def test_values_of_many_keys_are_of_one_transaction_whoever_commits_meanwhile(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_KEYS_AT_ONCE", 500)
    factory: Any = FACTORIES[store](tmp_path)
    if hasattr(factory, "lock_timeout_s"):
        factory = replace(factory, lock_timeout_s=0.2)
    spec = counts(factory)
    rows = [(f"w{number}", 1) for number in range(MANY)]
    asked: list[int] = []
    with factory.make_state(spec) as reader, factory.make_state(spec) as writer:
        reader.apply(ticket(1), batch(spec, *rows))

        def commit() -> None:
            if not asked:
                asked.append(1)
                # A file without a write-ahead log lets nobody commit while it is read.
                with suppress(StoreUnavailableError, OutcomeUnknownError):
                    writer.apply(ticket(2), batch(spec, *rows))

        assert isinstance(reader, SqlStore)
        call_between_statements(reader.dialect, commit, monkeypatch)
        found = reader.get_many([(word,) for word, _ in rows])
        assert asked
        assert found == [(1,)] * MANY
        writer.apply(ticket(2), batch(spec, *rows))
        assert reader.get_many([(word,) for word, _ in rows]) == [(2,)] * MANY


def call_between_statements(dialect: Dialect, call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first of those that look keys up, before the next one."""
    if isinstance(dialect, SqlAlchemyDialect):
        lookups: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if " IN (" in statement:
                if lookups:
                    call()
                lookups.append(statement)

        sa.event.listen(dialect.engine, "before_cursor_execute", note)
        return
    original: Callable[..., Iterator[Any]] = dialect._rows  # type: ignore[attr-defined]

    def rows(*arguments: Any) -> Iterator[Any]:
        for row in original(*arguments):
            call()
            yield row

    monkeypatch.setattr(dialect, "_rows", rows)
