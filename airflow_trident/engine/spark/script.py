"""A user's script as the processing phase: spark-submit starts it unchanged, and its output is staged.

A file of the attempt holds the script's inputs and output folders; its path is a setting of the application. Each run
of the application writes into its own folders below the attempt's. Nothing there counts before its manifest.

In a bucket the folders are beginnings of names. A bucket cannot rename: Spark's committer copies the files of its tasks
to their place one by one. Nobody takes them half done, because `_SUCCESS` comes last.

The output of a run of a script: complete, in Parquet, with the fields that the topology declares. Imports no
Spark.

A batch as files that a script reads: the source's own files, or Parquet files in a folder of the run, written from
the rows that the spout's emitter reads. In both cases the script reads what the metadata names.

What a run of a script and its task share: a folder of the attempt, or names of the attempt in a bucket.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from airflow_trident.closeable import Closing
from airflow_trident.contracts.spout import Emitter, ScriptBatch
from airflow_trident.engine.engine import Engine, Job, settings_text, shaken_conf
from airflow_trident.engine.spark import airflow_trident_script
from airflow_trident.engine.spark.errors import cure_of, other_release, root_cause
from airflow_trident.engine.spark.older_orders import EndDriver, end_older, file_name
from airflow_trident.engine.spark.order_takers import leave, note
from airflow_trident.engine.spark.submit import DriverTags, tags_of
from airflow_trident.engine.spark.widening import widens
from airflow_trident.errors import FieldError, SparkJobError, StagingError, TridentError, UserCodeError, spout_code
from airflow_trident.io.arrow import Calendar, arrow_schema, require_fit
from airflow_trident.io.hadoop import SCHEME, require_s3a_place, settings_without_keys
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.parquet import calendar_of, is_within_years, parquet_file, parquet_writer
from airflow_trident.io.place import Place, discard, folder_error, make_folder, sync_folder
from airflow_trident.io.places import absolute_root, place_at
from airflow_trident.io.private_files import create_private, others_may_write
from airflow_trident.io.seekable import Seekable
from airflow_trident.io.values import UnfitValueError
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.script_node import ScriptOutputNode, require_script
from airflow_trident.plan.stages import Plan
from airflow_trident.staging.area import make_slot_folder
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile
from airflow_trident.types import Json, Schema, ddl, names_of, parse_type

if TYPE_CHECKING:
    import pyarrow as pa

SUCCESS = "_SUCCESS"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_ONE_RUN = "Let the cluster start the driver once, as by spark.yarn.maxAppAttempts=1, and run the task again."


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """`path`: relative to the staging root."""

    path: str
    rows: int
    bytes: int


def written_by(
    application: str, place: Place, outputs: Mapping[str, tuple[Schema, str]]
) -> dict[str, list[WrittenFile]]:
    """Output -> its files, all from the same run of the application.

    :param outputs: output -> its fields, and its folder in the place, which has a folder per run.
    :raises UserCodeError: an output is missing, incomplete, or not as declared.
    :raises StagingError: the application ran more than once, and it is unknown which run counts.
    """
    runs = {name: _runs(place, folder) for name, (_, folder) in outputs.items()}
    whole = [run for run in set().union(*runs.values()) if all(run in output_runs for output_runs in runs.values())]
    finished = [run for run in sorted(whole) if all(SUCCESS in output_runs[run] for output_runs in runs.values())]
    if outputs and not finished:
        raise _nothing_whole(application, runs)
    if len(finished) > 1:
        raise StagingError(
            f"script {application!r} was run {len(finished)} times in one attempt ({', '.join(finished)})", _ONE_RUN
        )
    written = {}
    for name, (schema, folder) in outputs.items():
        run, files = f"{folder}/{finished[0]}", runs[name][finished[0]]
        checked = _Output(application, name, schema, place, run)
        written[name] = [
            checked.file(relative, files[relative]) for relative in sorted(files) if not relative.startswith(("_", "."))
        ]
        if place.is_local:
            _make_durable(place.at(run), [place.at(written_file.path) for written_file in written[name]])
    return written


def _runs(place: Place, folder: str) -> dict[str, dict[str, int]]:
    """Run -> its files, with their sizes. Spark's file system for S3 leaves empty objects named like folders."""
    runs: dict[str, dict[str, int]] = {}
    for entry in place.list(folder):
        run, _, relative = entry.name[len(folder) + 1 :].partition("/")
        if relative:
            runs.setdefault(run, {})[relative] = entry.size
    return runs


