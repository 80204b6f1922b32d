"""The contract of engines: run a plan over one batch and stage the output for each state.

Promises (`tests/contracts/test_engine.py` compares every plan on every engine with a row-by-row run):

E1  The result depends only on plan, metadata and the users' functions; `tests/oracle` defines the meaning.
    If there are `Job.tables`, the manifest also says what the batch replaces in them: exactly the files of that
    version with rows of the batch's keys, and their other rows (:mod:`airflow_trident.staging.table_rewrites`).
E2  Nothing is visible until `run` returns: files outside the manifest do not count.
E3  An exception of a user's function becomes a UserCodeError that names node, fields, row and txid.
E4  `cancel`, from another thread or a signal handler, ends the work soon if possible; correctness never needs it.
E5  Every use of an operation (function, filter, aggregator, grouping, query) on a partition, in an attempt, gets its
    own copy of the user's object: prepared before its first tuple, cleaned up after its last. No other use sees its
    `self`, even in the same process. Plain functions are shared.
E6  A node of unknown kind, in the processing phase or after it, is an UnknownNodeError before anything is read: see
    :mod:`airflow_trident.engine.known_nodes`.
E11 More keys of a partition than `Job.max_keys`, where Python holds them all at once (aggregators and reducers of a
    user's), are a ConfigurationError that names node, partition, their number and the cure.

Promises of engines that process groups of transactions (`coalesces`; `tests/contracts/test_engine_groups.py`):

E7  `run_group` stages for every transaction of the group what `run` would stage for it alone (E1), or, by key, these
    rows merged by the states' keys. Users' functions see the same transaction, attempt and partitions as in `run`, as
    their own copies (E5).
E8  Its manifest is in the slot of the last job, and has a member for each job with its attempt and number of rows read.
    A group of one gives the same as `run`. Nothing of a group counts before `run_group` returns (E2).
E9  An error caused by one transaction names it (`TridentError.txid`): all others may run again without it. An error
    that names none says nothing about any of them: each may run alone.
E10 A plan that cannot be processed in groups is refused with ConfigurationError before anything is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_trident.closeable import Closing
from airflow_trident.contracts.committed_table import CommittedTable
from airflow_trident.engine.key_limit import DEFAULT_MAX_PARTITION_KEYS
from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.stages import Coalesces, Coalescing, Plan
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import Json


def quiet(line: str) -> None:
    """Drops progress lines."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one attempt. `metadata`: stream -> metadata; streams that are absent have no data in this batch.

    `staging_root`: folder of staged batches. `progress` gets lines for people. `trial`: a run beside the attempt (a dry
    replay), not its own work; it must not end the attempt's Spark jobs or be mistaken for them. `shaken`: for a trial,
    use other settings that must not change the result: partitions, order of splits, Spark's strategies. `time_ms`: of
    the transaction, see `TxRecord.time_ms`. `chunk_bytes`: a staged file of at most this size may be returned as
    content instead of being written, for the ledger to keep; 0: never. `tables`: state -> the committed version of its
    table, in which the batch replaces rows by copy-on-write; files of its batch are always written. `max_keys`: so many
    keys of a partition may be in Python's memory at once; 0: any number.
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
    tables: Mapping[str, CommittedTable] = field(default_factory=dict)
    max_keys: int = DEFAULT_MAX_PARTITION_KEYS

    def kept_bytes(self, state: str) -> int:
        """A staged file of the state of at most this size may be returned as content."""
        return 0 if state in self.tables else self.chunk_bytes


class Engine(Closing):
    """Runs jobs. Use as a context manager; making one opens nothing."""

    name: str
    takes_groups: ClassVar[bool] = False
    """Does it implement `run_group`?"""

    @abstractmethod
    def run(self, job: Job) -> Manifest:
        """Run the processing phase and write the staged files; the caller publishes the manifest.

        :raises UnknownNodeError: the engine does not know a node.
        :raises UserCodeError: a user's function raised.
        :raises ConfigurationError: a partition has more keys than `max_keys` (E11).
        :raises SparkJobError: the job ended for another reason.
        """

    def coalesces(self, plan: Plan) -> Coalesces:
        """How this engine can process several transactions of the plan together: as the plan says, or one by one."""
        found = plan.coalesces
        if self.takes_groups or not found.passes:
            return found
        return replace(found, how=Coalescing.NO, why=f"engine {self.name} takes one transaction at a time")

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        """Run the processing phases of several transactions together, and write their staged files (E7 to E10).

        The manifest is in the slot of the last job; the caller makes it visible by `StagingArea.publish_group`. It may
        be `Manifest.inseparable` only if `coalesces` says BY_KEY. After an error all jobs may run again, alone or in
        other groups, under new attempts.

        :param jobs: at least one, lowest txid first, of one plan, incarnation and staging root; the last one's
            `progress` gets the lines. None is a `trial`.
        :raises ConfigurationError: `coalesces` says that the plan goes one by one, or these jobs are no group.
        :raises UserCodeError, SourceChangedError, ...: as `run`; `txid` names the transaction at fault, if known.
        :raises SparkJobError: the job ended for another reason.
        """
        raise ConfigurationError(
            f"engine {self.name} takes one transaction at a time", "Run the jobs one by one, lowest txid first."
        )

    def cancel(self, slot: Slot | None = None) -> None:
        """Stop the running job of an attempt, best effort; None: any running job. The slot of a group is that of its
        last job."""

    @property
    def ui_url(self) -> str:
        """Web page of the running job; empty if there is none."""
        return ""
