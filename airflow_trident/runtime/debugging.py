"""Finds the poison record: narrows a failing transaction to the smallest run of input rows that still fails.

Runs the processing phase again and again over parts of the recorded batch, into a temporary folder. It only reads
ledger and states.

Dry replay: runs a transaction again without committing, and compares the result with what was staged.

Finds spouts that do not give the same batch again, and functions that depend on more than their input.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.engine.engine import Engine, Job, quiet
from airflow_trident.engine.key_limit import NO_LIMIT
from airflow_trident.errors import StagingError, TransitionError, TridentError, spout_code
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.plan.stages import Plan
from airflow_trident.runtime.phases import Progress, kept_record
from airflow_trident.runtime.staged_batches import manifest_of, tell_other_code
from airflow_trident.staging.area import StagingArea
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


def poison_lines(txid: int, poison: Poison | None, *, rows: bool = True) -> list[str]:
    """The result of :func:`bisect`, for people.

    :param rows: False leaves out every text that may quote rows: see :func:`airflow_trident.errors.recorded_text`.
    """
    if poison is None:
        return [f"transaction {txid} does not fail: nothing to find"]
    count = f"{poison.rows} rows" if poison.rows > 1 else "1 row"
    return [
        f"stream {poison.stream}: {count} from row {poison.first} of the batch, in {poison.where!r} ({poison.runs} "
        "runs)",
        *([] if poison.alone else ["no half of them fails by itself: rows far from each other fail together"]),
        *((*(f"  {row!r:.400}" for row in poison.examples), poison.error) if rows else (_ROWS_LEFT_OUT,)),
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
        poison = search.narrow(stream)
        if poison is not None:
            return poison
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
                error_of_half = self.error_of({stream: bounds})
                if error_of_half is not None:
                    (first, last), error = bounds, error_of_half
                    self._progress(f"stream {stream}: rows {first} to {last - 1} fail")
                    break
            else:
                alone = False
                break
        error = error or self.error_of({stream: (first, last)}) or ""
        return self.poison(stream, first, last - first, error, alone=alone)

    def poison(self, stream: str, first: int, rows: int, error: str, *, alone: bool) -> Poison:
        sizes, begin = self._sizes[stream], 0
        body: Json = None
        for split, count in sizes:
            if begin <= first < begin + count:
                body = split.body
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
            where=body,
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


EXAMPLES_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """How one state's batch differs. `missing`: rows staged but not replayed; `extra`: rows replayed but not staged; a
    few examples each. `missing_rows`, `extra_rows`: how many. `only_reals`: if only real numbers differ, the largest
    difference as a part of the larger number; else None."""

    state: str
    staged_rows: int
    replayed_rows: int
    missing_rows: int = 0
    extra_rows: int = 0
    missing: tuple[tuple[Any, ...], ...] = ()
    extra: tuple[tuple[Any, ...], ...] = ()
    only_reals: float | None = None

    @property
    def equal(self) -> bool:
        return not (self.missing_rows or self.extra_rows)


def dry_replay(
    ledger: Ledger,
    topology: Topology,
    txid: int,
    engine: Engine,
    staging_root: str,
    progress: Progress = quiet,
    *,
    shake: bool = False,
) -> list[StateDifference]:
    """Runs transaction `txid` again into a temporary folder; one comparison per state. Only reads the ledger and the
    states.

    :param shake: use other settings that must not matter (:mod:`airflow_trident.engine.engine`): with the same
        settings most code that depends on them gives the same result again.
    :raises TransitionError: never begun, pruned, or not processed yet.
    :raises SourceChangedError: the source no longer holds the batch.
    """
    view = ledger.view(txid)
    record = kept_record(view, topology.name, txid)
    if record.staged is None:
        raise TransitionError(f"transaction {txid} has no staged batch to compare with", "Let it be processed first.")
    area = StagingArea(staging_root)
    manifest = manifest_of(area, ledger, record.staged)
    tell_other_code(manifest, topology.compile(), progress)
    slot = Slot(topology=topology.name, incarnation=view.topology.incarnation, txid=txid, attempt=record.attempt)
    with tempfile.TemporaryDirectory(prefix="trident-replay-") as folder:
        job = Job(
            plan=topology.compile(),
            slot=slot,
            metadata=record.metadata,
            staging_root=folder,
            progress=progress,
            trial=True,
            shaken=shake,
            time_ms=record.time_ms,
            max_keys=NO_LIMIT,  # they were within the one of the attempt
        )
        replayed = engine.run(job)
        again = StagingArea(folder)
        return [
            _compare(
                sink.name,
                area.read(manifest, sink.name, sink.schema),
                again.read(replayed, sink.name, sink.schema),
            )
            for sink in job.plan.staged
        ]


def _compare(state: str, staged: Any, replayed: Any) -> StateDifference:
    try:
        old, new = Counter(_hashable(staged)), Counter(_hashable(replayed))
    except TypeError as error:
        raise StagingError(f"rows of state {state!r} cannot be compared: {error}") from error
    missing, extra = old - new, new - old
    return StateDifference(
        state=state,
        staged_rows=staged.num_rows,
        replayed_rows=replayed.num_rows,
        missing_rows=missing.total(),
        extra_rows=extra.total(),
        missing=tuple(sorted(missing, key=repr)[:EXAMPLES_ROWS]),
        extra=tuple(sorted(extra, key=repr)[:EXAMPLES_ROWS]),
        only_reals=_real_difference(missing, extra),
    )


def _real_difference(missing: Counter[tuple[Any, ...]], extra: Counter[tuple[Any, ...]]) -> float | None:
    """The largest difference, if the rows form pairs that differ only in real numbers. Rows that are equal otherwise
    are paired in the order of their numbers."""
    missing_rows, extra_rows = _by_the_rest(missing), _by_the_rest(extra)
    if not missing_rows or {key: len(rows) for key, rows in missing_rows.items()} != {
        key: len(rows) for key, rows in extra_rows.items()
    }:
        return None
    rows = [pair for key in missing_rows for pair in zip(missing_rows[key], extra_rows[key], strict=True)]
    pairs = [(a, b) for left, right in rows for a, b in zip(left, right, strict=True) if a != b]
    if not pairs or not all(isfinite(a) and isfinite(b) for a, b in pairs):
        return None
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)


def _by_the_rest(rows: Counter[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[tuple[float, ...]]]:
    """The other values of a row -> the real numbers of these rows, in order."""
    numbers_by_rest: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}
    for row in rows.elements():
        rest = tuple(float if isinstance(value, float) else value for value in row)
        numbers_by_rest.setdefault(rest, []).append(tuple(value for value in row if isinstance(value, float)))
    return {rest: sorted(numbers) for rest, numbers in numbers_by_rest.items()}


def _hashable(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in table_to_rows(table)]
