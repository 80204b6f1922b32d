"""Notes of workers for the driver: rows read, and partitions made.

A counter of Spark would count a recomputed split twice, and Connect has none; a repeated note says the same. If the
driver does not see the notes, only the count is unknown.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.engine.base import Job
from airflow_trident.errors import SparkJobError, TridentError
from airflow_trident.names import Composed
from airflow_trident.staging.area import make_slot_folder
from airflow_trident.staging.files import make_folder
from airflow_trident.staging.storage import storage_at
from airflow_trident.staging.verbs import Storage

if TYPE_CHECKING:
    import pyarrow as pa

NOTES = Composed(joint="-", has_case=False)
COUNTED, SO_FAR, _MADE = ".rows", ".so-far", ".made"


class Notes(ABC):
    """Best effort: no note is worth a failed attempt."""

    @abstractmethod
    def leave(self, name: str, text: str = "") -> None:
        """Replaces an older note of this name. `text`: short, no ``/``. For numbers, the largest ever left may count
        instead."""

    @abstractmethod
    def all(self) -> dict[str, str]:
        """Name -> text."""

    def rows_so_far(self) -> int:
        """The number of rows read so far over all splits, as far as notes say."""
        rows: dict[str, int] = {}
        for name, text in sorted(self.all().items(), reverse=True):  # a split's final count overrides progress
            with suppress(ValueError):
                rows[name.removesuffix(SO_FAR)] = int(text)
        return sum(rows.values())

    def made_twice(self) -> int:
        """How many partitions have more than one note."""
        made = Counter(name.rpartition("-")[0] for name in self.all() if name.endswith(_MADE))
        return sum(count > 1 for count in made.values())

    def require_made_once(self) -> None:
        """:raises SparkJobError: Spark recomputed rows that several states are made of."""
        lost = self.made_twice()
        if lost:
            raise SparkJobError(
                f"an executor was lost, and Spark made {lost} partitions again that several states are made of",
                "Nothing of this attempt counts, for the two results may differ; a retry begins anew.",
            )


@dataclass(frozen=True)
class FolderNotes(Notes):
    """Files in a folder that workers see."""

    folder: str

    def leave(self, name: str, text: str = "") -> None:
        with suppress(OSError), open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def all(self) -> dict[str, str]:
        found = {}
        with suppress(OSError):
            for name in os.listdir(self.folder):
                with suppress(OSError, ValueError), open(os.path.join(self.folder, name), encoding="ascii") as file:
                    found[name] = file.read()
        return found


@dataclass(frozen=True)
class ObjectNotes(Notes):
    """Empty objects: the names hold everything, so one listing reads all notes."""

    storage: Storage
    folder: str

    def leave(self, name: str, text: str = "") -> None:
        with suppress(TridentError):
            self.storage.put(f"{self.folder}/{name}={text}", lambda _: None)

    def all(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with suppress(TridentError):
            for path, _ in self.storage.list(self.folder):
                name, _, text = path.rpartition("/")[2].rpartition("=")
                found[name] = max(found.get(name, ""), text, key=lambda one: (len(one), one))
        return found


@contextmanager
def notes_of(job: Job, *, local: bool) -> Iterator[Notes]:
    """Notes of one pass; removed afterwards.

    :param local: workers see the file system of this process.
    """
    storage, name = storage_at(job.staging_root), f"rows-read-{uuid.uuid4().hex}"
    if not storage.is_local and not local:
        folder = f"{job.slot.path}/{name}"
        try:
            yield ObjectNotes(storage.resolved(), folder)
        finally:
            storage.delete(folder)
        return
    if storage.is_local:
        folder = storage.at(f"{job.slot.path}/{name}")
        with suppress(OSError):  # whoever writes data reports a place that cannot be written
            make_slot_folder(job.staging_root, job.slot)
            make_folder(folder, durably=False)
    else:
        folder = tempfile.mkdtemp(prefix=name)
    try:
        yield FolderNotes(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class MadeNotes:
    """Leaves a note each time that a partition of a stage was completely made.

    Spark keeps rows that several states are made of. If a kept partition is lost with its executor, Spark makes it
    again. Code that is not deterministic then gives other rows than earlier states got. Only this note shows it to the
    driver.
    """

    notes: Notes
    stage: int

    def __call__(self, batches: Iterable[pa.RecordBatch], place: int) -> Iterator[pa.RecordBatch]:
        """:param place: the number of the partition."""
        yield from batches
        self.notes.leave(f"{self.stage}-{place}-{uuid.uuid4().hex}{_MADE}")


def partition_here() -> int:
    """The number of this Spark task's partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
