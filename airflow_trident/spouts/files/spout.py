"""A spout of files: text, CSV, JSON lines and Parquet, in batches, oldest first.

Transactional: the metadata of a batch names its files with size, time and digest, so a listing that changes between
attempts cannot change a batch. Files must appear complete (written elsewhere and moved in, or under a temporary name),
and must not change as long as their transaction may be replayed. Objects of a store are files, too.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Never

from airflow_trident.contracts.spout import Spout, one_of, require_simple_types
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.io.paths import AnyPath, is_hdfs_uri, is_object_uri, require_local_path, text_of_path
from airflow_trident.names import require_counts, require_durations, require_flags
from airflow_trident.protocol.file_partitions import FILE, FilePartitions
from airflow_trident.spouts.files.contents import DIGEST_BYTES
from airflow_trident.spouts.files.file_source import FileSource, LocalFiles
from airflow_trident.spouts.files.listing import FilePattern
from airflow_trident.spouts.files.path_fields import PathFields
from airflow_trident.spouts.files.read_options import (
    BatchRules,
    ChangedFiles,
    CsvDialect,
    FileFormat,
    GoneFiles,
    ReadOptions,
    moment_ns,
)
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared, split_spec

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_trident.io.datasets import Dataset
    from airflow_trident.protocol.partitions import Partitions
    from airflow_trident.spouts.files.bound_files import BoundFiles
    from airflow_trident.spouts.files.coordinator import FileCoordinator, Listings
    from airflow_trident.spouts.files.emitter import FileEmitter

DEFAULT_MAX_FILES = 1000
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_SPLIT_BYTES = 32 << 20
DEFAULT_LOOKBACK_S = 3600.0
_GONE = {
    "late_window_s": "Leave it out: a file whose name was not read is new, however old it is. Of `ordered_names`, "
    "`lookback_s` says how much older than the newest read object a new one's neighbours by name may be.",
    "late_files": "Leave it out: a file whose name was not read is new, however old it is. `since` leaves out "
    "old ones; `airflow trident source mark-read` leaves out those that are there.",
}


class FileSpout(Spout):
    """Reads the files that a path means, each in exactly one transaction.

    :param path: a file, a folder (its files; with `recursive` also those of its folders), or a pattern with ``*``,
        ``?``, ``[...]``, ``**``. It may begin with ``~``. A relative path is below the working directory of the process
        that uses it. Names that begin with ``.`` or ``_`` and files that end with ``.tmp``, ``.part``, ``._COPYING_``
        are left out. Or ``s3://[connection@]bucket/``, ``abfs://[connection@]container/`` or ``gs://[connection@]bucket/``
        with a folder or a pattern, as a text or as Airflow's ObjectStoragePath; or ``hdfs://[connection@]/``.
    :param format: ``text`` (one tuple for each line), ``csv``, ``json`` (one object in each line) or ``parquet``. Text,
        csv and json files that are packed by gzip, zstd, bzip2 or xz are unpacked, whatever their names are.
    :param fields: the columns with their types; for text one string field, by default ``"line string"``.
    :param partition_fields: more fields, whose values are in the paths: ``"day date"`` of folders ``day=2026-01-31``,
        as Hive and Spark write them. ``_file`` is the file's name, with the folders below the path.
    :param max_files, max_bytes: of one batch; a single larger file is a batch by itself.
    :param min_age_s: younger files are left for later.
    :param since: older files are never read: a datetime with a time zone, or its ISO text.
    :param changed: a read file that has another content now is an ``error``, or ``read`` takes it again, whole.
    :param header: the first record of a csv file names its columns.
    :param delimiter, quote, escape, null: how csv files are written, if not as RFC 4180 has it
        (:class:`airflow_trident.spouts.files.read_options.CsvDialect`).
    :param extra_columns: undeclared columns are an ``error``, or ``ignore`` them.
    :param split_bytes: larger text and json files are read in several splits.
    :param encoding_errors: for text, bytes that are not UTF-8 are an ``error``, or ``replace`` reads U+FFFD.
    :param digest_bytes: of larger files no digest of the content is recorded: they are identified by size and time
        alone. Of objects the ETag is recorded, whatever their size.
    :param ordered_names: for objects: the name of a new object always sorts after the names of all objects that are
        older than the newest read one by more than `lookback_s`. Then a listing begins after those, and batches are in
        the order of names.
    :param done: in a topology that is bound to partitions: a partition is complete if a file of this name, such as
        ``_SUCCESS``, is in its folder.
    :param replaces: ``file``: each run takes new and changed files, and in every state the rows of a file replace those
        that it had. The file's name is the field ``_file``.
    :param gone: with `replaces`: a read file that is gone is an ``error``, or ``keep`` leaves its rows in the states.
    :raises ConfigurationError: an argument is wrong, or arguments contradict each other.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        format: str = "text",
        fields: FieldSpec | None = None,
        partition_fields: FieldSpec = (),
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_age_s: float = 0.0,
        since: datetime | str | None = None,
        changed: str = "error",
        header: bool = True,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        null: str | None = None,
        recursive: bool = False,
        extra_columns: str = "error",
        split_bytes: int = DEFAULT_SPLIT_BYTES,
        encoding_errors: str = "error",
        digest_bytes: int = DIGEST_BYTES,
        ordered_names: bool = False,
        lookback_s: float = DEFAULT_LOOKBACK_S,
        done: str = "",
        replaces: str | None = None,
        gone: str = "error",
        **former: Never,
    ) -> None:
        for name in former:
            if name not in _GONE:
                raise TypeError(f"FileSpout has no argument {name!r}")
            raise ConfigurationError(f"FileSpout with {name}: it went with the exact list of read files", _GONE[name])
        kind = FileFormat(one_of("FileSpout", "format", format, tuple(FileFormat)))
        require_flags("FileSpout", header=header, recursive=recursive, ordered_names=ordered_names)
        require_counts("FileSpout", max_files=max_files, max_bytes=max_bytes, split_bytes=split_bytes)
        require_counts("FileSpout", least=0, digest_bytes=digest_bytes)
        require_durations("FileSpout", zero=True, min_age_s=min_age_s, lookback_s=lookback_s)
        self._source, self._recursive = _source(path, recursive), recursive
        if replaces is not None:
            one_of("FileSpout", "replaces", replaces, (FilePartitions.step,))
            self.replaced = FilePartitions()
            partition_fields = _with_name(partition_fields)
        self._rules = BatchRules(
            max_files=max_files,
            max_bytes=max_bytes,
            min_age_ns=int(min_age_s * 1e9),
            since_ns=None if since is None else moment_ns("since", since),
            changed=ChangedFiles.READ
            if self.replaced
            else ChangedFiles(one_of("FileSpout", "changed", changed, tuple(ChangedFiles))),
            replaces=self.replaced is not None,
            gone=GoneFiles(one_of("FileSpout", "gone", gone, tuple(GoneFiles))),
            lookback_ns=int(lookback_s * 1e9),
        )
        self._reading = ReadOptions(
            format=kind,
            schema=_declared(kind, fields),
            header=header,
            dialect=_dialect(kind, CsvDialect(delimiter=delimiter, quote=quote, escape=escape, null=null)),
            ignore_extra=one_of("FileSpout", "extra_columns", extra_columns, ("error", "ignore")) == "ignore",
            replace_broken=one_of("FileSpout", "encoding_errors", encoding_errors, ("error", "replace")) == "replace",
        )
        text = self._source.text
        self._path_fields = PathFields.of(partition_fields, self._reading.schema, text, recursive=recursive)
        self.gives_files = self._source.is_local and not self._path_fields.schema
        self.needs_partitions = "{partition}" in text or "{partition:" in text
        if done and not self.needs_partitions:
            raise ConfigurationError(
                f"FileSpout({text!r}) with done={done!r}, and the path has no {{partition}}",
                "Leave it out, or bind the topology: /data/day={partition}/*.csv.",
            )
        if not isinstance(done, str) or (done and (set(done) & set("/*?[") or done in (".", ".."))):
            raise ConfigurationError(
                f"FileSpout({text!r}) with done={done!r}: it is no name of a file",
                'Name the file that each folder gets last, such as done="_SUCCESS".',
            )
        self._done = done
        self._require_replaceable(gone, ordered=ordered_names)
        self._split_bytes, self._digest_bytes = split_bytes, digest_bytes
        self._ordered = ordered_names
        if ordered_names:
            self._require_ordered(path)
        elif lookback_s != DEFAULT_LOOKBACK_S:
            raise ConfigurationError(
                f"FileSpout with lookback_s={lookback_s} without ordered_names=True: it says where a listing by name "
                "begins",
                "Leave it out: a file whose name was not read is new, however old it is.",
            )

    def _require_replaceable(self, gone: str, *, ordered: bool) -> None:
        """:raises ConfigurationError: arguments contradict `replaces`, or need it."""
        if self.replaced is None:
            if gone != GoneFiles.ERROR:
                raise ConfigurationError(
                    f"FileSpout with gone={gone!r} and without replaces", 'Add replaces="file", or leave it out.'
                )
            return
        if ordered or self.needs_partitions:
            raise ConfigurationError(
                'FileSpout with replaces="file" and '
                + ("ordered_names=True, whose listings do not show changed files" if ordered else "{partition}"),
                "Leave one of them out." if ordered else "Leave one of them out: a partition replaces all its files.",
            )

    def _require_ordered(self, path: AnyPath) -> None:
        """:raises ConfigurationError: `ordered_names` has no meaning for these files, or with the other arguments."""
        from airflow_trident.spouts.files.object_files import ObjectFiles

        if not isinstance(self._source, ObjectFiles):
            raise ConfigurationError(
                f"FileSpout({path!r}) with ordered_names=True: it is of folders, which are listed whole",
                "Leave it out, or read from an object store.",
            )

    @property
    def schema(self) -> Schema:
        return (*self._reading.schema, *self._path_fields.schema)

    @cached_property
    def _listings(self) -> Listings:
        """The last listing, for all coordinators that this spout makes."""
        from airflow_trident.spouts.files.coordinator import Listings

        return Listings(self._source)

    def coordinator(self) -> FileCoordinator:
        from airflow_trident.spouts.files.coordinator import FileCoordinator, OrderedCoordinator

        kind = OrderedCoordinator if self._ordered else FileCoordinator
        return kind(self._source, self._rules, self._listings, self._digest_bytes)

    def emitter(self) -> FileEmitter:
        from airflow_trident.spouts.files.emitter import FileEmitter

        return FileEmitter(self._source, self._reading, self._split_bytes, self._path_fields)

    def bound(self, partitions: Partitions) -> BoundFiles:
        """
        :raises PlanError: the path does not say which files are those of a partition.
        """
        if self.replaced:
            raise PlanError(
                f'{self.describe()} with replaces="file" in a topology that is bound to partitions',
                "Leave it out: a partition replaces all its files.",
            )
        from airflow_trident.spouts.files.bound_files import BoundFiles, PartitionPath

        path = PartitionPath(self._source.text, partitions)
        for name, is_set in self._rules_of_new_files.items():
            if is_set:
                raise PlanError(
                    f"FileSpout({self._source.text!r}) with {name} in a bound topology, which reads all files of a "
                    f"{partitions.step}",
                    "Leave it out.",
                )
        return BoundFiles(
            path=path,
            source_at=partial(_source, recursive=self._recursive),
            reader=self.emitter(),
            fields=self.schema,
            done=self._done,
            min_age_s=self._rules.min_age_ns / 1e9,
            digest_bytes=self._digest_bytes,
        )

    @property
    def _rules_of_new_files(self) -> dict[str, bool]:
        """Which arguments that choose among new files are not as they are by default."""
        rules = self._rules
        return {
            "max_files": rules.max_files != DEFAULT_MAX_FILES,
            "max_bytes": rules.max_bytes != DEFAULT_MAX_BYTES,
            "since": rules.since_ns is not None,
            "changed": rules.changed is not ChangedFiles.ERROR,
            "ordered_names": self._ordered,
        }

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        from airflow_trident.io.datasets import file_dataset

        return (file_dataset(self._source.text),)

    def describe(self) -> str:
        return f"FileSpout({self._reading.format}, {self._source.text}{', recursive' * self._recursive})"


