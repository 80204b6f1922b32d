"""The contract of spouts, after Storm's ITridentSpout: a coordinator decides what a batch is, an emitter reads it.

Both must be picklable and open nothing before they are called: a spout is made while Airflow parses a DAG.

Promises of an implementation (the contract suite in `tests/contracts/test_spouts.py` checks them):

S1  `initialize_transaction` returns metadata that survives JSON unchanged, or None when there is nothing new.
S2  `splits` and `read` depend on the metadata alone: for a transactional spout two reads give equal rows.
S3  The metadata of a later transaction never covers what an earlier one's covers, and nothing in between is left
    out.
S4  Data that cannot be read as recorded raise SourceChangedError or DamagedInputError, never fewer rows.
S5  Rows have exactly the fields of `schema`.
S6  `text_files` and `data_frame` give the rows of the splits.

Which promises hold depends on the kind. An opaque spout is asked again for each attempt, so S3 holds for the batches
that are committed. A non-transactional one promises S1 and S5 only.

The spout without promises, after Storm's IBatchSpout: each attempt may give other rows.

Checks of spouts' parameters, made when a spout is built.

Rows that no transaction has read, and none can read any more: what spouts do about them, and what they advise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.closeable import Closing
from airflow_trident.errors import ConfigurationError, PlanError, SourceChangedError
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import Json, Schema, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.io.datasets import Dataset
    from airflow_trident.io.place import Place
    from airflow_trident.protocol.file_partitions import FilePartitions
    from airflow_trident.protocol.outcomes import Lag
    from airflow_trident.protocol.partitions import Partition, Partitions


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a batch for one worker. `body`: what the spout needs to find it. `size_bytes`: its approximate size, if
    known: a worker may get several small ones."""

    index: int
    body: Json
    size_bytes: int | None = None


def not_metadata_of(spout: str, metadata: Json = None) -> SourceChangedError:
    """The recorded metadata does not have the shape that the spout gives it. `metadata`: shown in the error."""
    shown = "" if metadata is None else f"{metadata!r:.80} "
    return SourceChangedError(
        f"the recorded metadata {shown}is not that of {spout}",
        "Another spout had this stream's name: give the stream a new name.",
    )


@dataclass(frozen=True)
class TextFiles:
    """The lines of these files as a batch: valid UTF-8 without byte order mark, ended by ``\\n`` or ``\\r\\n``.

    `paths`: Spark's readers pass over names that begin with ``_`` or a dot: such files are for the splits.
    `rows`: the number of lines. `returns`: is a ``\\r`` anywhere?
    `require_same`: raises SourceChangedError if the files are no longer what the transaction recorded.
    """

    paths: tuple[str, ...]
    rows: int
    returns: bool
    require_same: Callable[[], None]


@dataclass(frozen=True)
class ScriptBatch:
    """A batch that a script reads instead of the emitter.

    `given`: what the script gets, URLs of files. `require_same`: raises SourceChangedError if the source does not hold
    what the transaction recorded; called before the script runs and after it.
    `rows`: how many rows there are; None: they are not counted.
    """

    given: list[str]
    require_same: Callable[[], None]
    rows: int | None = None


