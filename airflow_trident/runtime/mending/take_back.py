"""Takes a commit back that can never succeed: a transaction that no state holds becomes FAILED, as if no commit of it
had begun.

Whoever began the commit may still be at work, and may bring the batch into a state at any moment. Hence the order:

1. The ledger gives out a higher fence, which voids every earlier ticket.
2. Each state records that fence in its atomic step. It refuses if it holds the transaction.
3. The ledger makes the transaction FAILED, unless a newer ticket was given out meanwhile.

After a kill between two steps the transaction is what it was: its commit can be run, or taken back, again.
"""

from __future__ import annotations

from airflow_trident.engine.base import quiet
from airflow_trident.errors import FencedError, state_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.decide import Unknown
from airflow_trident.protocol.records import Owner, TxRecord
from airflow_trident.runtime.open_states import OpenStates
from airflow_trident.runtime.phases import Progress, unknown_transaction
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.topology.topology import Topology


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