def _nothing_whole(application: str, runs: Mapping[str, Mapping[str, Mapping[str, int]]]) -> TridentError:
    for name, output_runs in runs.items():
        if any(SUCCESS in files for files in output_runs.values()):
            continue
        failure = "left no _SUCCESS in" if output_runs else "wrote nothing to"
        return UserCodeError(
            f"script {application!r} ended without an error and {failure} its output {name!r}",
            f'Write it once, as in frame.write.parquet(trident.output(spark, "{name}")), and switch on '
            "mapreduce.fileoutputcommitter.marksuccessfuljobs where it is off. Where the driver is on another machine, "
            "the staging folder must be one that both see; its S3A must ask the same server as this task.",
        )
    return StagingError(f"no run of script {application!r} wrote all of {', '.join(runs)}", _ONE_RUN)


def _make_durable(folder: str, paths: Sequence[str]) -> None:
    """The files, and their names, before their manifest."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for written in (folder, os.path.dirname(folder)):
        sync_folder(written)


class _StoredFile(Seekable):
    """A file of the place, read by ranges: of a large one, only its footer is needed."""

    def __init__(self, place: Place, name: str, size: int) -> None:
        super().__init__(size)
        self._place, self._name = place, name

    def read(self, size: int = -1) -> bytes:
        begin, end = self.at, self.until(size)
        if end <= begin:
            return b""
        self.at = end
        return self._place.read(self._name, begin, end)


@dataclass(frozen=True)
class _Output:
    """An output of the script: its name, its declared fields, and the folder of the run that counts."""

    application: str
    name: str
    schema: Schema
    place: Place
    folder: str

    def file(self, relative: str, size: int) -> WrittenFile:
        """:raises UserCodeError: the file is not what the output declares."""
        if "/" in relative:
            raise UserCodeError(
                f"script {self.application!r} wrote the folder {relative.partition('/')[0]!r} into its output "
                f"{self.name!r}",
                "Write without partitionBy(): the columns stay in the rows, and the table that they go to has its own "
                "folders.",
            )
        path = f"{self.folder}/{relative}"
        footer, fields = self._footer(relative, path, size)
        differs = self._differs(footer, fields)
        self._require_values(relative, path, footer)
        if differs:
            path, size = self._widened(path)
        return WrittenFile(path=path, rows=footer.num_rows, bytes=size)

    def _footer(self, relative: str, path: str, size: int) -> tuple[Any, list[tuple[str, str]]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with _StoredFile(self.place, path, size) as file:
                footer = pq.read_metadata(file)
            return footer, _fields(footer)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserCodeError(
                f"script {self.application!r} wrote {relative!r} into its output {self.name!r}, which is no Parquet "
                f"file of Spark ({error})",
                f'Write it by frame.write.parquet(trident.output(spark, "{self.name}")).',
            ) from error

    def _require_values(self, relative: str, path: str, footer: Any) -> None:
        """Looks at days, moments and maps, if statistics do not show that they are right.

        :raises UserCodeError: one is none of its type.
        """
        import pyarrow as pa

        calendar = calendar_of(footer)
        is_shown = calendar is Calendar.GREGORIAN and is_within_years(footer, set(names_of(self.schema)))
        looked_at = [column.name for column in self.schema if "map<" in column.type or not is_shown]
        if not looked_at:
            return
        try:
            with self.place.open(path) as source:
                for rows in parquet_file(source).iter_batches(columns=looked_at):
                    require_fit(pa.Table.from_batches([rows]), calendar)
        except UnfitValueError as error:
            raise UserCodeError(
                f"script {self.application!r} wrote {relative!r} into its output {self.name!r}: {error}",
                "Let the script write values of the declared types.",
            ) from error

    def _differs(self, footer: Any, fields: list[tuple[str, str]]) -> bool:
        """Are there narrower types than the declared ones?"""
        if any(footer.schema.column(place).physical_type == "INT96" for place in range(footer.num_columns)):
            raise UserCodeError(
                f"script {self.application!r} wrote timestamps of its output {self.name!r} as INT96, of which readers "
                "make what they like",
                "Leave spark.sql.parquet.outputTimestampType at TIMESTAMP_MICROS, which it was started with.",
            )
        types, schema = dict(fields), self.schema
        missing = [name for name in names_of(schema) if name not in types]
        more = [column for column in types if column not in names_of(schema)]
        differ = [column for column in schema if column.name in types and types[column.name] != column.type]
        others = [column.name for column in differ if not widens(types[column.name], column.type)]
        if missing or more or others:
            differences = [
                *([f"without {', '.join(missing)}"] if missing else []),
                *([f"with {', '.join(more)}, which nobody declared"] if more else []),
                *([f"with other types of {', '.join(others)}"] if others else []),
            ]
            actual = ", ".join(f"{column} {kind}" for column, kind in fields)
            raise UserCodeError(
                f"script {self.application!r} wrote its output {self.name!r} {' and '.join(differences)}: it has "
                f"({actual}), declared is ({ddl(schema)})",
                "Select and cast the declared columns in the script, or declare what it writes.",
            )
        return bool(differ)

    def _widened(self, path: str) -> tuple[str, int]:
        """The rows with the declared types in a file beside it, piece by piece: tables get files as they are.

        :returns: its name and its size in bytes.
        """
        import pyarrow as pa

        wanted = arrow_schema(self.schema)
        made = f"{path.removesuffix('.parquet')}-widened.parquet"

        def write(file: BinaryIO) -> None:
            with self.place.open(path) as source, parquet_writer(file, wanted) as write_rows:
                for rows in parquet_file(source).iter_batches():
                    columns = [rows.column(column.name).cast(column.type) for column in wanted]
                    write_rows(pa.table(columns, schema=wanted))

        return made, self.place.put(made, write)


# ---- the fields of a file that Spark wrote -----------------------------------------------------------------------


def _fields(footer: Any) -> list[tuple[str, str]]:
    """Column -> its type, in Spark's own metadata; other writers have none."""
    metadata = footer.metadata or {}
    if _SPARK_SCHEMA not in metadata:
        raise ValueError("it does not say Spark's types")
    return [(field["name"], _type(field["type"])) for field in json.loads(metadata[_SPARK_SCHEMA])["fields"]]