@dataclass(frozen=True)
class BatchFrame:
    """A batch as a lazy DataFrame of Spark: the rows of the splits, with the emitter's fields and types.

    `rows`: how many rows there are; None: known only when they are read.
    `require_same`: raises SourceChangedError if the frame no longer reads what the transaction recorded.
    """

    frame: Any
    rows: int | None
    require_same: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A change in the data of a partition: the names of the parts that are new, gone, or have another content.

    A touched file with the same content is no change.
    """

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.other)

    def __str__(self) -> str:
        counts = {"new": self.new, "gone": self.gone, "other": self.other}
        return ", ".join(f"{len(names)} {kind}" for kind, names in counts.items() if names)


class Coordinator(Closing):
    """Decides batches. Runs in the coordinator task (Storm: ITridentSpout.BatchCoordinator)."""

    def keep_notes_in(self, place: Place) -> None:
        """Gives the stream a folder of its own, which all machines see, for notes beside the ledger. Called before all
        other verbs. Without such a folder this is not called, and metadata must have everything.

        Metadata refer to notes. A coordinator puts notes before the transaction begins, and never changes them. A
        coordinator that wraps another one passes on this verb and :meth:`sweep_notes`.
        """

    def sweep_notes(self, kept: Sequence[Json], upto: int) -> None:
        """Deletes the notes that no metadata of `kept` refers to, of transactions up to `upto`. Later ones may not be
        in the ledger yet. Called now and then. An error is logged and changes nothing.

        :param kept: of all transactions that the ledger has.
        :param upto: the last of them.
        """

    @abstractmethod
    def is_ready(self, previous: Json) -> bool:
        """Is there anything for a new transaction after the one with metadata `previous` (None: none before)?"""

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """The metadata of the batch of `txid`. `previous`: those of the last transaction that had any. None: nothing
        new.

        :raises SourceUnavailableError: the source does not answer.
        """

    def next_batches(self, txid: int, previous: Json, most: int) -> list[Json]:
        """The metadata of the batches of `txid` and of the transactions after it; at most `most`, and none if nothing
        is new. Each is what `initialize_transaction` would give after the one before it. A source may override this to
        answer for many batches with one look.

        The next transaction goes on from the last one, so only the last one has to say where to go on. It may be asked
        again for fewer.

        :raises SourceUnavailableError: as for :meth:`initialize_transaction`.
        """
        batches: list[Json] = []
        while len(batches) < most:
            metadata = self.initialize_transaction(txid + len(batches), deepcopy(batches[-1]) if batches else previous)
            if metadata is None:
                break
            batches.append(metadata)
        return batches

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """For bound topologies: the metadata of all data of a partition, as the source has them now. None: it has none.

        :param before: what its last transaction recorded: parts that look as they were then need not be read again.
        :raises ConfigurationError: the spout does not know where a partition's data are.
        :raises SourceUnavailableError: the source does not answer, or says that the partition is not complete.
        """
        raise ConfigurationError(
            f"{type(self).__name__} does not know where the data of a partition are",
            "Use a spout that does, or override Coordinator.partition.",
        )

    def compared(self, before: Json, now: Json) -> PartitionChange:
        """For bound topologies: what has changed in a partition between two results of :meth:`partition`."""
        return PartitionChange() if before == now else PartitionChange(other=("the source",))

    def expired(self, metadata: Json) -> tuple[str, ...]:
        """For bound topologies: which parts of a partition the source may have lost before it gave `metadata`. They are
        refused as what is gone, if nothing says what an earlier transaction read."""
        return ()

    def size_bytes(self, metadata: Json) -> int | None:
        """About how many bytes a batch has, from its metadata alone; None: unknown. From this a drain decides how many
        transactions go together; without it, from what the last ones read."""
        return None

    def success(self, txid: int, metadata: Json) -> None:
        """Transaction `txid`, in which this stream had `metadata`, is COMMITTED: the source may forget its batch.

        The coordinator of any later claim calls this, from the ledger's record alone, for every committed transaction
        that the ledger still keeps: at least once for each, as none is pruned before; again and again, in any process.
        So it must be cheap if there is nothing to do, and safe to repeat. An error raised here fails the coordinator,
        never the commit, which is done. (Storm calls BatchCoordinator.success before the commit is durable.)
        """

    def skipped(self, batches: Mapping[int, Json]) -> None:
        """The transactions that later ones pass, SKIPPED or CLOSED, with this stream's metadata. So a source that gives
        nothing else until these are committed can be refused.

        Called by the coordinator of any later claim, after :meth:`success`, with all that there are now.
        """

    def cleanup_before(self, txid: int) -> None:
        """No batch of a transaction below `txid` is read again, but to rebuild a state: each is COMMITTED or CLOSED. A
        SKIPPED one can still be backfilled, so `txid` never passes it. (Storm: ITransactionalSpout.Emitter's
        cleanupBefore.)

        Called once by the coordinator of any later claim, after :meth:`success`, and as that again and again.
        """

    def accept_source(self, metadata: Json) -> Json:
        """The metadata of exactly the parts of the source that `metadata` names, as they are now, after a person mended
        the source; for a transaction that is not committed anywhere. A source whose metadata does not say what the
        source holds returns it unchanged.

        :raises SourceChangedError: a part of the source is gone.
        """
        return metadata

    def follow_source(self, later: Json, accepted: Json) -> Json:
        """The new metadata of a later transaction, which had `later`, after an earlier one got `accepted`. The batch
        stays the same."""
        return later

    def lag(self, position: Json) -> Lag | None:
        """How much the source holds after `position` (the metadata of the last transaction that had any; None: none
        had), which no transaction has claimed yet: unit -> count, in ``files``, ``bytes``, ``records`` or ``rows``.
        None: unknown, or expensive to find out.

        For people: the page and the ledger show it. Called after a batch was decided: once by a coordinator task, from
        time to time by a drain. It must have no side effects and cost no more than ``is_ready``. An error counts as
        None.
        """
        return None


class Emitter(ABC):
    """Reads batches. Picklable: it runs on Spark executors (Storm: ITridentSpout.Emitter)."""

    is_fitted: ClassVar[bool] = False
    """Do all batches come from :func:`airflow_trident.io.arrow.fitted`? An engine looks at the values of others."""

    @abstractmethod
    def splits(self, metadata: Json) -> list[Split]:
        """The parts of the batch; together they are the whole batch. Called once per attempt, on the driver."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of one part, with the spout's schema. Called where the data is processed, perhaps repeatedly.

        :raises SourceChangedError: the source no longer holds what the metadata names.
        :raises DamagedInputError: the part cannot be read.
        """

    def name_of(self, split: Split) -> str:
        """The place in the source that a split is of, for people: a file, if the split has its path."""
        body = split.body
        path = body.get("path") if isinstance(body, dict) else None
        return f"the file {path!r}" if isinstance(path, str) else f"split {split.index}"

    def text_files(self, metadata: Json) -> TextFiles | None:
        """The batch as text files of this machine, if it consists only of these: Spark may read them itself. A reader
        that finds broken UTF-8 uses the splits instead."""
        return None

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """What a script gets as the batch, if the source has it as files that Spark reads. None: the batch is read by
        `splits` and `read`, and written as Parquet.

        :param metadata: None: this stream has nothing in this batch.
        :param folder: of this attempt; files that stand for an empty batch may be made there.
        :raises SourceChangedError, ConfigurationError: the script cannot get the batch.
        """
        return None

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """The batch as Spark's own readers give it, if these are the rows of the splits; None: they may not be.

        Called on the driver, if Spark processes the rows itself next, in a transform, a query or an aggregation, and
        runs on this machine or :meth:`is_everywhere`. The frame must have the fields of `read`, in any order, with
        exactly these types.

        :raises SourceChangedError: the source no longer holds what the metadata names.
        """
        return None

    def is_everywhere(self, metadata: Json) -> bool:
        """Does `data_frame` read what the executors of a cluster reach by the same addresses as this machine?"""
        return False

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        """An emitter of the same splits that gives only these fields, in this order. If that saves nothing, it returns
        itself and gives all fields."""
        return self

    def push_filters(self, filters: tuple[Any, ...]) -> Emitter:
        """An emitter of the same splits that may leave out rows for which not all of these column expressions are true.
        The rows are filtered afterwards in any case. An emitter that cannot use a filter ignores it."""
        return self


@dataclass(frozen=True)
class SparkRead:
    """How Spark reads the batches of a spout that nothing else can read.

    `function`: ``function(session, position)`` gives a DataFrame. `fields`: its columns. `position_of`: gives the
    position from the metadata of a transaction; None: it has no rows. `completed`: ``completed(frame, metadata)`` gives
    the DataFrame with columns that `function` need not give; None: there are none.
    """

    function: Callable[[Any, Any], Any]
    fields: Schema
    position_of: Callable[[Json], Any]
    completed: Callable[[Any, Json], Any] | None = None


class Spout(ABC):
    """A source of batches."""

    opaque: bool = False
    """May a later attempt get another batch? Then the spout is opaque: a record that is left out comes later."""
    needs_partitions: bool = False
    """Does it mean nothing in a topology that is not bound to partitions?"""
    replaced: FilePartitions | None = None
    """Its files replace their rows in every state; None: they add rows."""
    gives_files: bool = False
    """Does a script get the source's files (`Emitter.batch_for_script`)? A DAG asks this; emitters would need
    connections."""

    @property
    def kind(self) -> SpoutKind:
        return SpoutKind.OPAQUE if self.opaque else SpoutKind.TRANSACTIONAL

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of its tuples."""

    @abstractmethod
    def coordinator(self) -> Coordinator: ...

    @abstractmethod
    def emitter(self) -> Emitter: ...

    def placed(self, topology: str, stream: str) -> Spout:
        """The spout as the source of this stream of this topology. A spout that passes these names on, as to a program,
        returns a copy that has them."""
        return self

    def bound(self, partitions: Partitions) -> Spout:
        """The spout as a source of a topology that is bound to partitions: one whose coordinator has
        :meth:`Coordinator.partition`. Its rows get the partition column by the topology.

        :raises PlanError: the spout does not say where the data of a partition are.
        """
        raise PlanError(
            f"{self.describe()} does not know where the data of a {partitions.step} are",
            f"A stream of a bound topology reads all data of one {partitions.step}. Look tables up by static states.",
        )

    @property
    def spark_read(self) -> SparkRead | None:
        """How Spark makes the stream's tuples from the spout's; None: they are the same."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about its promises; the plan and the log show it."""
        return ()

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        """The sources of a batch, by their names in lineage; none if they have no such name. Called in a task, after
        its work: it may look up a connection, and reads nothing. An error counts as none.

        :param metadata: of the batch.
        """
        return ()

    @property
    def adapts(self) -> str:
        """The class of a user's object that this spout only adapts, part of the topology's definition; "": none."""
        return ""

    @abstractmethod
    def describe(self) -> str:
        """One line for plans and error texts: class and source, without secrets."""


