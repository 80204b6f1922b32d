"""What a verb is going to read, as far as it is known: all of it is read in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from airflow_trident.ledger.begin_result import NextBatches
from airflow_trident.ledger.group_answers import StagedAttempt
from airflow_trident.ledger.verb import Prefetch, RunsVerbs
from airflow_trident.protocol.records import CommitTicket, Owner, StagedRef, TxRecord

One: TypeAlias = int | TxRecord | CommitTicket | StagedAttempt
About: TypeAlias = One | Sequence[One]
"""What a verb gets as its first argument: a transaction, or the members of a group."""


def the_topology(*_: Any, **__: Any) -> Prefetch:
    """The topology's record, which every step reads."""
    return Prefetch()


def the_deployment(ledger: RunsVerbs, *_: Any, **__: Any) -> Prefetch:
    where = ledger.paths().deployment
    return Prefetch([where], [where])


def the_pointer(ledger: RunsVerbs, *_: Any, **__: Any) -> Prefetch:
    return Prefetch([ledger.paths().commit])


# ---- transactions ----------------------------------------------------------------------------------------------


def transactions(ledger: RunsVerbs, about: About, *_: Any, **__: Any) -> Prefetch:
    return _about(ledger, _txids(about))


def with_what_is_kept(ledger: RunsVerbs, about: About, *_: Any, **__: Any) -> Prefetch:
    """For commits, which prune."""
    return _and_what_is_kept(ledger, _txids(about))


def staged(ledger: RunsVerbs, done: Sequence[StagedAttempt], *, gate_by: Owner | str = "") -> Prefetch:
    """With what the commit after it reads, if the same step opens the gate."""
    ahead = with_what_is_kept(ledger, done) if gate_by else transactions(ledger, done)
    return _and_chunks(ledger, ahead, [one.staged for one in done])


# ---- claims ----------------------------------------------------------------------------------------------------


def of_claims(ledger: RunsVerbs, batches: NextBatches, **_: Any) -> Prefetch:
    """With the claims' keys, and with the folders, where the commit after it looks for what to prune."""
    paths, cache = ledger.paths(), ledger.transactor.cache
    keys, shared = [paths.claim(claim.key) for claim in batches.claims], paths.about(0)
    if cache.has([paths.topology, *shared], ()):
        # A process that goes from one transaction to the next need not read the node of a new claim: creating it shows
        # whether it exists.
        for key in keys:
            cache.assume_missing(key)
    return Prefetch([*shared, *keys], paths.pruned())


def tickets_and_claims(
    ledger: RunsVerbs, tickets: Sequence[CommitTicket], *, then: NextBatches | None = None, **_: Any
) -> Prefetch:
    """For commits, which prune, and of what begins in the same step."""
    ahead = with_what_is_kept(ledger, tickets)
    return ahead if then is None else Prefetch([*ahead.paths, *of_claims(ledger, then).paths], ahead.folders)


# ---- all of them -----------------------------------------------------------------------------------------------


def _txids(about: About) -> list[int]:
    members = about if isinstance(about, Sequence) else [about]
    return [one if isinstance(one, int) else one.txid for one in members]


def _about(ledger: RunsVerbs, txids: Iterable[int]) -> Prefetch:
    """What decides about these transactions, in reading order: see :meth:`LedgerPaths.about`."""
    paths = ledger.paths()
    return Prefetch([*paths.about(0), *(paths.tx(txid) for txid in txids if txid >= 1)])


def _and_what_is_kept(ledger: RunsVerbs, txids: Iterable[int]) -> Prefetch:
    return Prefetch(_about(ledger, txids).paths, ledger.paths().pruned())


def _and_chunks(ledger: RunsVerbs, ahead: Prefetch, staged: Iterable[StagedRef]) -> Prefetch:
    """With the chunks that the step creates: creating them shows whether they exist."""
    chunks = list(dict.fromkeys(ledger.paths().chunk(one.chunk) for one in staged if one.content))
    for path in chunks:
        ledger.transactor.cache.assume_missing(path)
    return Prefetch([*ahead.paths, *chunks], ahead.folders)
