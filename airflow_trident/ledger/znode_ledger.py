"""The ledger over ZooKeeper, or over anything that is a :class:`~airflow_trident.ledger.znodes.ZNodes`."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from airflow_trident.errors import RetryableError, TransitionError, UnknownTopologyError
from airflow_trident.ledger.backup.export import export_json
from airflow_trident.ledger.backup.importing import contents_of, prepare_import, require_finished
from airflow_trident.ledger.backup.seeding import Seed, record_of, seed_ops
from airflow_trident.ledger.base import (
    DEFAULT_MAX_PENDING,
    DEFAULT_RETENTION,
    BeginResult,
    Begun,
    LagOf,
    MetadataOf,
)
from airflow_trident.ledger.paths import BUCKETS, DEFAULT_ROOT, Life, topologies_folder, topology_path
from airflow_trident.ledger.transact import Plan, Snapshot, Transactor, another_life
from airflow_trident.ledger.verbs import outcomes, pruning
from airflow_trident.ledger.verbs import topology as topology_verbs
from airflow_trident.ledger.verbs import transactions as verbs
from airflow_trident.ledger.workers import Worker, enlist, live_workers, retire
from airflow_trident.ledger.znode_states import ZNodeStates
from airflow_trident.ledger.znodes import Create, Set, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.records import (
    Claim,
    Command,
    CommitPointer,
    CommitTicket,
    Definition,
    Exceptions,
    LedgerView,
    Owner,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.types import Json

T = TypeVar("T")
READ_AT_ONCE = 500
"""Records of a list that are asked for in one round trip."""
SAID_ENOUGH_MS = 60_000
"""A drain asks its sources after each transaction: that nothing is new is said again after a while only."""
SLOW_POLL_S = 30.0
"""A net under the watches: how often a waiter looks anyway."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def topology_names(znodes: ZNodes, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger, sorted."""
    folder = topologies_folder(root)
    return sorted(znodes.read([], [folder]).folders[folder] or ())


STEP_DEADLINE_S = 120.0
"""So long one step goes on finding out what became of a write whose answer was lost, or competing with others. Giving
up earlier gains nothing: the next try of the task would wait for the same server."""


