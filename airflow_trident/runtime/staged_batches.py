"""Staged batches in the forms that states take: rows, whole or in pieces, or the files themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from airflow_trident.contracts.state import Applied, StagedBatch, StagedFiles, State
from airflow_trident.errors import (
    ConfigurationError,
    NewerRecordError,
    OtherPlanError,
    RetryableError,
    StagingError,
    TableChangedError,
    TridentError,
)
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.plan.compile import made_otherwise
from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode, changed_code, code_of
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.records import CommitTicket, StagedRef, Status, TxRecord
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

Batch: TypeAlias = "pa.Table | StagedBatch | StagedFiles"


def manifest_of(area: StagingArea, ledger: Ledger, staged: StagedRef) -> Manifest:
    """The manifest of what was staged, from a chunk of the ledger or from the staging area.

    :raises StagingError: it is missing or damaged.
    :raises NewerRecordError: a newer version of the package wrote it.
    """
    if not staged.chunk:
        return area.load(staged)
    content = ledger.staged_content(staged)
    if content is None:
        raise StagingError(
            f"the staged batch {staged.chunk!r} is not in the ledger of topology {ledger.topology_name!r}",
            "Run the processing phase of this transaction again: it stages under a new attempt.",
        )
    return area.load(staged, content)


def staged_batches(area: StagingArea, manifest: Manifest, ticket: CommitTicket, plan: Plan) -> dict[str, Batch]:
    """The batches of one transaction, by the names of their sinks. First it is checked, at little cost, that all of
    them are there; then each is read when its state takes it, and only one is in memory at a time.

    So a file that is lost or damaged in between is found when other states have the transaction already. It is emitted
    again then, and they say that they have it: as after a kill between two states.

    :raises StagingError: they cannot be read.
    """
    area.require_members(manifest, {ticket.txid: ticket.attempt})
    area.require_there(manifest, {sink.name: sink.schema for sink in plan.staged})
    return {sink.name: staged_batch(area, manifest, ticket, sink) for sink in plan.staged}


def staged_batch(area: StagingArea, manifest: Manifest, ticket: CommitTicket, sink: SinkNode) -> Batch:
    """The batch of one transaction: its files, if they have no other transaction's rows, the state takes files and the
    batch is not small; otherwise a batch that reads them when it is asked.

    :raises StagingError: they cannot be read.
    """
    if not manifest.group and isinstance(sink, PersistNode) and sink.state.factory.capabilities.by_reference:
        files = area.files(manifest, sink.name, sink.schema)
        if files is not None:
            return files
    return area.batch(manifest, sink.name, sink.schema, ticket.txid)


def rows_of(batch: Batch) -> pa.Table:
    """All rows of a batch that is taken whole.

    :raises StagingError: they cannot be read.
    """
    assert not isinstance(batch, StagedFiles), "files go to tables only, which nobody reads from"
    return batch.table() if isinstance(batch, StagedBatch) else batch


def staged_by_other_plan(area: StagingArea, ledger: Ledger, tx: TxRecord, plan: Plan) -> list[str]:
    """What another plan staged for a transaction of which no state can have anything yet. It is emitted again before
    the gate opens. The manifest is read only if the attempt ran another plan; if it cannot be read, whoever commits
    finds that.
    """
    untouched = tx.status is Status.PROCESSED and not tx.touched
    if not untouched or tx.staged is None or tx.plan == plan.digest:
        return []
    try:
        return made_otherwise(manifest_of(area, ledger, tx.staged).made_by, plan.made_by)
    except (StagingError, NewerRecordError):
        return []


def require_same_plan(manifest: Manifest, plan: Plan, sinks: Collection[SinkNode] | None = None) -> None:
    """
    :param sinks: those whose batches are taken; None: all.
    :raises OtherPlanError: another plan staged one. Emitting it again would change the batch: some states may have it,
        and others would get another one.
    """
    taken = {sink.name for sink in (plan.staged if sinks is None else sinks)}
    others, slot = sorted(taken.intersection(made_otherwise(manifest.made_by, plan.made_by))), manifest.slot
    if others:
        raise OtherPlanError(
            f"attempt {slot.attempt} of transaction {slot.txid} of topology {slot.topology!r} was staged by another "
            f"DAG file, where {', '.join(others)} was something else, and its commit has begun",
            "Put the DAG file back as it was until the transaction is COMMITTED. Or, if no state has it, take the "
            f"commit back with `airflow trident take-back {slot.topology} {slot.txid}`: then it is processed again.",
        )


def tell_other_code(manifest: Manifest, plan: Plan, progress: Callable[[str], None]) -> None:
    """A staged batch is committed as it is; a person who changed the code in between may want to know."""
    changed = changed_code(manifest.code, code_of(plan.sinks)) if manifest.code else []
    if changed:
        slot = manifest.slot
        progress(
            f"transaction {slot.txid}, attempt {slot.attempt}: it was staged by other code of {', '.join(changed)} "
            "than the topology has now"
        )


def needed_whole(plan: Plan) -> frozenset[str]:
    """The states whose batches are in memory as a whole: an updater takes them so, and what a state changed is looked
    up by the keys of its batch."""
    read_states = {name for level in plan.commit for name in level.new_values.values()}
    return frozenset(sink.name for sink in plan.sinks if sink.state.updater is not None or sink.name in read_states)


def apply_batch(state: State, ticket: CommitTicket, batch: Batch) -> Applied:
    """The caller has the border around the state's code."""
    if isinstance(batch, StagedFiles):
        return state.apply_files(ticket, batch)
    return state.apply_staged(ticket, batch) if isinstance(batch, StagedBatch) else state.apply(ticket, batch)


def gone_again(ticket: CommitTicket, times: int, error: StagingError) -> TridentError:
    if isinstance(error, TableChangedError):
        return TableChangedError(
            f"transaction {ticket.txid} of topology {ticket.topology!r} was processed again {times} times, and each "
            f"time {error.message}",
            "Run the task again, at a time when others write less. Nothing was applied.",
        )
    return ConfigurationError(
        f"transaction {ticket.txid} of topology {ticket.topology!r} was emitted again {times} times, and its staged "
        f"batch still cannot be read: {error.message}",
        "Look who empties the staging folder ([trident] staging_dir), and whether all workers, drivers and executors "
        "have the same one.",
    )


def reason_to_emit(error: StagingError) -> str:
    changed = isinstance(error, TableChangedError)
    return error.message if changed else f"its staged batch cannot be read ({error})"


def remove_old(area: StagingArea, ledger: Ledger, tickets: Sequence[CommitTicket], retention: int) -> None:
    """Removes, after a commit, old staged batches of transactions that the ledger keeps no longer. The ledger prunes
    its own chunks. The staging area is asked only if one of these batches was there; leftovers are removed with the
    next batch that is."""
    last = tickets[-1]
    if not all(ticket.staged.chunk for ticket in tickets):
        with suppress(RetryableError):  # the commit is done; the next one removes what this one leaves
            area.remove_before(last.topology, last.incarnation, last.txid - retention, ledger.keeps())
