"""``airflow trident ledger``: shows and moves what the ledger holds."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_trident.cli.console import (
    OK,
    PROBLEM,
    one_line,
    open_hook,
    open_ledger,
    print_record,
    print_rows,
    trident_command,
)
from airflow_trident.cli.outcomes import lag_text, outcome_text, time_text
from airflow_trident.errors import ConfigurationError, CorruptError, TransitionError
from airflow_trident.protocol.codec import tx_fields
from airflow_trident.protocol.outcomes import CoordinatorOutcome
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, PastAttempt, TxRecord
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.tasks.task_instances import eventless_text, standstill, without_event

if TYPE_CHECKING:
    from airflow_trident.types import Json

ERROR_LENGTH, SHORT_ERROR_LENGTH = 100, 40
_RARE = ("invalidated", "replayed", "skipped", "lag", "problem")
"""Columns that a table only shows if one of their cells is filled."""
DIGEST_LENGTH = 16
"""The length that `airflow trident plan` shows, too."""
_TABLES = ("table", "plain")


@trident_command
def list_(args: Namespace) -> int | None:
    if args.topology is None:
        return _list_topologies(args)
    with open_hook(args).get_ledgers() as ledgers:
        ledger = ledgers.ledger(args.topology)
        records = ledger.transactions()
        empty = f"topology {args.topology}: no transactions yet" if not records else ""
        view, outcome = ledger.view(0), ledger.coordinator()
        eventless = without_event(ledger, view)
        idle = standstill(ledger, view, ledgers.beside([args.topology]))
    rows = [transaction_row(record) for record in records]
    if args.output not in _TABLES:
        rows = [
            {**row, "plan": record.plan[:DIGEST_LENGTH] or None, "late_rows": record.late_rows}
            for row, record in zip(rows, records, strict=True)
        ]
    print_rows(_fitting(rows, args.output), args.output, empty=empty)
    if args.output in _TABLES:
        for line in (*plan_changes(records), *late_rows(records)):
            print(line)
        if eventless:
            print(eventless_text(eventless))
        if outcome is not None and outcome.is_bad:
            print(f"the coordinator begins nothing: {outcome_text(outcome)}: {one_line(outcome.error)}")
        if idle:
            print(f"the topology stands still: {one_line(idle)}")
    return PROBLEM if args.check and stands_still(view, outcome, idle) else OK


def stands_still(view: LedgerView, outcome: CoordinatorOutcome | None, idle: str) -> bool:
    """Must a person act before work goes on? A FAILED transaction blocks, the coordinator cannot begin any, no worker
    runs what is deployed, or nobody works on the lowest transaction.

    :param idle: see :func:`airflow_trident.tasks.task_instances.standstill`.
    """
    blocked = view.blocked_by(view.next_txid) is not None
    return blocked or bool(idle) or (outcome is not None and outcome.is_bad)


def plan_changes(records: Iterable[TxRecord]) -> Iterator[str]:
    """A line for each transaction whose plan differs from that of the transaction before it, in order of txids."""
    before = None
    for record in sorted(records, key=lambda one: one.txid):
        if before is not None and record.plan and record.plan != before.plan:
            yield f"the plan changed with transaction {record.txid}: {_plan(before)} -> {_plan(record)}"
        before = record if record.plan else before


def late_rows(records: Iterable[TxRecord]) -> Iterator[str]:
    """A line for each transaction with tuples that are in no window."""
    for record in records:
        for state, rows in record.late_rows.items():
            yield (
                f"transaction {record.txid}: {rows} tuples came too late for all their windows of state {state}, or "
                "without a time"
            )


def _plan(record: TxRecord) -> str:
    return record.plan[:DIGEST_LENGTH]


def _list_topologies(args: Namespace) -> int:
    rows, unreadable, still = [], False, False
    with open_hook(args).get_ledgers() as ledgers:
        beside = ledgers.beside()
        for name in ledgers.names():
            try:
                ledger = ledgers.ledger(name)
                view, outcome = ledger.view(0), ledger.coordinator()
                idle = standstill(ledger, view, beside)
                rows.append(topology_row(view, outcome, idle))
                still = still or stands_still(view, outcome, idle)
            except CorruptError as error:  # still show the others
                unreadable = True
                rows.append({**dict.fromkeys(_TOPOLOGY_COLUMNS), "topology": name, "problem": one_line(str(error))})
    print_rows(_fitting(rows, args.output), args.output, empty="no topology has a ledger yet")
    return PROBLEM if unreadable or (args.check and still) else OK


_TOPOLOGY_COLUMNS = (
    "topology",
    "command",
    "next",
    "committed",
    "pending",
    "failed",
    "replayed",
    "skipped",
    "lost",
    "coordinator",
    "coordinated",
    "lag",
    "problem",
)


def topology_row(view: LedgerView, outcome: CoordinatorOutcome | None, idle: str = "") -> dict[str, Any]:
    """`next`: the next txid; `committed`: all up to this txid are committed or skipped; `failed`, `skipped`: txids;
    `replayed`: replays that have begun and not ended, late ones marked; `lost`: transactions that a state does without;
    `coordinator`: its last outcome, at `coordinated` (UTC); `lag`: data in the sources that no transaction took yet;
    `problem`: the coordinator's error, or `idle`, see :func:`stands_still`."""
    replayed = {txid: str(txid) for txid in view.exceptions.replaying}
    replayed |= {txid: f"{txid} (late)" for txid in view.exceptions.late}
    values = (
        view.topology.name,
        str(view.topology.command),
        view.next_txid,
        view.pointer.committed,
        view.pending,
        ",".join(map(str, view.exceptions.failed)) or None,
        ",".join(replayed[txid] for txid in sorted(replayed)) or None,
        str(view.exceptions.skipped) or None,
        losses(view) or None,
        str(outcome.kind) if outcome else None,
        time_text(outcome.time_ms) if outcome else None,
        lag_text(outcome),
        _short(one_line((outcome.error if outcome else "") or idle)) or None,
    )
    return dict(zip(_TOPOLOGY_COLUMNS, values, strict=True))


