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
    :mod:`airflow_trident.engine.engine`.
E11 More keys of a partition than `Job.max_keys`, where Python holds them all at once (aggregators and reducers of a
    user's), are a ConfigurationError that names node, partition, their number and the cure.
E12 A row for a state of a bound topology that is of another partition than the transaction is a UserCodeError.
E13 The manifest has the number of each rule, for each transaction apart. It is that of the rows that pass the check in
    this attempt, each once.

Promises of engines that process groups of transactions (`coalesces`; `tests/contracts/test_engine_groups.py`):

E7  `run_group` stages for every transaction of the group what `run` would stage for it alone (E1), or, by key, these
    rows merged by the states' keys. Users' functions see the same transaction, attempt and partitions as in `run`, as
    their own copies (E5).
E8  Its manifest is in the slot of the last job, and has a member for each job with its attempt and number of rows read.
    A group of one gives the same as `run`. Nothing of a group counts before `run_group` returns (E2).
E9  An error caused by one transaction names it (`TridentError.txid`): all others may run again without it. An error
    that names none says nothing about any of them: each may run alone.
E10 A plan that cannot be processed in groups is refused with ConfigurationError before anything is read.

The nodes that an engine can run. It refuses others before a row is read (E6); otherwise it would commit rows that a
node should have changed.

Common part of engines that process groups of transactions: which jobs form a group, and how to stage its result.

A shaken run: the same job under settings that must not change the result. If the output differs, it depends on them.
Pure.

Reads a source for a rewritten plan: only the used fields, if the spout can leave out the rest.

A spout's reading side is called here, with the border around its code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, ClassVar

from airflow_trident.closeable import Closing
from airflow_trident.contracts.bound_spout import partition_of
from airflow_trident.contracts.spout import Emitter, Split
from airflow_trident.contracts.state import CommittedTable
from airflow_trident.engine.fused.passes import RUNS
from airflow_trident.engine.partitioning import RULES
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    FencedError,
    PlanError,
    RetryableError,
    TridentError,
    UnknownNodeError,
    UserCodeError,
    spout_code,
)
from airflow_trident.io.arrow import arrow_schema, fitted_batch
from airflow_trident.names import DEFAULT_MAX_PARTITION_KEYS
from airflow_trident.plan.graph import BeginNode, Grouping, Node, ProcessorNode, SinkNode, brings_pass
from airflow_trident.plan.nodes import CarriedNode, PartitionNode, PersistNode, SourceNode, TransformNode, UnionNode
from airflow_trident.plan.stages import Coalesces, Coalescing, Plan, Stage
from airflow_trident.protocol.file_partitions import FilePartitions, replaced_files
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, StagedMember
from airflow_trident.types import Json, Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa


_SHOWN = 3


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
        coalescing = plan.coalesces
        if self.takes_groups or not coalescing.passes:
            return coalescing
        return replace(coalescing, how=Coalescing.NO, why=f"engine {self.name} takes one transaction at a time")

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


@dataclass(frozen=True, kw_only=True)
class KnownNodes:
    """Exact classes: a subclass is another kind.

    :param subject: the engine, for the error.
    """

    subject: str
    begins: Collection[type[BeginNode]]
    processors: Collection[type[ProcessorNode]]
    groupings: Collection[Grouping]
    sinks: Collection[type[SinkNode]]

    def require(self, stages: Iterable[Stage]) -> None:
        """:raises UnknownNodeError: a node is of another kind."""
        for stage in stages:
            for node in self._unknown(stage):
                raise UnknownNodeError(node.name, _kind(node), self.subject, node.cure)

    def _unknown(self, stage: Stage) -> Iterator[Node]:
        if stage.begin is not None and type(stage.begin) not in self.begins:
            yield stage.begin
        how = stage.exchange
        if how is not None and (type(how) is not PartitionNode or how.grouping not in self.groupings):
            yield how
        yield from (node for node in stage.nodes if type(node) not in self.processors and not brings_pass(node))
        yield from (sink for sink in stage.sinks if type(sink) not in self.sinks)


def _kind(node: Node) -> str:
    return f"{type(node).__name__}, {node.grouping}" if type(node) is PartitionNode else type(node).__name__


LOCAL_NODES = KnownNodes(
    subject="the local engine, which also runs the commit phase and queries,",
    begins=(SourceNode, UnionNode),
    processors=RUNS.keys(),
    groupings=RULES.keys(),
    sinks=(PersistNode, CarriedNode),
)
"""For fused passes in this process."""
SPARK_NODES = replace(LOCAL_NODES, subject="the Spark engine", begins=(*LOCAL_NODES.begins, TransformNode))
"""For Spark's Python workers. Some kinds may run in the JVM instead; whole DataFrames run only there."""


