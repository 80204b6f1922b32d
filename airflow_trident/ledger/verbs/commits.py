"""The committer's verbs: give out tickets, say COMMITTED, and take a commit back.

Tickets, the same for every ledger.

What the ledger forgets, and when (P10). The work per commit is bounded.

The step that commits a transaction deletes records of old ones. Claim keys are kept longer: without its key, a run that
is cleared years later would begin a new transaction and count its data twice. When keys are deleted after all, the
topology remembers how old the runs were (`floor_ms`), so that such a run is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, pairwise, takewhile

from airflow_trident.errors import ConfigurationError, FencedError, TransitionError
from airflow_trident.ledger.answers import Begun, Committed, NextBatches
from airflow_trident.ledger.layout import BUCKETS, tx_name
from airflow_trident.ledger.refusals import may_be_in_former, nothing_to_take_back
from airflow_trident.ledger.snapshot import FolderNames, Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import common
from airflow_trident.ledger.verbs.begin import begin
from airflow_trident.ledger.verbs.group_steps import GROUP_BYTES, Together, require_order, size
from airflow_trident.ledger.znodes import Delete
from airflow_trident.names import DEFAULT_RETENTION
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import Commit, decide_commit
from airflow_trident.protocol.diagnosis import why_not
from airflow_trident.protocol.exceptional_txids import forgotten, needed_at_any_age, over_skipped, shifted
from airflow_trident.protocol.metadata import BASE
from airflow_trident.protocol.records import (
    NOTHING_STAGED,
    CommitPointer,
    CommitTicket,
    Exceptions,
    LedgerView,
    Owner,
    StagedRef,
    Status,
    TxRecord,
)
from airflow_trident.protocol.state_gaps import for_states, require_all_states


def ticket_of(view: LedgerView, tx: TxRecord, staged: StagedRef | None) -> CommitTicket:
    """The ticket with the next fence.

    :param staged: the batch that it brings into the states; None: nothing, the ticket only bars earlier ones.
    """
    return CommitTicket(
        topology=view.topology.name,
        incarnation=view.topology.incarnation,
        txid=tx.txid,
        attempt=tx.attempt,
        fence=view.pointer.fence + 1,
        position=tx.position,
        staged=NOTHING_STAGED if staged is None else staged,
        late=tx.txid <= view.pointer.committed,
        time_ms=tx.time_ms,
        begun_ms=tx.begun_ms,
        bars=staged is None,
        partitions=tx.partitions,
        **for_states(view, tx.txid, barred=staged is None),
    )


PRUNED_PER_COMMIT = 50
KEPT_CLAIMS = 10_000
CLAIM_SWEEP_COMMITS = 32
"""Every 32 commits one of the 256 buckets of claim keys is swept: ``256 * 32`` commits for all of them."""


def prune(
    snap: Snapshot, pointer: int, exceptions: Exceptions, retention: int, *, just_committed: Collection[int]
) -> list[Write]:
    """Deletes of the oldest committed transactions beyond `retention`, and of their chunks.

    Every transaction at or below the commit pointer `upto` that is not among the exceptions is committed: no record has
    to be read. Those that are just being committed stay, however old: their committer wants to see them. So do those
    that a spout has to be told of: only their records tell its coordinator.
    """
    just = {tx_name(txid): True for txid in just_committed}
    names = snap.names(snap.paths.transactions).after(just)
    special = {tx_name(txid) for txid in needed_at_any_age(exceptions) if txid <= pointer}
    done = names.upto(tx_name(pointer)) - sum(name in names for name in special)
    oldest = islice((name for name in names if name not in special), max(done - retention, 0))
    limit = max(PRUNED_PER_COMMIT, len(just_committed))
    notified = snap.topology().told
    free = (name for name in oldest if name not in just and (notified is None or int(name) in notified))
    pruned = list(islice(free, limit))
    if not pruned:
        return []
    kept_apart = snap.names(snap.paths.chunks)
    chunks = {chunk: True for name in pruned for chunk in kept_apart.starting_with(f"{name}-")}
    # An emitter may have written a chunk after this process looked; such a chunk can outlive its transaction.
    lowest = next(iter(names))
    chunks |= dict.fromkeys(islice(takewhile(lambda chunk: chunk < lowest, kept_apart), PRUNED_PER_COMMIT), True)
    writes: list[Write] = [Delete(snap.paths.tx(int(name))) for name in pruned]
    writes += (Delete(snap.paths.chunk(name)) for name in chunks)
    remaining = names.after(dict.fromkeys(pruned, False))
    return [*writes, *(Delete(snap.paths.chunk(name)) for name in _unshared(kept_apart, remaining))]


def _unshared(kept_apart: FolderNames, transactions: FolderNames) -> Iterator[str]:
    """The chunks of bases that no transaction shares any more. Only a transaction that begins shares, and only with the
    last base at that time: so all that share a base are between it and the next one. The last base stays."""
    bases = [list(names) for _, names in groupby(kept_apart.starting_with(BASE), key=_written_with)]
    for base, following in pairwise(bases):
        first, end = _written_with(base[0]), _written_with(following[0])
        if transactions.upto(tx_name(end - 1)) == transactions.upto(tx_name(first - 1)):
            yield from base


def _written_with(name: str) -> int:
    """The txid of the transaction that a base was written with."""
    return int(name.removeprefix(BASE).split("-")[0])


def sweep_is_due(txid: int, kept: int) -> bool:
    """Is this the commit after which a bucket of claim keys is swept?"""
    return txid > kept and txid % CLAIM_SWEEP_COMMITS == 0


def bucket_of_sweep(txid: int) -> str:
    return BUCKETS[txid // CLAIM_SWEEP_COMMITS % len(BUCKETS)]


def sweep_claims(snap: Snapshot, bucket: str, kept: int) -> Change[int] | Unchanged[int]:
    """Deletes the bucket's claim keys whose transaction is more than `kept` behind the commit pointer and is pruned.
    Returns how many were deleted. The topology record is the witness: the same step writes it."""
    folder = snap.paths.bucket(bucket)
    names = sorted(snap.names(folder))
    alive = snap.names(snap.paths.transactions)
    topology, newest = snap.topology(), snap.pointer().committed - kept
    snap.prefetch(f"{folder}/{name}" for name in names)
    keys = ((name, snap.claim_at(f"{folder}/{name}")) for name in names)
    old = {name: key for name, key in keys if key and key.txid <= newest and tx_name(key.txid) not in alive}
    if not old:
        return Unchanged(0)
    floor_ms = max(topology.floor_ms, *(key.run_ms + 1 for key in old.values()))
    record = replace(topology, floor_ms=floor_ms)
    writes: list[Write] = [snap.set(snap.paths.topology, codec.encode_topology(record, op=snap.op))]
    writes.extend(Delete(f"{folder}/{name}") for name in old)
    # The pointer only rises, and a pruned transaction stays pruned: an old key stays old.
    unchecked = frozenset({snap.paths.commit, *(f"{folder}/{name}" for name in names)})
    return Change(writes=tuple(writes), witness=snap.paths.topology, result=len(old), unchecked=unchecked)


def gate(
    snap: Snapshot, members: Sequence[int | TxRecord], *, owner: Owner | str
) -> Change[tuple[CommitTicket, ...]] | Unchanged[tuple[CommitTicket, ...]]:
    """PROCESSED or COMMITTING -> COMMITTING, with the next fence, for as many members as fit into one step. It is a
    member's turn when those before it in the group are counted as committed.

    :param members: in the order of their txids. A record is the one by which the caller decided that the transaction
        may pass; a txid may pass in any case.
    :raises TransitionError: it is not the turn of a member, or it has no staged batch; the error says what was found.
    :raises FencedError: since a member's record, another attempt was made or somebody else opened the gate.
    """
    txids = [group_member.txid if isinstance(group_member, TxRecord) else group_member for group_member in members]
    require_order(txids)
    view, fence = snap.view(0), snap.pointer().fence + 1
    snap.prefetch_transactions(txids)
    tickets: list[CommitTicket] = []
    writes: list[Write] = []
    step_bytes = 0
    for txid, member in zip(txids, members, strict=True):
        ticket = _ticket(replace(view, tx=snap.tx(txid) if txid >= 1 else None), txid)
        tx = common.existing(snap, txid)
        if isinstance(member, TxRecord):
            _require_as_seen(tx, member)
        write = snap.set_tx(common.moved(snap, tx, Status.COMMITTING, fence=fence, touched=True, owner=Owner.of(owner)))
        step_bytes += size(write)
        if writes and step_bytes > GROUP_BYTES:
            break
        tickets.append(ticket)
        writes.append(write)
        view = replace(view, pointer=replace(view.pointer, committed=max(view.pointer.committed, txid)))
    if not tickets:
        return Unchanged(())
    writes.append(snap.set(snap.paths.commit, codec.encode_pointer(replace(snap.pointer(), fence=fence))))
    return Change(
        writes=tuple(writes),
        witness=snap.paths.tx(tickets[0].txid),
        result=tuple(tickets),
        # A transaction whose turn has come does not depend on new transactions or lifecycle commands.
        unchecked=frozenset({snap.paths.head, snap.paths.topology}),
    )


def _require_as_seen(tx: TxRecord, seen: TxRecord) -> None:
    if (tx.attempt, tx.fence) != (seen.attempt, seen.fence):
        raise FencedError(
            f"transaction {tx.txid} was taken up by {tx.owner} since this committer looked at it (attempt {tx.attempt} "
            f"and fence {tx.fence}, then {seen.attempt} and {seen.fence})",
            "Nothing was changed; look again.",
        )


def _ticket(view: LedgerView, txid: int) -> CommitTicket:
    """:raises TransitionError: the transaction cannot commit now."""
    decision = decide_commit(view, txid)
    if not isinstance(decision, Commit) or view.tx is None or view.tx.staged is None:
        raise TransitionError(f"transaction {txid} cannot commit now: {why_not(decision)}", "Ask again later.")
    return ticket_of(view, view.tx, view.tx.staged)


def committed(
    snap: Snapshot,
    tickets: Sequence[CommitTicket],
    *,
    retention: int = DEFAULT_RETENTION,
    late_rows: Mapping[int, Mapping[str, int]] | None = None,
    then: NextBatches | None = None,
) -> Change[Committed] | Unchanged[Committed]:
    """COMMITTING -> COMMITTED, for as many as fit into one step; the same step moves the pointer and prunes. It prunes
    at most as many transactions as it commits (or `PRUNED_PER_COMMIT`, if that is more), but none of these:
    coordinators are told of each (:meth:`Coordinator.success`).

    :param tickets: in the order of their txids.
    :param late_rows: txid -> see :class:`TxRecord`.
    :param then: the same step begins these: the committed ones make room for them. If that raises, nothing is changed:
        if a source cannot be asked, the caller uses the tickets without it.
    :raises FencedError: a newer ticket was given out.
    """
    if retention < 1:
        raise ConfigurationError(f"retention is {retention}", "Keep at least 1 committed transaction.")
    txids = [ticket.txid for ticket in tickets]
    require_order(txids)
    snap.prefetch_transactions(txids)
    together, late = Together(snap), late_rows or {}
    steps = (partial(_committed, ticket=ticket, late_rows=dict(late.get(ticket.txid, {}))) for ticket in tickets)
    records = together.while_they_fit(steps)
    new = [record.txid for record in records if record.op == snap.op]
    if new:
        together.then(partial(_pruned, retention=retention, just_committed=new))
    if then is None:
        return together.change(Committed(records=records))
    begun = together.then(partial(begin, batches=then, step_bytes=together.bytes))
    if not isinstance(begun, tuple):
        return together.change(Committed(records=records, why_not=begun))
    return together.change(Committed(records=records, begun=begun), witness=_claim_of(snap, begun))


def _claim_of(snap: Snapshot, begun: Sequence[Begun]) -> str:
    """The key of the first new claim: nobody overwrites it, while somebody may overwrite a record."""
    new = (transaction.record for transaction in begun if transaction.new and transaction.record is not None)
    return next((snap.paths.claim(record.claim.key) for record in new), "")


def _committed(
    snap: Snapshot, ticket: CommitTicket, late_rows: dict[str, int]
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """COMMITTED for one ticket, without the pruning."""
    tx = snap.tx(ticket.txid)
    if tx is not None and tx.status is Status.COMMITTED and tx.fence == ticket.fence:
        return Unchanged(tx)
    tx = common.of_ticket(snap, ticket)
    require_all_states(snap.topology(), ticket)
    record = common.moved(snap, tx, Status.COMMITTED, error="", first_error="", late_rows=late_rows)
    pointer, exceptions = snap.pointer(), snap.exceptions()
    after = forgotten(shifted(exceptions, tx.txid, ""), ticket.floor)
    writes: list[Write] = [snap.set_tx(record)]
    if after != exceptions:
        writes.append(snap.set(snap.paths.exceptions, codec.encode_exceptions(after)))
    if tx.txid > pointer.committed:
        _require_turn(pointer, exceptions, tx.txid)
        passed = over_skipped(tx.txid, exceptions)
        writes.append(snap.set(snap.paths.commit, codec.encode_pointer(replace(pointer, committed=passed))))
    return Change(writes=tuple(writes), witness=snap.paths.tx(tx.txid), result=record)


def _require_turn(pointer: CommitPointer, exceptions: Exceptions, txid: int) -> None:
    """A ticket of a group comes with those before it, or after them.

    :raises TransitionError: the pointer would pass a transaction that is not committed.
    """
    before = over_skipped(pointer.committed, exceptions)
    if before < txid - 1:
        raise TransitionError(
            f"transaction {txid} cannot be COMMITTED before transaction {before + 1}, which is below it",
            "Give the tickets of the whole group back together.",
        )


def _pruned(snap: Snapshot, retention: int, just_committed: Sequence[int]) -> Change[None] | Unchanged[None]:
    pointer, exceptions = snap.pointer().committed, snap.exceptions()
    writes = prune(snap, pointer, exceptions, retention, just_committed=just_committed)
    return Change(writes=tuple(writes), witness="", result=None) if writes else Unchanged(None)


def bar(snap: Snapshot, txid: int, *, owner: Owner | str) -> Change[CommitTicket]:
    """The next fence for a transaction whose commit has begun; the caller will take that commit back. The status stays.
    The owner of an attempt stays too, because it is still at work; the owner of an open commit is replaced by the
    caller, because its ticket is void.

    The ticket `bars`: with it :meth:`State.bar` makes every state refuse all earlier tickets.

    :raises TransitionError: no commit of it has begun, or it is COMMITTED.
    :raises HeldError: a state left the topology since its commit began, and cannot be asked.
    """
    view, tx = snap.view(txid), common.existing(snap, txid)
    if not tx.touched or tx.status.is_final:
        raise nothing_to_take_back(tx)
    for former in view.topology.former:
        if txid in former.txids:
            raise may_be_in_former(view.topology.name, txid, former)
    ticket = ticket_of(view, tx, None)
    whose = Owner.of(owner) if tx.status is Status.COMMITTING else tx.owner
    record = replace(tx, op=snap.op, fence=ticket.fence, owner=whose)
    pointer = replace(view.pointer, fence=ticket.fence)
    return Change(
        writes=(snap.set_tx(record), snap.set(snap.paths.commit, codec.encode_pointer(pointer))),
        witness=snap.paths.tx(txid),
        result=ticket,
        # The part of the ticket about states depends on the exceptions.
        unchecked=frozenset({snap.paths.head, snap.paths.topology}),
    )


def take_back(snap: Snapshot, ticket: CommitTicket, reason: str) -> Change[TxRecord]:
    """-> FAILED, and no longer `touched`: no state holds the batch, and none will take it by an older ticket.

    :param ticket: of :func:`bar`; every state has been barred with it and holds nothing of the transaction.
    :raises FencedError: a newer ticket was given out, or another attempt began.
    """
    tx = common.of_ticket(snap, ticket)
    if not ticket.bars or not tx.touched:
        raise nothing_to_take_back(tx)
    failed = tx if tx.status is Status.FAILED else common.moved(snap, tx, Status.FAILED)
    record = replace(failed.with_error(reason), op=snap.op, touched=False)
    writes = (snap.set_tx(record), *common.exceptions_write(snap, tx.txid, "failed"))
    return Change(writes=writes, witness=snap.paths.tx(tx.txid), result=record)
