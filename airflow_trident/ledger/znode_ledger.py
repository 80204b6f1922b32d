"""The ledger, with what a person does: restore it from its states or a back-up."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.backup.importing import contents_of, prepare_import
from airflow_trident.ledger.backup.seed import Seed
from airflow_trident.ledger.backup.seeding import record_of, seed_ops
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.paths import LedgerPaths, topologies_folder
from airflow_trident.ledger.znodes import Set, require_sizes
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import TopologyRecord
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.types import Json


class ZNodeLedger(Ledger):
    """The ledger that hooks and commands open: see :class:`~airflow_trident.ledger.base.Ledger`."""

    def seed(
        self,
        definition: Definition,
        seed: Seed,
        *,
        behind: Callable[[], bool] = lambda: False,
        first: Callable[[], object] = lambda: None,
        dry_run: bool = False,
        taken_over: str = "",
    ) -> None:
        """Makes the ledger agree with what the states hold: see :mod:`airflow_trident.ledger.backup.seeding`.

        From now on cleared runs whose claim keys were lost are refused (`floor_ms`).

        :param behind: asked only if the numbers do not show it: is the ledger behind nevertheless?
        :param first: called once it is certain that the ledger is behind, before anything is written.
        :param taken_over: see `TopologyRecord.taken_over`.
        :param dry_run: look whether it could be done, and do nothing.
        :raises TransitionError: the ledger is not behind the states, or somebody else wrote meanwhile.
        """
        op, now_ms = uuid.uuid4().hex[:16], self._clock_ms()
        record = record_of(self.topology_name, definition, seed, now_ms=now_ms, taken_over=taken_over)
        if not dry_run:
            self.znodes.ensure(topologies_folder(self._root))
        ops = seed_ops(self.znodes, record, self._path, seed, op=op, now_ms=now_ms, behind=behind)
        require_sizes(ops)
        if dry_run:
            return
        first()
        if not self.transactor.apply(ops, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Repair it again.")
        self.transactor.cache.forget()
        self._known_paths = LedgerPaths(self._path, seed.incarnation)

    def import_from(self, exported: Json) -> TopologyRecord:
        """Imports what `export` wrote: see :mod:`airflow_trident.ledger.backup.importing`.

        :raises TransitionError: the topology has a ledger with transactions, or somebody else wrote meanwhile.
        """
        op = uuid.uuid4().hex[:16]
        contents = contents_of(exported, self.topology_name, op=op)
        version = prepare_import(self.znodes, self._path, contents)
        last = [Set(self._path, codec.encode_topology(contents.topology, op=op), version)]
        if not self.transactor.apply(last, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Look at it first.")
        self.transactor.cache.forget()
        self._known_paths = LedgerPaths(self._path, contents.topology.incarnation)
        return contents.topology

    def was(self, incarnation: str) -> bool:
        """Is or was this ledger the one of that incarnation?"""
        head = LedgerPaths(self._path, incarnation).head
        return self.znodes.read([head]).nodes[head] is not None