def require_known(plan: Plan, known_nodes: KnownNodes) -> None:
    """
    :param known_nodes: the nodes of the engine for the processing phase; the local engine runs the commit phase.
    :raises UnknownNodeError: a node of either phase is of another kind.
    """
    known_nodes.require(plan.stages)
    for level in plan.commit:
        LOCAL_NODES.require(level.stages)


_NOBODYS = (RetryableError, FencedError, PlanError, ConfigurationError)


def require_group(engine: Engine, jobs: Sequence[Job]) -> None:
    """:raises ConfigurationError: these jobs cannot be processed together (E10)."""
    if wrong := _wrong(engine, jobs):
        raise ConfigurationError(
            f"engine {engine.name} cannot process {_listed(jobs)} together: {wrong}",
            "Run the jobs one by one, lowest txid first.",
        )


def _wrong(engine: Engine, jobs: Sequence[Job]) -> str:
    txids = [job.slot.txid for job in jobs]
    if not txids or sorted(set(txids)) != txids:
        return "their txids do not rise"
    if len({(job.slot.topology, job.slot.incarnation, job.staging_root, job.plan.digest) for job in jobs}) > 1:
        return "they are not of one plan, incarnation and staging folder"
    if any(job.trial for job in jobs):
        return "one of them is a trial"
    coalesces = engine.coalesces(jobs[0].plan)
    return "" if coalesces.passes or len(jobs) == 1 else coalesces.why


def _listed(jobs: Sequence[Job]) -> str:
    if not jobs:
        return "no transactions"
    return f"the transactions {', '.join(str(job.slot.txid) for job in jobs)} of topology {jobs[0].slot.topology!r}"


@contextmanager
def blaming(txid: int) -> Iterator[None]:
    """Assigns an error inside to one transaction (E9), unless the error names another, or its cause is external: an
    unavailable source, a setting."""
    try:
        yield
    except TridentError as error:
        if error.txid is None and not isinstance(error, _NOBODYS):
            error.txid = txid
        raise


@dataclass(frozen=True)
class OwnPartition:
    """The partition that all rows for a state of a bound topology must be of, or the files: others would be replaced by
    a part.

    `shown`: the partition, as people know it; `values`: in the column, one, or the files of the batch.
    """

    state: str
    column: str
    shown: str
    values: tuple[date | str, ...]

    @classmethod
    def of(cls, job: Job, sink: SinkNode) -> OwnPartition | None:
        """None: the topology is not bound, and no file is a partition."""
        partitions = sink.state.partition if isinstance(sink, PersistNode) else None
        if partitions is None:
            return None
        if isinstance(partitions, FilePartitions):
            files = replaced_files(job.metadata)
            return cls(sink.name, partitions.column, f"{len(files)} files", files)
        key = partition_of(job.metadata)
        return cls(sink.name, partitions.column, f"the partition {key}", (partitions.value_of(key),))

    def require(self, rows: pa.Table) -> None:
        """:raises UserCodeError: a row is of another partition."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = rows.column(self.column)
        is_own = pc.is_in(column, pa.array(self.values, column.type))
        if pc.all(is_own, min_count=0).as_py():
            return
        others = sorted({str(value) for value in column.filter(pc.invert(is_own)).unique().to_pylist()})
        raise UserCodeError(
            f"the batch of {self.shown} has rows of {self.column} {', '.join(others[:_SHOWN])} for state "
            f"{self.state!r}",
            f"They would replace another partition by a part of it. Keep the field {self.column!r} of the stream as it "
            "is; keep a day of your own in a field of another name.",
            node=self.state,
            fields=self.column,
            row=f"{self.column}={others[0]}",
        )


def require_own_partition(job: Job, sink: SinkNode, rows: pa.Table) -> None:
    """:raises UserCodeError: the topology is bound, and a row for the state is of another partition."""
    if own_partition := OwnPartition.of(job, sink):
        own_partition.require(rows)


def stage_each(job: Job, sink: SinkNode, parts: Sequence[pa.Table]) -> StagedFile | None:
    """Write the rows of all members for a sink into one file; None if there are no rows.

    :param job: the last of the group.
    :param parts: one per member, in order.
    """
    import pyarrow as pa

    schema = arrow_schema(sink.schema)
    whole = pa.concat_tables([part.cast(schema) for part in parts])
    if not whole.num_rows:
        return None
    return StagingArea(job.staging_root).write(job.slot, sink.name, whole, kept_bytes=job.chunk_bytes)


def manifest_of_each(
    jobs: Sequence[Job],
    files: Iterable[StagedFile | None],
    counts: Mapping[str, Sequence[int]],
    rows_read: Sequence[int],
    checks: Sequence[dict[str, Json]],
) -> Manifest:
    """The manifest of a group whose rows are separable.

    :param counts: state -> number of rows of each member, in order.
    :param rows_read: of each member.
    :param checks: the numbers of each member.
    """
    begins = dict.fromkeys(counts, 0)
    members = []
    for place, (job, read, numbers) in enumerate(zip(jobs, rows_read, checks, strict=True)):
        rows = {state: (begins[state], many[place]) for state, many in counts.items()}
        slot = job.slot
        members.append(StagedMember(txid=slot.txid, attempt=slot.attempt, rows_read=read, rows=rows, checks=numbers))
        begins = {state: begin + counts[state][place] for state, begin in begins.items()}
    return _manifest(jobs, files, members, inseparable=False)


def manifest_of_all(
    jobs: Sequence[Job],
    files: Iterable[StagedFile | None],
    rows_read: Sequence[int],
    checks: Sequence[dict[str, Json]],
) -> Manifest:
    """The manifest of a group whose rows were merged by key."""
    members = [
        StagedMember(txid=job.slot.txid, attempt=job.slot.attempt, rows_read=read, rows={}, checks=numbers)
        for job, read, numbers in zip(jobs, rows_read, checks, strict=True)
    ]
    return _manifest(jobs, files, members, inseparable=True)


def _manifest(
    jobs: Sequence[Job], files: Iterable[StagedFile | None], members: Sequence[StagedMember], *, inseparable: bool
) -> Manifest:
    counts = [member.rows_read for member in members]
    return Manifest(
        slot=jobs[-1].slot,
        files=tuple(file for file in files if file is not None),
        rows_read=-1 if -1 in counts else sum(counts),
        sinks=jobs[0].plan.staged_fields,
        group=tuple(members),
        inseparable=inseparable,
    )


MORE = 3
"""How many more partitions."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"


