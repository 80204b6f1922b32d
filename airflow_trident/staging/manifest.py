"""Staged batches: the durable result of a processing phase, under (topology, incarnation, txid, attempt).

Layout below the staging root, which every task must see (a shared folder if there are several workers)::

    <topology>/<incarnation>/<txid 19 digits>/<attempt>/<state>-<uuid>.parquet
    <topology>/<incarnation>/<txid 19 digits>/<attempt>/manifest.json

Files are written under names that nobody else uses. The manifest is published last, by put-if-absent, and names exactly
the files that count: files that a killed or duplicated worker left beside them are never read. Overwriting a folder
would mix a zombie's rows with the new ones; appending would double them.

If one pass processed a group of transactions together, the group is staged in the slot of its last one: one file for
each state with the rows of all of them, in order, and one manifest. The manifest says which rows belong to which
transaction; or, if they were merged by key, that they cannot be told apart (`inseparable`).

The manifest is versioned JSON, because a newer package may have to read it.

A small staged batch as one bytes object, to be kept without files: a zip of the manifest and the unchanged files.

Each part has a checksum, so the object itself shows whether it is whole.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field, fields, replace
from typing import Any

from airflow_trident.errors import StagingError
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import Content
from airflow_trident.staging.footers import pack_footers, unpack_footers

VERSION = 1
_FORMAT = Format(
    noun="the manifest",
    version=VERSION,
    key="version",
    cure="Run the processing phase of this transaction again: it stages under a new attempt.",
    error=StagingError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Identifies a staged batch."""

    topology: str
    incarnation: str
    txid: int
    attempt: int

    @property
    def path(self) -> str:
        """Relative to the staging root."""
        return f"{self.topology}/{self.incarnation}/{self.txid:019d}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """`path` is relative to the staging root. `content`: of a small file that was not written, and is passed along
    instead; no manifest contains it. `footer`: of a file that goes to a table, see
    :func:`~airflow_trident.io.parquet.footer_bytes`; empty if it is not known."""

    state: str
    path: str
    rows: int
    bytes: int
    content: Content = field(default=b"", compare=False, repr=False)
    footer: Content = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMember:
    """One transaction of a group. `rows`: state -> its first row in the state's file, and the number of its rows; empty
    if the group is inseparable. `rows_read`, `checks`: as :attr:`Manifest.rows_read` and :attr:`Manifest.checks`."""

    txid: int
    attempt: int
    rows_read: int
    rows: dict[str, tuple[int, int]]
    checks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRewrite:
    """What the batch of `state` replaces in its table, see :mod:`airflow_trident.contracts.state`.

    `version`: that was read. `gone`: its files with rows of the batch's keys. `files`: the other rows of these files.
    """

    state: str
    version: str
    gone: tuple[str, ...] = ()
    files: tuple[StagedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one attempt staged. `rows_read`: rows that came from the spouts, -1 if the engine did not count them.

    `sinks`: everything that the batch was staged for, name -> fields as DDL, also sinks without rows. A missing name
    means "not staged", which is not the same as "no rows".

    `group`: the transactions of a group, lowest first; the last one has the slot. `inseparable`: their rows were merged
    by key, so they count for all of them together, under exactly these attempts, or not at all.

    `made_by`: sink -> what makes it (:mod:`airflow_trident.plan.compile`).

    `code`: node -> a digest of the users' code that it ran, for people.

    Footers of its files are in it, so that a commit by reference opens none of them.

    `rewrites`: for copy-on-write. `files` has the batch alone, so without a rewrite the manifest is whole, too: then
    the commit looks for the rows to replace.

    `checks`: rule -> its number, see :mod:`airflow_trident.operations.rules`. Each member of a group has its own.
    """

    slot: Slot
    files: tuple[StagedFile, ...]
    rows_read: int
    sinks: dict[str, str]
    group: tuple[StagedMember, ...] = ()
    inseparable: bool = False
    made_by: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    rewrites: tuple[TableRewrite, ...] = ()
    checks: dict[str, Any] = field(default_factory=dict)

    @property
    def every_file(self) -> tuple[StagedFile, ...]:
        """The files of the batch and of its rewrites."""
        return (*self.files, *(file for rewrite in self.rewrites for file in rewrite.files))

    @property
    def members(self) -> tuple[StagedMember, ...]:
        """The members of the group, or the only transaction of this manifest."""
        if self.group:
            return self.group
        alone = {state: (0, rows) for state, rows in self.rows.items()}
        slot = self.slot
        return (
            StagedMember(
                txid=slot.txid, attempt=slot.attempt, rows_read=self.rows_read, rows=alone, checks=self.checks
            ),
        )

    @property
    def rows(self) -> dict[str, int]:
        """State -> rows in its files."""
        counts: dict[str, int] = {}
        for file in self.files:
            counts[file.state] = counts.get(file.state, 0) + file.rows
        return counts

    def damage(self) -> str:
        """How the manifest contradicts itself; "" if it does not."""
        if not self.group:
            return "it is inseparable and has no group" if self.inseparable else ""
        last, txids = self.group[-1], [member.txid for member in self.group]
        if sorted(set(txids)) != txids or (last.txid, last.attempt) != (self.slot.txid, self.slot.attempt):
            return f"its group of the transactions {txids} does not end with its own"
        if len({file.state for file in self.files}) < len(self.files):
            return "a state has several files of one group"
        if self.inseparable:
            return (
                "it is inseparable and says whose rows are whose" if any(member.rows for member in self.group) else ""
            )
        for state in {*self.sinks, *self.rows}:
            begin = 0
            for member in self.group:
                first, many = member.rows.get(state, (begin, 0))
                if first != begin or many < 0:
                    return f"the rows of {state!r} of transaction {member.txid} begin at {first} instead of {begin}"
                begin += many
            if begin != self.rows.get(state, 0):
                return f"its group has {begin} of the {self.rows.get(state, 0)} rows of {state!r}"
        return ""