class ZNodeLedger(ZNodeStates):
    """See :class:`~airflow_trident.ledger.base.Ledger` for what it promises.

    :param root: where in the tree the ledgers of all topologies are.
    :param incarnation: of the topology, if the caller was told it (by the coordinator's XCom): saves a round trip.
        Another life of the topology then refuses.
    :param step_deadline_s: how long one call may take in all; beyond it an unresolved write is an OutcomeUnknownError.
    :param keep_claims: how many transactions back claim keys are kept.
    """

    def __init__(
        self,
        znodes: ZNodes,
        topology_name: str,
        root: str = DEFAULT_ROOT,
        *,
        incarnation: str = "",
        step_deadline_s: float = STEP_DEADLINE_S,
        keep_claims: int = pruning.KEPT_CLAIMS,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.topology_name = topology_name
        self.znodes = znodes
        self._root = root
        self._path = topology_path(root, topology_name)
        self._keep_claims = keep_claims
        self._clock_ms = clock_ms
        self._transactor = Transactor(znodes, clock_ms, step_deadline_s)
        self._known_life = Life(self._path, incarnation) if incarnation else None
        self._told = bool(incarnation)
        self._said: tuple[CoordinatorOutcome | None, int] = (None, 0)

    # ---- the topology ------------------------------------------------------------------------------------------

    def register(
        self, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
    ) -> TopologyRecord:
        for _ in range(2):  # the second time only if somebody else created it meanwhile
            found = self._read_topology()
            if found is not None:
                break
            if self._told:
                raise self._unknown()
            created = self._create(definition)
            if created is not None:
                return created
        if found is None:
            raise self._unknown()
        if self._known_life is not None and self._known_life.incarnation != found.incarnation:
            raise another_life(self.topology_name, found.incarnation, self._known_life.incarnation)
        if found.definition == definition:
            return found
        return self._run(
            functools.partial(topology_verbs.redefine, definition=definition, accept_change=accept_change, empty=empty)
        )

    def topology(self) -> TopologyRecord:
        found = self._read_topology()
        if found is None:
            raise self._unknown()
        return found

    def set_command(self, command: Command) -> TopologyRecord:
        return self._run(functools.partial(topology_verbs.set_command, command=command))

    def _read_topology(self) -> TopologyRecord | None:
        node = self.znodes.read([self._path]).nodes[self._path]
        if node is None:
            return None
        require_finished(node.data, self._path)
        found = codec.decode_topology(node.data, self._path)
        if self._known_life is None:
            self._known_life = Life(self._path, found.incarnation)
        return found

    def _create(self, definition: Definition) -> TopologyRecord | None:
        """All nodes of a new life in one step; None if somebody else was faster."""
        incarnation, op = uuid.uuid4().hex[:8], uuid.uuid4().hex[:16]
        life = Life(self._path, incarnation)
        record = TopologyRecord(
            name=self.topology_name,
            incarnation=incarnation,
            definition=definition,
            created_ms=self._clock_ms(),
            since=dict.fromkeys(definition.states, 1),
        )
        self.znodes.ensure(topologies_folder(self._root))
        folders = [Create(path) for path in life.folders()]
        records = [
            Create(life.head, codec.encode_head(1)),
            Create(life.commit, codec.encode_pointer(CommitPointer(committed=0, fence=0))),
            Create(life.exceptions, codec.encode_exceptions(Exceptions())),
        ]
        ops = [Create(self._path, codec.encode_topology(record, op=op)), *folders, *records]
        if not self._transactor.apply(ops, witness=self._path, op=op):
            return None
        self._known_life = life
        return record

    def seed(self, definition: Definition, seed: Seed) -> TopologyRecord:
        """Make the ledger agree with what the states hold: see :mod:`airflow_trident.ledger.backup.seeding`.

        Cleared runs whose claim keys were lost are refused from now on (`floor_ms`).

        :raises TransitionError: the ledger is not behind the states, or somebody else wrote meanwhile.
        """
        op, now_ms = uuid.uuid4().hex[:16], self._clock_ms()
        record = record_of(self.topology_name, definition, seed, now_ms=now_ms)
        self.znodes.ensure(topologies_folder(self._root))
        ops = seed_ops(self.znodes, record, self._path, seed, op=op, now_ms=now_ms)
        if not self._transactor.apply(ops, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Repair it again.")
        self._transactor.cache.forget()
        self._known_life = Life(self._path, seed.incarnation)
        return record

    def import_from(self, exported: Json) -> TopologyRecord:
        """Put in what `export` gave: see :mod:`airflow_trident.ledger.backup.importing`.

        :raises TransitionError: the topology has a ledger with transactions, or somebody else wrote meanwhile.
        """
        op, now_ms = uuid.uuid4().hex[:16], self._clock_ms()
        contents = contents_of(exported, self.topology_name, op=op, now_ms=now_ms)
        version = prepare_import(self.znodes, self._path, contents)
        last = [Set(self._path, codec.encode_topology(contents.topology, op=op), version)]
        if not self._transactor.apply(last, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Look at it first.")
        self._transactor.cache.forget()
        self._known_life = Life(self._path, contents.topology.incarnation)
        return contents.topology

    def _life(self) -> Life:
        if self._known_life is None:
            self.topology()
        assert self._known_life is not None
        return self._known_life

    def _unknown(self) -> UnknownTopologyError:
        names = topology_names(self.znodes, self._root)
        return UnknownTopologyError(
            f"there is no ledger of a topology {self.topology_name!r} in {self.znodes.describe()} below {self._root}",
            f"Known topologies: {', '.join(names) or 'none'}. A topology's first coordinator run creates its ledger.",
        )

    # ---- reading -----------------------------------------------------------------------------------------------

    def view(self, txid: int, *, remembered: bool = False) -> LedgerView:
        if remembered:
            life = self._life()
            return self._transactor.remembered(life, self._paths(life, txid)).view(txid)
        return self._snapshot(txid).view(txid)

    def transactions(self, first: int = 1, last: int | None = None) -> Sequence[TxRecord]:
        life = self._life()
        snap = self._transactor.fresh(life, folders=[life.transactions])
        txids = sorted(int(name) for name in snap.names(life.transactions))
        wanted = [txid for txid in txids if first <= txid and (last is None or txid <= last)]
        found: list[TxRecord] = []
        for at in range(0, len(wanted), READ_AT_ONCE):
            some = wanted[at : at + READ_AT_ONCE]
            snap.prefetch(map(life.tx, some))
            found.extend(tx for tx in map(snap.tx, some) if tx is not None)  # None: pruned meanwhile
        return found

    def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            changed, watched = self.compare(txid, seen)
            if changed:
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.znodes.wait_for_change(watched, min(left_s, SLOW_POLL_S))

    def compare(self, txid: int, seen: LedgerView) -> tuple[bool, dict[str, int | None]]:
        """Whether what a waiter on the transaction saw has changed; and the nodes to watch, at the versions read."""
        life, snap = self._life(), self._snapshot(txid)
        now = snap.view(txid)
        changed = (now.tx, now.exceptions, now.pointer) != (seen.tx, seen.exceptions, seen.pointer)
        return changed, {path: snap.used.get(path) for path in (life.tx(txid), life.exceptions)}

    def _snapshot(self, txid: int) -> Snapshot:
        life = self._life()
        return self._transactor.fresh(life, self._paths(life, txid), self._folders(life))

    # ---- the verbs ---------------------------------------------------------------------------------------------

    def begin(
        self,
        claim: Claim,
        metadata_of: MetadataOf,
        *,
        max_pending: int = DEFAULT_MAX_PENDING,
        attempt_by: Owner | str = "",
        lag_of: LagOf | None = None,
        plan: str = "",
    ) -> BeginResult:
        life = self._life()
        keys = [life.claim(key) for key in (claim.key, *claim.former)]
        cache, shared = self._transactor.cache, self._paths(life, 0)
        if cache.has([life.topology, *shared], ()):
            if claim.former:  # together with the transaction before, which is looked at next
                last = self._transactor.remembered(life, shared).next_txid() - 1
                cache.fetch([*keys, *([life.tx(last)] if last else [])])
            else:
                # A process that goes from one transaction to the next need not ask whether a new claim is known: that
                # its node is created finds it out, which it would not of former keys.
                cache.assume_missing(life.claim(claim.key))
        result = self._run(
            functools.partial(
                verbs.begin,
                claim=claim,
                metadata_of=metadata_of,
                max_pending=max_pending,
                attempt_by=Owner.of(attempt_by),
                lag_of=lag_of,
                digest=plan,
            ),
            paths=[*shared, *keys],
            folders=self._folders(life),  # for the commit after it, which looks at what is to be pruned
        )
        if isinstance(result, Begun) and result.new:
            self._said = (None, 0)
        return result

    def start_attempt(
        self,
        txid: int,
        *,
        owner: Owner | str,
        metadata_of: MetadataOf | None = None,
        plan: str = "",
        replays: bool = False,
    ) -> TxRecord:
        step = functools.partial(
            verbs.start_attempt,
            txid=txid,
            owner=Owner.of(owner),
            metadata_of=metadata_of,
            digest=plan,
            replays=replays,
        )
        return self._on(txid, step)

    def restart_attempt(
        self, ticket: CommitTicket, *, owner: Owner | str, metadata_of: MetadataOf | None = None, plan: str = ""
    ) -> TxRecord:
        by = Owner.of(owner)
        step = functools.partial(verbs.restart_attempt, ticket=ticket, owner=by, metadata_of=metadata_of, digest=plan)
        return self._on(ticket.txid, step)

    def processed(self, txid: int, attempt: int, staged: StagedRef) -> TxRecord:
        return self._on(txid, functools.partial(verbs.processed, txid=txid, attempt=attempt, staged=staged))

    def gate(self, txid: int, *, owner: Owner | str) -> CommitTicket:
        return self._on(txid, functools.partial(verbs.gate, txid=txid, owner=Owner.of(owner)), prunes=True)

    def committed(
        self, ticket: CommitTicket, *, retention: int = DEFAULT_RETENTION, late_rows: Mapping[str, int] | None = None
    ) -> TxRecord:
        plan = functools.partial(verbs.committed, ticket=ticket, retention=retention, late_rows=dict(late_rows or {}))
        record = self._on(ticket.txid, plan, prunes=True)
        if pruning.sweep_is_due(ticket.txid, self._keep_claims):
            self._sweep_claims(pruning.bucket_of_sweep(ticket.txid))
        return record

    def attempt_failed(self, txid: int, attempt: int, error: str) -> TxRecord:
        return self._on(txid, functools.partial(verbs.attempt_failed, txid=txid, attempt=attempt, error=error))

    def fail(self, txid: int, attempt: int, error: str) -> TxRecord:
        return self._on(txid, functools.partial(verbs.fail, txid=txid, attempt=attempt, error=error))

    # ---- the rest ----------------------------------------------------------------------------------------------

    def export(self) -> dict[str, Json]:
        life = self._life()
        view, records = self.view(0), self.transactions()
        return export_json(view, records, self._claims(life))

    def note_coordinator(self, outcome: CoordinatorOutcome) -> None:
        if outcome.kind is OutcomeKind.NOTHING_NEW:
            said, said_ms, now_ms = *self._said, self._clock_ms()
            if said == outcome and now_ms - said_ms < SAID_ENOUGH_MS:
                return
            self._said = (outcome, now_ms)
        life = self._life()
        self._run(functools.partial(outcomes.note, outcome=outcome), paths=[life.head, life.coordinator])

    def coordinator(self) -> CoordinatorOutcome | None:
        life = self._life()
        return outcomes.outcome_at(self._transactor.fresh(life, [life.coordinator]))

    def enlist(self, worker: Worker, *, wait: bool = True) -> str:
        return enlist(self.znodes, self._life(), worker, wait=wait)

    def retire(self, name: str) -> None:
        retire(self.znodes, self._life(), name)

    def workers(self) -> Sequence[Worker]:
        return live_workers(self.znodes, self._life())

    def close(self) -> None:
        self.znodes.close()

    def _claims(self, life: Life) -> dict[str, tuple[int, int]]:
        buckets = [life.bucket(name) for name in BUCKETS]
        folders = self.znodes.read([], buckets).folders
        paths = [f"{bucket}/{name}" for bucket in buckets for name in sorted(folders[bucket] or ())]
        claims: dict[str, tuple[int, int]] = {}
        for at in range(0, len(paths), READ_AT_ONCE):
            for path, node in self.znodes.read(paths[at : at + READ_AT_ONCE]).nodes.items():
                if node is not None:
                    claim = codec.decode_claim(node.data, path)
                    claims[claim.key] = (claim.txid, claim.run_ms)
        return claims

    def _sweep_claims(self, bucket: str) -> None:
        life = self._life()
        try:
            self._run(
                functools.partial(pruning.sweep_claims, bucket=bucket, kept=self._keep_claims),
                folders=[life.bucket(bucket), life.transactions],
            )
        except RetryableError:
            # The commit itself is done. The next sweep of this bucket does what this one could not.
            self._transactor.cache.forget()

    def _paths(self, life: Life, txid: int) -> list[str]:
        # The head before the transaction: one that is missing then was pruned, not begun in between.
        # A new transaction rewrites the coordinator's outcome: read with the rest it costs no round trip.
        shared = [life.head, life.commit, life.exceptions, life.coordinator]
        return [*shared, life.tx(txid)] if txid >= 1 else shared

    def _folders(self, life: Life) -> list[str]:
        return [life.transactions, life.chunks]

    def _on(self, txid: int, plan: Plan[T], *, prunes: bool = False) -> T:
        life = self._life()
        return self._run(plan, paths=self._paths(life, txid), folders=self._folders(life) if prunes else ())

    def _run(self, plan: Plan[T], *, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> T:
        return self._transactor.run(self._life(), plan, paths=paths, folders=folders)
