"""The staging area: processing phases leave their results here for commit phases, as Parquet files and a manifest.

See :mod:`airflow_trident.staging.manifest` for the layout and why nothing is ever overwritten.

Is a staged batch what its manifest says, and what the topology has now?

Writes the files of a staged batch. Plain functions of picklable arguments, so workers elsewhere can call them.
"""

from __future__ import annotations

import io
import os
import re
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_trident.contracts.state import ReplacedFiles, StagedBatch, StagedFiles
from airflow_trident.errors import ConfigurationError, InseparableError, StagingError, UnseenFilesError, UserCodeError
from airflow_trident.io.arrow import arrow_schema, require_fit
from airflow_trident.io.parquet import footer_bytes, write_parquet, write_parquet_pieces
from airflow_trident.io.paths import stays_inside
from airflow_trident.io.place import Place, PlacedFile, clear, make_folder, open_ranges, sizes
from airflow_trident.io.places import absolute_root, place_at
from airflow_trident.io.values import UnfitValueError
from airflow_trident.protocol.codec import staged_chunk_name
from airflow_trident.protocol.records import StagedRef
from airflow_trident.staging.footers import handed_on
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, decode, encode, pack, unpack
from airflow_trident.types import Schema, ddl, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

AGAIN = "Run the processing phase of this transaction again: it stages under a new attempt."


def require_size(file: StagedFile, path: str, size: int) -> None:
    """:raises StagingError: it is another one."""
    if size != file.bytes:
        raise StagingError(f"the staged file {path!r} has {size} bytes instead of {file.bytes}", AGAIN)


def require_content(file: StagedFile, path: str, parquet: pq.ParquetFile, schema: Schema) -> None:
    """:raises StagingError: it has other fields, or another number of rows."""
    names = parquet.schema_arrow.names
    if sorted(names) != sorted(names_of(schema)):
        raise StagingError(
            f"the staged file {path!r} has the fields ({', '.join(names)}) instead of ({', '.join(names_of(schema))})",
            "The topology changed since it was staged. " + AGAIN,
        )
    rows = parquet.metadata.num_rows
    if rows != file.rows:
        raise StagingError(f"the staged file {path!r} has {rows} rows instead of {file.rows}", AGAIN)


def listed(manifest: Manifest) -> str:
    """Its transactions, as errors name them."""
    return shown({member.txid: member.attempt for member in manifest.members})


def shown(attempts: Mapping[int, int]) -> str:
    """Txid -> attempt, as errors name them."""
    return ", ".join(f"{txid} (attempt {attempt})" for txid, attempt in attempts.items())


def require_staged(manifest: Manifest, state: str, schema: Schema) -> None:
    """:raises StagingError: nothing was staged for this state with these fields. No rows would be a guess."""
    attempt = f"attempt {manifest.slot.attempt} of transaction {manifest.slot.txid}"
    fields = manifest.sinks.get(state)
    if fields is None:
        raise StagingError(f"{attempt} was not staged for {state!r}: the topology had no such state then", AGAIN)
    if fields != ddl(schema):
        raise StagingError(
            f"{attempt} was staged for {state!r} with the fields ({fields}) instead of ({ddl(schema)})",
            "The topology changed since it was staged. " + AGAIN,
        )


_NAME = re.compile(r"[^/\\\0]+\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9_.~-]")
_LONGEST = 200
_PACKS_AT_MOST = 8
"""Tables of more than this many times `kept_bytes` are not packed to see whether they fit."""


