"""That a spout that breaks a promise is found by the checks of all spouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.testing.suites import SpoutCase, check_changed_source, check_coverage, check_replay
from airflow_trident.types import Json, Schema, parse_declared
from tests.contracts.test_spouts import ROWS
from tests.fixtures.spout import FIELDS


@dataclass
class Crippled(Spout):
    """A queue that hands out what it has now: not replayable, with a choice of further defects."""

    rows: list[tuple[Any, ...]] = field(default_factory=lambda: list(ROWS))
    doubles: bool = False
    ends_early: bool = False

    @property
    def schema(self) -> Schema:
        return parse_declared(FIELDS)

    def coordinator(self) -> Coordinator:
        return CrippledCoordinator(self)

    def emitter(self) -> Emitter:
        return CrippledEmitter(self)

    def describe(self) -> str:
        return "Crippled"


_READS = iter(range(10**9))


@dataclass
class CrippledCoordinator(Coordinator):
    spout: Crippled

    def is_ready(self, previous: Json) -> bool:
        return int(previous or 0) < len(self.spout.rows)  # type: ignore[arg-type]

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        at = int(previous or 0) + 10  # type: ignore[arg-type]
        return at if self.is_ready(previous) else None


@dataclass
class CrippledEmitter(Emitter):
    spout: Crippled

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, metadata)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        end = int(split.body)  # type: ignore[arg-type]
        begin = end - 11 if self.spout.doubles and end > 10 else end - 10
        rows = self.spout.rows[begin:end]
        if not (self.spout.doubles or self.spout.ends_early):
            rows = [(next(_READS), name) for _, name in rows]
        yield from rows_to_table(self.spout.schema, rows).to_batches()


@pytest.mark.parametrize(
    ("check", "spout"),
    [
        (check_replay, Crippled()),
        (check_coverage, Crippled()),
        (check_coverage, Crippled(doubles=True)),
        (check_coverage, Crippled(rows=ROWS[:-1], ends_early=True)),
    ],
)
def test_a_spout_that_breaks_a_promise_is_found(check: Callable[[SpoutCase], None], spout: Crippled) -> None:
    with pytest.raises(AssertionError):
        check(SpoutCase(spout, ROWS, lambda: spout))


def test_a_spout_that_gives_fewer_rows_instead_of_an_error_is_found() -> None:
    def take_away() -> Spout:
        return Crippled(rows=ROWS[:5], ends_early=True)

    with pytest.raises(AssertionError, match="S4: after take_away all batches can be read"):
        check_changed_source(SpoutCase(Crippled(ends_early=True), ROWS, take_away))
