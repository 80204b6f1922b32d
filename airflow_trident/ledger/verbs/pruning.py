"""What the ledger forgets, and when (P10). The work per commit is bounded.

The step that commits a transaction deletes records of old ones. Claim keys are kept longer: without its key, a run that
is cleared years later would begin a new transaction and count its data twice. When keys are deleted after all, the
topology remembers how old the runs were (`floor_ms`), so that such a run is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby, islice, pairwise, takewhile

from airflow_trident.ledger.folder_names import FolderNames
from airflow_trident.ledger.paths import BUCKETS, tx_name
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.znodes import Delete
from airflow_trident.protocol import codec
from airflow_trident.protocol.exceptional_txids import needed_at_any_age
from airflow_trident.protocol.large_metadata import BASE
from airflow_trident.protocol.records import Exceptions

PRUNED_PER_COMMIT = 50
KEPT_CLAIMS = 10_000
CLAIM_SWEEP_COMMITS = 32
"""Every 32 commits one of the 256 buckets of claim keys is swept: ``256 * 32`` commits for all of them."""


def prune(
    snap: Snapshot, upto: int, exceptions: Exceptions, retention: int, *, just_committed: Collection[int]
) -> list[Write]:
    """Deletes of the oldest committed transactions beyond `retention`, and of their chunks.

    Every transaction at or below the commit pointer `upto` that is not among the exceptions is committed: no record has
    to be read. Those that are just being committed stay, however old: their committer wants to see them. So do those
    that a spout has to be told of: only their records tell its coordinator.
    """
    just = {tx_name(txid): True for txid in just_committed}
    names = snap.names(snap.paths.transactions).after(just)
    special = {tx_name(txid) for txid in needed_at_any_age(exceptions) if txid <= upto}
    done = names.upto(tx_name(upto)) - sum(name in names for name in special)
    oldest = islice((name for name in names if name not in special), max(done - retention, 0))
    most = max(PRUNED_PER_COMMIT, len(just_committed))
    told = snap.topology().told
    free = (name for name in oldest if name not in just and (told is None or int(name) in told))
    gone = list(islice(free, most))
    if not gone:
        return []
    kept_apart = snap.names(snap.paths.chunks)
    chunks = {chunk: True for name in gone for chunk in kept_apart.starting_with(f"{name}-")}
    # An emitter may have written a chunk after this process looked; such a chunk can outlive its transaction.
    lowest = next(iter(names))
    chunks |= dict.fromkeys(islice(takewhile(lambda chunk: chunk < lowest, kept_apart), PRUNED_PER_COMMIT), True)
    writes: list[Write] = [Delete(snap.paths.tx(int(name))) for name in gone]
    writes += (Delete(snap.paths.chunk(name)) for name in chunks)
    left = names.after(dict.fromkeys(gone, False))
    return [*writes, *(Delete(snap.paths.chunk(name)) for name in _unshared(kept_apart, left))]


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
