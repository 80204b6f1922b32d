"""Appends rows to a table that everybody may read and write: staged files become files of the table.

One commit of the table adds the batch's files and the marker. Each decision about a batch is read from one version of
the table; the commit is the next version, or none, and then everything is decided anew.

Files that become a table's, and those that it has. A staged file is taken unchanged: linked, or copied by
the object store, if possible; else copied in pieces.

Commits that are the next version of a table, or none: an overtaken committer decides anew.

Copy-on-write: whose rows a table has, which of its files need no reading, and, in the commit, whether what the
processing phase read is still there.

Rules for partition columns: a file by reference has one value of each, which every reader must write alike.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_trident.contracts.state import (
    Applied,
    BatchKeys,
    CommittedTable,
    KeyBounds,
    Marker,
    ReplacedFiles,
    StagedFiles,
    StagedPart,
    StateSpec,
    Verdict,
)
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    OutcomeUnknownError,
    StagingError,
    StoreUnavailableError,
    TableChangedError,
    TridentError,
)
from airflow_trident.io.arrow import PartitionValues, arrow_schema, split_by, table_to_rows, values_in
from airflow_trident.io.place import PlacedFile, WriteTo
from airflow_trident.io.values import UnfitValueError
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.table_rewrites import rest_of
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.types import WHOLE_TYPES

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """`values`: of partition columns. `nulls`: per column, if known. `entry`: its entry in the table's log."""

    path: str
    bytes: int
    values: PartitionValues
    nulls: dict[str, int]
    entry: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """A file of a table's version. `values`: of the partition columns; None: the file is partitioned otherwise.
    `entry`: its entry in the table's log. `deletes`: paths of files that delete rows of it. `bounds`: of its key
    columns, if they were asked for."""

    path: str
    bytes: int
    values: PartitionValues | None
    entry: Any
    deletes: tuple[str, ...] = ()
    bounds: KeyBounds = field(default_factory=dict)


def file_name(ticket: CommitTicket) -> str:
    """A unique name without a leading underscore: the clean-up of uncommitted files would skip that."""
    return f"trident-{ticket.txid:019d}-{ticket.attempt}-{uuid.uuid4().hex}.parquet"


def bring(
    staged: StagedPart,
    target: str | PlacedFile | None,
    put: Callable[[WriteTo], object],
    size: Callable[[], int | None] | None = None,
) -> int:
    """Bring a staged file to the table's folder. On the same file system, and in the same bucket, no data pass through
    this process.

    :param target: a path; or an object, if the staged file may be copied there.
    :param put: calls what it is given with a stream that writes to the target.
    :param size: of the target in bytes, as the table sees it, where its library has settings of its own: the target may
        be in another store of the same name.
    :return: its size in bytes.
    :raises StagingError: the staged file is gone.
    """
    try:
        if isinstance(target, str):
            taken = _linked(staged, target)
        else:
            taken = _copied(staged, target) and (size is None or size() == staged.size())
        if not taken:
            with staged.open() as source:
                put(lambda file: shutil.copyfileobj(source, file, _PIECE_BYTES))
        return staged.size()
    except FileNotFoundError as error:
        raise missing(staged) from error


def putting(
    opened: Callable[[], AbstractContextManager[Any]], errors: Callable[[], AbstractContextManager[None]]
) -> Callable[[WriteTo], object]:
    """:param opened: opens a stream for writing.
    :param errors: of the table. Where its place is missing, the staged file is not.
    """

    def put(write: WriteTo) -> None:
        with errors(), opened() as file:
            write(file)

    return put


def _copied(staged: StagedPart, target: PlacedFile | None) -> bool:
    """Has the object store copied it?

    :raises FileNotFoundError: the staged file is gone.
    """
    return target is not None and staged.stored is not None and staged.stored.copied_to(target)


def footer_of(staged: StagedPart) -> Any:
    """:return: `pyarrow.parquet.FileMetaData`.
    :raises StagingError: the staged file is gone.
    """
    import pyarrow.parquet as pq

    try:
        with io.BytesIO(staged.footer) if staged.footer else staged.open() as file:
            return pq.read_metadata(file)
    except FileNotFoundError as error:
        raise missing(staged) from error


def missing(staged: StagedPart) -> StagingError:
    return StagingError(
        f"the staged file {staged.path!r} is missing", "Run the commit again: the batch is emitted again."
    )


