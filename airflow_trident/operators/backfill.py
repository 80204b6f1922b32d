"""The backfill task: replays transactions that are not committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.names import Redo
from airflow_trident.operators.base import airflow_outcome, claim_of, is_known, listed, owner
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.records import OnFailure
from airflow_trident.runtime.drains.limits import AUTO, DrainLimits, parse_group, require_groups
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.asking_airflow import orphans

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.protocol.partitions import OnMissing
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.backfill import Backfilled, Selection
    from airflow_trident.runtime.drains.keys import KeyResult
    from airflow_trident.runtime.partition_status import KeySelection
    from airflow_trident.topology.topology import Topology


REASONS = 10
"""The most failures that the error of the task tells. Its log has all of them."""


class TridentBackfillOperator(EngineOperator):
    """Replays transactions that are not committed, lowest first, each exactly once; one failure does not stop the rest.

    Without `txid`, `first` and `last` it takes all FAILED transactions, all whose replay began and did not end (also
    in a killed try of this task), the processed ones that nobody commits, and those whose tasks have ended without a
    result. Returns the txids that it committed,
    with those that its commit sweep also committed; of more than 100, their count and ranges. Skips when there is
    nothing to do. Fails when a transaction failed again.

    For a topology that is bound to partitions it does those of `partitions`, in groups. Without it, it does those from
    `first` to `last`, or those whose last attempt failed. It fails when one of them failed, after the others.

    :param topology: the Topology.
    :param txid: one transaction (templated).
    :param first: lowest txid of a range (templated); open when only `last` is given.
    :param last: highest txid of a range (templated); open when only `first` is given.
    :param partitions: of a bound topology: a key, or a list of keys (templated). ``"missing"``, ``"changed"`` or
        ``"failed"``: all such partitions from `first` to `last`, which are keys then.
    :param redo: ``"asked"``: do committed partitions that you name again, also if their sources are as they were;
        ``"changed"``: only if they have changed.
    :param gone: instead of that of `Partitions` (templated).
    :param empty: instead of that of `Partitions` (templated).
    :param reason: why; the ledger keeps it (templated).
    :param group: how many transactions are processed and committed together, if there are several above the commit
        pointer: at most this number; ``auto``: chosen by how much there is to read and how long it takes; 1: each
        alone (templated).
    :param retention: committed transactions to keep; None: as the other tasks of the DAG that have this topology, else
        ``[trident] retention``.
    :raises ConfigurationError: `group` is a number, but the topology or one of its states takes one at a time.
    """

    template_fields: Sequence[str] = (
        "txid",
        "first",
        "last",
        "partitions",
        "gone",
        "empty",
        "reason",
        "group",
        *EngineOperator.template_fields,
    )
    ui_color = "#ecd9ec"
    brings_events = True
    retention_of_others = True
    """Without a number of its own it keeps what others keep: see `tasks.topology_search.retention_of`."""

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any = None,
        first: Any = None,
        last: Any = None,
        partitions: Any = None,
        redo: Redo | str = Redo.CHANGED,
        gone: OnMissing | str | None = None,
        empty: OnMissing | str | None = None,
        reason: str = "",
        group: int | str = AUTO,
        retention: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        if txid is not None and (first is not None or last is not None):
            raise ConfigurationError("txid and a range exclude each other", "Give txid, or first and last.")
        if txid is not None and partitions is not None:
            raise ConfigurationError("txid and partitions exclude each other", "Give one of them.")
        if topology.partitions is None and (partitions is not None or gone or empty or reason):
            raise ConfigurationError(
                f"topology {topology.name!r} is not bound to partitions",
                "Leave out partitions, gone, empty and reason; or give it Topology(partitions=...).",
            )
        self.txid = txid
        self.first = first
        self.last = last
        self.partitions = partitions
        self.redo = Redo(_require("redo", redo, tuple(Redo)))
        self.gone = gone
        self.empty = empty
        self.reason = reason
        if topology.partitions is None:
            for value in filter(is_known, (txid, first, last)):
                _optional(value)  # raises for one that is no txid
        elif all(map(is_known, (txid, first, last, gone, empty, *_items(partitions)))):
            self._order()  # raises for what cannot be meant
        self.group = group
        self.retention = settings.parse_limit("retention", retention)
        self.one_batch = txid is not None
        if is_known(group):
            require_groups(topology.compile(), parse_group(group))

    def execute(self, context: Context) -> list[int] | dict[str, Any]:
        with airflow_outcome(), self.ledger_of_run(context) as ledger:
            self.enlist(ledger, context)
            committed = self.replay(ledger, context)
            asset_events.bring(self, self.topology, ledger, context, owner(context))
            return listed(committed)

    def replay(self, ledger: Ledger, context: Context) -> list[int]:
        """The txids that were committed; the docstring of the class says when the task skips or fails."""
        from airflow_trident.runtime.backfill import Backfill, Selection

        order = self._order()
        if not isinstance(order, Selection):
            return self._do_partitions(ledger, context, order)
        results = Backfill(
            ledger=ledger,
            topology=self.topology,
            engine=lambda: self.open_engine(context),
            staging_root=settings.staging_root(self.staging_dir),
            owner=owner(context),
            attempt_timeout_s=self.attempt_timeout_s,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
            max_merge_rows=settings.max_merge_rows(),
            max_partition_keys=settings.max_partition_keys(),
            retention=self.retention or self._retention_of_dag(),
            progress=lambda line: self.log.info("%s", line),
            group=parse_group(self.group),
            orphans=lambda records: orphans(ledger, records),
        ).run(order)
        return self._outcome(results)

    def _do_partitions(self, ledger: Ledger, context: Context, selection: KeySelection) -> list[int]:
        from airflow_trident.runtime.drains.drain import Drain
        from airflow_trident.runtime.drains.keys import AskedPartitions
        from airflow_trident.runtime.outcomes import register

        register(ledger, self.topology)
        asked = AskedPartitions(
            keys=selection.keys_of(ledger, self.topology),
            redo=selection.does_again(self.redo),
            gone=_rule("gone", self.gone),
            empty=_rule("empty", self.empty),
            reason=self.reason,
        )
        with self.open_engine(context) as engine:
            drained = Drain(
                ledger=ledger,
                topology=self.topology,
                engine=engine,
                staging_root=settings.staging_root(self.staging_dir),
                attempts=replace(self.attempts(context), on_failure=OnFailure.SKIP),
                claim=claim_of_clear(context, "backfill"),
                limits=DrainLimits(group=self.group, tries=1),
                retention=self.retention or self._retention_of_dag(),
                progress=lambda line: self.log.info("%s", line),
                partitions=asked,
            ).run()
        require_done(drained.keys, self.log, is_named=selection.choice is None)
        if not drained.committed:
            which = f"no partition is {selection.choice}"
            if asked.keys:
                which = f"{len(asked.keys)} partitions are committed, and their sources are as they were"
            raise AirflowSkipException(f"topology {self.topology_name}: nothing to do; {which}.")
        self.current_txids = drained.committed
        return list(drained.committed)

    def _retention_of_dag(self) -> int:
        from airflow_trident.tasks.topology_search import retention_of

        tasks = self.dag.tasks if self.has_dag() else []  # type: ignore[no-untyped-call]
        return retention_of(self.topology_name, tasks)

    def _order(self) -> Selection | KeySelection:
        """:raises ConfigurationError: the arguments name no transactions and no partitions."""
        from airflow_trident.runtime.backfill import Selection

        if self.topology.partitions is not None and _text(self.txid) is None:
            first, last = _text(self.first), _text(self.last)
            if not any(text is not None and text.isdecimal() for text in (first, last)):
                return self._keys(first, last)
        txid, first_txid, last_txid = (_optional(value) for value in (self.txid, self.first, self.last))
        if txid is not None:
            return Selection(first=txid, last=txid)
        if first_txid is None and last_txid is None:
            return Selection(failed=True)
        return Selection(first=first_txid, last=last_txid)

    def _keys(self, first: str | None, last: str | None) -> KeySelection:
        from airflow_trident.runtime.partition_status import KeyChoice, KeySelection
        from airflow_trident.runtime.partitions import bound_to

        for option, rule in (("gone", self.gone), ("empty", self.empty)):
            _rule(option, rule)
        names = [name for item in _items(self.partitions) if (name := _text(item)) is not None]
        choice = next((KeyChoice(name) for name in names if name in tuple(KeyChoice)), None)
        if choice is not None and len(names) > 1:
            raise ConfigurationError(f"partitions is {self.partitions!r}", f"Give keys, or only {str(choice)!r}.")
        if not names and first is None and last is None:
            choice = KeyChoice.FAILED
        for key in (*(() if choice else names), first, last):
            if key is not None:
                bound_to(self.topology).parse(key)
        return KeySelection(keys=() if choice else tuple(names), choice=choice, first=first, last=last)

    def _outcome(self, results: list[Backfilled]) -> list[int]:
        from airflow_trident.runtime.backfill import BackfillOutcome

        if not results:
            raise AirflowSkipException(
                f"topology {self.topology_name} has no unfinished transaction: nothing to replay."
            )
        failed = [backfilled for backfilled in results if backfilled.outcome is BackfillOutcome.FAILED]
        if failed:
            reasons = "; ".join(
                f"transaction {backfilled.txid}: {backfilled.detail}" for backfilled in failed[:REASONS]
            )
            reasons += f"; and {len(failed) - REASONS} more" if len(failed) > REASONS else ""
            raise AirflowException(f"{len(failed)} of {len(results)} transactions failed again: {reasons}")
        committed = {backfilled.txid for backfilled in results if backfilled.outcome is BackfillOutcome.COMMITTED}
        committed.update(*(backfilled.also_committed for backfilled in results))
        self.current_txids = sorted(committed)
        return sorted(committed)


def require_done(keys: Sequence[KeyResult], log: Any, *, is_named: bool) -> None:
    """
    :param is_named: a person named these partitions; else those that are not complete yet are left for a later run.
    :raises AirflowException: partitions failed, or are not done.
    """
    from airflow_trident.runtime.drains.keys import KeyOutcome

    failed = [key for key in keys if key.outcome is KeyOutcome.FAILED]
    unfinished = [key for key in keys if key.outcome is KeyOutcome.UNFINISHED]
    for key in (*failed, *unfinished):
        log.warning("partition %s is not done: %s", key.key, key.detail or "it did not begin")
    failed += unfinished if is_named else []
    if failed:
        reasons = "; ".join(f"{key.key}: {key.detail or 'it did not begin'}" for key in failed[:REASONS])
        reasons += f"; and {len(failed) - REASONS} more" if len(failed) > REASONS else ""
        raise AirflowException(f"{len(failed)} of {len(keys)} partitions are not done: {reasons}")


def claim_of_clear(context: Context, kind: str) -> Claim:
    """The claim of a task that does partitions: a cleared run asks for them again."""
    claim, clears = claim_of(context, kind), getattr(context["dag_run"], "clear_number", 0)
    return replace(claim, key=f"{claim.key}:p{clears}")


def _require(name: str, value: Any, known: Sequence[str]) -> str:
    """:raises ConfigurationError: the value is unknown."""
    if value not in known:
        raise ConfigurationError(f"{name} is {value!r}", f"Use {' or '.join(repr(str(name)) for name in known)}.")
    return str(value)


def _rule(name: str, rule: OnMissing | str | None) -> OnMissing | None:
    from airflow_trident.protocol.partitions import OnMissing

    text = _text(rule)
    return None if text is None else OnMissing(_require(name, text, tuple(OnMissing)))


def _items(partitions: Any) -> list[Any]:
    """The keys of a list, or of a text with commas."""
    if isinstance(partitions, str):
        return partitions.split(",") if is_known(partitions) else [partitions]
    return list(partitions) if isinstance(partitions, list | tuple | set) else [partitions]


def _text(value: Any) -> str | None:
    """None if a template gave no value."""
    return None if value is None or str(value).strip() in ("", "None") else str(value).strip()


def _optional(value: Any) -> int | None:
    return None if _text(value) is None else settings.parse_txid(value)
