"""Repair: seeds a ledger that was wiped, or restored from an old copy, from what the states hold."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_trident.contracts.state import Marker
from airflow_trident.engine.base import quiet
from airflow_trident.errors import (
    CorruptError,
    LedgerBehindStateError,
    TransitionError,
    UnknownTopologyError,
    state_code,
)
from airflow_trident.ledger.backup.seed import NOTHING_KNOWN, KnownTransactions, Seed, seed_from
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.protocol.records import TxRecord
from airflow_trident.runtime.phases import Progress
from airflow_trident.runtime.state_agreement import require_ledger_ahead
from airflow_trident.staging.area import StagingArea
from airflow_trident.topology.topology import Topology


def repair(
    ledger: ZNodeLedger,
    topology: Topology,
    staging_root: str,
    *,
    dry_run: bool = False,
    take_over: str = "",
    progress: Progress = quiet,
) -> Seed:
    """Makes the ledger of `topology` agree with its states, and reports what that means.

    Nothing may run meanwhile: pause the DAG. Begun transactions that no state holds are forgotten; their records are
    read again, because the position goes back to the last transaction that every state has. Their staged batches are
    deleted, because their numbers are given out again.

    :param take_over: who takes over states that belong to a ledger which this one never was, and why. The topology's
        record keeps it.
    :raises TransitionError: no state holds anything, or the ledger is not behind: there is nothing to repair. Or the
        states belong to another ledger, and nobody takes them over.
    :raises CorruptError: the states contradict each other, or the topology lacks a stream that has to be replayed.
    """
    held = {name: _held(topology, name) for name in topology.states}
    knowing = {name for name, spec in topology.states.items() if spec.factory.capabilities.knows_txids}
    seed = seed_from({name: one for name, one in held.items() if one.incarnation or name in knowing}, _known(ledger))
    if seed is None:
        raise TransitionError(
            f"no state of topology {topology.name!r} holds a transaction", "There is nothing to seed a ledger from."
        )
    _require_streams(topology, seed)
    other = None if take_over or ledger.was(seed.incarnation) else _another_writes(topology.name, seed)
    if other is not None and not dry_run:
        raise other
    _tell(topology.name, seed, progress)
    markers = {name: held[name] for name in knowing if held[name].incarnation}
    first = min(seed.unfinished_txids, default=seed.next_txid)

    def clean() -> None:
        # Whoever is killed after the ledger was written would not come here again.
        StagingArea(staging_root).remove_from(topology.name, seed.incarnation, first)

    ledger.seed(
        topology.definition(),
        seed,
        behind=lambda: _is_behind(ledger, topology.name, markers),
        first=clean,
        dry_run=dry_run,
        taken_over="" if ledger.was(seed.incarnation) else take_over,
    )
    if other is not None:
        progress(str(other))
    progress("dry run: nothing was changed" if dry_run else f"the ledger goes on at transaction {seed.next_txid}")
    return seed


def _another_writes(topology: str, seed: Seed) -> TransitionError:
    return TransitionError(
        f"the states of topology {topology!r} belong to incarnation {seed.incarnation}, and the ledger that is there "
        "never was that one: another environment may write these states, with another [trident] root or another "
        "ZooKeeper",
        "Compare both with those of every environment that uses the states. If none writes them any more, take them "
        f'over and say why: `airflow trident repair {topology} --take-over "the ledger was deleted"`.',
    )


def _require_streams(topology: Topology, seed: Seed) -> None:
    """
    :raises CorruptError: a replay would leave out what the states that have the transaction took from such a stream.
    """
    gone = sorted((seed.unfinished or {}).keys() - topology.spouts.keys())
    if gone:
        raise CorruptError(
            f"transaction {seed.next_txid - 1} is not in every state, and must be replayed; it may have read stream "
            f"{gone[0]!r}, which topology {topology.name!r} has no more",
            "Repair with the DAG as it was and replay the transaction; then change the DAG.",
        )


def _tell(topology: str, seed: Seed, progress: Progress) -> None:
    last = seed.next_txid - 1
    progress(f"the states of topology {topology} hold transactions up to {last} (incarnation {seed.incarnation})")
    for txid in seed.unfinished_txids:
        progress(
            f"transaction {txid} is not in every state, or not with one batch: "
            f"`airflow trident backfill {topology} --failed` replays it"
        )
    if seed.presumed:
        progress(
            f"states have transaction {last} from different attempts, which end at the same position: their batches "
            "are taken for equal, because nobody knows where it began"
        )
    for first, to in seed.lost:
        progress(f"transactions {first} to {to} were left out of a state; what their batches were is lost")


def _known(ledger: ZNodeLedger) -> KnownTransactions:
    """What the ledger that is there, if any, knows from its commit pointer on. No record stops a repair."""
    try:
        view = ledger.view(0)
    except (UnknownTopologyError, CorruptError):
        return NOTHING_KNOWN
    committed = view.pointer.committed
    return KnownTransactions(
        incarnation=view.topology.incarnation,
        committed=next(iter(_readable(ledger, committed, committed)), None),
        above=_readable(ledger, committed + 1, None),
        since=view.topology.since,
        closed=view.exceptions.closed,
    )


def _readable(ledger: ZNodeLedger, first: int, last: int | None) -> tuple[TxRecord, ...]:
    try:
        return tuple(ledger.transactions(first, last))
    except CorruptError:
        return ()


def _is_behind(ledger: ZNodeLedger, topology: str, markers: Mapping[str, Marker]) -> bool:
    """By the rule by which begins and commits refuse a ledger: what they refuse must have a cure."""
    try:
        require_ledger_ahead(topology, markers, ledger.view(0), ledger.records)
    except LedgerBehindStateError:
        return True
    except CorruptError:
        pass  # no record stops a repair
    return False


def _held(topology: Topology, name: str) -> Marker:
    spec = topology.states[name]
    with state_code(name), spec.factory.make_state(spec) as state:
        return state.marker() or Marker(incarnation="", high=0, fence=0)