def _type(kind: Any) -> str:
    text = _text(kind)
    try:
        return parse_type(text)
    except FieldError:
        return text


def _text(kind: Any) -> str:
    """Spark's JSON of a type as DDL."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    if kind["type"] == "struct":
        members = (f"{member['name']}:{_text(member['type'])}" for member in kind["fields"])
        return f"struct<{','.join(members)}>"
    return str(kind["type"])


class ScriptInputs(Closing):
    """The inputs of one run of a script; `close` removes files written for it.

    :param folder: on this machine, of the attempt alone.
    """

    def __init__(self, folder: str, progress: Callable[[str], None]) -> None:
        self._folder = folder
        self._progress = progress
        self._written: list[str] = []

    def batch(self, source: SourceNode, metadata: Json) -> ScriptBatch:
        """
        :param metadata: None: the stream has no data in this batch.
        :raises SourceChangedError, DamagedInputError: the source no longer holds what was recorded.
        """
        with spout_code(source.name):
            emitter = source.spout.emitter()
            return emitter.batch_for_script(metadata, self._folder) or self._write(source, emitter, metadata)

    def close(self) -> None:
        for folder in self._written:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, source: SourceNode, emitter: Emitter, metadata: Json) -> ScriptBatch:
        """One file per split; the rows pass through this process in pieces."""
        folder = os.path.join(self._folder, f"{source.name}-{uuid.uuid4().hex}")
        self._written.append(folder)
        schema = arrow_schema(source.spout.schema)
        with _folder_errors(folder):
            make_folder(folder, durably=False)
        with spout_code(source.name):
            splits = [] if metadata is None else emitter.splits(metadata)
            rows = sum(_write_file(folder, f"part-{split.index:05}", schema, emitter.read(split)) for split in splits)
        if not splits:  # Spark's readers refuse an empty list of files
            _write_file(folder, "nothing", schema, [])
        self._progress(f"{rows} rows of input {source.name} are written for the script")
        names = sorted(os.listdir(folder))
        return ScriptBatch([f"file://{folder}/{name}" for name in names], _nothing_changes, rows)


def _write_file(folder: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Returns the number of rows."""
    import pyarrow as pa

    path, rows = os.path.join(folder, f"{name}.parquet"), 0
    with _folder_errors(folder), create_private(path) as file, parquet_writer(file, schema) as write:
        for batch in batches:
            rows += batch.num_rows
            write(pa.Table.from_batches([batch]))
    return rows