class BatchSpout(Spout):
    """A source that cannot give a batch again, used as it is: a repeated attempt may lose or double records. Only for a
    ``Topology(name, exactly_once=False)``; :class:`SpooledSpout` makes such a source exact."""

    @property
    def kind(self) -> SpoutKind:
        return SpoutKind.NON_TRANSACTIONAL

    @abstractmethod
    def has_more(self) -> bool:
        """Should another transaction begin?"""

    @abstractmethod
    def emit_batch(self, batch: int) -> Iterator[pa.RecordBatch]:
        """The rows of batch number `batch` (1, 2, ...). Called once per attempt, where the data is processed."""

    def ack(self, batch: int) -> None:
        """The transaction with this batch is committed (Storm: IBatchSpout.ack). May be called again."""

    def coordinator(self) -> BatchCoordinator:
        return (BatchCoordinator if type(self).ack is BatchSpout.ack else _Acknowledging)(self)

    def emitter(self) -> BatchEmitter:
        return BatchEmitter(self)


@dataclass(frozen=True)
class BatchCoordinator(Coordinator):
    """Metadata: ``{"batch": number}``."""

    spout: BatchSpout

    def is_ready(self, previous: Json) -> bool:
        return self.spout.has_more()

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        last = 0 if previous is None else _number(previous)
        return {"batch": last + 1} if self.spout.has_more() else None