def _linked(staged: StagedPart, target: str) -> bool:
    """Is it one file under both names now?"""
    if not staged.is_local:
        return False
    with contextlib.suppress(OSError):  # two file systems, or one without links
        os.link(staged.path, target)
        return True
    return False


T = TypeVar("T")

_TRIES = 50


class Overtaken(Exception):
    """Another committer was first. Never leaves :func:`decided_anew`."""


def decided_anew(subject: str, act: Callable[[], T], cure: str) -> T:
    """Repeats until no other committer is faster; each try decides anew.

    :param what: the table, as an error names it.
    :raises StoreUnavailableError: another committer is always faster; `cure` says what to do.
    """
    for number in range(_TRIES):
        try:
            return act()
        except Overtaken:
            time.sleep(random.random() * min(0.5, 0.005 * 2**number))
    raise StoreUnavailableError(f"others commit to {subject} all the time", cure)


_KEPT = "rows"
"""The word of the note for a table whose rows are replaced by their keys."""


def note_of(spec: StateSpec) -> str | None:
    """The note in a table that has one row of each key, for its readers, and to refuse other topologies."""
    if not spec.rewrites:
        return None
    note = {"topology": spec.topology, "state": spec.name, "kept": _KEPT, "keys": list(spec.key_names)}
    return json.dumps({**note, **({"deleted": spec.deleted} if spec.deleted else {})})


def why_not_owned(note: str | None, spec: StateSpec) -> tuple[str, str] | None:
    """The error and its cure, if the note in a table is not that of `spec`."""
    owner, wanted = _parsed(note), _parsed(note_of(spec))
    if owner == wanted:
        return None
    if owner is None:
        return (
            "it was not made for rows by key",
            f"Let the topology make a table; or set this one's note to {note_of(spec)}, if its rows have these keys.",
        )
    whose = f"state {owner.get('state')!r} of topology {owner.get('topology')!r}"
    if wanted is None or (owner.get("topology"), owner.get("state")) != (spec.topology, spec.name):
        return f"it has the rows of {whose}, by the keys {owner.get('keys')}", "Write to another table."
    return (
        f"it has rows by the keys {owner.get('keys')}, deleted where {owner.get('deleted')}, and not by "
        f"{list(spec.key_names)}, deleted where {spec.deleted}",
        "Give the state another table.",
    )


def _parsed(note: str | None) -> dict[str, Any] | None:
    try:
        content = json.loads(note or "null")
    except ValueError:
        return None  # a description written by a person
    is_ours = isinstance(content, dict) and content.get("kept") == _KEPT and content.get("keys")
    return content if is_ours else None


