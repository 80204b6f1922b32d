"""The numbers of checks on their way from Spark's Python workers to the driver.

A counter of Spark counts a recomputed partition twice. So each pass over a partition leaves a note, and a partition
counts once. No note may be missing: a task that cannot leave its note fails. Rows that Spark did not compute are
measured in a job of their own.
"""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.engine import Job, blaming
from airflow_trident.engine.fused.frames import Frame
from airflow_trident.engine.fused.measuring import Gauges, Numbers, note_of
from airflow_trident.engine.fused.passes import PassStep
from airflow_trident.errors import SparkJobError, TridentError, UnseenFilesError
from airflow_trident.io.place import Place, clear
from airflow_trident.io.places import place_at
from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import CheckNode, FilterNode, MultiReduceStepNode, PartitionAggregateNode
from airflow_trident.plan.stages import Stage
from airflow_trident.staging.area import make_slot_folder
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa

NOTE: Schema = (Field("note", "binary"),)
"""Rows of a job that only measures."""
_SEEN = "seen"


@dataclass(frozen=True)
class CheckNotes:
    """Notes of one run, in a folder that workers see. A note's name: its pass, the partition, and the task."""

    place: Place
    folder: str

    def begin(self) -> None:
        """Workers look for this file: so each proves that the driver sees its notes."""
        self.place.put(f"{self.folder}/{_SEEN}", lambda _: None)

    def leave(self, label: str, partition: int, note: bytes) -> None:
        """:raises UnseenFilesError: this process does not see the driver's folder.
        :raises TridentError: it cannot be written.
        """
        if self.place.stat(f"{self.folder}/{_SEEN}") is None:
            raise UnseenFilesError(
                f"the folder {self.place.at(self.folder)!r}, where checks leave their numbers, is not there on "
                f"{socket.gethostname()}",
                "Mount one shared folder under the same path on the driver and all executors, and name it in "
                "[trident] staging_dir.",
            )
        name = f"{label}.{partition}.{_task()}.{uuid.uuid4().hex}"
        self.place.put(f"{self.folder}/{name}", lambda file: file.write(note))

    def of_each(self) -> dict[str, dict[int, list[bytes]]]:
        """Pass -> partition -> its notes. A task may pass over several partitions as one.

        :raises SparkJobError: a partition was made again, with other numbers.
        """
        names: dict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for entry in self.place.list(self.folder):
            name = os.path.basename(entry.name)
            if name != _SEEN:
                label, number, task, _ = name.split(".")
                names[label, int(number)][task].append(name)
        notes: dict[str, dict[int, list[bytes]]] = defaultdict(dict)
        for (label, partition), tasks in names.items():
            contents = [sorted(self.place.read(f"{self.folder}/{name}") for name in some) for some in tasks.values()]
            if any(content != contents[0] for content in contents):
                raise SparkJobError(
                    "Spark made a partition again, and checks measured other numbers in it",
                    "Nothing of this attempt counts; a retry begins a new one. If it repeats, find the function whose "
                    "result for a row changes.",
                )
            notes[label][partition] = contents[0]
        return notes


