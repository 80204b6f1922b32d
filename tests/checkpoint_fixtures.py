"""Stateful functions over three batches of trails, and what they leave when nobody disturbs them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_trident import KeyValueStates
from airflow_trident.arrow import rows_to_table
from airflow_trident.plan.states import Applied, State, StateSpec
from airflow_trident.states.keyvalue_stateful import OpenStateful
from tests.programs import stateful_trails as trails
from tests.state_fixtures import ticket

BATCHES = {txid: trails.ROWS[(txid - 1) * trails.BATCH : txid * trails.BATCH] for txid in (1, 2, 3)}


def give(state: State, txid: int, fence: int | None = None, **changes: Any) -> Applied:
    """Apply batch `txid` of the trails."""
    rows = rows_to_table(trails.spec(Path()).staged, BATCHES[txid])
    return state.apply(replace(ticket(txid, fence=fence, topology="trails"), **changes), rows)


def opened(spec: StateSpec) -> OpenStateful:
    state = spec.factory.make_state(spec)
    assert isinstance(state, OpenStateful)
    return state


def undisturbed(txids: tuple[int, ...] = (1, 2, 3)) -> list[str]:
    """In memory, where nobody else is."""
    spec = replace(trails.spec(Path()), factory=KeyValueStates("memory", {"name": uuid.uuid4().hex}))
    with opened(spec) as state:
        for txid in txids:
            give(state, txid)
        return trails.contents(state)
