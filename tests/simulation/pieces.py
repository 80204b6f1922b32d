"""Replacements for the surroundings of the protocol: ZooKeeper, staging folder, stores, source, engine. In each, others
may go on, or the process may die, wherever that could happen in the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Spout
from airflow_trident.contracts.state import StagedBatch
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.errors import (
    LedgerUnavailableError,
    OutcomeUnknownError,
    StagingError,
    UserCodeError,
)
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Op, ReadResult, Set, WriteRefusedError, require_sizes
from airflow_trident.protocol.records import StagedRef
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.staging.area import StagingArea, as_chunk, reference
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, StagedMember, unpack
from airflow_trident.types import Field, Json, Schema
from tests.simulation.days import looked_at
from tests.simulation.scheduler import Scheduler
from tests.simulation.stores import Rows

if TYPE_CHECKING:
    from tests.simulation.world import World

AT_ONCE = 0.3
"""How often another process writes in between when several nodes are read."""


# ---- ZooKeeper -------------------------------------------------------------------------------------------------


class SimTree(MemoryTree):
    """:param watch: called with every step that was applied, without the fields of a later version."""

    def __init__(self, watch: Callable[[Sequence[Op]], None]) -> None:
        super().__init__()
        self._watch = watch
        self.held: list[tuple[Op, ...]] = []
        self.log: list[Sequence[Op]] = []

    def apply(self, ops: Sequence[Op]) -> None:
        super().apply(ops)
        self.log.append(ops)
        self._watch([_of_this_version(op) for op in ops])

    def deliver(self, index: int) -> None:
        """A write that was delayed in the network for long arrives."""
        try:
            self.apply(self.held.pop(index))
        except WriteRefusedError:
            return

    def paths(self) -> list[str]:
        return list(self._nodes)

    def copy(self) -> tuple[Any, ...]:
        return dict(self._nodes), {path: set(names) for path, names in self._children.items()}

    def restore(self, copy: tuple[Any, ...]) -> None:
        self._nodes, self._children = dict(copy[0]), {path: set(names) for path, names in copy[1].items()}


class SimZNodes(MemoryZNodes):
    """One client.

    :param later: is its process of a later version of the package, whose records have a field more?
    """

    def __init__(self, tree: SimTree, scheduler: Scheduler, *, later: bool = False) -> None:
        super().__init__(tree)
        self.sim_tree = tree
        self.scheduler = scheduler
        self._later = later

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.scheduler.step()
        if self.scheduler.random.random() < self.scheduler.faults.unavailable:
            raise LedgerUnavailableError("the simulated ledger does not answer", "Try again later.")
        nodes, names = {}, {}
        slowly = self.scheduler.random.random() < AT_ONCE
        for path in paths:
            nodes[path] = self.tree.get(path)
            if slowly:
                self.scheduler.step()
        for path in folders:
            names[path] = self.tree.children(path)
        return ReadResult(nodes, names)

    def multi(self, ops: Sequence[Op]) -> None:
        require_sizes(ops)
        self.scheduler.step()
        faults, luck = self.scheduler.faults, self.scheduler.random.random()
        if luck < faults.lost_before:
            self._lost()
        luck -= faults.lost_before
        if luck < faults.late:
            if not any(isinstance(op, Create) and op.ephemeral for op in ops):  # within their session, or never
                self.sim_tree.held.append(tuple(ops))
            self._lost()
        luck -= faults.late
        self.tree.apply([_of_later_version(op) for op in ops] if self._later else ops)
        self._ephemeral.extend(op.path for op in ops if isinstance(op, Create) and op.ephemeral)
        if luck < faults.lost_after:
            self._lost()

    def _lost(self) -> None:
        self.scheduler.step()
        raise OutcomeUnknownError("the answer of the simulated ledger was lost", "Run the same step again.")

    def ensure(self, path: str) -> None:
        self.scheduler.step()
        super().ensure(path)

    def wait_for_change(self, *_: Any) -> bool:
        self.scheduler.step()
        return True


def _of_later_version(op: Op) -> Op:
    if not isinstance(op, Create | Set) or not op.data.startswith(b"{"):
        return op
    return replace(op, data=json.dumps({**json.loads(op.data), "of_later": {"version": [1]}}).encode())


def _of_this_version(op: Op) -> Op:
    if not isinstance(op, Create | Set) or b'"of_later"' not in op.data:
        return op
    fields = json.loads(op.data)
    del fields["of_later"]
    return replace(op, data=json.dumps(fields).encode())


# ---- staging ---------------------------------------------------------------------------------------------------


@dataclass
class Staging:
    """The content of a staging folder. `away`: what is written does not arrive here."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    files: dict[str, Rows] = field(default_factory=dict)
    number: int = 0
    away: bool = False


