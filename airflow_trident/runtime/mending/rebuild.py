"""Rebuild: replays what a state lacks into that state only, from what the ledger still has.

This is the cure for a state that is behind its ledger: restored from an old copy, deleted, moved. The state itself says
what it lacks, and each transaction goes in by its own atomic step; so a rebuild may be killed anywhere, run again, and
run twice at once. Nothing commits meanwhile: every committer refuses until the states are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import Marker, StateSpec
from airflow_trident.engine.engine import Engine, Job, quiet
from airflow_trident.engine.key_limit import NO_LIMIT
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    LostTransactionsError,
    OtherPlanError,
    SourceChangedError,
    SourceUnavailableError,
    StagingError,
    state_code,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.places import temporary_root
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.recovery import GONE
from airflow_trident.plan.commit.levels import leading_to
from airflow_trident.plan.graph import SinkNode, ordered
from airflow_trident.plan.nodes import NewValuesNode, StateQueryNode
from airflow_trident.protocol.file_partitions import without_files
from airflow_trident.protocol.records import CommitTicket, LedgerView, Loss, StagedRef, Status, TxRecord
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.state_gaps import needed_by
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.downstream import apply_downstream, with_commit_time
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.runtime.phases import Progress
from airflow_trident.runtime.staged_batches import manifest_of, require_same_plan, tell_other_code
from airflow_trident.runtime.state_agreement import lacking, markers_of, require_ledger_ahead
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    import pyarrow as pa

LostReasons = dict[str, dict[int, str]]
"""State -> txid -> why it cannot be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild did, by state: `replayed`, and `lost` for good, which a person accepted."""

    replayed: dict[str, Txids]
    lost: dict[str, Txids]


NewerByKey = Mapping[str, int]
"""Partition or file of a transaction -> a newer transaction that has replaced it."""


def _is_whole(record: TxRecord, newer: NewerByKey) -> bool:
    """Has all of what a transaction brought been replaced?"""
    return bool(newer) and newer.keys() >= set(record.partitions)


class _CannotReplay(Exception):
    """It turns out that a transaction is lost."""


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """Brings states of a topology up to their ledger."""

    ledger: Ledger
    topology: Topology
    engine: Callable[[], Engine]
    staging_root: str
    by: str = ""
    progress: Progress = quiet

    def lacks(self, states: Collection[str] = ()) -> dict[str, Txids]:
        """What each of these states lacks; without names, each state of the topology. Complete states are left out.

        :raises ConfigurationError: the topology has no such state, or the state cannot know what it lacks.
        :raises LedgerBehindStateError: not the state but the ledger is behind.
        """
        return self._look(states)[0]

    def run(self, states: Collection[str] = (), *, accept_loss: str = "", dry_run: bool = False) -> Rebuilt:
        """Replays into `states` (all, if none is named) what they lack.

        :param accept_loss: why a person goes on without transactions that cannot be replayed; kept in the ledger.
        :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
        :raises LostTransactionsError: transactions cannot be replayed, and nobody has accepted that; the error names
            them.
        """
        self.ledger.register(self.topology.definition())
        lack, markers = self._look(states)
        if not lack:
            self.progress(f"topology {self.topology.name}: the states hold all that the ledger calls COMMITTED")
            return Rebuilt(replayed={}, lost={})
        for name, txids in lack.items():
            self.progress(f"state {name} lacks {len(txids)} transactions: {txids}")
        records = self._records(lack)
        replaced = self._replaced(records)
        no_rows = [txid for txid, newer in replaced.items() if _is_whole(records[txid], newer)]
        lost = self._lost(lack, markers, records, no_rows)
        for name, reasons in lost.items():
            for txid, why in reasons.items():
                self.progress(f"transaction {txid} is lost for state {name}: {why}")
        if dry_run:
            self.progress("dry run: nothing was changed")
            return Rebuilt(replayed=_without(lack, lost), lost=_txids(lost))
        if any(lost.values()):
            self._accept(lost, accept_loss)
        replayed, more = self._replay(_without(lack, lost), records, replaced, accept_loss)
        return Rebuilt(replayed=replayed, lost=_joined(_txids(lost), more))

    # ---- what is missing, and what of that is lost -----------------------------------------------------------

    def _look(self, states: Collection[str]) -> tuple[dict[str, Txids], dict[str, Marker | None]]:
        unknown = sorted(set(states) - self.topology.states.keys())
        if unknown:
            raise ConfigurationError(
                f"topology {self.topology.name!r} has no state {unknown[0]!r}",
                f"Its states: {', '.join(self.topology.states)}.",
            )
        view = self.ledger.view(0)
        markers = markers_of(self.topology)
        for name in sorted(set(states) - markers.keys()):
            raise self._blind(name)
        for name, spec in self.topology.states.items():
            if spec.committer is not None:
                self.progress(f"committer {name} keeps what it does in a database of its own: it is not looked at")
        require_ledger_ahead(self.topology.name, markers, self.ledger.view(0), self.ledger.records)
        chosen = {name: markers[name] for name in markers if not states or name in states}
        lacking_by_state = {name: lacking(name, marker, view) for name, marker in chosen.items()}
        return {name: txids for name, txids in lacking_by_state.items() if txids}, markers

    def _blind(self, name: str) -> ConfigurationError:
        if self.topology.states[name].committer is not None:
            return ConfigurationError(
                f"{name!r} is a committer with a database of its own: nobody but that database knows what it lacks, "
                "and running it again could do twice what it has done",
                "Restore its database, and bring in by hand what it lacks: what is above the txid that it keeps.",
            )
        return ConfigurationError(
            f"state {name!r} does not know which transactions are in it, so nobody can say what it lacks",
            "Use a state that is at least transactional.",
        )

    def _records(self, lack: Mapping[str, Txids]) -> dict[int, TxRecord]:
        every = Txids.joined(part for txids in lack.values() for part in txids.ranges)
        assert every.lowest is not None
        return {tx.txid: tx for tx in self.ledger.transactions(every.lowest, every.highest) if tx.txid in every}

    def _replaced(self, records: Mapping[int, TxRecord]) -> dict[int, NewerByKey]:
        """Transaction -> its partitions, or files, that newer COMMITTED ones have replaced. What it read of them, and
        it may be gone by now, is not needed any more."""
        if self.topology.replaced is None or not records:
            return {}
        newest: dict[str, int] = {}
        for tx in self.ledger.transactions(min(records)):
            if tx.status is Status.COMMITTED:
                newest.update(dict.fromkeys(tx.partitions, tx.txid))
        replaced = {
            txid: {key: newest[key] for key in tx.partitions if newest.get(key, txid) != txid}
            for txid, tx in records.items()
        }
        return {txid: newer for txid, newer in replaced.items() if newer}

    def _lost(
        self,
        lack: Mapping[str, Txids],
        markers: Mapping[str, Marker | None],
        records: Mapping[int, TxRecord],
        replaced: Collection[int],
    ) -> LostReasons:
        reads = _reads(self.topology)
        # A state is judged after those that feed it: what they lost is lost for it, too.
        order = sorted(lack, key=lambda name: len(reads[name]))
        lost: LostReasons = {name: {} for name in order}
        for name in order:
            marker = markers[name]
            high = 0 if marker is None else marker.high
            for txid in lack[name]:
                why = "" if txid in replaced else self._why_lost(records.get(txid), name)
                why = why or _why_not_in(self.topology.states[name], txid, high)
                if not why:
                    gone_on = [
                        feeding for feeding in reads[name] if not _will_be_at(feeding, txid, lack, lost, markers)
                    ]
                    why = f"it is fed from state {gone_on[0]}, which has gone on" if gone_on else ""
                if why:
                    lost[name][txid] = why
        return lost

    def _why_lost(self, record: TxRecord | None, state: str) -> str:
        if record is None:
            return "its record is pruned"
        if record.status is Status.CLOSED:
            return "it was closed for good"
        if record.staged is not None and record.staged.manifest == GONE:
            return "what its batch was went with the ledger that was repaired"
        kinds = {name: spout.kind for name, spout in self.topology.spouts.items()}
        odd = [name for name in record.metadata if kinds.get(name, SpoutKind.NON_TRANSACTIONAL) not in _REPLAYABLE]
        if odd and not self._is_staged(record, state):
            return f"a replay of stream {odd[0]} would give another batch"
        return ""

    def _is_staged(self, record: TxRecord, state: str) -> bool:
        try:
            self._manifest(record, self._batches_of({state}))
        except (StagingError, OtherPlanError):
            return False
        return True

    def _manifest(self, record: TxRecord, wanted: Collection[SinkNode]) -> Manifest:
        manifest = manifest_of(StagingArea(self.staging_root), self.ledger, _staged(record))
        require_same_plan(manifest, self.topology.compile(), wanted)
        return manifest

    def _batches_of(self, states: Collection[str]) -> list[SinkNode]:
        """Whose staged batches lead to these states."""
        staged = self.topology.compile().staged
        downstream = bool(set(states) - {sink.name for sink in staged})
        return [sink for sink in staged if downstream or sink.name in states]

    def _accept(self, lost: LostReasons, reason: str) -> None:
        lost_txids = {name: txids for name, txids in _txids(lost).items() if txids}
        if not reason:
            raise self._not_accepted(lost_txids)
        self.ledger.note_states(
            lost=[Loss(state=name, txids=txids, reason=reason, by=self.by) for name, txids in lost_txids.items()]
        )
        for name, txids in lost_txids.items():
            self.progress(f"state {name} goes on without {txids}: {reason}")

    def _not_accepted(self, lost: Mapping[str, Txids]) -> LostTransactionsError:
        which = "; ".join(f"state {name!r} lacks {txids}" for name, txids in lost.items())
        states = " ".join(f"--state {name}" for name in lost)
        return LostTransactionsError(
            f"transactions of topology {self.topology.name!r} cannot be replayed any more: {which}",
            "Restore the states from a newer copy; or go on without these transactions, for good: `airflow trident "
            f'rebuild {self.topology.name} {states} --accept-loss --reason "..."`.'
            + (" Then ask for their partitions again." if self.topology.partitions is not None else ""),
        )

    # ---- replaying -------------------------------------------------------------------------------------------

    def _replay(
        self,
        todo: Mapping[str, Txids],
        records: Mapping[int, TxRecord],
        replaced: Mapping[int, NewerByKey],
        accept_loss: str,
    ) -> tuple[dict[str, Txids], dict[str, Txids]]:
        """:returns: what was replayed, and what only then turned out to be lost, by state."""
        done: dict[str, Txids] = {}
        lost: dict[str, Txids] = {}
        every = Txids.joined(part for txids in todo.values() for part in txids.ranges)
        if not every:
            return done, lost
        fence, view = self.ledger.take_fence(), self.ledger.view(0)
        needed = {name: needed_by(view, name, view.pointer.committed) for name in todo}
        still = {name: txids - todo[name] for name, txids in needed.items() if txids is not None}
        with OpenStates(self.topology) as states, self.engine() as engine:
            for txid in every:
                into = {name for name, txids in todo.items() if txid in txids}
                ticket = self._ticket(records[txid], fence, view, still)
                try:
                    batches = self._batches(records[txid], into, engine, replaced.get(txid, {}))
                except _CannotReplay as error:
                    self.progress(f"transaction {txid} is lost: {error}")
                    now = {name: Txids.of(txid) for name in into}
                    lost = _joined(lost, now)
                    if accept_loss:
                        self._accept({name: {txid: str(error)} for name in into}, accept_loss)
                    elif any(not self.topology.states[name].commutes for name in into):
                        raise self._not_accepted(now) from error
                    continue
                self._apply(ticket, into, batches, states)
                done = _joined(done, {name: Txids.of(txid) for name in into})
        if lost and not accept_loss:
            raise self._not_accepted(lost)
        return done, lost

    def _ticket(self, record: TxRecord, fence: int, view: LedgerView, needed: dict[str, Txids]) -> CommitTicket:
        """A ticket for the states only: the ledger has committed the transaction already."""
        return CommitTicket(
            topology=self.topology.name,
            incarnation=view.topology.incarnation,
            txid=record.txid,
            attempt=record.attempt,
            fence=fence,
            position=record.position,
            staged=_staged(record),
            late=True,
            time_ms=record.time_ms,
            begun_ms=record.begun_ms,
            needed=needed,
            partitions=record.partitions,
        )

    def _batches(
        self, record: TxRecord, into: Collection[str], engine: Engine, newer: NewerByKey
    ) -> dict[str, pa.Table]:
        """The staged batch, if it still exists and today's plan would stage it; otherwise that of a replay.

        :param newer: what newer transactions have replaced: of that no rows are needed.
        """
        area, wanted = StagingArea(self.staging_root), self._batches_of(into)
        if _is_whole(record, newer):
            self.progress(f"transaction {record.txid}: transaction {max(newer.values())} replaces its rows; no rows")
            return {sink.name: rows_to_table(sink.schema, []) for sink in wanted}
        try:
            manifest, whose = self._manifest(record, wanted), {record.txid: record.attempt}
            batches = {sink.name: area.read_each(manifest, whose, sink.name, sink.schema)[0] for sink in wanted}
            tell_other_code(manifest, self.topology.compile(), self.progress)
            return batches
        except StagingError:
            self.progress(f"transaction {record.txid}: its staged batch is gone; replaying it")
        except OtherPlanError:
            self.progress(f"transaction {record.txid}: another DAG file staged its batch; replaying it")
        with temporary_root(self.staging_root, "rebuild-") as folder:
            left = replace(record, metadata=without_files(record.metadata, newer))
            manifest = self._run(left, engine, folder)
            again = StagingArea(folder)
            return {sink.name: again.read(manifest, sink.name, sink.schema) for sink in wanted}

    def _run(self, record: TxRecord, engine: Engine, folder: str) -> Manifest:
        slot = Slot(
            topology=self.topology.name,
            incarnation=self.ledger.topology().incarnation,
            txid=record.txid,
            attempt=record.attempt,
        )
        job = Job(
            plan=self.topology.compile(),
            slot=slot,
            metadata=record.metadata,
            staging_root=folder,
            progress=self.progress,
            trial=True,
            time_ms=record.time_ms,
            max_keys=NO_LIMIT,  # they were within the one of the attempt
        )
        try:
            manifest = engine.run(job)
        except (SourceChangedError, DamagedInputError) as error:
            raise _CannotReplay(str(error)) from error
        except SourceUnavailableError as error:
            if error.batch_is_gone:
                raise _CannotReplay(error.message) from error  # there is no new attempt, which its cure speaks of
            raise
        opaque = any(self.topology.spouts[name].kind is SpoutKind.OPAQUE for name in record.metadata)
        before, now = _staged(record).rows_read, manifest.rows_read
        if opaque and before >= 0 and now != before:
            raise _CannotReplay(f"its opaque source gives {now} rows instead of {before}")
        return manifest

    def _apply(
        self, ticket: CommitTicket, into: Collection[str], batches: dict[str, pa.Table], states: OpenStates
    ) -> None:
        opened, plan = states.opened(), self.topology.compile()

        def apply(name: str, batch: pa.Table) -> None:
            if name not in into:
                return
            batch = with_commit_time(self.topology.states[name], ticket, batch)
            with state_code(name, ticket.txid):
                applied = opened[name].apply(ticket, batch)
            self.progress(f"transaction {ticket.txid}: {batch.num_rows} rows into state {name} ({applied})")
            reached(Milestone.APPLIED, ticket.txid)

        staged = {name: batch for name, batch in batches.items() if name in self.topology.states}
        for name, batch in staged.items():
            apply(name, batch)
        if set(into) - staged.keys():
            needed = replace(plan, commit=leading_to(plan.commit, into))
            apply_downstream(needed, ticket, opened, batches, apply, self.progress)


_REPLAYABLE = (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)


def _staged(record: TxRecord) -> StagedRef:
    assert record.staged is not None  # it is COMMITTED
    return record.staged


def _reads(topology: Topology) -> dict[str, frozenset[str]]:
    """State -> the states of the topology that feed it, directly or indirectly."""
    feeding: dict[str, frozenset[str]] = {}
    for sink in topology.compile().sinks:
        above = ordered([sink])
        read = {node.persist.name for node in above if isinstance(node, NewValuesNode)}
        read |= {
            node.state.name
            for node in above
            if isinstance(node, StateQueryNode) and node.after_commit and node.state.topology == topology.name
        }
        feeding[sink.name] = frozenset(read)
    return feeding


def _why_not_in(spec: StateSpec, txid: int, high: int) -> str:
    if txid < high and not spec.commutes:
        return f"the state depends on the order of batches and holds {high} already"
    return ""


def _will_be_at(
    state: str, txid: int, lack: Mapping[str, Txids], lost: LostReasons, markers: Mapping[str, Marker | None]
) -> bool:
    """Will `txid` be the highest in a state when its turn comes? Only then the state gives the same new values as
    before."""
    if state not in markers:
        return False
    marker = markers[state]
    high = 0 if marker is None else marker.high
    if txid in lack.get(state, Txids()):
        return txid > high and txid not in lost[state]
    return txid == high


def _txids(lost: LostReasons) -> dict[str, Txids]:
    return {name: Txids.of(*reasons) for name, reasons in lost.items() if reasons}


def _without(lack: Mapping[str, Txids], lost: LostReasons) -> dict[str, Txids]:
    return {name: txids - Txids.of(*lost[name]) for name, txids in lack.items()}


def _joined(left: Mapping[str, Txids], right: Mapping[str, Txids]) -> dict[str, Txids]:
    return {name: left.get(name, Txids()) | right.get(name, Txids()) for name in {**left, **right}}
