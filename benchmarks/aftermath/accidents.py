"""The accidents, and what is left after them.

A batch has 1,000 rows, each with a value of its own, so what is lost and what is there twice can be told apart.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

ROWS = 1_000
TIMEOUT_S = 600
"""Only what would never end reaches it."""


class At(StrEnum):
    """Places in a job. `DECIDED`: it knows what to write, and has written nothing. `WRITTEN`: the store has all."""

    BEGIN = "begin"
    DECIDED = "decided"
    MIDDLE = "middle"
    WRITTEN = "written"
    ENDED = "ended"


class Accident(StrEnum):
    """The value is what the table says."""

    RETRY = "retry"
    KILL = "kill"
    UNSEEN = "success unseen"
    CLEAR = "clear"
    LATE = "late"
    TWO_DECIDED = "two, before the write"
    TWO_WRITING = "two, in the write"

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches that are to be in the store once."""
        return (1, 2) if self is Accident.LATE else (1,)

    @property
    def dies(self) -> At | None:
        """Where the first job is killed."""
        return _DIES.get(self)

    @property
    def waits(self) -> At | None:
        """Where the first job stops until its retry has ended."""
        return _WAITS.get(self)


_DIES = {Accident.RETRY: At.WRITTEN, Accident.KILL: At.MIDDLE, Accident.UNSEEN: At.ENDED, Accident.LATE: At.BEGIN}
_WAITS = {Accident.TWO_DECIDED: At.DECIDED, Accident.TWO_WRITING: At.MIDDLE}


@dataclass(frozen=True)
class Left:
    """What a reader of the store finds in the end. `ended`: how the jobs ended, in words."""

    lost: int
    doubled: int
    ended: str

    @classmethod
    def of(cls, found: Iterable[str], accident: Accident, ended: str) -> Left:
        """:param found: the values of all rows."""
        wanted = {f"{batch}-{number}" for batch in accident.batches for number in range(ROWS)}
        times = Counter(found)
        foreign = times.keys() - wanted
        if foreign:
            raise AssertionError(f"rows that nobody wrote: {sorted(foreign)[:3]}")
        return cls(lost=len(wanted - times.keys()), doubled=sum(times.values()) - len(times), ended=ended)

    def __str__(self) -> str:
        wrong = [f"{count:,} {what}" for what, count in (("lost", self.lost), ("doubled", self.doubled)) if count]
        return f"**{', '.join(wrong)}**" if wrong else "right"


@dataclass(frozen=True)
class Place:
    """The place of a job's accident. It is sent to Spark's workers. `driver`: the process that dies."""

    folder: str
    accident: str
    driver: int

    @classmethod
    def taken(cls, folder: str) -> Place:
        """Of a job that Airflow starts: the first one that asks has the accident that the folder names."""
        named = Path(folder, "accident")
        try:
            named.rename(named.with_name("accident-taken"))
        except FileNotFoundError:
            return cls(folder, "", os.getpid())
        return cls(folder, named.with_name("accident-taken").read_text(), os.getpid())

    def reached(self, where: At) -> None:
        """Die here, or wait here, once, if that is the job's accident."""
        if not self.accident:
            return
        accident = Accident(self.accident)
        if accident.waits == where:
            Path(self.folder, "paused").touch()
            while not Path(self.folder, "go on").exists():
                time.sleep(0.02)
        elif accident.dies == where:
            _kill(self.driver)
            os._exit(1)  # in a worker of Spark


def _kill(driver: int) -> None:
    """SIGKILL for a driver and its JVM, which would clean up: spark-submit's JVM started the driver, others it did."""
    process = psutil.Process(driver)
    first = process.parent()
    parents = [first] if first is not None and first.name() == "java" else []
    for one in (*parents, *process.children(recursive=True), process):
        if one is process or one.name() == "java":
            with suppress(psutil.NoSuchProcess):
                os.kill(one.pid, signal.SIGKILL)


def spark_rows(frame: Any, place: Place) -> Any:
    """The rows unchanged, half of them by each of two tasks. The place is reached when the first one has ended and the
    second one begins (in `local[1]`): what a job of many tasks looks like in its middle."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            place.reached(At.MIDDLE)
        yield from batches

    return frame.repartition(2).mapInArrow(rows, "value string")


def arrive(folder: str, batch: int) -> None:
    """A batch arrives as a text file."""
    path = Path(folder, "in", f"{batch}.txt")
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.with_suffix(".partial").write_text("".join(f"{batch}-{number}\n" for number in range(ROWS)))
        path.with_suffix(".partial").rename(path)


def values_of(folder: str) -> list[str]:
    """The values of all rows that a reader of the folder or table `out` sees."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    out = f"{folder}/out"
    if Path(folder, "catalog.db").exists():
        found = iceberg_table(folder).scan().to_arrow()
    elif not Path(out).exists():
        return []
    elif DeltaTable.is_deltatable(out):
        found = DeltaTable(out).to_pyarrow_table()
    else:
        files = ds.dataset(out, format="parquet")
        if not files.files:
            return []
        found = files.to_table()
    values: list[str] = found.column("value").to_pylist()
    return values


def make_delta_table(folder: str) -> None:
    """The table is there before the first batch, as in life: who makes a table meets conflicts that no later writer
    meets."""
    import pyarrow as pa
    from deltalake import DeltaTable

    DeltaTable.create(f"{folder}/out", pa.schema([("value", pa.string())]))


def iceberg_table(folder: str) -> Any:
    """The table `out` of the folder's own catalogue, made if it is missing."""
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("here", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/out")
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table_if_not_exists("lake.out", pa.schema([("value", pa.string()), ("batch", pa.int64())]))