class SimBatch(StagedBatch):
    """A staged batch with rows of the simulation."""

    def table(self) -> Any:
        (rows,) = self.pieces()
        return rows


@dataclass(frozen=True)
class SimArea:
    """Replaces StagingArea: the same promises, no disk. `batch_type`: of what it gives to states."""

    staging: Staging
    scheduler: Scheduler
    batch_type: type[SimBatch] = SimBatch

    def write(self, slot: Slot, state: str, rows: Rows, *, kept_bytes: int = 0) -> StagedFile:
        self.scheduler.step()
        self.staging.number += 1
        path = f"{slot.path}/{state}-{self.staging.number}"
        content = json.dumps(rows.records).encode()
        if len(content) <= kept_bytes:
            return StagedFile(state=state, path=path, rows=rows.num_rows, bytes=rows.num_rows, content=content)
        if not self.staging.away:
            self.staging.files[path] = rows
        return StagedFile(state=state, path=path, rows=rows.num_rows, bytes=rows.num_rows)

    publish_group = StagingArea.publish_group
    read = StagingArea.read
    read_each = StagingArea.read_each
    require_members = StagingArea.require_members

    def publish(self, manifest: Manifest, *, chunk_bytes: int = 0) -> StagedRef:
        if why := manifest.damage():
            raise StagingError(f"{manifest.slot.path} contradicts itself: {why}", "")
        if (small := as_chunk(manifest, chunk_bytes)) is not None:
            return small
        self.scheduler.step()
        self.staging.files.update({file.path: _rows(file) for file in manifest.files if file.content})
        manifest = replace(manifest, files=tuple(replace(file, content=b"") for file in manifest.files))
        found = self.staging.manifests.setdefault(f"{manifest.slot.path}/manifest.json", manifest)
        if found != manifest:
            raise StagingError(f"{manifest.slot.path} has published another staged batch already", "")
        return reference(manifest)

    def load(self, what: StagedRef, content: bytes | None = None) -> Manifest:
        self.scheduler.step()
        if content is not None:
            return unpack(content, what.chunk, "")
        if what.manifest not in self.staging.manifests:
            raise StagingError(f"{what.manifest} is not there", "")
        return self.staging.manifests[what.manifest]

    def require_there(self, manifest: Manifest, states: Mapping[str, Schema]) -> None:
        self._require_files(manifest, [file for file in manifest.files if file.state in states])

    def batch(self, manifest: Manifest, state: str, schema: Schema, txid: int) -> SimBatch:
        """It is read later, and may vanish before."""
        (own,) = [one for one in manifest.members if one.txid == txid]
        rows = manifest.rows.get(state, 0) if manifest.inseparable else own.rows.get(state, (0, 0))[1]
        return self.batch_type(
            schema=schema,
            num_rows=rows,
            pieces=lambda: iter(self.read_each(manifest, {txid: own.attempt}, state, schema)),
        )

    def _require_files(self, manifest: Manifest, files: Sequence[StagedFile]) -> None:
        if any(not file.content and file.path not in self.staging.files for file in files):
            raise StagingError(f"a file of {manifest.slot.path} is missing", "")

    def _read(self, manifest: Manifest, state: str, schema: Schema) -> Rows:
        files = [file for file in manifest.files if file.state == state]
        self._require_files(manifest, files)
        parts = (_rows(file) if file.content else self.staging.files[file.path] for file in files)
        return Rows(tuple(record for part in parts for record in part.records))

    def remove_before(self, topology: str, incarnation: str, txid: int, keeps: Callable[[int], bool]) -> int:
        return self._remove(lambda number: number < txid and not keeps(number))

    def remove_from(self, topology: str, incarnation: str, txid: int) -> int:
        return self._remove(lambda one: one >= txid)

    def _remove(self, is_old: Callable[[int], bool]) -> int:
        old = [path for path, manifest in self.staging.manifests.items() if is_old(manifest.slot.txid)]
        for path in old:
            del self.staging.manifests[path]
        return len(old)


