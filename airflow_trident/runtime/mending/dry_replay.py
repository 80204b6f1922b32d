"""Dry replay: runs a transaction again without committing, and compares the result with what was staged.

Finds spouts that do not give the same batch again, and functions that depend on more than their input.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from math import isfinite
from typing import Any

from airflow_trident.engine.base import Engine, Job, quiet
from airflow_trident.engine.key_limit import NO_LIMIT
from airflow_trident.errors import StagingError, TransitionError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.ledger.base import Ledger
from airflow_trident.runtime.phases import Progress, kept_record
from airflow_trident.runtime.staged_batches import manifest_of, tell_other_code
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.topology.topology import Topology

EXAMPLES_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """How one state's batch differs. `missing`: rows staged but not replayed; `extra`: rows replayed but not staged; a
    few examples each. `missing_rows`, `extra_rows`: how many. `only_reals`: if only real numbers differ, the largest
    difference as a part of the larger number; else None."""

    state: str
    staged_rows: int
    replayed_rows: int
    missing_rows: int = 0
    extra_rows: int = 0
    missing: tuple[tuple[Any, ...], ...] = ()
    extra: tuple[tuple[Any, ...], ...] = ()
    only_reals: float | None = None

    @property
    def equal(self) -> bool:
        return not (self.missing_rows or self.extra_rows)


def dry_replay(
    ledger: Ledger,
    topology: Topology,
    txid: int,
    engine: Engine,
    staging_root: str,
    progress: Progress = quiet,
    *,
    shake: bool = False,
) -> list[StateDifference]:
    """Runs transaction `txid` again into a temporary folder; one comparison per state. Only reads the ledger and the
    states.

    :param shake: use other settings that must not matter (:mod:`airflow_trident.engine.shaken_run`): with the same
        settings most code that depends on them gives the same result again.
    :raises TransitionError: never begun, pruned, or not processed yet.
    :raises SourceChangedError: the source no longer holds the batch.
    """
    view = ledger.view(txid)
    record = kept_record(view, topology.name, txid)
    if record.staged is None:
        raise TransitionError(f"transaction {txid} has no staged batch to compare with", "Let it be processed first.")
    area = StagingArea(staging_root)
    manifest = manifest_of(area, ledger, record.staged)
    tell_other_code(manifest, topology.compile(), progress)
    slot = Slot(topology=topology.name, incarnation=view.topology.incarnation, txid=txid, attempt=record.attempt)
    with tempfile.TemporaryDirectory(prefix="trident-replay-") as folder:
        job = Job(
            plan=topology.compile(),
            slot=slot,
            metadata=record.metadata,
            staging_root=folder,
            progress=progress,
            trial=True,
            shaken=shake,
            time_ms=record.time_ms,
            max_keys=NO_LIMIT,  # they were within the one of the attempt
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
        only_reals=_real_difference(missing, extra),
    )


def _real_difference(missing: Counter[tuple[Any, ...]], extra: Counter[tuple[Any, ...]]) -> float | None:
    """The largest difference, if the rows form pairs that differ only in real numbers. Rows that are equal otherwise
    are paired in the order of their numbers."""
    one, other = _by_the_rest(missing), _by_the_rest(extra)
    if not one or {key: len(rows) for key, rows in one.items()} != {key: len(rows) for key, rows in other.items()}:
        return None
    rows = [pair for key in one for pair in zip(one[key], other[key], strict=True)]
    pairs = [(a, b) for left, right in rows for a, b in zip(left, right, strict=True) if a != b]
    if not pairs or not all(isfinite(a) and isfinite(b) for a, b in pairs):
        return None
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)


def _by_the_rest(rows: Counter[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[tuple[float, ...]]]:
    """The other values of a row -> the real numbers of these rows, in order."""
    found: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}
    for row in rows.elements():
        rest = tuple(float if isinstance(value, float) else value for value in row)
        found.setdefault(rest, []).append(tuple(value for value in row if isinstance(value, float)))
    return {rest: sorted(numbers) for rest, numbers in found.items()}


def _hashable(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in table_to_rows(table)]
