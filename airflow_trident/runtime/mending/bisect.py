"""Finds the poison record: narrows a failing transaction to the smallest run of input rows that still fails.

Runs the processing phase again and again over parts of the recorded batch, into a temporary folder. It only reads
ledger and states.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.engine.base import Engine, Job, quiet
from airflow_trident.engine.key_limit import NO_LIMIT
from airflow_trident.errors import TransitionError, TridentError, spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.plan.stages import Plan
from airflow_trident.runtime.phases import Progress, kept_record
from airflow_trident.staging.manifest import Slot
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS = 5
_ROWS_LEFT_OUT = "the rows and their error are in the task's log alone ([trident] rows_in_errors is False)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """The smallest part that fails: `rows` rows of `stream` from row `first` of the batch (0 is the first one).

    `where`: the split of the first of these rows, as its spout names it. `examples`: at most five of the rows. `alone`
    is false if only rows far from each other fail together, so that no half of the part fails by itself.
    """

    stream: str
    first: int
    rows: int
    where: Json
    examples: tuple[tuple[Any, ...], ...]
    error: str
    alone: bool
    runs: int


def poison_lines(txid: int, found: Poison | None, *, rows: bool = True) -> list[str]:
    """The result of :func:`bisect`, for people.

    :param rows: False leaves out every text that may quote rows: see :func:`airflow_trident.errors.recorded_text`.
    """
    if found is None:
        return [f"transaction {txid} does not fail: nothing to find"]
    what = f"{found.rows} rows" if found.rows > 1 else "1 row"
    return [
        f"stream {found.stream}: {what} from row {found.first} of the batch, in {found.where!r} ({found.runs} runs)",
        *([] if found.alone else ["no half of them fails by itself: rows far from each other fail together"]),
        *((*(f"  {row!r:.400}" for row in found.examples), found.error) if rows else (_ROWS_LEFT_OUT,)),
    ]


def bisect(ledger: Ledger, topology: Topology, txid: int, engine: Engine, progress: Progress = quiet) -> Poison | None:
    """The rows of transaction `txid` that make its processing fail; None if it does not fail (any more).

    Needs about two runs per halving: some forty for a million rows.

    :raises TransitionError: never begun, or committed and pruned, or without a batch now (opaque).
    :raises SourceChangedError: the source no longer holds the batch.
    """
    view = ledger.view(txid)
    record = kept_record(view, topology.name, txid)
    if record.invalidated:
        raise TransitionError(
            f"transaction {txid} has no batch since a lower one was attempted again", "Let it be attempted first."
        )
    slot = Slot(topology=topology.name, incarnation=view.topology.incarnation, txid=txid, attempt=record.attempt)
    search = _Search(topology.compile(), slot, record.metadata, engine, progress)
    whole = search.error_of({})
    if whole is None:
        return None
    for stream in record.metadata:
        found = search.narrow(stream)
        if found is not None:
            return found
    stream = next(iter(record.metadata))
    return search.poison(stream, 0, search.rows_of(stream), whole, alone=False)


@dataclass
class _Search:
    _plan: Plan
    _slot: Slot
    _metadata: dict[str, Json]
    _engine: Engine
    _progress: Progress

    def __post_init__(self) -> None:
        self._runs = 0
        self._sizes = {name: self._split_rows(name) for name in self._metadata}

    def rows_of(self, stream: str) -> int:
        return sum(rows for _, rows in self._sizes[stream])

    def error_of(self, ranges: dict[str, tuple[int, int]]) -> str | None:
        """The error of a run over rows ``first <= row < last`` of the named streams and all rows of the others; None:
        no error."""
        self._runs += 1
        plan = _restricted(self._plan, {name: (*bounds, self._sizes[name]) for name, bounds in ranges.items()})
        with tempfile.TemporaryDirectory(prefix="trident-bisect-") as folder:
            try:
                self._engine.run(
                    Job(
                        plan=plan,
                        slot=self._slot,
                        metadata=self._metadata,
                        staging_root=folder,
                        trial=True,
                        max_keys=NO_LIMIT,
                    )
                )
            except TridentError as error:
                return str(error)
        return None

    def narrow(self, stream: str) -> Poison | None:
        """Halves the stream's rows as long as one half fails; None if the failure does not depend on them."""
        first, last = 0, self.rows_of(stream)
        if last == 0 or self.error_of({stream: (0, 0)}) is not None:
            return None
        error, alone = "", True
        while last - first > 1:
            middle = (first + last) // 2
            for bounds in ((first, middle), (middle, last)):
                found = self.error_of({stream: bounds})
                if found is not None:
                    (first, last), error = bounds, found
                    self._progress(f"stream {stream}: rows {first} to {last - 1} fail")
                    break
            else:
                alone = False
                break
        error = error or self.error_of({stream: (first, last)}) or ""
        return self.poison(stream, first, last - first, error, alone=alone)

    def poison(self, stream: str, first: int, rows: int, error: str, *, alone: bool) -> Poison:
        sizes, begin = self._sizes[stream], 0
        where: Json = None
        for split, count in sizes:
            if begin <= first < begin + count:
                where = split.body
            begin += count
        source = next(source for source in self._plan.sources if source.name == stream)
        with spout_code(stream):
            last = min(first + rows, first + SHOWN_ROWS)
            emitter = _SlicedEmitter(source.spout.emitter(), first, last, tuple(sizes))
            examples = tuple(
                tuple(row.values())
                for split in emitter.splits(self._metadata[stream])
                for batch in emitter.read(split)
                for row in batch.to_pylist()
            )
        return Poison(
            stream=stream,
            first=first,
            rows=rows,
            where=where,
            examples=examples,
            error=error,
            alone=alone,
            runs=self._runs,
        )

    def _split_rows(self, stream: str) -> list[tuple[Split, int]]:
        source = next(source for source in self._plan.sources if source.name == stream)
        with spout_code(stream):
            emitter = source.spout.emitter()
            splits = emitter.splits(self._metadata[stream])
            return [(split, sum(batch.num_rows for batch in emitter.read(split))) for split in splits]