@contextmanager
def _folder_errors(folder: str) -> Iterator[None]:
    """:raises StoreUnavailableError, ConfigurationError: the folder cannot be written to."""
    try:
        yield
    except OSError as error:
        raise folder_error(error, folder, "the staging folder") from error


def _nothing_changes() -> None:
    """The written files belong to this run alone."""


HELPER = os.path.abspath(airflow_trident_script.__file__)
"""The module that travels with the script."""
_FILE = "file://"


class ScriptFolder(Closing, ABC):
    """Names of one attempt that Spark and the task both reach.

    `place`: of the staging root. `path`: of the attempt in it. `scratch`: a folder on this machine for the files of
    inputs. `conf`: settings that Spark needs to get there.
    """

    conf: dict[str, str]

    def __init__(self, place: Place, path: str, scratch: str) -> None:
        self.place = place
        self.path = path
        self.scratch = scratch
        self.conf = {}

    def name(self, relative: str) -> str:
        """What is called `relative` here, in the place."""
        return f"{self.path}/{relative}"

    @abstractmethod
    def url(self, relative: str) -> str:
        """What is called `relative` here, as Spark calls it."""

    @abstractmethod
    def make(self, relative: str) -> None:
        """Makes a folder for Spark to write to, where folders need to be made."""

    @abstractmethod
    def put_job(self, relative: str, content: bytes) -> str:
        """Writes what the run is told. Returns what the script's module reads it by."""

    @abstractmethod
    def helper(self) -> str:
        """The script's module, as the driver of the application may import it."""

    def offered(self, batch: ScriptBatch) -> ScriptBatch:
        """The batch, with its files where Spark reads them."""
        return batch


def script_folder(root: str, slot: Slot) -> ScriptFolder:
    """
    :raises ConfigurationError: a script cannot write there.
    :raises OSError: the folder cannot be made.
    """
    root = require_s3a_place("the staging folder of a script", root)
    place = place_at(root)
    if place.is_local:
        return _LocalFolder(place, slot.path, make_slot_folder(root, slot))
    return _BucketFolder(place, slot.path, ObjectAddress.parse("the staging folder of a script", root))


class _LocalFolder(ScriptFolder):
    def url(self, relative: str) -> str:
        return f"{_FILE}{self.place.at(self.name(relative))}"

    def make(self, relative: str) -> None:
        make_folder(self.place.at(self.name(relative)))

    def put_job(self, relative: str, content: bytes) -> str:
        path = self.place.at(self.name(relative))
        with open(path, "xb") as file:
            file.write(content)
        return path

    def helper(self) -> str:
        """A copy beside the job: the driver sees it where it sees the staging folder. Where others may write into that,
        they could put their code in its place: so the driver gets it as with a bucket."""
        if others_may_write(self.place.at(""), self.scratch):
            return HELPER
        folder = os.path.join(self.scratch, uuid.uuid4().hex)
        os.mkdir(folder, 0o755)
        return shutil.copyfile(HELPER, os.path.join(folder, os.path.basename(HELPER)))