def losses(view: LedgerView) -> str:
    """The transactions that states do without: ``counts: 3, 5 to 9``."""
    every: dict[str, Txids] = {}
    for loss in view.topology.lost:
        every[loss.state] = every.get(loss.state, NO_TXIDS) | loss.txids
    return "; ".join(f"{name}: {txids}" for name, txids in every.items())


def transaction_row(record: TxRecord) -> dict[str, Any]:
    """`invalidated`: it lost its batch because a lower transaction was attempted again. `rows_read`: from sources;
    `rows`: staged for states. Times are UTC; `seconds`: from begun to committed."""
    staged, times = record.staged, record.times_ms
    begun, committed = times.get("begun"), times.get("COMMITTED")
    return {
        "txid": record.txid,
        "status": str(record.status),
        "attempt": None if record.attempt == NO_ATTEMPT else record.attempt,
        "invalidated": record.invalidated or None,
        "rows_read": staged.rows_read if staged and staged.rows_read >= 0 else None,
        "rows": sum(staged.rows.values()) if staged else None,
        "bytes": staged.bytes if staged else None,
        "begun": time_text(begun),
        "committed": time_text(committed),
        "seconds": None if begun is None or committed is None else round((committed - begun) / 1000, 1),
        "error": _short(one_line(record.error)) or None,
    }


def _fitting(rows: list[dict[str, Any]], output: str) -> list[dict[str, Any]]:
    """For a terminal: a table without empty rare columns and with short errors."""
    if output != "table":
        return rows
    empty = {name for name in _RARE if all(row.get(name) is None for row in rows)}
    return [
        {
            name: _short(value, SHORT_ERROR_LENGTH) if name in ("error", "problem") and value else value
            for name, value in row.items()
            if name not in empty
        }
        for row in rows
    ]


def _short(text: str, length: int = ERROR_LENGTH) -> str:
    return text if len(text) <= length else f"{text[: length - 3].rstrip()}..."


# ---- one transaction -------------------------------------------------------------------------------------------


@trident_command
def show(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        view = ledger.view(args.txid)
        before = ledger.view(args.txid - 1).tx if args.txid > 1 else None
    if view.tx is None:
        if args.txid < view.next_txid:
            raise TransitionError(
                f"transaction {args.txid} of topology {args.topology!r} is committed and its record is pruned",
                "Keep more with [trident] retention.",
            )
        raise TransitionError(
            f"topology {args.topology!r} never began transaction {args.txid}; the next one is {view.next_txid}",
            f"See `airflow trident ledger list {args.topology}`.",
        )
    record = tx_fields(view.tx)
    if args.output in _TABLES:
        record["plan"] = " ".join(
            [_plan(view.tx), *plan_changes([one for one in (before, view.tx) if one is not None])]
        )
        record["times_ms"] = {name: f"{time_text(value)} UTC" for name, value in sorted(view.tx.times_ms.items())}
        record["times"] = record.pop("times_ms")
        record["attempts"] = {str(one.attempt): _past(one) for one in view.tx.attempts}
        waits = _waits(view, view.tx)
        if waits:
            record["waits"] = waits
    print_record({"topology": args.topology, **record}, args.output)
    return OK


def _past(one: PastAttempt) -> str:
    begun = f"begun {time_text(one.begun_ms)} UTC by {one.by or 'nobody known'}"
    if not one.ended_ms:
        return f"{begun}: killed, or given up for the next one"
    return f"{begun}, failed {time_text(one.ended_ms)} UTC: {one.error}"


def _waits(view: LedgerView, tx: TxRecord) -> str:
    """Why the transaction does not commit now, for people."""
    if tx.status.lets_others_pass:
        return ""
    blocked = view.blocked_by(tx.txid)
    if blocked is not None:
        return f"for transaction {blocked}, which is FAILED"
    lower = view.waits_for(tx.txid)
    if lower is None:
        return "to be emitted again: it lost its batch when a lower one was attempted again" if tx.invalidated else ""
    return f"for transaction {lower}, which is not committed yet"


# ---- everything ------------------------------------------------------------------------------------------------


@trident_command
def export(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        everything: dict[str, Json] = ledger.export()
    text = json.dumps(everything, indent=2)
    if args.output is None:
        print(text)
        return OK
    try:
        Path(args.output).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{args.output} cannot be written ({error.strerror})", "Name another file.") from error
    return OK


@trident_command
def import_(args: Namespace) -> int | None:
    from airflow_trident.cli.topologies import topology_of
    from airflow_trident.runtime.state_agreement import require_agreement

    topology = topology_of(args)
    try:
        exported: Json = json.loads(Path(args.file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{args.file} cannot be read ({error})", "Name a file that `airflow trident ledger export` wrote."
        ) from error
    with open_ledger(args) as ledger:
        ledger.import_from(exported)
        view = ledger.view(0)
        print(f"topology {args.topology}: imported; the next transaction is {view.next_txid}")
        require_agreement(ledger, topology)
    return OK


# ---- the definition --------------------------------------------------------------------------------------------


@trident_command
def accept(args: Namespace) -> int | None:
    from airflow_trident.cli.topologies import topology_of
    from airflow_trident.runtime.mending.accept_definition import accept_definition

    topology = topology_of(args)
    with open_ledger(args) as ledger:
        accepted = accept_definition(ledger, topology)
    for line in accepted.lines(args.topology):
        print(line)
    return OK