Slice = tuple[int, int, list[tuple[Split, int]]]


def _restricted(plan: Plan, slices: dict[str, Slice]) -> Plan:
    """The plan over parts of its sources."""
    spouts: dict[str, Spout] = {}
    for source in plan.sources:
        if source.name in slices:
            first, last, sizes = slices[source.name]
            spouts[source.name] = _SlicedSpout(source.spout, first, last, tuple(sizes))
    return plan.with_spouts(spouts)


@dataclass(frozen=True)
class _SlicedSpout(Spout):
    """Rows ``first <= row < last`` of another spout's batch, counted over its splits in order."""

    spout: Spout
    first: int
    last: int
    sizes: tuple[tuple[Split, int], ...]

    @property
    def schema(self) -> Schema:
        return self.spout.schema

    def coordinator(self) -> Coordinator:
        return self.spout.coordinator()

    def emitter(self) -> Emitter:
        return _SlicedEmitter(self.spout.emitter(), self.first, self.last, self.sizes)

    def describe(self) -> str:
        return f"rows {self.first} to {self.last - 1} of {self.spout.describe()}"


@dataclass(frozen=True)
class _SlicedEmitter(Emitter):
    emitter: Emitter
    first: int
    last: int
    sizes: tuple[tuple[Split, int], ...]

    def splits(self, metadata: Json) -> list[Split]:
        begins = self._begins()
        wanted = [
            split
            for split, rows in self.sizes
            if begins[split.index] < self.last and begins[split.index] + rows > self.first
        ]
        return wanted if self.first < self.last else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        at = self._begins()[split.index]
        for batch in self.emitter.read(split):
            begin, end = max(self.first - at, 0), min(self.last - at, batch.num_rows)
            if begin < end:
                yield batch.slice(begin, end - begin)
            at += batch.num_rows

    def _begins(self) -> dict[int, int]:
        begins, at = {}, 0
        for split, rows in self.sizes:
            begins[split.index] = at
            at += rows
        return begins