class _BucketFolder(ScriptFolder):
    """Spark reaches the bucket by S3A, with keys of its own: none of ours are in settings, which others see."""

    def __init__(self, place: Place, path: str, address: ObjectAddress) -> None:
        place.check()
        super().__init__(place, path, tempfile.mkdtemp(prefix="airflow-trident-script-"))
        self._address = address
        self._offered: list[str] = []
        self.conf = settings_without_keys(address)

    def url(self, relative: str) -> str:
        return f"{SCHEME}://{self._address.key(self.name(relative))}"

    def make(self, relative: str) -> None:
        """A bucket has no folders."""

    def put_job(self, relative: str, content: bytes) -> str:
        self.place.put(self.name(relative), lambda file: file.write(content))
        return self.url(relative)

    def helper(self) -> str:
        """spark-submit brings it to the driver, as it brings the application."""
        return HELPER

    def offered(self, batch: ScriptBatch) -> ScriptBatch:
        """Files that were written for this run, and the source's own where they are."""
        return replace(batch, given=[self._url_of(path) for path in batch.given])

    def _url_of(self, location: str) -> str:
        path = location.removeprefix(_FILE)
        if not path.startswith(f"{self.scratch}/"):
            return location
        relative = os.path.relpath(path, self.scratch)
        with open(path, "rb") as file:
            self.place.put(self.name(relative), lambda target: shutil.copyfileobj(file, target))
        self._offered.append(self.name(relative))
        os.unlink(path)
        return self.url(relative)

    def close(self) -> None:
        discard(self.place, self._offered)
        shutil.rmtree(self.scratch, ignore_errors=True)


JOB_CONF = airflow_trident_script.JOB


