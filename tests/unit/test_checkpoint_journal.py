"""The journal of a stateful node: bytes that are written, and what of them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import CorruptRecordError, NewerRecordError
from airflow_trident.protocol.checkpoint import CheckpointRecord, CheckpointState
from airflow_trident.states.keyvalue.base import make_provider
from airflow_trident.states.keyvalue.checkpoint import Journal, Saved

RECORD: dict[str, Any] = {"v": 1, "txid": 7, "state": "COMMITTING", "previous": 4}
MARKER: dict[str, Any] = {
    "incarnation": "i",
    "high": 7,
    "fence": 12,
    "holes": [[5, 6]],
    "position": {"lines": {"files": ["\udc80", None, 1.5]}},
}
SAVED = Saved(
    record=CheckpointRecord(txid=7, state=CheckpointState.COMMITTING, previous=4),
    marker=Marker(incarnation="i", high=7, fence=12, holes=((5, 6),), position=MARKER["position"]),
)


@pytest.fixture
def journal(request: pytest.FixtureRequest) -> Journal:
    return Journal(make_provider("memory", {}).new_state(request.node.name))


def put(journal: Journal, value: Any) -> None:
    journal.state.put("__state", value)
    journal.state.commit(fence=1)


def test_what_is_written_is_this_for_ever_and_read_again(journal: Journal) -> None:
    journal.write(SAVED, 12)
    assert journal.state.get("__state") == {"checkpoint": RECORD, "marker": MARKER}
    assert journal.read() == SAVED
    journal.write(Saved(record=SAVED.record, marker=None), 12)
    assert journal.read().marker is None


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ([], "not a JSON object"),
        ({"checkpoint": RECORD}, "marker"),
        ({"marker": MARKER}, "checkpoint"),
        ({"checkpoint": {**RECORD, "txid": "7"}, "marker": None}, "'txid'"),
        ({"checkpoint": RECORD, "marker": 7}, "'marker'"),
        ({"checkpoint": RECORD, "marker": {**MARKER, "high": "7"}}, "'high'"),
        ({"checkpoint": RECORD, "marker": {**MARKER, "holes": [[5]]}}, "holes"),
        ({"checkpoint": RECORD, "marker": {name: MARKER[name] for name in ("incarnation", "high", "fence")}}, "holes"),
    ],
)
def test_a_damaged_one_is_refused_by_its_node_and_field(journal: Journal, damaged: Any, said: str) -> None:
    put(journal, damaged)
    with pytest.raises(CorruptRecordError, match=f"the checkpoint record of .* is damaged: .*{said}"):
        journal.read()


def test_one_of_a_newer_version_is_not_guessed_at(journal: Journal) -> None:
    put(journal, {"checkpoint": {**RECORD, "v": 2}, "marker": None})
    with pytest.raises(NewerRecordError, match="has version 2"):
        journal.read()
