"""The contract of states: apply a staged batch exactly once, in one atomic step of the store.

Promises of an implementation (`tests/contracts/test_states.py` checks each one):

T1  `apply` is atomic in the store: after any crash either all of the batch and the marker are there, or neither.
T2  A txid that the marker holds as applied is skipped and `Applied.ALREADY` returned: a success with its own name (P7).
T3  A ticket whose fence is lower than the marker's is refused with FencedError and changes nothing; a higher fence is
    recorded even when the txid was applied already.
T4  A ticket of another incarnation than the marker's, or of a txid that the marker holds with another batch, is refused
    with LedgerBehindStateError and changes nothing (P11): the same txid is the same batch if the positions are equal,
    or, for a late ticket, if it was left out before.
    A ticket that needs a txid which the state lacks is refused with StateBehindLedgerError and changes nothing (P11).
T5  A txid below the highest applied one that was left out (SKIPPED) can be applied later, once, if the aggregate
    commutes.
T6  The cost of `apply` depends on the batch, not on the state.
T7  Two processes that apply at once end as if one came after the other.
T8  `get_many` gives committed values in the order of the keys; its cost depends on the keys, not on the state.
T9  (`Capabilities.opaque`, if `StateSpec.opaque`) If the highest txid comes again under a newer attempt, one step takes
    the older attempt's batch back and applies the new one; the changes of late batches in between stay.
    For this the state keeps O(batch): the values from before the highest txid, of its keys only.
T10 User code (combiners, reducers, updaters) runs in `apply` as copies. They are prepared with the ticket's txid and
    attempt, and cleaned up afterwards: the process that applies a batch is not the one that made it.
T11 `bar` records the ticket's fence in the store, in its atomic step, and changes nothing else: from then on every
    ticket with a lower fence is refused (T3). A state that holds the ticket's txid refuses it and changes nothing.
T12 (`Capabilities.groups`, unless `StateSpec.opaque`) `apply_group` applies several transactions of one fence, lowest
    first, in one atomic step. It ends as if the same tickets and batches came one by one: what the marker holds is
    skipped (T2), each other batch is applied once, and if any ticket is refused nothing is changed. After it each of
    the tickets may come again, alone or in any other group: it is ALREADY there (T2), or refused if its batch is
    another one (T4). This holds until the next transaction is applied alone. If the sum of the batches alone does not
    fit its field, the group may be refused with UserCodeError: one by one they may fit.
T13 (`Capabilities.partitions`, if `StateSpec.partition`) `apply` replaces the partitions of the ticket
    (`CommitTicket.partitions`). After it the state has exactly the rows of the batch of these, also none, and of all
    other partitions what it had. A group does this for each member in order.

Copy-on-write: a processing phase reads a committed version of a table and writes anew those of its files that have
rows of the batch's keys. The commit replaces these files only if no other writer has changed what was read.

Staged batches in pieces, or as files, for states that need not hold all of a batch in memory.

What is done to a state from time to time, beside its transactions.

Is what a state holds by a txid the transaction that the ledger knows by that txid?

A ledger that was restored from an old copy gives out txids, and in time fences, that its states have seen. Numbers tell
only until they are reached; positions tell always. Pure.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeAlias

from airflow_trident.closeable import Closing
from airflow_trident.contracts.updater import DescribedUpdater, Updater
from airflow_trident.errors import ConfigurationError, CorruptRecordError, LedgerBehindStateError
from airflow_trident.names import require_flags
from airflow_trident.operations.interfaces import CombinerAggregator, MergeKind, ReducerAggregator
from airflow_trident.operations.state_functions import Stateful
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket, LedgerView, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Json, Schema, is_nested, names_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.io.datasets import Dataset
    from airflow_trident.io.place import PlacedFile
    from airflow_trident.protocol.file_partitions import FilePartitions
    from airflow_trident.protocol.partitions import Partitions

KeyBounds: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Key column -> the lowest and the highest value that a file has by the table's log, as Python values. A column is left
out if the log does not say it, or not exactly."""