def may_have(fragment: Any, schema: pa.Schema, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """See `CommittedTable.may_have`.

    :param fragment: a Parquet file as `pyarrow.dataset.ParquetFileFragment`.
    :param schema: of the table.
    """
    import pyarrow.dataset as ds

    wanted = ds.scalar(True)
    for name in bounds.keys() & set(fragment.physical_schema.names):
        low, high = (bound.cast(schema.field(name).type) for bound in bounds[name])
        wanted = wanted & (ds.field(name) >= low) & (ds.field(name) <= high)
    return bool(fragment.split_by_row_group(filter=wanted, schema=schema))


@contextmanager
def file_there(file: str) -> Iterator[None]:
    """
    :param file: which file of which version is read, for the error.
    :raises TableChangedError: others have deleted it.
    :raises DamagedInputError: it cannot be read, or has a value that would become another one.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, UnfitValueError) as error:
        raise DamagedInputError(
            f"{file}, which has to be written anew, cannot be read: {error}",
            "Restore the file, or write it anew by the program that made it.",
        ) from error
    except FileNotFoundError as error:
        raise TableChangedError(f"{file} is gone", "The next attempt reads a newer version.") from error


def number_of(version: str, table_id: object) -> int | None:
    """The number in ``id/number``, the version of a table; None: it is of another table than this one."""
    table_of_version, _, number = version.rpartition("/")
    return int(number) if table_of_version == str(table_id) else None


def require_as_read(
    subject: str,
    now: Sequence[OldFile],
    version: str,
    read: ReplacedFiles,
    paths_then: Callable[[str], AbstractSet[str] | None],
) -> list[OldFile]:
    """The files that a batch replaces, in the version of now. Another version is as good as the one that was read if it
    has no other files, which may have rows of the batch's keys, and still has these.

    :param what: the table, as an error names it.
    :param now: the files of `version`, which the table is at.
    :param paths_then: the files of another version; None: they are not known any more.
    :raises TableChangedError: the batch must be processed again.
    """
    files = {file.path: file for file in now}
    then = files.keys() if version == read.version else paths_then(read.version)
    if then is None or not files.keys() <= then or not files.keys() >= set(read.gone):
        raise TableChangedError(
            f"others have written to {subject} since the batch was processed against its version {read.version}",
            "The batch is processed again. If that never ends, let them write at other times.",
        )
    return [files[path] for path in read.gone]


Tried: TypeAlias = dict[int, Callable[[], object]]
"""Commits by their id. The value removes everything written for the commit besides the batch's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`commit`: the id of the marker's commit."""

    marker: Marker | None = None
    commit: int | None = None


class AppendingState(AdmittingState):
    """Not for several threads at the same time."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec

    # ---- of one format -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _what(self) -> str:
        """The table, as an error names it: ``the Delta table '/lake/sales'``."""

    @abstractmethod
    def _known(self) -> Known:
        """From one version of the table; all later questions use the same version.

        :raises ConfigurationError: rows cannot be added to it by reference.
        :raises CorruptRecordError: the marker is damaged, or the table was restored to a time before it.
        """

    @abstractmethod
    def _bring(self, ticket: CommitTicket, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        """:param footer: its `pyarrow.parquet.FileMetaData`.
        :param values: of all of its rows, in the partition columns.
        :raises StagingError: the staged file is gone.
        """

    @abstractmethod
    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile: ...

    @abstractmethod
    def _files_of(self, head: Known) -> list[OldFile]:
        """The files of the version of `known`."""

    @abstractmethod
    def _read(self, head: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        """:param columns: None: all columns of the table."""

    @abstractmethod
    def _required(self) -> set[str]:
        """Columns that do not accept nulls."""

    @abstractmethod
    def _commit(
        self, head: Known, marker: Marker, new: Sequence[NewFile], removed_files: Sequence[OldFile], tried: Tried
    ) -> None:
        """One commit of these files and the marker, on top of the version that `_known` read.

        :param gone: files to remove from the table.
        :param tried: holds the commit from before the table can have it until the table surely has it.
        :raises Overtaken: it is not the next version of the table.
        :raises OutcomeUnknownError: it is unknown whether it is.
        """

    @abstractmethod
    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        """Does the table have one of these commits, or did it before another writer's commit? Their outcome was
        unknown."""

    def _committed(self, head: Known) -> CommittedTable:
        """The version of `known`, with its files in the order of `_files_of`, if `Capabilities.rewrites`."""
        raise ConfigurationError(f"{self._what} cannot be rewritten", 'Use another mode than mode="rewrite".')

    def _version_of(self, head: Known) -> str:
        """`CommittedTable.version` of the version of `known`."""
        return self._committed(head).version

    def _paths_at(self, head: Known, version: str) -> AbstractSet[str] | None:
        """The files of an older version of the table, see `CommittedTable.version`; None: they are not known."""
        return None

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file of `_bring` or `_write`, if possible."""

    # ---- of all --------------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        return self._known().marker

    def committed(self) -> CommittedTable:
        return self._committed(self._known())

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        if self._spec.rewrites and batch.num_rows:
            return self._again(
                ticket, lambda head, removed_files: self._rewritten(ticket, batch, head, removed_files), anew=True
            )
        return self._again(ticket, lambda _known, _gone: self._written(ticket, batch))

    def apply_files(self, ticket: CommitTicket, files: StagedFiles) -> Applied:
        import pyarrow as pa

        if self._spec.rewrites and files.paths and files.replaces is None:
            return self.apply(ticket, pa.concat_tables(map(_content, files.parts())))
        return self._again(ticket, lambda _known, _gone: self._brought(ticket, files), files.replaces)

    def _written(self, ticket: CommitTicket, rows: pa.Table) -> Iterator[NewFile]:
        import pyarrow.compute as pc

        table = rows.select([column.name for column in self._spec.staged]).cast(arrow_schema(self._spec.staged))
        if self._spec.rewrites and self._spec.deleted is not None:
            table = table.filter(pc.invert(table.column(self._spec.deleted).fill_null(False)))
        yield from self._parts(ticket, table)

    def _parts(self, ticket: CommitTicket, table: pa.Table) -> Iterator[NewFile]:
        for values, part in split_by(table, self._spec.partition_by):
            yield self._write(file_name(ticket), part, values)

    def _brought(self, ticket: CommitTicket, files: StagedFiles) -> Iterator[NewFile]:
        """A staged file with rows of several partitions is rewritten: a script staged it."""
        deleted = self._spec.deleted if self._spec.rewrites else None
        for part in files.parts():
            footer = footer_of(part)
            values = values_in(footer, self._spec.partition_by)
            deletions = (False,) if deleted is None else values_in(footer, (deleted,))
            if values is None or deletions is None:
                yield from self._written(ticket, _content(part))
            elif deletions != (True,):
                yield self._bring(ticket, part, footer, values)
        for part in files.left():
            footer = footer_of(part)
            values = values_in(footer, self._spec.partition_by)
            if values is None:
                yield from self._parts(ticket, _content(part))
            else:
                yield self._bring(ticket, part, footer, values)

    def _rewritten(
        self, ticket: CommitTicket, batch: pa.Table, head: Known, removed_files: list[OldFile]
    ) -> Iterator[NewFile]:
        """Copy-on-write by this process, for a batch whose processing phase did not look into the table: a state is
        rebuilt.

        :param gone: receives the files to remove.
        """
        import pyarrow as pa

        table, keys = self._committed(head), BatchKeys.of(batch.select(self._spec.key_names))
        files = {one.path: one for one in self._require_partitions(self._files_of(head))}
        for place, path in enumerate(table.paths):
            rest, file = rest_of(table, place, keys), files[path]
            if rest is None:
                continue
            removed_files.append(file)
            if rest.num_rows and file.values is not None:
                rows = pa.Table.from_batches(rest.pieces(), table.schema())
                yield self._write(file_name(ticket), rows, file.values)
        yield from self._written(ticket, batch)

    def _again(
        self,
        ticket: CommitTicket,
        make: Callable[[Known, list[OldFile]], Iterator[NewFile]],
        read: ReplacedFiles | None = None,
        *,
        anew: bool = False,
    ) -> Applied:
        """Repeats until no other writer is faster. Each try decides anew; the files are made once.

        :param make: makes the batch's files in the table's place; may name more files to remove.
        :param read: what the processing phase found in the table.
        :param anew: make the files again for each try, as they depend on the version of the table.
        :raises TableChangedError: that is not so any more; nothing was applied.
        """
        new: list[NewFile] = []
        tried: Tried = {}
        is_made = False

        def once() -> Applied:
            nonlocal is_made
            head = self._known()
            # A storage that repeats requests took our own commit for another one.
            if head.commit is not None and head.commit in tried:
                tried.pop(head.commit)
                new.clear()
                return Applied.APPLIED
            spec = self._spec
            marker, verdict = admit(head.marker, ticket, state=spec.name, commutes=spec.commutes, opaque=False)
            if verdict is Verdict.SKIP:
                if marker != head.marker:
                    self._commit(head, marker, [], [], tried)
                return Applied.ALREADY
            removed_files = [] if read is None else self._as_read(head, read)
            if anew:
                self._discard(new)
            if not is_made or anew:
                new.extend(make(head, removed_files))  # keeps the files made before an error
                is_made = True
            self._require_no_nulls(new)
            self._commit(head, marker, new, removed_files or self._replaced(ticket, head, new), tried)
            new.clear()  # they belong to the table now
            return Applied.APPLIED

        return self._decided(once, new, tried)

    def _discard(self, new: list[NewFile]) -> None:
        for new_file in new:
            self._delete(new_file.path)
        new.clear()

    def _as_read(self, head: Known, read: ReplacedFiles) -> list[OldFile]:
        version = self._version_of(head)
        if version == read.version and not read.gone:
            return []
        return require_as_read(self._what, self._files_of(head), version, read, lambda then: self._paths_at(head, then))

    def _replaced(self, ticket: CommitTicket, head: Known, new: Sequence[NewFile]) -> list[OldFile]:
        """The files that a batch replaces if it overwrites its partitions: all of them, whoever wrote them. If the
        topology is bound, these are all files of its partition (T13), also if the batch has no rows."""
        spec = self._spec
        if spec.partition is not None:
            values = {(value,) for value in spec.replaced_by(ticket)}
            place = spec.partition_by.index(spec.partition.column)
            parts = slice(place, place + 1)
        elif spec.overwrites and new:
            values, parts = {file.values for file in new}, slice(None)
        else:
            return []
        files = self._require_partitions(self._files_of(head))
        return [file for file in files if file.values is not None and file.values[parts] in values]

    def _require_partitions(self, files: list[OldFile]) -> list[OldFile]:
        """
        :raises ConfigurationError: a file has rows of several partitions, because the table was partitioned otherwise.
        """
        for file in files:
            if file.values is None:
                raise ConfigurationError(
                    f"{self._what} has files of another partitioning ({file.path})",
                    "Rewrite its files, as by rewrite_data_files of Spark.",
                )
        return files

    def _decided(self, once: Callable[[], T], new: list[NewFile], tried: Tried) -> T:
        """Repeats until no other writer is faster; removes files that were made in vain."""
        cure = "See who else writes, and run the task again. Nothing was applied."
        try:
            return decided_anew(self._what, once, cure)
        except BaseException as error:
            # Only our own errors say that nothing was committed. The time-out of a task, or Ctrl-C, comes at any step,
            # also when the table has the files already.
            if isinstance(error, OutcomeUnknownError) or not isinstance(error, TridentError):
                new.clear()
                tried.clear()
            raise
        finally:
            self._remove(new, tried)

    def _remove(self, new: Sequence[NewFile], tried: Tried) -> None:
        with contextlib.suppress(StoreUnavailableError, ConfigurationError):  # the first error is raised
            if tried and self._has_any(tried, new):
                return
            for undo in tried.values():
                undo()
            for new_file in new:
                self._delete(new_file.path)

    def _require_no_nulls(self, new: Sequence[NewFile]) -> None:
        """Nobody else checks files that are added by reference."""
        for name in sorted(self._required()):
            if any(new_file.nulls.get(name, 1) for new_file in new):
                raise ConfigurationError(
                    f"column {name!r} of {self._what} takes no nulls, and the batch has some, or nobody counted them",
                    f'Leave them out, as in filter(col("{name}").is_not_null()), or let the column take them.',
                )

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(
            f"rows of sink {self._spec.name!r} are not looked up by key", "Ask the table itself, or use a DeltaState."
        )

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row of the table, also of other writers; with keys (key, value)."""
        head, target = self._known(), arrow_schema(self._spec.staged)
        parts = (
            self._read(head, file, target.names).select(target.names).cast(target) for file in self._files_of(head)
        )
        keys = self._spec.key_names
        if not keys:
            yield from (((), row) for part in parts for row in table_to_rows(part))
            return
        for part in parts:
            for row in table_to_rows(part.select([*keys, *self._spec.value_names])):
                yield row[: len(keys)], row[len(keys) :]


def _content(part: StagedPart) -> pa.Table:
    """:raises StagingError: the staged file is gone."""
    import pyarrow.parquet as pq

    try:
        with part.open() as source:
            return pq.read_table(source)
    except FileNotFoundError as error:
        raise missing(part) from error


_TYPES = ("string", *WHOLE_TYPES, "boolean", "date")


def require_partitions(spec: StateSpec, table: str) -> None:
    """:raises ConfigurationError: the fields cannot be partition columns."""
    types = {column.name: column.type for column in spec.staged}
    for name in spec.partition_by:
        if name not in types:
            raise ConfigurationError(
                f"{table} is to be partitioned by {name!r}, and sink {spec.name!r} has no such field",
                f"Name one of {', '.join(types)}.",
            )
        if types[name] not in _TYPES:
            raise ConfigurationError(
                f"{table} is to be partitioned by {name!r}, which is {types[name]}",
                f"Partition by a field that is {', '.join(_TYPES[:-1])} or {_TYPES[-1]}; make one of it with each().",
            )


def not_partitioned_so(columns: Sequence[str], spec: StateSpec) -> tuple[str, str] | None:
    """The error and its cure, if a table's partition columns are not those of `spec`."""
    if tuple(columns) == spec.partition_by:
        return None
    wanted = f"by {', '.join(spec.partition_by)}" if spec.partition_by else "not"
    return (
        f"it is partitioned by {', '.join(columns) or 'nothing'}, and should be so {wanted}",
        f"Say partition_by={list(columns)}, as the table is." if columns else "Append to another table.",
    )


def require_no_empty_text(table: str, names: Sequence[str], values: PartitionValues) -> None:
    """:raises ConfigurationError: a value is an empty text, which readers would take for a null."""
    for name, value in zip(names, values, strict=True):
        if value == "":
            raise ConfigurationError(
                f"the batch has an empty text in {name!r}, a partition column of {table}, which makes it a null",
                "Give it another text before, or a null.",
            )
