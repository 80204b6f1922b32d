"""The contract of engines: run a plan over one batch and stage what comes out for each state.

Promises (`tests/contracts/test_engine.py` runs every plan on every engine and compares it with the same row by row):

E1  The result depends on plan, metadata and the users' functions only; `tests/oracle` defines the meaning.
E2  Nothing is visible until `run` returns: files that do not come into the manifest do not count.
E3  An exception of a user's function becomes a UserCodeError naming node, fields, row and txid.
E4  `cancel`, from another thread or a signal handler, ends the work soon where that is possible; never needed for
    correctness.
E5  Every use of an operation (function, filter, aggregator, grouping, query) on a partition, in an attempt, is a copy
    of what the user wrote: prepared before its first tuple, cleaned up after its last. What it keeps in `self` no other
    sees, whatever runs beside it in the same process. Plain functions are code and are shared.
E6  A node of a kind that the engine does not know, in the processing phase or behind it, is an UnknownNodeError before
    anything is read: see :mod:`airflow_trident.engine.known_nodes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from airflow_trident.plan.stages import Plan
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import Json


def quiet(line: str) -> None:
    """Progress to nowhere."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt's work. `metadata`: stream -> metadata; streams that are absent have no data in this batch.

    `staging_root`: folder of staged batches. `progress` gets lines for people. `trial`: not the attempt's own work but
    a run beside it (a dry replay), which must neither end what the attempt runs in Spark nor be taken for it.
    """

    plan: Plan
    slot: Slot
    metadata: dict[str, Json]
    staging_root: str
    progress: Callable[[str], None] = quiet
    trial: bool = False


class Engine(ABC):
    """Runs jobs. Use as a context manager; making one opens nothing."""

    name: str

    @abstractmethod
    def run(self, job: Job) -> Manifest:
        """Run the processing phase and write the staged files; publishing the manifest is the caller's step.

        :raises UnknownNodeError: the engine does not know a node.
        :raises UserCodeError: a user's function raised.
        :raises SparkJobError: the job ended for another reason.
        """

    def cancel(self, slot: Slot | None = None) -> None:
        """Stop the running job of an attempt, best effort; None: whatever runs."""

    @property
    def ui_url(self) -> str:
        """Where the running job can be looked at; empty if nowhere."""
        return ""

    def close(self) -> None: ...

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
