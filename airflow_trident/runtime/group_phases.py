"""The verbs of :mod:`airflow_trident.runtime.phases` for several transactions: one step of the ledger begins them, one
starts their attempts, one records them. Each step does to each transaction what its own step would do (P1 to P5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import BatchesOf, BeginManyResult, Begun
from airflow_trident.ledger.group_answers import CommittedAndBegun, StagedAttempt
from airflow_trident.plan.stages import Plan
from airflow_trident.plan.transform_node import code_of
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Claim, CommitTicket, Owner, StagedRef, TxRecord
from airflow_trident.runtime.coordinators import OpenCoordinators
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.outcomes import lags_of, tell_result, telling
from airflow_trident.runtime.phases import require_definition
from airflow_trident.runtime.success import tell_success
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def coordinate_many(
    ledger: Ledger,
    topology: Topology,
    claims: Sequence[Claim],
    coordinators: OpenCoordinators,
    *,
    max_pending: int,
    attempt_by: Owner | str,
    check_states: bool,
    ask_lag: bool = False,
    rows_in_errors: bool = True,
) -> BeginManyResult:
    """Gives each claim its transaction, in one step, as :func:`~airflow_trident.runtime.phases.coordinate` does for
    one: for as many as there are batches, room, and records that fit into the step. Parameters and errors are those of
    that function.

    :param claims: at least one, in the order of their transactions.
    """
    with telling(ledger, claims[0], rows_in_errors=rows_in_errors) as told:
        known = require_definition(ledger, topology, check_states=check_states)
        opened = coordinators.opened()
        tell_success(ledger, known, opened)
        result = ledger.begin_many(
            claims,
            _batches(opened),
            max_pending=max_pending,
            attempt_by=attempt_by,
            lag_of=lags_of(opened) if ask_lag else None,
            plan=topology.compile().digest,
        )
        told(result)
    for begun in result if isinstance(result, tuple) else ():
        reached(Milestone.BEGUN, begun.txid)
    return result


def commit_and_coordinate(
    ledger: Ledger,
    topology: Topology,
    tickets: Sequence[CommitTicket],
    claims: Sequence[Claim],
    coordinators: OpenCoordinators,
    *,
    retention: int,
    max_pending: int,
    attempt_by: Owner | str,
    ask_lag: bool,
) -> CommittedAndBegun:
    """COMMITTED and :func:`coordinate_many` in one step. The caller must :func:`tell_success` afterwards.

    An error of a source is raised, and nothing is changed: the two single steps then say what is wrong.
    """
    require_definition(ledger, topology, check_states=False)
    opened = coordinators.opened()
    both = ledger.committed_and_begin(
        tickets,
        claims,
        _batches(opened),
        retention=retention,
        max_pending=max_pending,
        attempt_by=attempt_by,
        lag_of=lags_of(opened) if ask_lag else None,
        plan=topology.compile().digest,
    )
    for begun in both.begun:
        reached(Milestone.BEGUN, begun.txid)
    tell_result(ledger, claims[0], both.why_not)
    return both


def new_records(begun: Sequence[Begun]) -> list[TxRecord]:
    """The records that this call began."""
    return [one.record for one in begun if one.new and one.record is not None]


def _batches(coordinators: Mapping[str, Coordinator]) -> BatchesOf:
    """A transaction has a batch of each stream that has one for it; the last transactions of a group may have fewer."""

    def batches_of(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
        found: dict[str, list[Json]] = {}
        for name, coordinator in coordinators.items():
            with spout_code(name, txid):
                found[name] = coordinator.next_batches(txid, position.get(name), most)[:most]
        many = max(map(len, found.values()), default=0)
        return [{name: each[place] for name, each in found.items() if place < len(each)} for place in range(many)]

    return batches_of


def size_of(coordinators: Mapping[str, Coordinator], record: TxRecord) -> int | None:
    """About how many bytes a transaction reads; None: one of its spouts does not know."""
    sizes: list[int | None] = []
    for name in record.metadata.keys() & coordinators.keys():
        with spout_code(name, record.txid):
            sizes.append(coordinators[name].size_bytes(codec.require_json(record.metadata[name], "the metadata")))
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def publish_group(manifest: Manifest, staging_root: str, plan: Plan, chunk_bytes: int) -> dict[int, StagedRef]:
    """Makes the result of a pass visible, with the plan that made it. Returns what each of its transactions has staged.

    :param chunk_bytes: see :meth:`StagingArea.publish`.
    """
    for one in manifest.members:
        reached(Milestone.STAGED, one.txid)
    manifest = replace(manifest, made_by=plan.made_by, code=code_of(plan.sinks))
    staged = StagingArea(staging_root).publish_group(manifest, chunk_bytes=chunk_bytes)
    for txid in staged:
        reached(Milestone.PUBLISHED, txid)
    return staged


def record_processed_many(ledger: Ledger, records: Sequence[TxRecord], staged: Mapping[int, StagedRef]) -> None:
    """PROCESSED, if all attempts are still the current ones.

    :raises StaleAttemptError, TransitionError: one attempt is not. Transactions before it may be recorded.
    """
    left = [StagedAttempt(txid=one.txid, attempt=one.attempt, staged=staged[one.txid]) for one in records]
    while left:
        for done in ledger.processed(left).records:
            left.pop(0)
            reached(Milestone.PROCESSED, done.txid)
