"""The commit phase beyond the staged batch: what depends on what the batch changed in a state.

When a state has transaction n, its values for the batch's keys cannot change before n is COMMITTED, because n+1 is
applied only then. So reading them, computing what is downstream, and applying that under the same ticket can be
repeated after a kill at any point, with the same result; a state that has n already says so. A committer may read too
late, when another one has finished n, and n+1 has changed the values. But then its fence is lower than the one that
every state downstream has seen, and these states refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import State, StateSpec
from airflow_trident.engine.engine import Job
from airflow_trident.engine.key_limit import NO_LIMIT
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import CorruptError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.plan.commit.window_updater import COMMIT_TIME, WindowUpdater
from airflow_trident.plan.nodes import GivenTuples, PersistNode, SourceNode
from airflow_trident.plan.stages import CommitLevel, Plan, Stage
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.phases import Progress
from airflow_trident.runtime.staged_batches import Batch, rows_of
from airflow_trident.staging.manifest import Slot
from airflow_trident.states.core.merge import keys_of
from airflow_trident.topology.topology import Topology
from airflow_trident.topology.verbs.states import MapPut
from airflow_trident.types import REAL_TYPES, names_of

if TYPE_CHECKING:
    import pyarrow as pa

Apply = Callable[[str, "pa.Table"], None]


def apply_downstream(
    plan: Plan,
    ticket: CommitTicket,
    states: dict[str, State],
    batches: dict[str, Batch],
    apply: Apply,
    progress: Progress,
) -> None:
    """Runs the levels of the commit phase in order, each after the states that it reads have the transaction.

    It runs in this process, because the changes of a batch are small compared with what was read for it.

    :param batches: what was staged, by the name of the state or of the carried tuples; the results of the levels are
        added.
    :param apply: applies a batch to a state, by its name.
    """
    for level in plan.commit:
        tables = {name: rows_of(batches[name]) for name in level.carried}
        for source, name in level.new_values.items():
            spec = _spec(plan, name)
            if spec.emits:
                tables[source] = states[name].emitted(ticket)
            else:
                tables[source] = new_values(spec, states[name], rows_of(batches[name]))
            progress(f"transaction {ticket.txid}: {tables[source].num_rows} new values of state {name}")
        reached(Milestone.NEW_VALUES, ticket.txid)
        results = dict(LocalEngine().tables(level_job(plan, level, ticket, tables, progress)))
        batches.update(results)
        for sink in level.sinks:
            if isinstance(sink, PersistNode):
                apply(sink.name, results[sink.name])
                reached(Milestone.APPLIED_DOWNSTREAM, ticket.txid)


def require_distinct_keys(plan: Plan, batches: Callable[[str], Iterable[pa.Table]]) -> None:
    """Refuses a batch in which two rows put different values under one key, before any state is touched. Otherwise
    another state of the transaction would have it already.

    :param batches: reads what was staged for a state. It is called only for states that rows are put into, and its
        batches are not kept.
    :raises UserCodeError: two tuples of a batch have the same key and different values, and nothing says which counts.
    """
    for sink in plan.sinks:
        put = sink.state.updater
        if not isinstance(put, MapPut):
            continue
        for batch in batches(sink.name):
            exact = put.keys and not any(field.type in REAL_TYPES for field in sink.state.keys)  # Arrow has many NaNs
            if not exact or batch.group_by(list(put.keys), use_threads=False).aggregate([]).num_rows < batch.num_rows:
                put.chosen(table_to_rows(batch))


def new_values(spec: StateSpec, state: State, batch: pa.Table) -> pa.Table:
    """What the batch changed: key and value fields, for each of its keys that has a value now; for windows, tuples of
    completed windows."""
    if isinstance(spec.updater, WindowUpdater):
        return spec.updater.emitted(state.get_many)
    keys = list(dict.fromkeys(keys_of(spec, table_to_rows(batch))))
    values = state.get_many(keys)
    rows = [(*key, *value) for key, value in zip(keys, values, strict=True) if value is not None]
    return rows_to_table((*spec.keys, *spec.values), rows)


def with_commit_time(spec: StateSpec, ticket: CommitTicket, batch: pa.Table) -> pa.Table:
    """The batch for a window of time: one more tuple at its end says what time it is, also if the batch is empty."""
    if not isinstance(spec.updater, WindowUpdater) or COMMIT_TIME not in names_of(spec.staged):
        return batch
    time_ms = ticket.time_ms if spec.updater.time == COMMIT_TIME else ticket.begun_ms
    rows = [(*row, None) for row in table_to_rows(batch)]
    return rows_to_table(spec.staged, [*rows, (*(None,) * batch.num_columns, time_ms)])


def note_overlooked(spec: StateSpec, state: State, txid: int, progress: Progress) -> int:
    """Reports tuples of the highest transaction that a window did not treat like the others.

    :return: how many are in no window (:attr:`TxRecord.late_rows`); 0 for any other state.
    """
    if not isinstance(spec.updater, WindowUpdater):
        return 0
    overlooked = spec.updater.overlooked(state.get_many)
    if overlooked.late:
        progress(
            f"transaction {txid}: {overlooked.late} tuples came too late for all their windows of state {spec.name} "
            f"and are left out ({overlooked.late_in_all} so far); a longer lag takes later ones, and reopen= opens "
            "windows that a wrong clock has closed"
        )
    if overlooked.ahead:
        progress(
            f"transaction {txid}: {overlooked.ahead} tuples of state {spec.name} are of a time more than "
            f"{(spec.updater.max_ahead_ms or 0) / 1000:g} s after the transaction began; they are kept, and fire no "
            "window"
        )
    if overlooked.untimed:
        progress(
            f"transaction {txid}: {overlooked.untimed} tuples of state {spec.name} have no time in "
            f"{spec.updater.time!r}, or one whose windows would begin before year 1 or end after year 9999; they are "
            "in no window and left out. Drop or mend such tuples before the window (a long is milliseconds since 1970)"
        )
    return overlooked.late + overlooked.untimed


def _spec(plan: Plan, name: str) -> StateSpec:
    return next(sink.state for sink in plan.sinks if sink.name == name)


def level_job(
    plan: Plan, level: CommitLevel, ticket: CommitTicket, tables: dict[str, pa.Table], progress: Progress
) -> Job:
    """The level and its tuples, as a job for an engine."""
    stages = tuple(_with_tuples(stage, tables) for stage in level.stages)
    return Job(
        plan=replace(plan, stages=stages, commit=()),
        slot=Slot(topology=ticket.topology, incarnation=ticket.incarnation, txid=ticket.txid, attempt=ticket.attempt),
        metadata=dict.fromkeys(tables),
        staging_root="",
        progress=progress,
        max_keys=NO_LIMIT,  # the processing phase counted: a refusal here would block the transaction
    )


def _with_tuples(stage: Stage, tables: dict[str, pa.Table]) -> Stage:
    source = stage.source
    if not isinstance(source, SourceNode) or not isinstance(source.spout, GivenTuples):
        return stage
    return stage.with_spouts({source.name: replace(source.spout, table=tables[source.name])})


def require_all_fed(topology: Topology, ticket: CommitTicket, fed: set[str]) -> None:
    """COMMITTED means that every state has the transaction (P8).

    :raises CorruptError: the plan left a state out.
    """
    left_out = topology.states.keys() - fed
    if left_out:
        raise CorruptError(
            f"transaction {ticket.txid} of topology {topology.name!r} gave no batch to {', '.join(sorted(left_out))}",
            "It stays COMMITTING; this is a fault of airflow-trident: please report it with `airflow trident plan "
            f"{topology.name}`.",
        )
