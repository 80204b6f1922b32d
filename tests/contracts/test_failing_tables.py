"""Whichever call of a table's library raises, and whatever it raises: what comes out is an error of this package that
names the table, and the batch that is applied after it is there once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyiceberg.exceptions as of_iceberg
import pytest

from airflow_trident import DeltaState, DeltaTable, IcebergTable
from airflow_trident.errors import OutcomeUnknownError, TridentError
from airflow_trident.io.delta import DeltaPlace
from airflow_trident.io.iceberg import IcebergPlace
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.spouts.iceberg.spout import IcebergSpout
from tests.contracts.test_failing_drivers import FOREIGN, PanicException, error_of
from tests.faults.drivers import FailingDriver
from tests.fixtures.catalog import open_catalog
from tests.fixtures.state import batch, counts, ticket
from tests.fixtures.table import TABLES

OF_DELTA: list[BaseException] = [
    PanicException("odd"),
    deltalake.exceptions.DeltaError("Generic error: odd"),
    deltalake.exceptions.TableNotFoundError("no table"),
    deltalake.exceptions.DeltaProtocolError("odd protocol"),
    deltalake.exceptions.SchemaMismatchError("odd schema"),
]
OF_ICEBERG: list[BaseException] = [
    kind("odd")
    for kind in vars(of_iceberg).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not of_iceberg.CommitFailedException
]
OF_ANY = [*FOREIGN[:3], FileNotFoundError(2, "No such file"), pa.ArrowInvalid("odd")]


FENCES = itertools.count(1)
ROUNDS = 12


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FailingDriver:
    """The methods of a table of deltalake and of a catalog of pyiceberg fail; what they return is theirs."""
    driver, table, catalog = FailingDriver(("nothing",)), DeltaPlace.table, IcebergPlace.open_catalog
    monkeypatch.setattr(DeltaPlace, "table", lambda *arguments: driver.around(table(*arguments)))
    monkeypatch.setattr(IcebergPlace, "open_catalog", lambda self: driver.around(catalog(self)))
    return driver


def applied(spec: Any, *, times: int = 3) -> list[Any]:
    """The table is there before its rows come, and is opened again, as for each task. Begins with the batch that the
    table has last, for a task does not know that it has it."""
    spec.factory.make_state(spec).close()
    with spec.factory.make_state(spec) as state:
        marker = state.marker()
        for txid in range(1 if marker is None else marker.high, times + 1):
            apply = partial(state.apply, ticket(txid, fence=next(FENCES)), batch(spec, ("a", 1)))
            with suppress(OutcomeUnknownError):
                apply()
                continue
            apply()
        return sorted(state.items())


def delta_table(folder: Path, name: str) -> list[Any]:
    return applied(replace(TABLES["delta"](folder).spec, factory=DeltaTable(str(folder / name))))


def delta_state(folder: Path, name: str) -> list[Any]:
    return applied(counts(DeltaState(str(folder / name), fold_at=2)))


def properties(folder: Path, name: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/{name}.db", "warehouse": f"{folder}/{name}"}


def iceberg_table(folder: Path, name: str) -> list[Any]:
    (folder / name).mkdir(exist_ok=True)
    factory = IcebergTable("sales.orders", properties=properties(folder, name))
    return applied(replace(TABLES["iceberg"](folder).spec, factory=factory))


def rows_of(spout: Any) -> list[Any]:
    first = spout.coordinator().initialize_transaction(1, None)
    assert spout.coordinator().initialize_transaction(2, first) is None
    emitter = spout.emitter()
    return [row for split in emitter.splits(first) for part in emitter.read(split) for row in part.to_pylist()]


def delta_spout(folder: Path, name: str) -> list[Any]:
    if not (folder / name).exists():
        for _ in range(2):
            deltalake.write_deltalake(str(folder / name), pa.table({"n": [1, 2]}), mode="append")
    first = rows_of(DeltaSpout(str(folder / name), fields="n long"))
    return first + rows_of(DeltaSpout(str(folder / name), fields="n long", start=0))


def iceberg_spout(folder: Path, name: str) -> list[Any]:
    if not (folder / name).exists():
        (folder / name).mkdir()
        catalog = open_catalog(**properties(folder, name))
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", pa.schema([("n", pa.int64())])).append(pa.table({"n": [1, 2]}))
    return rows_of(IcebergSpout("sales.orders", fields="n long", properties=properties(folder, name)))


@pytest.mark.parametrize(
    ("steps", "errors"),
    [
        (delta_table, OF_DELTA),
        (delta_state, OF_DELTA),
        (delta_spout, OF_DELTA),
        (iceberg_table, OF_ICEBERG),
        (iceberg_spout, OF_ICEBERG),
    ],
    ids=["DeltaTable", "DeltaState", "DeltaSpout", "IcebergTable", "IcebergSpout"],
)
def test_whatever_a_library_raises_and_wherever_each_batch_is_there_once(
    steps: Callable[[Path, str], list[Any]], errors: list[BaseException], library: FailingDriver, tmp_path: Path
) -> None:
    expected = steps(tmp_path, "counted")
    places = list(library.places)
    assert places
    errors = [*OF_ANY, *errors]
    for number in range(max(len(places), ROUNDS)):
        place, error, name = places[number % len(places)], errors[number % len(errors)], f"t{number}"
        library.set(place, error, after=number % 3 == 0)
        raised = error_of(partial(steps, tmp_path, name))
        assert library.failed, place
        if raised is not None:
            assert isinstance(raised, TridentError), (place, error, raised)
            assert "Delta table" in str(raised) or "Iceberg table" in str(raised), (place, raised)
            assert raised.cure
        library.set(None, error)
        assert steps(tmp_path, name) == expected, (place, error)


@pytest.mark.parametrize(
    ("place", "errors"),
    [(DeltaPlace(uri="/tables/t"), OF_DELTA), (IcebergPlace(name="sales.orders"), OF_ICEBERG)],
    ids=["Delta", "Iceberg"],
)
def test_each_error_of_a_library_is_told(place: DeltaPlace | IcebergPlace, errors: list[BaseException]) -> None:
    for error in [*OF_ANY, *errors]:
        names = r"Delta table '/tables/t'|Iceberg table 'sales.orders'"
        with pytest.raises(TridentError, match=names) as caught, place.errors():
            raise error
        assert caught.value.cure, error