class CommittedTable(ABC):
    """A committed version of a table, as an open state gives it (`State.committed`). Pickled for Spark's workers, so it
    needs no connection of the process that made it."""

    keys: tuple[str, ...]
    """The key columns."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Identifies the table and the version."""

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """The files of the version, as the table names them."""

    @abstractmethod
    def pieces(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of file number `place`, in their order.

        :param columns: None: all columns of the table.
        :raises StagingError: the file is gone; a newer version of the table no longer has it.
        """

    @abstractmethod
    def may_have(self, place: int, keys: BatchKeys) -> bool:
        """May file number `place` have a row with one of the keys? The table's log decides, and the file is opened only
        if the log has no bounds of its keys."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns of the table."""


@dataclass(frozen=True)
class BatchKeys:
    """The key columns of a batch. `bounds`: of each column; of none with NaN, which statistics of files ignore."""

    rows: pa.Table
    bounds: Mapping[str, tuple[Any, Any]]

    @classmethod
    def of(cls, rows: pa.Table) -> BatchKeys:
        import pyarrow as pa
        import pyarrow.compute as pc

        from airflow_trident.io.arrow import comparable

        rows = comparable(rows)
        real = {field.name for field in rows.schema if pa.types.is_floating(field.type)}
        has_nan = {name for name in real if pc.any(pc.is_nan(rows.column(name))).as_py()}
        extremes = {name: pc.min_max(rows.column(name)) for name in rows.column_names if name not in has_nan}
        return cls(rows, {name: (extreme["min"], extreme["max"]) for name, extreme in extremes.items()})

    def any_within(self, bounds: KeyBounds) -> bool:
        """Is there, for each column, a key between the lowest and the highest value of a file?"""
        return all(self._has_between(name, low, high) for name, (low, high) in bounds.items())

    def _has_between(self, name: str, low: Any, high: Any) -> bool:
        values = self._ordered[name]
        try:
            place = bisect_left(values, low, key=lambda value: value.as_py())
            return place < len(values) and bool(values[place].as_py() <= high)
        except (OverflowError, ValueError, TypeError):  # a moment that Python does not have, or of another kind
            return True

    @cached_property
    def _ordered(self) -> dict[str, pa.ChunkedArray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from airflow_trident.io.arrow import taken

        keys = {name: self.rows.column(name).drop_null().unique() for name in self.bounds}
        return {
            name: taken(pa.table({name: column}), pc.sort_indices(column)).column(0) for name, column in keys.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedFiles:
    """What a batch replaces in a version of a table.

    `version`: that was read (`CommittedTable.version`). `gone`: its files with rows of the batch's keys. `left`: files
    with their other rows, as absolute paths.
    """

    version: str
    gone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """A staged batch that is read while it is applied, so it may be larger than the memory.

    `schema`: its fields, `StateSpec.staged`. `pieces`: each call gives all its rows as record batches, from the first
    one again; it raises StagingError if they cannot be read.
    """

    schema: Schema
    num_rows: int
    pieces: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, schema: Schema, table: pa.Table) -> StagedBatch:
        """A batch that is in memory already."""
        return cls(schema=schema, num_rows=table.num_rows, pieces=lambda: iter(table.to_batches()))

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        from airflow_trident.io.arrow import arrow_schema

        return pa.Table.from_batches(self.pieces(), arrow_schema(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """One Parquet file of a staged batch. `path`: absolute, if it `is_local`; else its name for people. `opener`: opens
    one that is elsewhere. `stored`: the object that it is. `footer`: a file without rows that has its footer; empty:
    open it."""

    path: str
    opener: Callable[[], BinaryIO] | None = None
    stored: PlacedFile | None = None
    footer: bytes = field(default=b"", repr=False)

    @property
    def is_local(self) -> bool:
        """Is it on a file system?"""
        return self.opener is None

    def open(self) -> BinaryIO:
        """For reading; the file is seekable, and what is not needed is not read.

        :raises FileNotFoundError: it is gone; of one that is elsewhere, by the first read.
        """
        return open(self.path, "rb") if self.opener is None else self.opener()

    def size(self) -> int:
        """In bytes.

        :raises FileNotFoundError: it is gone.
        """
        if self.is_local:
            return os.path.getsize(self.path)
        with self.open() as file:
            return file.seek(0, os.SEEK_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """A staged batch that nobody has read: Parquet files with the fields `StateSpec.staged`. A moment ago they existed
    with the staged sizes.

    `paths`: absolute, on a file system; or, with `opener`, names for it of files that are elsewhere. `stored`: gives
    these files in their place. `replaces`: for copy-on-write, what the processing phase found in the table; None: it
    did not look. `footers`: path -> footer, if the processing phase told it, see `StagedPart`.
    """

    paths: tuple[str, ...]
    num_rows: int
    replaces: ReplacedFiles | None = None
    opener: Callable[[str], BinaryIO] | None = None
    stored: Callable[[str], PlacedFile | None] | None = None
    footers: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def parts(self) -> tuple[StagedPart, ...]:
        """The files of the batch."""
        return tuple(map(self._part, self.paths))

    def left(self) -> tuple[StagedPart, ...]:
        """The files that take the place of those that the batch replaces."""
        return () if self.replaces is None else tuple(map(self._part, self.replaces.left))

    def _part(self, path: str) -> StagedPart:
        opener = None if self.opener is None else partial(self.opener, path)
        stored = None if self.stored is None else self.stored(path)
        return StagedPart(path=path, opener=opener, stored=stored, footer=self.footers.get(path, b""))


class Upkeep(StrEnum):
    """Each runs in its own commit, which changes no answer; it may be killed, or run beside a committer. An open state
    has a method of that name, ``(*, progress) -> bool``: was there anything to do?"""

    FOLD = "fold"
    """Joins the parts that batches have left into one."""
    PUBLISH = "publish"
    """Writes a table with one row for each key, which others can read as it is."""


TXID = "_txid"
"""The column in a table of changes with the transaction that a row came with."""


class Applied(StrEnum):
    """What `apply` did. A batch that replaced that of an older attempt is APPLIED."""

    APPLIED = "applied"
    ALREADY = "already applied"


class Verdict(StrEnum):
    """What a store must do with a batch (`states.core.marker.admit`)."""

    APPLY = "apply"
    SKIP = "skip"
    """The batch is there already."""
    REPLACE = "replace"
    """Opaque: take back the batch of the highest txid, then apply this one (Trident: OpaqueValue's previous value)."""


class StateKind(StrEnum):
    """What a state knows about the transactions in it (Storm's three kinds of state)."""

    NON_TRANSACTIONAL = "non-transactional"
    """Nothing that holds after a crash: a part of a batch may be there, or a batch twice."""
    TRANSACTIONAL = "transactional"
    """Which txids it holds (Trident: TransactionalValue)."""
    OPAQUE = "opaque"
    """Also what it held before the last one (Trident: OpaqueValue)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do. A topology that needs more is refused when the DAG is built.

    `durable`: the data outlives the process, so several tasks can use it. `atomic`: any number of keys and the marker
    change in one step, or each change carries its txid, so that a repeated commit ends as one. `keyvalue`: it keeps the
    states of stateful functions, and only those. `opaque`: it can take back the batch of its highest txid (T9), as
    opaque spouts need. `appends`: a sink of rows, without updater, and with keys only if it `rewrites`. `own`: the
    work of a committer bolt in its own database; the bolt promises that this is atomic, or opaque. `groups`: several
    transactions can change it in one step (T12). `by_reference`: staged files become its own, unchanged
    (`State.apply_files`). `rewrites`: rows can replace those of their keys by copy-on-write (`State.committed`).
    `partitions`: a batch can replace whole partitions of a bound topology (T13).
    """

    durable: bool
    atomic: bool
    keyvalue: bool = False
    opaque: bool = False
    appends: bool = False
    own: bool = False
    groups: bool = False
    by_reference: bool = False
    rewrites: bool = False
    partitions: bool = False

    def __post_init__(self) -> None:
        require_flags("Capabilities", **asdict(self))

    @property
    def kind(self) -> StateKind:
        if not self.atomic:
            return StateKind.NON_TRANSACTIONAL
        return StateKind.OPAQUE if self.opaque else StateKind.TRANSACTIONAL

    @property
    def knows_txids(self) -> bool:
        """Does the state know what is applied to it, so that an empty marker would mean "nothing"?"""
        return not self.own and (self.keyvalue or self.kind is not StateKind.NON_TRANSACTIONAL)


class CommitterWork(ABC):
    """The work of a committer, which has a database of its own (`Capabilities.own`)."""

    @abstractmethod
    def describe(self) -> str:
        """One line, part of the topology's definition: it must not change silently."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A note of plans: who makes its effects exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What the store itself knows about the transactions in it; read and written in the step that changes the data.

    Every txid up to `high` is applied, except those in `holes` (ranges, both ends included), which were left out so far
    and may still come. Holes below `CommitTicket.floor`, which nothing can fill any more, are forgotten.
    `position`: CommitTicket.position of `high`. `attempt`: that of `high` if its batch can be taken back, else
    `NO_ATTEMPT` (always if no spout is opaque). `group`: if `high` came with others in one step, txid -> the digest of
    its position (`contracts.state.digest_of`), for each of them: until all are COMMITTED, each may come again alone.
    """

    incarnation: str
    high: int
    fence: int
    holes: tuple[tuple[int, int], ...] = ()
    position: dict[str, Json] = field(default_factory=dict)
    attempt: int = NO_ATTEMPT
    group: dict[int, str] = field(default_factory=dict)

    def has(self, txid: int) -> bool:
        return txid <= self.high and not any(first <= txid <= last for first, last in self.holes)

    def lacks(self, needed: Txids) -> Txids:
        """The txids of `needed` that are not applied."""
        return needed - (Txids.span(1, self.high) - Txids(self.holes))


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """One state of one topology: its names, its fields and how a batch is merged into it.

    `keys`/`values`: the fields of the stored map. Without keys the state holds one row (Trident: Snapshottable).
    Exactly one of `combiners`, `reducer`, `updater`, `stateful`, `committer` is set: `combiners`, one per value field,
    get staged partial values; a `reducer` gets the fields `reads` of each staged tuple, an `updater` whole tuples of
    the fields `staged`. A `stateful` function has its own keys and values; then `keys` say to which partition a tuple
    belongs.
    `in_order`: the commit phase feeds it with what earlier batches and this one changed in other states, so no batch
    may come late. `opaque`: a spout of the topology is opaque, so the state must keep what T9 needs. `told`: a stream
    continues with the state's changes, so an updater may only change keys of the batch's tuples: after the batch is
    applied nobody knows which other keys it changed, and a try of the commit may end just then.
    `partition_by`: the values of these fields say in which partition of a table a row is; each staged file has rows of
    one partition. `overwrites`: a batch replaces the content of its partitions. If
    it `rewrites`, the rows of a batch replace those of their `keys`, and the table has one row of each key; a row whose
    field `deleted` is true only removes.
    `emits`: the fields of what a `committer` or a `stateful` function emits; streams continue with these tuples.
    `inputs`: what is read from the stream, as texts, part of the topology's definition: the fields of each aggregator,
    or of an updater or a stateful function; empty if keys and values say it.
    `partition`: of a bound topology, or of one whose files are partitions: a batch replaces the partitions of its
    ticket (T13).
    """

    topology: str
    name: str
    keys: Schema
    values: Schema
    staged: Schema
    factory: StateFactory
    combiners: tuple[CombinerAggregator[Any], ...] = ()
    reducer: ReducerAggregator[Any] | None = None
    reads: tuple[str, ...] = ()
    updater: Updater | None = None
    stateful: Stateful | None = None
    committer: CommitterWork | None = None
    emits: Schema = ()
    in_order: bool = False
    opaque: bool = False
    told: bool = False
    partition_by: tuple[str, ...] = ()
    overwrites: bool = False
    rewrites: bool = False
    deleted: str | None = None
    inputs: tuple[str, ...] = ()
    partition: Partitions | FilePartitions | None = None

    @property
    def commutes(self) -> bool:
        """May a late batch be applied out of order?"""
        if self.in_order or self.overwrites or self.rewrites or self.partition is not None:
            return False
        if self.factory.capabilities.appends:
            return True
        if self.combiners:
            return all(combiner.commutes for combiner in self.combiners)
        return self.reducer is not None and self.reducer.commutes

    @property
    def takes_groups(self) -> bool:
        """May several transactions go into it in one step (T12)? Not if a retry may bring another batch."""
        return self.factory.capabilities.groups and not self.opaque

    @property
    def merges_exactly(self) -> bool:
        """Are the values the same, to the last bit, in whatever order and pieces batches are merged?"""
        kinds = [combiner.merge_kind for combiner in self.combiners]
        if self.partition is not None:
            return False  # two batches of one partition: the later one replaces the earlier one
        return bool(kinds) and all(map(_is_exact, kinds, (column.type for column in self.values)))

    def replaced_by(self, ticket: CommitTicket) -> tuple[date | str, ...]:
        """The values in the partition column of what the ticket's batch replaces (T13); none if nothing is bound."""
        partitions = self.partition
        if partitions is None:
            return ()
        if not ticket.partitions and partitions.step != "file":
            raise CorruptRecordError(
                f"transaction {ticket.txid} of topology {self.topology!r} has no partition, and the topology is bound",
                "Nothing was applied. Restore the ledger's record from a backup.",
            )
        return tuple(map(partitions.value_of, ticket.partitions))

    def describe(self) -> str:
        """One line, part of the topology's definition: it must not change silently."""
        return self.applied if self.committer is not None else f"{self.factory.describe()} {self.applied}"

    @property
    def applied(self) -> str:
        """What is done with the staged rows, wherever the state is kept."""
        if self.committer is not None:
            return self.committer.describe()
        how = "+".join(type(part).__name__ for part in self.combiners)
        if self.reducer is not None:
            how = type(self.reducer).__name__
        if isinstance(self.updater, DescribedUpdater):
            how = self.updater.describe()
        if self.factory.capabilities.appends:
            how = "rewriting" if self.rewrites else "appending"
            how = "overwriting partitions" if self.overwrites else how
            how += f", gone where {self.deleted}" if self.deleted else ""
        if self.partition is not None and self.partition.step == "file":
            how = f"{how or 'updater'}, replacing files"
        keys, values = ", ".join(map(str, self.keys)), ", ".join(map(str, self.values))
        if self.stateful is not None:
            emits = f" -> ({', '.join(map(str, self.emits))})" if self.emits else ""
            return f"({keys}) by {self.stateful.describe()}{emits}"
        return f"({keys}) -> ({values}) by {how or 'updater'}"

    @property
    def key_names(self) -> tuple[str, ...]:
        return names_of(self.keys)

    @property
    def value_names(self) -> tuple[str, ...]:
        return names_of(self.values)


def _is_exact(kind: MergeKind | None, type_text: str) -> bool:
    if kind is MergeKind.ADD:
        return type_text in WHOLE_TYPES or type_text.startswith("decimal(")
    return kind is not None and type_text not in REAL_TYPES and not is_nested(type_text)


class StateFactory(ABC):
    """How to reach a store. Made while a DAG is parsed: opens nothing, imports no driver (Trident: StateFactory)."""

    capabilities: Capabilities
    max_value_bytes: ClassVar[int | None] = None
    """The largest binary value that the store takes; None: there is no such limit, or it is not known."""

    def validate(self, spec: StateSpec) -> None:
        """Called when the DAG is built: can the store keep this state at all? Opens nothing.

        :raises ConfigurationError: the store has no type or name for a field, or the state cannot have such keys.
        """

    @abstractmethod
    def make_state(self, spec: StateSpec) -> State:
        """Opens the state and creates what is missing.

        :raises ConfigurationError: the store cannot be used as configured (read-only, no such folder, refused login).
        :raises StoreUnavailableError: the store does not answer.
        """

    def takes_pieces(self, spec: StateSpec) -> bool:
        """May a batch be larger than the committer's memory? By default only for states that append rows."""
        return self.capabilities.appends

    def upkeep(self, spec: StateSpec) -> Sequence[Upkeep]:
        """What a person or a schedule may do to an open state."""
        return []

    def lineage_dataset(self, spec: StateSpec) -> Dataset | None:
        """The name in lineage of what a state writes; None if it has no such name. Called in a task, after its work: it
        may look up a connection, and reads nothing. An error counts as None."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Class and place, without secrets."""


class State(Closing):
    """An open state. Use as a context manager."""

    @abstractmethod
    def marker(self) -> Marker | None:
        """What is applied; None if nothing was ever applied to this state."""

    @abstractmethod
    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """Merges a staged batch (schema `spec.staged`) in one atomic step, with the marker.

        :raises FencedError: a newer committer was here.
        :raises LedgerBehindStateError: the data belongs to another life of the ledger.
        :raises StoreUnavailableError: nothing was applied.
        """

    def apply_staged(self, ticket: CommitTicket, batch: StagedBatch) -> Applied:
        """As :meth:`apply`, for a batch that is read while it is applied. A state that takes it piece by piece needs
        memory for one piece; any other state gets the whole batch as a table.

        :raises StagingError: the batch cannot be read to its end; nothing was applied.
        """
        return self.apply(ticket, batch.table())

    def apply_files(self, ticket: CommitTicket, files: StagedFiles) -> Applied:
        """As :meth:`apply`, for a batch whose files become the store's (`Capabilities.by_reference`).

        :raises StagingError: a file is gone; nothing was applied.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no files", "Implement State.apply_files in it.")

    def committed(self) -> CommittedTable:
        """The version of the table that is committed now, for the processing phase (`Capabilities.rewrites`).

        :raises ConfigurationError: rows of it cannot be replaced.
        """
        raise ConfigurationError(f"{type(self).__name__} has no versions", "Implement State.committed in it.")

    def apply_group(self, tickets: Sequence[CommitTicket], batches: Sequence[pa.Table]) -> tuple[Applied, ...]:
        """Merges several staged batches in one atomic step, with the marker (T12). Returns what was done with each.

        :param tickets: of one fence, lowest txid first, none of them late.
        :param batches: one for each ticket; or one for all of them, merged by key, if `StateSpec.merges_exactly`.
        :raises ConfigurationError: these cannot be one step of this state.
        :raises InseparableError: there is one batch for all, and some of them are applied already. Nothing was applied.
        :raises FencedError, LedgerBehindStateError, StoreUnavailableError: as for :meth:`apply`.
        """
        raise ConfigurationError(
            f"{type(self).__name__} takes one transaction at a time", "Apply them one by one, lowest first."
        )

    def bar(self, ticket: CommitTicket) -> None:
        """Makes sure that no older ticket can apply its batch any more (T11). On a state without a marker, too.

        Implementations that decide with `states.core.marker.admit` take it from `states.core.marker.AdmittingState`.

        :raises HeldError: it holds the ticket's transaction.
        :raises FencedError, LedgerBehindStateError, StoreUnavailableError: as for :meth:`apply`.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot say whether it holds transaction {ticket.txid}, nor be barred from it",
            "Implement State.bar in it, or mend what keeps the transaction from being committed.",
        )

    def emitted(self, ticket: CommitTicket) -> pa.Table:
        """What was emitted for the ticket's transaction, with the fields `StateSpec.emits`. Called in the commit phase,
        after `apply` with the same ticket."""
        raise ConfigurationError(f"{type(self).__name__} has no output", "Implement State.emitted in it.")

    @abstractmethod
    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """The committed value of each key; None if there is none (Trident: ReadOnlyMapState.multiGet).

        :raises StoreUnavailableError: the store does not answer.
        """

    @abstractmethod
    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All (key, value) pairs of the committed state, in no order; for queries and tests."""


def digest_of(position: dict[str, Json]) -> str:
    """Digest of `CommitTicket.position`: 16 bytes, hexadecimal. Equal positions have the same digest."""
    text = json.dumps(position, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_known_as(marker: Marker, txid: int, position: dict[str, Json], attempt: int, *, opaque: bool) -> bool:
    """Does the marker know by `txid`, which came in its highest step, the transaction with this position?

    :param opaque: a newer attempt may have another batch; an older one is not what the state has.
    """
    if txid != marker.high:
        return marker.group.get(txid) == digest_of(position)
    if opaque and marker.attempt > NO_ATTEMPT and attempt != marker.attempt:
        return attempt > marker.attempt
    return position == marker.position


def in_question(marker: Marker, view: LedgerView, since: int) -> Txids:
    """Of what the state holds, the txids of transactions that are not COMMITTED yet: only their records tell whether
    they are the same.

    :param since: the first txid since the state belongs to the topology. What it held before is nobody's question.
    """
    open_ = Txids.of(*view.exceptions.late, *view.exceptions.failed)
    return _held(marker, since) & (open_ | Txids.span(view.pointer.committed + 1, marker.high))


def of_others(marker: Marker, view: LedgerView, since: int, records: Iterable[TxRecord]) -> str:
    """What the state holds and the ledger knows as something else, for people; "" if there is nothing.

    :param view: with all that was known when the marker was read, or a later one.
    :param since: as for :func:`in_question`.
    :param records: of all that is :func:`in_question`, as they were then or are later.
    """
    marked, exceptions = _held(marker, since), view.exceptions
    begun, other = Txids(), Txids()
    for tx in records:
        if tx.txid not in marked or tx.status.is_final:
            continue  # final meanwhile
        if not tx.touched:
            begun |= Txids.of(tx.txid)
        elif not _is_same(marker, tx, view):
            other |= Txids.of(tx.txid)
    differences = (
        (marked & exceptions.skipped, "the ledger has as SKIPPED"),
        # A hole below the floor of tickets is forgotten, and looks like a txid that is held; the highest one never is.
        (marked & exceptions.closed & Txids.of(marker.high), "the ledger has as CLOSED"),
        (begun, "the ledger has not begun to commit"),
        (other, "has another position in the ledger"),
    )
    return ", and ".join(f"{txids}, which {description}" for txids, description in differences if txids)


def _held(marker: Marker, since: int) -> Txids:
    return Txids.span(since, marker.high) - Txids(marker.holes)


def _is_same(marker: Marker, tx: TxRecord, view: LedgerView) -> bool:
    opaque = bool(view.topology.definition.opaque)
    if tx.invalidated or tx.txid <= view.pointer.committed or (opaque and marker.attempt == NO_ATTEMPT):
        return True  # one that lost its batch, or comes late, or whose batch the state cannot replace: nothing tells
    return is_known_as(marker, tx.txid, tx.position, tx.attempt, opaque=opaque)


def other_ledger(topology: str, problem: str) -> LedgerBehindStateError:
    """The refusal of a state that belongs to another ledger than the one that asks. The causes that need no cure of the
    state come first.

    :param problem: what the state holds, and what the ledger is.
    """
    return LedgerBehindStateError(
        f"{problem}: another environment writes this state with a ledger of its own, or the ledger was deleted",
        "Nothing was changed. First compare [trident] root and the ZooKeeper connection with those of the environment "
        "that writes this state, and give one of the two a state of its own. Only if the ledger was deleted, pause the "
        "DAG and restore it, or seed it from the states: "
        f'`airflow trident repair {topology} --take-over "the ledger was deleted"`.',
    )