def turned(splits: Sequence[Split]) -> list[Split]:
    """Reverses the splits and renumbers them: their numbers also decide who reads which."""
    return [replace(split, index=place) for place, split in enumerate(reversed(splits))]


def shaken_conf(setting: Callable[[str, str], str]) -> dict[str, str]:
    """Settings that change how Spark works, but not the result.

    :param setting: ``setting(name, default)``: the current value.
    """
    adaptive = setting(_ADAPTIVE, "true").lower() == "true"
    return {_PARTITIONS: str(int(setting(_PARTITIONS, "200")) + MORE), _ADAPTIVE: "false" if adaptive else "true"}


def settings_text(conf: dict[str, str]) -> str:
    """The settings in words, for people."""
    adaptive = "on" if conf[_ADAPTIVE] == "true" else "off"
    return f"shaken: {conf[_PARTITIONS]} shuffle partitions, adaptive execution {adaptive}, the last input first"


def emitter_of(source: SourceNode) -> Emitter:
    """The spout's emitter, informed about filters and used fields. It may ignore both."""
    with spout_code(source.name):
        emitter = source.spout.emitter()
        if source.filters:
            emitter = emitter.push_filters(source.filters)
        if source.fields != names_of(source.spout.schema):
            emitter = emitter.prune(source.fields)
        return emitter


def splits_of(emitter: Emitter, stream: str, metadata: Json, txid: int | None) -> tuple[Split, ...]:
    """The parts of a batch."""
    with spout_code(stream, txid):
        return tuple(emitter.splits(metadata))


def rows_of(
    emitter: Emitter, split: Split, stream: str, spout_schema: Schema, wanted: pa.Schema, txid: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, with the wanted fields.

    :param spout_schema: the schema of the spout.
    """
    with spout_code(stream, txid):
        for batch in emitter.read(split):
            yield conform(batch, stream, spout_schema, wanted, is_fitted=emitter.is_fitted)


def conform(
    batch: pa.RecordBatch, stream: str, spout_schema: Schema, wanted: pa.Schema, *, is_fitted: bool = False
) -> pa.RecordBatch:
    """The wanted fields of a batch from an emitter.

    :param spout_schema: the schema of the spout.
    :param is_fitted: as the emitter says.
    :raises DamagedInputError: the batch has neither the wanted fields nor all fields of the spout, or a value does not
        fit its field.
    """
    if is_fitted and batch.schema == wanted:
        return batch
    if batch.schema.names not in (wanted.names, list(names_of(spout_schema))):
        raise DamagedInputError(
            f"stream {stream!r}: the spout gave the fields ({', '.join(batch.schema.names)}) instead of "
            f"({', '.join(names_of(spout_schema))})",
            "Mend the spout's emitter or its schema.",
        )
    return fitted_batch(batch, select(spout_schema, wanted.names, "the spout"), f"stream {stream!r}")