def _task() -> int:
    """The number of the try of a Spark task, in its application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0


@contextmanager
def check_notes(job: Job, *, local: bool) -> Iterator[CheckNotes | None]:
    """Where the checks of a run leave notes; removed afterwards. None: its plan has no checks.

    :param local: workers see the file system of this process.
    """
    if not job.plan.check_nodes:
        yield None
        return
    place = place_at(job.staging_root)
    if local and not place.is_local:
        with tempfile.TemporaryDirectory(prefix="checks-", ignore_cleanup_errors=True) as folder:
            notes = CheckNotes(place_at(folder), "notes")
            notes.begin()
            yield notes
        return
    if place.is_local:
        make_slot_folder(job.staging_root, job.slot)
    notes = CheckNotes(place.resolved(), f"{job.slot.path}/checks-{uuid.uuid4().hex}")
    notes.begin()
    try:
        yield notes
    finally:
        with suppress(TridentError):  # it goes with its slot
            clear(notes.place, notes.folder)


@dataclass(frozen=True)
class LeaveNote:
    """Passes on the numbers of a pass when it is over. `returns`: they are the result of the job."""

    notes: CheckNotes
    label: str
    returns: bool = False

    def after(
        self, stream: Iterable[pa.RecordBatch], partition: int, measured: Sequence[Gauges]
    ) -> Iterator[pa.RecordBatch]:
        """:param measured: complete when the stream has ended."""
        import pyarrow as pa

        if self.returns:
            for _ in stream:
                pass
            yield pa.RecordBatch.from_pylist([{"note": note_of(measured)}], pa.schema({"note": pa.binary()}))
            return
        yield from stream
        self.notes.leave(self.label, partition, note_of(measured))


@dataclass(frozen=True)
class MemberChecks:
    """Measures a check of a group behind a repartition, where rows of several transactions are together.

    :param member: the column with the position of a row's transaction.
    """

    slots: tuple[Slot, ...]
    step: PassStep
    member: str
    checks: LeaveNote

    def __call__(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        measured: dict[int, Gauges] = {}
        # the list grows while the stream goes on
        every: list[Gauges] = []
        yield from self.checks.after(self._measured(batches, measured, every), partition, every)

    def _measured(
        self, batches: Iterable[pa.RecordBatch], measured: dict[int, Gauges], every: list[Gauges]
    ) -> Iterator[pa.RecordBatch]:
        import numpy as np

        node = self.step.node
        assert isinstance(node, CheckNode)
        for batch in batches:
            members = batch.column(self.member).to_numpy()
            for member in np.unique(members).tolist():
                txid = self.slots[member].txid
                if member not in measured:
                    measured[member] = Gauges(member)
                    measured[member].gauge(node, self.step.before, txid)
                    every.append(measured[member])
                with blaming(txid):
                    part = batch.filter(_mask(members == member))
                    measured[member].gauges[0].add(Frame.of_batch(part, frozenset(node.reads)))
            yield batch


def _mask(values: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(values)


# ---- on the driver ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _CheckPass:
    """A pass that measures. `partitions`: all that it has, if that is known. `again`: runs a job that measures it, and
    gives the notes."""

    is_sure: bool
    partitions: int | None
    again: Any


@dataclass
class CheckPasses:
    """The passes of a run, or of one transaction of a group, that measure rules.

    :param stages: of the plan.
    :param member: the position of the transaction in its group.
    """

    stages: Sequence[Stage]
    member: int = 0
    notes: CheckNotes | None = None
    _passes: dict[str, _CheckPass] = field(default_factory=dict)

    def leaving(self, nodes: Iterable[Node], *, partitions: int | None, again: Any) -> LeaveNote | None:
        """The way of a pass with these nodes to report its numbers; None: it measures nothing. A pass
        that is planned again, to run again, is the same one.

        :param again: ``again(leave)``: runs the pass alone, in a job whose result is NOTE.
        """
        names = [node.name for node in nodes if isinstance(node, CheckNode)]
        if not names or self.notes is None:
            return None
        every = [node.name for stage in self.stages for node in stage.nodes if isinstance(node, CheckNode)]
        leave = LeaveNote(self.notes, f"{self.member}-{every.index(names[0])}")
        is_sure = any(name in surely_run(self.stages) for name in names)
        result = replace(leave, returns=True)
        self._passes[leave.label] = _CheckPass(is_sure=is_sure, partitions=partitions, again=lambda: again(result))
        return leave

    def merge_into(self, numbers: Numbers, notes: dict[str, dict[int, list[bytes]]]) -> None:
        """The numbers of all passes, each partition once. A pass that may not be complete runs again alone: Spark does
        not compute all rows beside the empty side of a join."""
        for label, check_pass in self._passes.items():
            partitions = notes.get(label, {})
            is_complete = check_pass.is_sure or len(partitions) == check_pass.partitions
            some = [note for of_one in partitions.values() for note in of_one] if is_complete else check_pass.again()
            for note in some:
                numbers.merge_note(note)


def surely_run(stages: Sequence[Stage]) -> frozenset[str]:
    """The checks whose rows all lead to a staged result: Spark computes each partition of them to its end. It may leave
    out what does not matter for a join or a query, and what comes before a limit or a condition without fields."""
    sure: set[int] = set()
    names: set[str] = set()
    for stage in reversed(stages):
        if stage.sinks:
            sure.add(stage.index)
        if stage.index not in sure:
            continue
        first = stage.nodes[0] if stage.nodes else None
        passes = not any(isinstance(node, FilterNode) and not node.reads for node in stage.nodes)
        if passes:
            names |= {node.name for node in stage.nodes if isinstance(node, CheckNode)}
        if passes and stage.transform is None and not isinstance(first, MultiReduceStepNode | PartitionAggregateNode):
            sure |= set(stage.upstreams)
    return frozenset(names)