def _with_name(fields: FieldSpec) -> FieldSpec:
    """With the name of the file, behind the others."""
    parts = [str(part).strip() for part in split_spec(fields)]
    return parts if any(part.split()[:1] == [FILE] for part in parts) else [*parts, FILE]


def _source(path: AnyPath, recursive: bool) -> FileSource:
    text = text_of_path(path)
    if isinstance(text, str) and is_hdfs_uri(text):
        from airflow_trident.spouts.files.hdfs_files import HdfsFiles

        return HdfsFiles.parse("FileSpout", text, recursive)
    if isinstance(text, str) and is_object_uri(text) and not text.strip().lower().startswith("file:"):
        from airflow_trident.spouts.files.object_files import ObjectFiles

        return ObjectFiles.parse("FileSpout", text, recursive)
    return LocalFiles(FilePattern(require_local_path("FileSpout", path), recursive))


def _dialect(kind: FileFormat, dialect: CsvDialect) -> CsvDialect:
    if kind is not FileFormat.CSV and dialect != CsvDialect():
        raise ConfigurationError(
            f"FileSpout of {kind} files with delimiter, quote, escape or null: they say how csv is written",
            'Leave them out, or read format="csv".',
        )
    return dialect


def _declared(kind: FileFormat, fields: FieldSpec | None) -> Schema:
    if fields is None:
        if kind is not FileFormat.TEXT:
            raise ConfigurationError(
                f"FileSpout of {kind} files does not know their columns",
                'Declare them, as in FileSpout(path, format="csv", fields="id long, name string").',
            )
        return parse_declared("line string")
    schema = parse_declared(fields, ["string"] if kind is FileFormat.TEXT else [])
    if kind is FileFormat.TEXT and [field.type for field in schema] != ["string"]:
        raise ConfigurationError(
            f"FileSpout of text files has one string field, not ({', '.join(map(str, schema))})",
            "Name one field, and take lines apart with each().",
        )
    if kind is FileFormat.CSV:
        require_simple_types("csv files", schema)
    return schema