def write_part(
    place: Place,
    slot: Slot,
    state: str,
    table: pa.Table | Sequence[pa.RecordBatch],
    *,
    kept_bytes: int = 0,
    by_reference: bool = False,
    is_fitted: bool = False,
) -> StagedFile:
    """Writes one file of a staged batch under a name that nobody else uses; durable when its manifest is published.

    A plain function of picklable arguments, so a worker elsewhere can call it. The file counts only if its `StagedFile`
    is in the published manifest. Give at least one record batch, for the schema.

    :param kept_bytes: a file of at most this many bytes is not written; the result has its content.
    :param by_reference: it may become a table's file; the result has its footer.
    :param is_fitted: all values came over the border of types in this process; others, which the JVM made, are looked
        at here.
    :raises UserCodeError: a value is none of its type. Commits never meet such values.
    :raises StoreUnavailableError: the folder is full or its file system does not work.
    :raises ConfigurationError: the folder is not writable.
    """
    import pyarrow as pa

    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches(list(table))
    try:
        if not is_fitted:
            require_fit(whole)
    except UnfitValueError as error:
        raise UserCodeError(
            f"the rows for the state {state!r}: {error}",
            "Let the transform, query or function that makes the field give values of its declared type.",
            fields=error.field,
            txid=slot.txid,
        ) from error
    relative = part_name(slot, state)
    if whole.nbytes <= _PACKS_AT_MOST * kept_bytes:
        buffer = io.BytesIO()
        write_parquet(whole, buffer)
        if (size := buffer.tell()) <= kept_bytes:
            content = buffer.getvalue()
            return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size, content=content)
    footers = list[Any]()
    size = place.put(relative, lambda file: write_parquet(whole, file, metadata_collector=footers))
    footer = handed_on(footer_bytes(footers[-1])) if by_reference else b""
    return StagedFile(state=state, path=relative, rows=whole.num_rows, bytes=size, footer=footer)


def write_pieces(
    place: Place, slot: Slot, state: str, schema: pa.Schema, pieces: Iterable[pa.RecordBatch]
) -> StagedFile:
    """As :func:`write_part`, for rows of a table that come piece by piece, of any schema."""
    relative, footers = part_name(slot, state), list[Any]()
    size = place.put(
        relative, lambda file: write_parquet_pieces(pieces, schema, file, metadata_collector=footers) and None
    )
    footer = footers[-1]
    kept = handed_on(footer_bytes(footer))
    return StagedFile(state=state, path=relative, rows=footer.num_rows, bytes=size, footer=kept)


def part_name(slot: Slot, state: str) -> str:
    """A name that nobody else uses. What it begins with is for people; the manifest says whose file it is. So a stream
    that is handed on may have any label, also one that no store takes in a file name.

    :raises ConfigurationError: topology or incarnation cannot be part of a path.
    """
    require_names(slot.topology, slot.incarnation)
    return f"{slot.path}/{_UNFIT.sub('_', state)[:_LONGEST]}-{uuid.uuid4().hex}.parquet"


def require_names(*names: str) -> None:
    """:raises ConfigurationError: one cannot be part of a path."""
    for name in names:
        if not _NAME.match(name) or name in (".", ".."):
            raise ConfigurationError(f"{name!r} cannot be part of a staging path", "Use letters, digits, '-' and '_'.")


MANIFEST = "manifest.json"
_BEHIND_NUMBERS = ":"
"""Sorts after all digits."""
_PIECE_ROWS = 16_384
"""The rows of one piece, if a batch is read in pieces."""
_SMALL_BYTES = 1 << 20
_SMALL_ROWS = 100_000
"""A batch of at most both is read at once, each file by one request."""


def make_slot_folder(root: str, slot: Slot) -> str:
    """Makes the folder of an attempt. Its name is durable when the manifest is published, the folders above it at once.

    :raises OSError: it cannot be made.
    """
    folder = os.path.join(absolute_root(root), slot.path)
    if not os.path.isdir(folder):
        make_folder(os.path.dirname(os.path.dirname(folder)))
        make_folder(folder, durably=False)
    return folder