def encode(manifest: Manifest) -> bytes:
    """Canonical: equal manifests have equal bytes."""
    slot = manifest.slot
    record: dict[str, Any] = {
        "topology": slot.topology,
        "incarnation": slot.incarnation,
        "txid": slot.txid,
        "attempt": slot.attempt,
        "rows_read": manifest.rows_read,
        "files": _plain(manifest.files),
        "sinks": dict(sorted(manifest.sinks.items())),
    }
    if manifest.made_by:
        record["made_by"] = dict(sorted(manifest.made_by.items()))
    if manifest.code:
        record["code"] = dict(sorted(manifest.code.items()))
    if manifest.checks:
        record["checks"] = dict(sorted(manifest.checks.items()))
    if footers := pack_footers([file.footer for file in _in_order(manifest)]):
        record["footers"] = footers
    if manifest.rewrites:
        record["rewrites"] = [
            {
                "state": rewrite.state,
                "version": rewrite.version,
                "gone": sorted(rewrite.gone),
                "files": _plain(rewrite.files),
            }
            for rewrite in sorted(manifest.rewrites, key=lambda table_rewrite: table_rewrite.state)
        ]
    if manifest.group:
        record["inseparable"] = manifest.inseparable
        record["group"] = [
            {
                "txid": member.txid,
                "attempt": member.attempt,
                "rows_read": member.rows_read,
                "rows": {state: list(rows) for state, rows in sorted(member.rows.items())},
                **({"checks": dict(sorted(member.checks.items()))} if member.checks else {}),
            }
            for member in manifest.group
        ]
    return (json.dumps({_FORMAT.key: VERSION, **record}, indent=1) + "\n").encode()


def _plain(files: tuple[StagedFile, ...]) -> list[dict[str, Any]]:
    return [{"state": file.state, "path": file.path, "rows": file.rows, "bytes": file.bytes} for file in _sorted(files)]


def _sorted(files: tuple[StagedFile, ...]) -> list[StagedFile]:
    return sorted(files, key=lambda file: (file.state, file.path))


def _in_order(manifest: Manifest) -> list[StagedFile]:
    """All files, in the order in which they are written down."""
    rewrites = sorted(manifest.rewrites, key=lambda rewrite: rewrite.state)
    return [*_sorted(manifest.files), *(file for rewrite in rewrites for file in _sorted(rewrite.files))]


def decode(content: bytes, path: str) -> Manifest:
    """:param path: its path, for the error text.
    :raises NewerRecordError: a newer version of the package wrote it.
    :raises StagingError: it cannot be decoded.
    """
    place = repr(path)
    body = _FORMAT.load(content, place)
    body["slot"] = {slot_field.name: body[slot_field.name] for slot_field in fields(Slot) if slot_field.name in body}
    built = _FORMAT.build(Manifest, body, place, needed=("sinks",))  # without them it would say "staged for nothing"
    manifest = _with_footers(built, body.get("footers"), place)
    if why := manifest.damage():
        raise _FORMAT.damaged(place, why)
    return manifest


def _with_footers(manifest: Manifest, packed: object, place: str) -> Manifest:
    if packed is None:
        return manifest
    files = _in_order(manifest)
    footers = unpack_footers(packed, len(files))
    if footers is None:
        raise _FORMAT.damaged(place, f"its footers are not those of {len(files)} files")
    remaining = iter(footers)
    with_footers = tuple(replace(file, footer=next(remaining)) for file in _sorted(manifest.files))
    rewrites = tuple(
        replace(rewrite, files=tuple(replace(file, footer=next(remaining)) for file in _sorted(rewrite.files)))
        for rewrite in sorted(manifest.rewrites, key=lambda rewrite: rewrite.state)
    )
    return replace(manifest, files=with_footers, rewrites=rewrites)


_MANIFEST = "manifest.json"


def pack(manifest: Manifest) -> bytes:
    """:param manifest: all its files have their content. The same manifest gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(zipfile.ZipInfo(_MANIFEST), encode(manifest))
        for file in manifest.files:
            packed.writestr(zipfile.ZipInfo(file.path), file.content)
    return buffer.getvalue()


def unpack(content: bytes, path: str, cure: str) -> Manifest:
    """The manifest that :func:`pack` packed, with the content of its files.

    :param path: where it was, for the error text.
    :raises StagingError: it is damaged.
    :raises NewerRecordError: a newer version of the package wrote it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            manifest = decode(packed.read(_MANIFEST), path)
            files = tuple(replace(file, content=packed.read(file.path)) for file in manifest.files)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, ValueError) as error:
        raise StagingError(f"the staged batch {path!r} is damaged ({error})", cure) from error
    return replace(manifest, files=files)
