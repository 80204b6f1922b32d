"""Dry replay: run a transaction again without committing, and compare with what was staged.

Finds spouts that do not give the same batch again and functions that depend on more than their input.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

from airflow_trident.engine.base import Engine, Job, quiet
from airflow_trident.errors import StagingError, TransitionError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.ledger.base import Ledger
from airflow_trident.runtime.phases import Progress, kept_record
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.topology.topology import Topology

EXAMPLES_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """How the replay of one state's batch differs. `missing`: rows staged and not replayed; `extra`: the reverse; at
    most a few examples of each, with the numbers of all in `missing_rows` and `extra_rows`."""

    state: str
    staged_rows: int
    replayed_rows: int
    missing_rows: int = 0
    extra_rows: int = 0
    missing: tuple[tuple[Any, ...], ...] = ()
    extra: tuple[tuple[Any, ...], ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing_rows or self.extra_rows)


def dry_replay(
    ledger: Ledger, topology: Topology, txid: int, engine: Engine, staging_root: str, progress: Progress = quiet
) -> list[StateDifference]:
    """Run transaction `txid` again into a temporary folder; one comparison per state.

    The ledger and the states are only read.

    :raises TransitionError: never begun, pruned, or not processed yet.
    :raises SourceChangedError: the source no longer holds the batch.
    """
    view = ledger.view(txid)
    record = kept_record(view, topology.name, txid)
    if record.staged is None:
        raise TransitionError(f"transaction {txid} has no staged batch to compare with", "Let it be processed first.")
    area = StagingArea(staging_root)
    manifest = area.load(record.staged)
    slot = Slot(topology=topology.name, incarnation=view.topology.incarnation, txid=txid, attempt=record.attempt)
    with tempfile.TemporaryDirectory(prefix="trident-replay-") as folder:
        job = Job(
            plan=topology.compile(),
            slot=slot,
            metadata=record.metadata,
            staging_root=folder,
            progress=progress,
            trial=True,
            time_ms=record.time_ms,
        )
        replayed = engine.run(job)
        again = StagingArea(folder)
        return [
            _compare(
                sink.name,
                area.read(manifest, sink.name, sink.schema),
                again.read(replayed, sink.name, sink.schema),
            )
            for sink in job.plan.staged
        ]


def _compare(state: str, staged: Any, replayed: Any) -> StateDifference:
    try:
        old, new = Counter(_hashable(staged)), Counter(_hashable(replayed))
    except TypeError as error:
        raise StagingError(f"rows of state {state!r} cannot be compared: {error}") from error
    missing, extra = old - new, new - old
    return StateDifference(
        state=state,
        staged_rows=staged.num_rows,
        replayed_rows=replayed.num_rows,
        missing_rows=missing.total(),
        extra_rows=extra.total(),
        missing=tuple(sorted(missing, key=repr)[:EXAMPLES_ROWS]),
        extra=tuple(sorted(extra, key=repr)[:EXAMPLES_ROWS]),
    )


def _hashable(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in table_to_rows(table)]