@dataclass(frozen=True, slots=True)
class StagingArea:
    """Staged batches that every task can see. `root`: a folder (``~`` is allowed) or the URI of an object store. Opens
    nothing before use."""

    root: str

    @property
    def place(self) -> Place:
        """:raises ConfigurationError: `root` is neither a folder nor such a URI."""
        return place_at(self.root)

    # ---- the processing phase ----------------------------------------------------------------------------------

    def write(
        self,
        slot: Slot,
        state: str,
        table: pa.Table | Sequence[pa.RecordBatch],
        *,
        kept_bytes: int = 0,
        by_reference: bool = False,
        is_fitted: bool = False,
    ) -> StagedFile:
        """See :func:`write_part`."""
        how = {"by_reference": by_reference, "is_fitted": is_fitted}
        return write_part(self.place, slot, state, table, kept_bytes=kept_bytes, **how)

    def publish(self, manifest: Manifest, *, chunk_bytes: int = 0) -> StagedRef:
        """Makes the staged batch of an attempt visible, once.

        Publishing the same manifest again succeeds: the first answer may have been lost. The files are checked first:
        if this process cannot see one, no committer will.

        :param chunk_bytes: a batch of at most this many bytes is not published: the reference has it as a chunk for the
            ledger, and the step that says PROCESSED makes it visible. The files of a larger one are written now.
        :raises UnseenFilesError: a file is missing or incomplete: its writer has another staging folder.
        :raises StagingError: the attempt has published other files already: it has two owners. Or the manifest
            contradicts itself.
        """
        require_names(manifest.slot.topology, manifest.slot.incarnation)
        if why := manifest.damage():
            raise StagingError(f"the manifest of {manifest.slot.path!r} contradicts itself: {why}", AGAIN)
        if (small := as_chunk(manifest, chunk_bytes)) is not None:
            return small
        place, name = self.place, f"{manifest.slot.path}/{MANIFEST}"
        place.check()
        self.write_kept(manifest)
        self._require_seen(manifest)
        if not place.put_once(name, encode(manifest)):
            raise StagingError(
                f"attempt {manifest.slot.attempt} of transaction {manifest.slot.txid} of topology "
                f"{manifest.slot.topology!r} has published another staged batch already ({place.at(name)})",
                "An attempt has one owner: start a new attempt.",
            )
        return reference(manifest)

    def write_kept(self, manifest: Manifest) -> None:
        """Write the files that executors gave to their driver instead of writing them."""
        for file in manifest.files:
            if content := file.content:
                self.place.put(file.path, lambda target, content=content: target.write(content))  # type: ignore[misc]

    def publish_group(self, manifest: Manifest, *, chunk_bytes: int = 0) -> dict[int, StagedRef]:
        """As :meth:`publish`, for a group: what the ledger keeps for each of its transactions.

        The last one has what cannot be separated: bytes of files, rows of an inseparable group. All share one chunk,
        and the first to be PROCESSED brings it.

        :raises UnseenFilesError, StagingError: as for :meth:`publish`.
        """
        whole = self.publish(manifest, chunk_bytes=chunk_bytes)
        parts = {member.txid: {state: many for state, (_, many) in member.rows.items()} for member in manifest.members}
        refs = {
            member.txid: replace(whole, rows_read=member.rows_read, rows=parts[member.txid], bytes=0)
            for member in manifest.members
        }
        last = manifest.slot.txid
        rows = whole.rows if manifest.inseparable else parts[last]
        return {**refs, last: replace(refs[last], rows=rows, bytes=whole.bytes)}

    def _require_seen(self, manifest: Manifest) -> None:
        names = [self._inside(file.path) for file in manifest.every_file]
        there = sizes(self.place, manifest.slot.path, names) if names else {}
        for file in manifest.every_file:
            bytes_ = there.get(file.path)
            if bytes_ == file.bytes:
                continue
            difference = "is not there" if bytes_ is None else f"has {bytes_} bytes instead of {file.bytes}"
            raise UnseenFilesError(
                f"the staged file {self.place.at(file.path)!r} of transaction {manifest.slot.txid} of topology "
                f"{manifest.slot.topology!r} "
                f"was written, and on {socket.gethostname()} it {difference}: executors write to another staging "
                "folder",
                "Mount one shared folder under the same path on the workers, the driver and all executors, and name it "
                "in [trident] staging_dir.",
            )

    # ---- the commit phase --------------------------------------------------------------------------------------

    def load(self, batch: StagedRef | Slot, content: bytes | None = None) -> Manifest:
        """The published manifest.

        :param content: of the chunk, if there is one; it contains the manifest and the files.
        :raises StagingError: the manifest is missing or damaged.
        :raises NewerRecordError: a newer version of the package wrote it.
        """
        relative = f"{batch.path}/{MANIFEST}" if isinstance(batch, Slot) else batch.manifest
        if content is not None:
            return unpack(content, relative, AGAIN)
        place, name = self.place, self._inside(relative)
        try:
            content = place.read(name)
        except FileNotFoundError as error:
            raise StagingError(
                f"the staged batch {relative!r} is not in the staging folder {place.where!r}", AGAIN
            ) from error
        return decode(content, place.at(name))

    def read(self, manifest: Manifest, state: str, schema: Schema) -> pa.Table:
        """The rows staged for one state, from all its files. For a group use :meth:`read_each`.

        :raises StagingError: a file is missing, damaged, or differs from what the manifest or `schema` says; or nothing
            was staged for the state, because the topology had no such state then.
        """
        if manifest.group:
            raise StagingError(
                f"the staged batch {manifest.slot.path!r} is of the transactions {manifest.group[0].txid} to "
                f"{manifest.slot.txid} together, and one transaction is asked for",
                AGAIN,
            )
        return self._read(manifest, state, schema)

    def read_each(self, manifest: Manifest, attempts: Mapping[int, int], state: str, schema: Schema) -> list[pa.Table]:
        """The rows staged for one state, one table for each of these transactions; or one table for all of them, if
        they were merged by key.

        :param attempts: txid -> attempt, lowest first: all, or some, of the manifest's transactions.
        :raises InseparableError: they were merged by key, and these are not all of them, under those attempts.
        :raises StagingError: as for :meth:`read`; or the manifest belongs to others.
        """
        self.require_members(manifest, attempts)
        table = self._read(manifest, state, schema)
        if manifest.inseparable:
            return [table]
        members = {member.txid: member for member in manifest.members}
        return [table.slice(*members[txid].rows.get(state, (0, 0))) for txid in attempts]

    def require_members(self, manifest: Manifest, attempts: Mapping[int, int]) -> None:
        """:param attempts: as for :meth:`read_each`.
        :raises InseparableError, StagingError: as for :meth:`read_each`, without a look at files.
        """
        members = {member.txid: member for member in manifest.members}
        if manifest.inseparable and dict(attempts) != {member.txid: member.attempt for member in manifest.group}:
            raise InseparableError(
                f"the staged batch {manifest.slot.path!r} counts for the transactions {listed(manifest)} together, "
                f"and not for {shown(attempts)}",
                AGAIN,
            )
        for txid, attempt in attempts.items():
            if txid not in members or members[txid].attempt != attempt:
                raise StagingError(
                    f"the staged batch {manifest.slot.path!r} is of the transactions {listed(manifest)}, and not of "
                    f"{shown({txid: attempt})}",
                    AGAIN,
                )

    def _read(self, manifest: Manifest, state: str, schema: Schema) -> pa.Table:
        import pyarrow as pa

        require_staged(manifest, state, schema)
        target = arrow_schema(schema)
        parts = [self._read_file(file, schema, target) for file in manifest.files if file.state == state]
        return pa.concat_tables(parts) if parts else target.empty_table()

    def batch(self, manifest: Manifest, state: str, schema: Schema, txid: int) -> StagedBatch:
        """The rows staged for one state, read only when needed; those of a small batch now. On a file system it checks
        now that the files have these fields, and as many rows; see :meth:`require_there`.

        :param txid: of a group, its rows; each reading has those of all in memory, which passes keep small.
        :raises StagingError: as for :meth:`read`. From the batch's pieces: a file is damaged, or gone meanwhile.
        """
        if manifest.group:
            return self._batch_of(manifest, state, schema, txid)
        if _is_small(manifest):
            return StagedBatch.of(schema, self.read(manifest, state, schema))
        require_staged(manifest, state, schema)
        files = [file for file in manifest.files if file.state == state]
        target = arrow_schema(schema)
        for file in files if self.place.is_local else ():
            with self._opened(file, schema):
                pass

        def pieces() -> Iterator[pa.RecordBatch]:
            for file in files:
                with self._opened(file, schema) as parquet:
                    for piece in parquet.iter_batches(_PIECE_ROWS):
                        yield piece.select(target.names).cast(target)

        return StagedBatch(schema=schema, num_rows=sum(file.rows for file in files), pieces=pieces)

    def _batch_of(self, manifest: Manifest, state: str, schema: Schema, txid: int) -> StagedBatch:
        (member,) = [candidate for candidate in manifest.group if candidate.txid == txid]
        many = manifest.rows.get(state, 0) if manifest.inseparable else member.rows.get(state, (0, 0))[1]

        def pieces() -> Iterator[pa.RecordBatch]:
            (table,) = self.read_each(manifest, {txid: member.attempt}, state, schema)
            yield from table.to_batches()

        return StagedBatch(schema=schema, num_rows=many, pieces=pieces)

    def require_there(self, manifest: Manifest, states: Mapping[str, Schema]) -> None:
        """Checks, before any of these states is touched, that it was staged for them, and that their files exist with
        the staged sizes: a request for each 1,000 names in an object store, none for a small batch, which is read at
        once.

        :raises StagingError: it was staged for other states, or with other fields; a file is missing or has another
            size.
        """
        for state, schema in states.items():
            require_staged(manifest, state, schema)
        if _is_small(manifest) and not manifest.rewrites and not self.place.is_local:
            return
        rewritten = (file for rewrite in manifest.rewrites if rewrite.state in states for file in rewrite.files)
        files = [*(file for file in manifest.files if file.state in states and not file.content), *rewritten]
        place = self.place
        there = sizes(place, manifest.slot.path, [self._inside(file.path) for file in files]) if files else {}
        for file in files:
            if file.path not in there:
                raise StagingError(f"the staged file {place.at(file.path)!r} is missing", AGAIN)
            require_size(file, place.at(file.path), there[file.path])

    def files(self, manifest: Manifest, state: str, schema: Schema) -> StagedFiles | None:
        """The files staged for one state; None: its rows are better read, as they are small and in an object store, or
        in the ledger. See :meth:`require_there`.

        :raises StagingError: the batch was staged with other fields.
        """
        require_staged(manifest, state, schema)
        place, rewrite = (
            self.place,
            next((candidate for candidate in manifest.rewrites if candidate.state == state), None),
        )
        in_objects = not place.is_local
        if any(file.content for file in manifest.files) or (in_objects and rewrite is None and _is_small(manifest)):
            return None
        files = [file for file in manifest.files if file.state == state and file.rows]
        rewritten_files = () if rewrite is None else rewrite.files
        named = {place.at(self._inside(file.path)): file for file in (*files, *rewritten_files)}
        replaces = None
        if rewrite is not None:
            paths = tuple(place.at(file.path) for file in rewritten_files)
            replaces = ReplacedFiles(version=rewrite.version, gone=rewrite.gone, left=paths)
        return StagedFiles(
            paths=tuple(place.at(file.path) for file in files),
            num_rows=sum(file.rows for file in files),
            replaces=replaces,
            footers={path: file.footer for path, file in named.items() if file.footer},
            opener=(lambda path: open_ranges(place, named[path].path, named[path].bytes)) if in_objects else None,
            stored=(lambda path: PlacedFile(place, named[path].path)) if in_objects else None,
        )

    def _read_file(self, file: StagedFile, schema: Schema, target: pa.Schema) -> pa.Table:
        with self._opened(file, schema, whole=True) as parquet:
            return parquet.read().select(target.names).cast(target)

    @contextmanager
    def _opened(self, file: StagedFile, schema: Schema, *, whole: bool = False) -> Iterator[pq.ParquetFile]:
        """:param whole: all of it is read, and will be in memory.
        :raises StagingError: the file is not what was staged, or cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        place, name = self.place, self._inside(file.path)
        path = place.at(name)
        try:
            with self._source(file, name, whole) as source:
                require_size(file, path, source.seek(0, os.SEEK_END))
                with pq.ParquetFile(source) as parquet:
                    require_content(file, path, parquet, schema)
                    yield parquet
        except FileNotFoundError as error:
            raise StagingError(f"the staged file {path!r} is missing", AGAIN) from error
        except (pa.ArrowException, OSError) as error:
            raise StagingError(f"the staged file {path!r} cannot be read ({error})", AGAIN) from error

    def _source(self, file: StagedFile, name: str, whole: bool) -> BinaryIO:
        if file.content:
            return io.BytesIO(file.content)
        place = self.place
        return place.open(name) if whole or place.is_local else open_ranges(place, name, file.bytes)

    def _inside(self, relative: str) -> str:
        """:raises StagingError: a record or manifest names something outside of this folder."""
        if not stays_inside(relative):
            raise StagingError(f"the path {relative!r} is not below the staging folder {self.place.where!r}", AGAIN)
        return relative

    # ---- cleaning ----------------------------------------------------------------------------------------------

    def remove_before(self, topology: str, incarnation: str, txid: int, keeps: Callable[[int], bool]) -> int:
        """Deletes the staged batches of lower transactions, best effort.

        :param keeps: does the ledger keep this transaction? Then somebody may be at work in its folder.
        :returns: how many transactions had something to delete.
        """
        if txid <= 0:
            return 0
        end = f"{txid:019d}"
        return clear(
            self.place, f"{topology}/{incarnation}", "0", end, keeps=lambda part: part.isdecimal() and keeps(int(part))
        )

    def remove_from(self, topology: str, incarnation: str, txid: int) -> int:
        """Deletes the staged batches of this and higher transactions: after a repair their numbers are given out again.

        :returns: how many transactions had something to delete.
        """
        return clear(self.place, f"{topology}/{incarnation}", f"{txid:019d}", _BEHIND_NUMBERS)


def reference(manifest: Manifest) -> StagedRef:
    """What the ledger keeps of a manifest."""
    rows: Counter[str] = Counter()
    for file in manifest.files:
        rows[file.state] += file.rows
    return StagedRef(
        manifest=f"{manifest.slot.path}/{MANIFEST}",
        rows_read=manifest.rows_read,
        rows=dict(rows),
        bytes=sum(file.bytes for file in manifest.every_file),
    )


def as_chunk(manifest: Manifest, chunk_bytes: int) -> StagedRef | None:
    """The reference to a batch of at most this many bytes, with the batch itself; None if it is larger, or some of it
    was written elsewhere."""
    if not chunk_bytes or not all(file.content for file in manifest.every_file):
        return None
    content, slot = pack(manifest), manifest.slot
    if len(content) > chunk_bytes:
        return None
    return replace(reference(manifest), chunk=staged_chunk_name(slot.txid, slot.attempt), content=content)


def _is_small(manifest: Manifest) -> bool:
    files = manifest.every_file
    small = sum(file.bytes for file in files) <= _SMALL_BYTES and sum(file.rows for file in files) <= _SMALL_ROWS
    return small or any(file.content for file in files)
