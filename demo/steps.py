"""The next step of the demonstration, as a value. Pure, so a run that was killed anywhere can go on.

The ledger knows what is done, and Airflow knows what still runs. Nothing else is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_trident.protocol.records import Status, TxRecord
from tools.local_airflow.rest import FINISHED_RUN


@dataclass(frozen=True, slots=True)
class Trigger:
    """Start these DAG runs; each claims one transaction."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Wait: runs are at work."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """No run is at work and these transactions are FAILED: repair the input and replay them."""

    txids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """No run is at work and these have failed tasks: let the failed tasks run again. If their transaction has been
    committed meanwhile, they find that out and do nothing else."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Every file is in a committed transaction, and no run is failed."""


Step = Trigger | Watch | Backfill | Clear | Finish


def next_step(transactions: Sequence[TxRecord], runs: Mapping[str, str], files: int) -> Step:
    """
    :param transactions: all transactions of the ledger.
    :param runs: run id -> its state in Airflow.
    :param files: number of files in the input; each becomes one transaction.
    """
    if any(state not in FINISHED_RUN for state in runs.values()):
        return Watch()
    failed = tuple(tx.txid for tx in transactions if tx.status is Status.FAILED)
    if failed:
        return Backfill(failed)
    unfinished = [tx for tx in transactions if tx.status is not Status.COMMITTED]
    if unfinished:
        return Clear(tuple(sorted({tx.claim.run_id for tx in unfinished})))
    if len(transactions) < files:
        return Trigger(new_run_ids(runs, files - len(transactions)))
    failed_runs = tuple(run_id for run_id, state in runs.items() if state == "failed")
    return Clear(failed_runs) if failed_runs else Finish()


def new_run_ids(runs: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The next `count` unused names among run-1, run-2, ..."""
    numbers = [int(run_id.removeprefix("run-")) for run_id in runs if run_id.removeprefix("run-").isdigit()]
    first = max(numbers, default=0) + 1
    return tuple(f"run-{number}" for number in range(first, first + count))
