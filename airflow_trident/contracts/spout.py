"""The contract of spouts, after Storm's ITridentSpout: a coordinator that decides what a batch is, an emitter that
reads it. Both must be picklable and open nothing before they are called: a spout is made while Airflow parses a DAG.

Promises of an implementation (the contract suite in `tests/contracts/test_spouts.py` checks them):

S1  `initialize_transaction` returns metadata that survives JSON unchanged, or None when there is nothing new.
S2  `splits` and `read` depend on the metadata alone: for a transactional spout two reads give equal rows.
S3  What one transaction's metadata covers, no later one's covers, and nothing in between is left out.
S4  What cannot be read as recorded raises SourceChangedError or DamagedInputError, never fewer rows.
S5  Rows have exactly the fields of `schema`.
S6  What `text_files` or `data_frame` gives are the rows of the splits.

Which promises hold depends on the kind. An opaque spout is asked again for each attempt, so S3 holds for the batches
that are committed. A non-transactional one promises S1 and S5 only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.closing import Closing
from airflow_trident.errors import SourceChangedError
from airflow_trident.io.datasets import Dataset
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a batch for one worker. `body`: what the spout needs to find it. `size_bytes`: about its size, if
    known: a worker may get several small ones."""

    index: int
    body: Json
    size_bytes: int | None = None


def not_metadata_of(spout: str, metadata: Json = None) -> SourceChangedError:
    """The recorded metadata has another shape than the spout gives it. `metadata`: what to show of it."""
    shown = "" if metadata is None else f"{metadata!r:.80} "
    return SourceChangedError(
        f"the recorded metadata {shown}is not that of {spout}",
        "Another spout had this stream's name: give the stream a new name.",
    )


@dataclass(frozen=True)
class TextFiles:
    """A batch that is the lines of these files: valid UTF-8 without byte order mark, ended by ``\\n`` or ``\\r\\n``.

    `rows`: how many lines that is. `returns`: is a ``\\r`` anywhere?
    `require_same`: raises SourceChangedError if they are no longer what the transaction recorded.
    """

    paths: tuple[str, ...]
    rows: int
    returns: bool
    require_same: Callable[[], None]


@dataclass(frozen=True)
class ScriptBatch:
    """A batch that a script reads, and not its emitter.

    `given`: what the script is told, URLs of files. `require_same`: raises SourceChangedError if the
    source does not hold what the transaction recorded; called before the script runs and after it.
    `rows`: how many there are; None: nobody has counted.
    """

    given: list[str]
    require_same: Callable[[], None]
    rows: int | None = None


@dataclass(frozen=True)
class BatchFrame:
    """A batch as a DataFrame of Spark, lazily: the rows that the splits have, with the emitter's fields and types.

    `rows`: how many there are; None: that is known only when it is read.
    `require_same`: raises SourceChangedError if what it reads is no longer what the transaction recorded.
    """

    frame: Any
    rows: int | None
    require_same: Callable[[], None]


class Coordinator(Closing):
    """Decides batches. Lives in the coordinator task (Storm: ITridentSpout.BatchCoordinator)."""

    @abstractmethod
    def is_ready(self, previous: Json) -> bool:
        """Is there anything for a new transaction after the one with metadata `previous` (None: none before)?"""

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """The metadata of the batch of `txid`, given that of the last transaction that had one; None: nothing new.

        :raises SourceUnavailableError: the source does not answer.
        """

    def next_batches(self, txid: int, previous: Json, most: int) -> list[Json]:
        """The metadata of the batches of `txid` and of the transactions that follow it, at most `most` and none if
        nothing is new; each is what `initialize_transaction` would give after the one before it. A source that is asked
        for many at a time may answer with one look.

        The last one is what the next transaction goes on from; those before it need not say where to go on. It may be
        asked again for fewer.

        :raises SourceUnavailableError: as :meth:`initialize_transaction`.
        """
        found: list[Json] = []
        while len(found) < most:
            metadata = self.initialize_transaction(txid + len(found), deepcopy(found[-1]) if found else previous)
            if metadata is None:
                break
            found.append(metadata)
        return found

    def size_bytes(self, metadata: Json) -> int | None:
        """About how much a batch has, from its metadata alone; None: unknown. A drain decides by it how many
        transactions go together, else by what the last ones read."""
        return None

    def success(self, txid: int, metadata: Json) -> None:
        """Transaction `txid`, of which this stream had `metadata`, is COMMITTED: the source may forget its batch.

        Called from the ledger's record alone, by the coordinator of any later claim, for every committed transaction
        that the ledger still keeps: at least once for each, again and again, in any process. So it must be cheap where
        there is nothing to do, and right to repeat. What it raises fails the coordinator, never the commit, which is
        done. (Storm: BatchCoordinator.success, which it calls before the commit is durable.)
        """

    def accept_source(self, metadata: Json) -> Json:
        """`metadata` with what it names as that is now, after a person mended it: for a transaction that is committed
        nowhere. The same parts of the source, as many as before. One whose metadata do not say what the source holds
        gives them back as they are.

        :raises SourceChangedError: a part of it is gone.
        """
        return metadata

    def follow_source(self, later: Json, accepted: Json) -> Json:
        """The metadata `later` of a later transaction, after an earlier one got `accepted`. Its batch stays the
        same."""
        return later

    def lag(self, position: Json) -> Lag | None:
        """What the source holds beyond `position` (the metadata of the last transaction that had one; None: none had),
        so what no transaction has claimed yet: unit -> count, in ``files``, ``bytes``, ``records`` or ``rows``. None:
        that cannot be said, or not cheaply.

        For people: the page and the ledger show it. It is asked after a batch was decided, by a coordinator task once,
        by a drain now and then; it has no effects, and must cost no more than ``is_ready``. What it raises is taken for
        None.
        """
        return None