class _Acknowledging(BatchCoordinator):
    def success(self, txid: int, metadata: Json) -> None:
        self.spout.ack(_number(metadata))


@dataclass(frozen=True)
class BatchEmitter(Emitter):
    """One split, because nothing is known about the batch before it is read."""

    spout: BatchSpout

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, _number(metadata))]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, int)
        return self.spout.emit_batch(split.body)


def _number(metadata: Json) -> int:
    if isinstance(metadata, dict) and metadata.keys() == {"batch"}:
        number = metadata["batch"]
        if isinstance(number, int) and number >= 1:
            return number
    raise not_metadata_of("a BatchSpout", metadata)


def one_of(subject: str, name: str, value: str, allowed: tuple[str, ...]) -> str:
    """
    :param subject: the spout or source, for the error text.
    :return: `value`.
    :raises ConfigurationError: it is not allowed.
    """
    if value not in allowed:
        raise ConfigurationError(f"{subject} with {name}={value!r}", f"Use one of {', '.join(allowed)}.")
    return value


def require_simple_types(subject: str, schema: Schema) -> None:
    """
    :param subject: a source that holds only texts, for the error text.
    :raises ConfigurationError: a field is an array, a map or a struct.
    """
    for field in schema:
        if is_nested(field.type):
            raise ConfigurationError(
                f"{subject} cannot hold the field {field.name!r} of type {field.type}",
                "Declare it as a string and take it apart with each().",
            )


TAKE_AS_IT_IS = "`airflow trident accept-source TOPOLOGY TXID --reason WHY`"
"""How a transaction that is not committed takes its source as it is now."""


class OnDataLoss(StrEnum):
    """A choice for records that no transaction has read: they are gone, or came where none reads them."""

    ERROR = "error"
    CONTINUE = "continue"
    """Record the loss in the metadata of the next transaction, and continue with the records that are there."""