def _rows(file: StagedFile) -> Rows:
    return Rows(tuple(json.loads(file.content)))


# ---- source and engine -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SimSpout(Spout):
    """Records 0 to `total` - 1 of the world. The size of a new batch is random, also when it is chosen again.

    :param played: as in :class:`SimStates`.
    """

    played: Callable[[], World]
    kind: SpoutKind = SpoutKind.TRANSACTIONAL

    @property
    def schema(self) -> Schema:
        return (Field("record", "long"),)

    def coordinator(self) -> SimCoordinator:
        return SimCoordinator(self.played())

    def emitter(self) -> Emitter:
        raise NotImplementedError

    def describe(self) -> str:
        return "SimSpout"


@dataclass(frozen=True)
class SimCoordinator(Coordinator):
    world: World

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        self.world.scheduler.step()
        begin = previous["to"] if isinstance(previous, dict) else 0
        if begin >= self.world.total:
            return None
        return {"from": begin, "to": min(begin + self.world.random.randint(1, 2), self.world.total)}


def batch_of(metadata: dict[str, Json]) -> tuple[int, ...]:
    """The records that a transaction's metadata names."""
    if (look := looked_at(metadata)) is not None:
        return tuple(look.values())
    of_stream: Any = metadata.get("records", {"from": 0, "to": 0})
    return tuple(range(of_stream["from"], of_stream["to"]))


@dataclass
class SimEngine(Engine):
    """Reads the batch and stages it for each state.

    :param begun: called with each attempt that is at work. `reads`: reads a batch at its source.
    :param merges: groups are merged by key, so the rows of a member cannot be told from those of others.
    """

    area: SimArea
    begun: Callable[[Slot], None]
    poison: float

    merges: bool = False
    reads: Callable[[dict[str, Json]], None] = lambda metadata: None
    name = "simulated"
    takes_groups = True

    def run(self, job: Job) -> Manifest:
        self.begun(job.slot)
        scheduler = self.area.scheduler
        scheduler.step()
        if scheduler.random.random() < self.poison:
            raise UserCodeError("poison", "Mend it.")
        self.reads(job.metadata)
        rows = Rows(batch_of(job.metadata))
        write = partial(self.area.write, kept_bytes=job.chunk_bytes)
        files = tuple(write(job.slot, sink.name, rows) for sink in job.plan.staged)
        return Manifest(slot=job.slot, files=files, rows_read=rows.num_rows, sinks=job.plan.staged_fields)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        for job in jobs:
            self.begun(job.slot)
        scheduler, last = self.area.scheduler, jobs[-1]
        scheduler.step()
        if scheduler.random.random() < self.poison:
            raise UserCodeError("poison", "Mend it.")
        for job in jobs:
            self.reads(job.metadata)
        batches = [batch_of(job.metadata) for job in jobs]
        begins = [sum(map(len, batches[:number])) for number in range(len(batches))]
        rows = Rows(tuple(record for batch in batches for record in batch))
        write = partial(self.area.write, kept_bytes=last.chunk_bytes)
        files = tuple(write(last.slot, sink.name, rows) for sink in last.plan.staged)

        def rows_of(number: int) -> dict[str, tuple[int, int]]:
            return {} if self.merges else {file.state: (begins[number], len(batches[number])) for file in files}

        group = tuple(
            StagedMember(
                txid=job.slot.txid, attempt=job.slot.attempt, rows_read=len(batches[number]), rows=rows_of(number)
            )
            for number, job in enumerate(jobs)
        )
        return Manifest(
            slot=last.slot,
            files=files,
            rows_read=rows.num_rows,
            sinks=last.plan.staged_fields,
            group=group,
            inseparable=self.merges,
        )
