"""Tables with mode="rewrite": what is refused, and whose they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident import DeltaTable, FileSink, FixedBatchSpout, Topology
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.runtime.drains.limits import pending_of
from tests.contracts.test_table_rewrites import table
from tests.fixtures.rewrites import FIELDS, found, keyed, processed, rows_of, two
from tests.fixtures.state import ticket
from tests.fixtures.table import ForeignTable

__all__ = ["table"]


def test_what_cannot_be_rewritten_is_refused_when_the_dag_is_built(tmp_path: Path) -> None:
    def persisted(into: Any, fields: str = "id long, word string, gone boolean", **options: Any) -> Topology:
        made = Topology("words")
        made.new_stream("s", FixedBatchSpout(fields, [], 1)).persist_table(into, mode="rewrite", **options)
        return made

    place = str(tmp_path / "t")
    for made, text in (
        (lambda: persisted(FileSink(place), keys="id"), "persist_table got FileSink"),
        (lambda: persisted(DeltaTable(place)), "mode='rewrite' and no keys"),
        (lambda: persisted(DeltaTable(place), keys="id", deleted="word"), "no such boolean field"),
        (lambda: persisted(DeltaTable(place), "id double, w string", keys="id"), "key id of type double"),
        (lambda: persisted(DeltaTable(place), "id array<long>, w string", keys="id"), "key id of type array"),
    ):
        with pytest.raises(PlanError, match=text):
            made()
    good = persisted(DeltaTable(place), keys="id")
    assert not good.compile().coalesces.passes
    assert "rewritten" in good.compile().coalesces.why
    assert pending_of(good.states, None) == pending_of(good.states, 1) == 1
    with pytest.raises(ConfigurationError, match="2 transactions at once, and state 'rows' has mode='rewrite'"):
        pending_of(good.states, 2)


def test_a_table_of_keys_has_one_writer(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        two(table, state)
    spec = table.spec
    for other, text in (
        (replace(spec, topology="others"), "has the rows of state 'rows' of topology 'words'|others writes to it"),
        (replace(spec, keys=(), values=FIELDS, rewrites=False, deleted=None), "has the rows of state 'rows'"),
        (replace(spec, deleted=None), r"rows by the keys \['id'\], deleted where gone, and not by"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            spec.factory.make_state(other)


def test_a_delta_table_that_was_there_before_must_say_whose_it_is(tmp_path: Path) -> None:
    table = keyed(tmp_path, "delta")
    path = tmp_path / "sales"
    deltalake.write_deltalake(path, rows_of((1, "a"), (1, "again"), (2, "b")))
    with pytest.raises(ConfigurationError, match=r"was not made for rows by key.*set this one's note") as refused:
        table.opened()
    said = refused.value.cure.partition("note to ")[2].partition(", if its")[0]
    deltalake.DeltaTable(path).alter.set_table_description(said)
    with table.opened() as state:
        state.apply_files(ticket(1), processed(table, state, 1, (1, "ours")))
    assert found(table) == [(1, "ours"), (2, "b")]
