"""A user's script as the processing phase: spark-submit starts it unchanged, and its output is staged.

A file of the attempt holds the script's inputs and output folders; its path is a setting of the application. Each run
of the application writes into its own folders below the attempt's. Nothing there counts before its manifest.

In a bucket the folders are beginnings of names. A bucket cannot rename: Spark's committer copies the files of its tasks
to their place one by one. Nobody takes them half done, because `_SUCCESS` comes last.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Protocol

from airflow_trident.contracts.spout import ScriptBatch
from airflow_trident.engine.base import Engine, Job
from airflow_trident.engine.shaken_run import shaken_conf, told
from airflow_trident.engine.spark import airflow_trident_script
from airflow_trident.engine.spark.driver_tags import DriverTags, tags_of
from airflow_trident.engine.spark.errors import cure_of, other_release, root_cause
from airflow_trident.engine.spark.older_orders import EndDriver, end_older, file_name
from airflow_trident.engine.spark.order_takers import leave, note
from airflow_trident.engine.spark.script_folder import ScriptFolder, script_folder
from airflow_trident.engine.spark.script_inputs import ScriptInputs
from airflow_trident.engine.spark.script_output import written_by
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.script_node import ScriptOutputNode, require_script
from airflow_trident.plan.stages import Plan
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile
from airflow_trident.staging.storage import absolute_root

JOB_CONF = airflow_trident_script.JOB


class Submitter(Protocol):
    """Runs one application to its end; raises if it failed."""

    def __call__(self, application: str, arguments: list[str], tags: DriverTags) -> None: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The inputs and outputs of a run of the script. `run`: its name alone. `order`: the address of what it is told.
    `job_path`: what the module `helper`, which it imports, reads that by. `folders`: output -> where its runs write, in
    the storage."""

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
                found = {one.name: inputs.batch(one, job.metadata.get(one.name)) for one in _sources(job.plan)}
                batches = {name: folder.offered(one) for name, one in found.items()}
                return self._run(job, folder, _given(job, folder, batches))

    def cancel(self, slot: Slot | None = None) -> None:
        with self._lock:
            running = [submitter for one, submitter in self._running if slot is None or slot == one]
        for submitter in running:
            submitter.cancel()

    def _run(self, job: Job, folder: ScriptFolder, given: _Given) -> Manifest:
        over = True
        try:
            given.require_same()
            over = False
            self._submit(job, folder, given)
            over = True
            given.require_same()
            return self._manifest(job, folder, given.folders, given.rows)
        finally:
            leave(given.order, over=over)

    def _submit(self, job: Job, folder: ScriptFolder, given: _Given) -> None:
        what = f"script {self._application!r} of topology {job.slot.topology!r}, transaction {job.slot.txid}"
        reach = {name: value for name, value in folder.conf.items() if name not in self._conf}
        own = {**reach, JOB_CONF: given.job_path}
        if job.shaken:
            conf = shaken_conf(self._conf.get)
            own |= conf
            job.progress(told(conf))
        submitter = self._submitter(own, given.helper, partial(note, given.order))
        with self._lock:
            self._running.append((job.slot, submitter))
        try:
            submitter(self._application, list(self._arguments), tags_of([job], given.run))
        except TridentError:
            raise
        except Exception as error:
            text = str(error)
            if other := other_release(text, what):
                raise other from error
            raise SparkJobError(
                f"{what} failed: {root_cause(text) or type(error).__name__}",
                f"What it printed is above. {cure_of(text)}",
            ) from error
        finally:
            with self._lock:
                self._running.remove((job.slot, submitter))

    def _manifest(self, job: Job, folder: ScriptFolder, folders: Mapping[str, str], rows: int) -> Manifest:
        files: list[StagedFile] = []
        wanted = {name: (node.schema, folders[name]) for name, node in _outputs(job.plan).items()} if folders else {}
        whole = written_by(self._application, folder.storage, wanted)
        for stage in job.plan.stages:
            if isinstance(stage.begin, ScriptOutputNode):
                for sink in stage.sinks:
                    found = whole.get(stage.begin.output, [])
                    files += [
                        StagedFile(state=sink.name, path=one.path, rows=one.rows, bytes=one.bytes) for one in found
                    ]
                    job.progress(f"staged {sum(one.rows for one in found)} rows for state {sink.name}")
        return Manifest(slot=job.slot, files=tuple(files), rows_read=rows, sinks=job.plan.staged_fields)


def _given(job: Job, folder: ScriptFolder, batches: Mapping[str, ScriptBatch]) -> _Given:
    run = uuid.uuid4().hex
    own = {node.output: f"{node.output}-{run}" for node in _outputs(job.plan).values()}
    for one in own.values():
        folder.make(one)
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
        "outputs": {name: folder.url(one) for name, one in own.items()},
    }
    name = f"{file_name(run, [job])}.{'trial' if job.trial else 'script'}.json"
    path = folder.put_job(name, json.dumps(content).encode())
    order = f"{absolute_root(job.staging_root).rstrip('/')}/{folder.name(name)}"
    folders = {output: folder.name(one) for output, one in own.items()}
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