class Submitter(Protocol):
    """Runs one application to its end; raises if it failed."""

    def __call__(self, application: str, arguments: list[str], tags: DriverTags) -> None: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The inputs and outputs of a run of the script. `run`: its name alone. `order`: the address of what it is told.
    `job_path`: what the module `helper`, which it imports, reads that by. `folders`: output -> where its runs write, in
    the place."""

    run: str
    order: str
    job_path: str
    helper: str
    folders: dict[str, str]
    batches: tuple[ScriptBatch, ...]

    def require_same(self) -> None:
        for batch in self.batches:
            batch.require_same()

    @property
    def rows(self) -> int:
        """-1: only the script knows."""
        counted = [batch.rows for batch in self.batches if batch.rows is not None]
        return sum(counted) if len(counted) == len(self.batches) else -1


class ScriptEngine(Engine):
    """
    :param application, arguments: what spark-submit starts.
    :param conf: its settings as `submitter` knows them; needed for runs with others.
    :param submitter: ``submitter(settings, modules, known)`` makes a one-time starter with these settings and modules
        (files that the driver can import, separated by commas), which calls ``known(driver_id)`` as soon as a cluster
        has said which driver it is.
    :param end: ends the driver of an older attempt.
    """

    name = "script"

    def __init__(
        self,
        application: str,
        arguments: tuple[str, ...],
        submitter: Callable[[dict[str, str], str, Callable[[str], None]], Submitter],
        conf: Mapping[str, str] | None = None,
        end: EndDriver = lambda _order, _holder: "",
    ) -> None:
        self._application = application
        self._arguments = arguments
        self._submitter = submitter
        self._conf = dict(conf or {})
        self._end = end
        self._running: list[tuple[Slot, Submitter]] = []
        self._lock = Lock()

    def run(self, job: Job) -> Manifest:
        """
        :raises SparkJobError: the script failed.
        :raises UserCodeError: its output is not what the topology declares.
        :raises SourceChangedError: its input is no longer what the transaction recorded.
        """
        require_script(job.plan)
        with script_folder(job.staging_root, job.slot) as folder:
            if not any(source.name in job.metadata for source in job.plan.sources):
                return self._manifest(job, folder, {}, 0)
            if not job.trial:
                end_older([job], absolute_root(job.staging_root), self._end)
            with ScriptInputs(folder.scratch, job.progress) as inputs:
                read_batches = {
                    source.name: inputs.batch(source, job.metadata.get(source.name)) for source in _sources(job.plan)
                }
                batches = {name: folder.offered(batch) for name, batch in read_batches.items()}
                return self._run(job, folder, _given(job, folder, batches))

    def cancel(self, slot: Slot | None = None) -> None:
        with self._lock:
            running = [submitter for running_slot, submitter in self._running if slot is None or slot == running_slot]
        for submitter in running:
            submitter.cancel()

    def _run(self, job: Job, folder: ScriptFolder, prepared: _Given) -> Manifest:
        over = True
        try:
            prepared.require_same()
            over = False
            self._submit(job, folder, prepared)
            over = True
            prepared.require_same()
            return self._manifest(job, folder, prepared.folders, prepared.rows)
        finally:
            leave(prepared.order, over=over)

    def _submit(self, job: Job, folder: ScriptFolder, prepared: _Given) -> None:
        subject = f"script {self._application!r} of topology {job.slot.topology!r}, transaction {job.slot.txid}"
        reach = {name: value for name, value in folder.conf.items() if name not in self._conf}
        settings = {**reach, JOB_CONF: prepared.job_path}
        if job.shaken:
            conf = shaken_conf(self._conf.get)
            settings |= conf
            job.progress(settings_text(conf))
        submitter = self._submitter(settings, prepared.helper, partial(note, prepared.order))
        with self._lock:
            self._running.append((job.slot, submitter))
        try:
            submitter(self._application, list(self._arguments), tags_of([job], prepared.run))
        except TridentError:
            raise
        except Exception as error:
            text = str(error)
            if other := other_release(text, subject):
                raise other from error
            raise SparkJobError(
                f"{subject} failed: {root_cause(text) or type(error).__name__}",
                f"What it printed is above. {cure_of(text)}",
            ) from error
        finally:
            with self._lock:
                self._running.remove((job.slot, submitter))

    def _manifest(self, job: Job, folder: ScriptFolder, folders: Mapping[str, str], rows: int) -> Manifest:
        files: list[StagedFile] = []
        wanted = {name: (node.schema, folders[name]) for name, node in _outputs(job.plan).items()} if folders else {}
        whole = written_by(self._application, folder.place, wanted)
        for stage in job.plan.stages:
            if isinstance(stage.begin, ScriptOutputNode):
                for sink in stage.sinks:
                    written_files = whole.get(stage.begin.output, [])
                    files += [
                        StagedFile(state=sink.name, path=written.path, rows=written.rows, bytes=written.bytes)
                        for written in written_files
                    ]
                    job.progress(f"staged {sum(written.rows for written in written_files)} rows for state {sink.name}")
        return Manifest(slot=job.slot, files=tuple(files), rows_read=rows, sinks=job.plan.staged_fields)


def _given(job: Job, folder: ScriptFolder, batches: Mapping[str, ScriptBatch]) -> _Given:
    run = uuid.uuid4().hex
    folder_names = {node.output: f"{node.output}-{run}" for node in _outputs(job.plan).values()}
    for folder_name in folder_names.values():
        folder.make(folder_name)
    slot = job.slot
    content = {
        "version": 1,
        "transaction": {
            "topology": slot.topology,
            "txid": slot.txid,
            "attempt": slot.attempt,
            "time_ms": job.time_ms,
        },
        "inputs": {name: batch.given[::-1] if job.shaken else batch.given for name, batch in batches.items()},
        "outputs": {name: folder.url(folder_name) for name, folder_name in folder_names.items()},
    }
    name = f"{file_name(run, [job])}.{'trial' if job.trial else 'script'}.json"
    path = folder.put_job(name, json.dumps(content).encode())
    order = f"{absolute_root(job.staging_root).rstrip('/')}/{folder.name(name)}"
    folders = {output: folder.name(folder_name) for output, folder_name in folder_names.items()}
    return _Given(
        run=run,
        order=order,
        job_path=path,
        helper=folder.helper(),
        folders=folders,
        batches=tuple(batches.values()),
    )


def _sources(plan: Plan) -> list[SourceNode]:
    """The sources of the stages: a rewrite may have replaced the spout there."""
    return [stage.source for stage in plan.stages if stage.source is not None]


def _outputs(plan: Plan) -> dict[str, ScriptOutputNode]:
    return {stage.begin.output: stage.begin for stage in plan.stages if isinstance(stage.begin, ScriptOutputNode)}