class Emitter(ABC):
    """Reads batches. Picklable: it runs on Spark executors (Storm: ITridentSpout.Emitter)."""

    @abstractmethod
    def splits(self, metadata: Json) -> list[Split]:
        """The parts of the batch; together they are the whole batch. Called once per attempt, on the driver."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of one part, with the spout's schema. Called where the data is processed, perhaps repeatedly.

        :raises SourceChangedError: the source no longer holds what the metadata names.
        :raises DamagedInputError: it cannot be read.
        """

    def text_files(self, metadata: Json) -> TextFiles | None:
        """The batch as text files of this machine, if it is nothing else: Spark may read them itself. A reader that
        finds broken UTF-8 takes the splits instead."""
        return None

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        """What a script is told of the batch, if the source has it as files that Spark reads; None: it is read by
        `splits` and `read`, and written as Parquet.

        :param metadata: None: this stream has nothing in this batch.
        :param folder: of this attempt, where files may be made that stand for nothing.
        :raises SourceChangedError, ConfigurationError: it cannot be told.
        """
        return None

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """The batch as Spark's own readers give it, if these are the rows of the splits; None: they may not be.

        Called on the driver, where Spark runs on this machine and goes on with the rows itself: a transform, a query or
        an aggregation follows. What comes out must have the fields of `read`, in any order and with these very types.

        :raises SourceChangedError: the source no longer holds what the metadata names.
        """
        return None

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        """An emitter of the same splits that gives only these fields, in this order. If that saves nothing it gives
        itself, with all fields."""
        return self

    def push_filters(self, filters: tuple[Any, ...]) -> Emitter:
        """An emitter of the same splits that may leave out rows for which not all of these column expressions are true.
        They are filtered afterwards in any case; one that cannot use a filter takes no notice of it."""
        return self


@dataclass(frozen=True)
class SparkRead:
    """How Spark reads the batches of a spout that nobody else can read.

    `function`: ``function(session, position)`` gives a DataFrame. `fields`: its columns. `position_of`: the position in
    the metadata of a transaction.
    """

    function: Callable[[Any, Any], Any]
    fields: Schema
    position_of: Callable[[Json], Json]


class Spout(ABC):
    """A source of batches."""

    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    gives_files: bool = False
    """Does a script get the source's files (`Emitter.batch_for_script`)? A DAG asks; emitters need connections."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of its tuples."""

    @abstractmethod
    def coordinator(self) -> Coordinator: ...

    @abstractmethod
    def emitter(self) -> Emitter: ...

    @property
    def spark_read(self) -> SparkRead | None:
        """What makes the tuples of a stream out of those of the spout, in Spark; None: they are the spout's."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of its promises; the plan and the log say it."""
        return ()

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        """What a batch is read from, by the names that lineage knows it by; none where it has no such name. Asked in a
        task, after its work: it may look a connection up, and reads nothing. What it raises is taken for none.

        :param metadata: of the batch.
        """
        return ()

    @abstractmethod
    def describe(self) -> str:
        """One line for plans and error texts: class and source, no secrets."""
