"""Repair: seeds a ledger that was wiped, or restored from an old copy, from what the states hold.

Takes a commit back that can never succeed: a transaction that no state holds becomes FAILED, as if no commit of it
had begun.

Whoever began the commit may still be at work, and may bring the batch into a state at any moment. Hence the order:

1. The ledger gives out a higher fence, which voids every earlier ticket.
2. Each state records that fence in its atomic step. It refuses if it holds the transaction.
3. The ledger makes the transaction FAILED, unless a newer ticket was given out meanwhile.

After a kill between two steps the transaction is what it was: its commit can be run, or taken back, again.

``airflow trident ledger accept``: the ledger takes a topology's new definition, because a person says so.

``airflow trident accept-source``: a transaction takes its mended source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_trident.contracts.state import Marker
from airflow_trident.engine.engine import quiet
from airflow_trident.errors import (
    CorruptError,
    FencedError,
    LedgerBehindStateError,
    TransitionError,
    UnknownTopologyError,
    state_code,
)
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.recovery import NOTHING_KNOWN, KnownTransactions, Seed, seed_from
from airflow_trident.protocol.decide import SeenTransaction, Unknown
from airflow_trident.protocol.records import Owner, TxRecord
from airflow_trident.runtime.open_resources import MendedStreams, OpenCoordinators, OpenStates
from airflow_trident.runtime.phases import Progress, unknown_transaction
from airflow_trident.runtime.state_agreement import empty_states, require_agreement, require_ledger_ahead
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
    markers_by_state = {name: _held(topology, name) for name in topology.states}
    knowing = {name for name, spec in topology.states.items() if spec.factory.capabilities.knows_txids}
    seed = seed_from(
        {name: marker for name, marker in markers_by_state.items() if marker.incarnation or name in knowing},
        _known(ledger),
    )
    if seed is None:
        raise TransitionError(
            f"no state of topology {topology.name!r} holds a transaction", "There is nothing to seed a ledger from."
        )
    _require_streams(topology, seed)
    other = None if take_over or ledger.was(seed.incarnation) else _another_writes(topology.name, seed)
    if other is not None and not dry_run:
        raise other
    _tell(topology.name, seed, progress)
    markers = {name: markers_by_state[name] for name in knowing if markers_by_state[name].incarnation}
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
    missing = sorted((seed.unfinished or {}).keys() - topology.spouts.keys())
    if missing:
        raise CorruptError(
            f"transaction {seed.next_txid - 1} is not in every state, and must be replayed; it may have read stream "
            f"{missing[0]!r}, which topology {topology.name!r} has no more",
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


def take_back(
    ledger: Ledger, topology: Topology, txid: int, *, owner: Owner | str, reason: str, progress: Progress = quiet
) -> TxRecord:
    """Makes a transaction FAILED whose commit has begun and which no state holds: then it can be replayed or skipped.

    :param reason: for people; it becomes the transaction's error.
    :raises HeldError: a state holds it, or left the topology and may hold it: its commit can only go on.
    :raises TransitionError: no commit of it has begun, it is COMMITTED, or it was never begun.
    :raises FencedError: a committer is at work on it, or on another transaction with a higher fence.
    :raises LedgerBehindStateError: a state holds what the ledger does not know.
    :raises StateBehindLedgerError: a state lacks what the ledger calls COMMITTED: it may have lost this one, too.
    """
    ledger.register(topology.definition())
    view = ledger.view(txid)
    if view.tx is None and not 1 <= txid < view.next_txid:
        raise unknown_transaction(topology.name, Unknown(txid, view.next_txid))
    require_agreement(ledger, topology)
    ticket = ledger.bar(txid, owner=owner)
    progress(f"transaction {txid}: tickets below fence {ticket.fence} are void")
    with OpenStates(topology) as states:
        for name, state in states.opened().items():
            try:
                with state_code(name, txid):
                    state.bar(ticket)
            except FencedError as error:
                raise FencedError(
                    f"transaction {txid} of topology {topology.name!r} was not taken back: {error.message}",
                    "A committer is at work. Wait until it has ended, or stop it, and take it back again.",
                ) from error
            knows = topology.states[name].factory.capabilities.knows_txids
            promise = (
                "does not hold it, and refuses it from now on" if knows else "may hold a part of it: it cannot say"
            )
            progress(f"transaction {txid}: state {name} {promise}")
    return ledger.take_back(ticket, reason)


@dataclass(frozen=True, slots=True)
class AcceptedDefinition:
    """`differences`: one line each. `begins`: state -> its first transaction, for states that are new or were empty."""

    differences: tuple[str, ...] = ()
    begins: dict[str, int] = field(default_factory=dict)

    def lines(self, topology: str) -> list[str]:
        """For people."""
        if not self.differences:
            return [f"topology {topology}: the definition is the one in the ledger; nothing to accept"]
        begins = [
            f"  state {name} begins with transaction {first}; what was committed before is not in it"
            for name, first in self.begins.items()
        ]
        return [f"topology {topology}: accepted", *(f"  {line}" for line in self.differences), *begins]


def accept_definition(ledger: Ledger, topology: Topology) -> AcceptedDefinition:
    """Records the topology's definition in place of the ledger's.

    :raises UnknownTopologyError: it has no ledger.
    """
    before = ledger.topology()
    differences = before.definition.differences(topology.definition())
    if not differences:
        return AcceptedDefinition()
    empty = empty_states(topology, before.definition)
    after = ledger.register(topology.definition(), accept_change=True, empty=empty)
    begins = {name: first for name, first in after.since.items() if before.since.get(name) != first}
    return AcceptedDefinition(tuple(differences), begins)


def accept_source(
    ledger: Ledger, topology: Topology, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> TxRecord:
    """See :meth:`Ledger.accept_source`."""
    with OpenCoordinators(topology, ledger) as coordinators:
        return ledger.accept_source(txid, MendedStreams(coordinators.opened()), reason, seen=seen)
