"""The part of the ledger over ZooKeeper for what a person or a look at the states says."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.paths import Life
from airflow_trident.ledger.transact import Plan
from airflow_trident.ledger.verbs import person as person_verbs
from airflow_trident.ledger.verbs import states as state_verbs
from airflow_trident.ledger.verbs import transactions as verbs
from airflow_trident.protocol.accepted import MendedSources
from airflow_trident.protocol.records import CommitTicket, Loss, Owner, TopologyRecord, TxRecord

T = TypeVar("T")


class ZNodeStates(Ledger):
    """What :class:`~airflow_trident.ledger.znode_ledger.ZNodeLedger` adds itself to."""

    def note_states(self, *, since: Mapping[str, int] | None = None, lost: Sequence[Loss] = ()) -> TopologyRecord:
        return self._run(functools.partial(state_verbs.note_states, since=since or {}, lost=lost))

    def take_fence(self) -> int:
        return self._run(state_verbs.take_fence, paths=[self._life().commit])

    def close_transaction(self, txid: int, reason: str) -> TxRecord:
        return self._on(txid, functools.partial(person_verbs.close_transaction, txid=txid, reason=reason))

    def accept_source(self, txid: int, sources: MendedSources, reason: str) -> TxRecord:
        return self._on(txid, functools.partial(person_verbs.accept_source, txid=txid, sources=sources, reason=reason))

    def bar(self, txid: int, *, owner: Owner | str) -> CommitTicket:
        return self._on(txid, functools.partial(verbs.bar, txid=txid, owner=Owner.of(owner)))

    def take_back(self, ticket: CommitTicket, reason: str) -> TxRecord:
        return self._on(ticket.txid, functools.partial(verbs.take_back, ticket=ticket, reason=reason))

    def skip(self, txid: int, reason: str) -> TxRecord:
        return self._on(txid, functools.partial(verbs.skip, txid=txid, reason=reason))

    @abstractmethod
    def _life(self) -> Life: ...

    @abstractmethod
    def _run(self, plan: Plan[T], *, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> T: ...

    @abstractmethod
    def _on(self, txid: int, plan: Plan[T], *, prunes: bool = False) -> T: ...
