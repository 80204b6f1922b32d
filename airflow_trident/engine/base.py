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

Of engines that process groups of transactions (`coalesces`; `tests/contracts/test_engine_groups.py`):

E7  `run_group` stages for every transaction of the group what `run` would stage for it alone (E1), or, by key, what
    these rows are together once they are merged by the states' keys. Users' functions see the transaction, the attempt
    and the partitions that they would see in `run`, as copies of their own (E5).
E8  Its manifest is in the slot of the last job, and has a member for each with its own attempt and number of rows read.
    A group of one is what `run` gives. Nothing of a group counts before `run_group` returns (E2).
E9  What one transaction is to blame for is an error that names it (`TridentError.txid`): all others may be run again
    without it. An error that names none says nothing about any of them: each may be run alone.
E10 A plan that cannot be processed in groups is refused with ConfigurationError before anything is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_trident.closing import Closing
from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.stages import Coalesces, Coalescing, Plan
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import Json


def quiet(line: str) -> None:
    """Progress to nowhere."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt's work. `metadata`: stream -> metadata; streams that are absent have no data in this batch.

    `staging_root`: folder of staged batches. `progress` gets lines for people. `trial`: not the attempt's own work but
    a run beside it (a dry replay), which must neither end what the attempt runs in Spark nor be taken for it.
    `shaken`: of a trial, run under other settings that mean nothing: partitions, order of splits, ways that Spark goes.
    `time_ms`: the transaction's, see `TxRecord.time_ms`. `chunk_bytes`: a staged file of up to so many bytes may be
    given back with its content, and not written: a ledger keeps it; 0: none may.
    """

    plan: Plan
    slot: Slot
    metadata: dict[str, Json]
    staging_root: str
    progress: Callable[[str], None] = quiet
    trial: bool = False
    shaken: bool = False
    time_ms: int = 0
    chunk_bytes: int = 0


class Engine(Closing):
    """Runs jobs. Use as a context manager; making one opens nothing."""

    name: str
    takes_groups: ClassVar[bool] = False
    """Does it implement `run_group`?"""

    @abstractmethod
    def run(self, job: Job) -> Manifest:
        """Run the processing phase and write the staged files; publishing the manifest is the caller's step.

        :raises UnknownNodeError: the engine does not know a node.
        :raises UserCodeError: a user's function raised.
        :raises SparkJobError: the job ended for another reason.
        """

    def coalesces(self, plan: Plan) -> Coalesces:
        """How this engine processes several transactions of the plan at a time: the plan's word, or one by one."""
        found = plan.coalesces
        if self.takes_groups or not found.passes:
            return found
        return replace(found, how=Coalescing.NO, why=f"engine {self.name} takes one transaction at a time")

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        """Run the processing phases of several transactions in one go, and write their staged files (E7 to E10).

        The manifest is in the slot of the last job; `StagingArea.publish_group` makes it visible, which is the caller's
        step. It is `Manifest.inseparable` only where `coalesces` says BY_KEY, and even then it need not be. After an
        error all jobs may be run again, alone or in other groups, under new attempts.

        :param jobs: at least one, lowest txid first, of one plan, incarnation and staging root; the last one's
            `progress` gets the lines. None is a `trial`.
        :raises ConfigurationError: `coalesces` says that the plan goes one by one, or these jobs are no group.
        :raises UserCodeError, SourceChangedError, ...: as `run`; `txid` names the transaction at fault, if it is known.
        :raises SparkJobError: the job ended for another reason.
        """
        raise ConfigurationError(
            f"engine {self.name} takes one transaction at a time", "Run the jobs one by one, lowest txid first."
        )

    def cancel(self, slot: Slot | None = None) -> None:
        """Stop the running job of an attempt, best effort; None: whatever runs. A group is that of its last."""

    @property
    def ui_url(self) -> str:
        """Where the running job can be looked at; empty if nowhere."""
        return ""

    def close(self) -> None: ...
