"""``airflow trident ledger``: shows and moves what the ledger holds.

``airflow trident run | pause | resume | shutdown``: tell coordinators whether to begin new transactions.

``airflow trident query`` and ``airflow trident state get``: read what is committed.

``airflow trident plan``: shows the plan of a topology.

``airflow trident state fold | publish``.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_trident.cli.console import (
    OK,
    PROBLEM,
    UsageError,
    lag_text,
    one_line,
    open_hook,
    open_ledger,
    print_record,
    print_rows,
    say,
    state_of,
    time_text,
    topology_of,
    trident_command,
)
from airflow_trident.contracts.state import Upkeep
from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import ConfigurationError, CorruptError, TransitionError
from airflow_trident.plan.show.explain import explain
from airflow_trident.protocol.codec import tx_fields
from airflow_trident.protocol.diagnosis import (
    Diagnosis,
    Evidence,
    blocks,
    diagnose,
    diagnose_transaction,
    troubles,
    unreadable,
)
from airflow_trident.protocol.records import NO_ATTEMPT, Command, LedgerView, PastAttempt, TxRecord
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.tasks.task_instances import eventless_text, evidence_of, without_event
from airflow_trident.tasks.topology_search import topologies_of

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
        evidence = evidence_of(ledger, ledgers.beside([args.topology]))
        eventless = without_event(ledger, evidence.view)
    diagnoses = diagnose(evidence)
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
        for trouble in troubles(diagnoses):
            print(f"{trouble.state}: {one_line(str(trouble))}")
    return PROBLEM if args.check and blocks(diagnoses) else OK


@trident_command
def checks(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        ledger.topology()  # an unknown name is an error here
        first, last = (args.txid, args.txid) if args.txid is not None else (1, None)
        records = ledger.transactions(first, last)
    rows = [check_row(record, rule, verdict) for record in records for rule, verdict in record.checks.items()]
    about = f"topology {args.topology}" if args.txid is None else f"transaction {args.txid} of topology {args.topology}"
    print_rows(rows, args.output, empty=f"{about}: no rule was judged")
    return OK


def check_row(record: TxRecord, rule: str, verdict: Any) -> dict[str, Any]:
    """`value`: the number that was measured; `limit`: what it must be; `rows`: what it is of."""
    return {
        "txid": record.txid,
        "status": str(record.status),
        "rule": rule,
        "verdict": verdict["verdict"],
        "value": verdict["value"],
        "limit": verdict["limit"],
        "rows": verdict["rows"],
    }


def plan_changes(records: Iterable[TxRecord]) -> Iterator[str]:
    """A line for each transaction whose plan differs from that of the transaction before it, in order of txids."""
    before = None
    for record in sorted(records, key=lambda tx: tx.txid):
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
    rows, has_problem = [], False
    with open_hook(args).get_ledgers() as ledgers:
        beside, place = ledgers.beside(), f"{ledgers.znodes.describe()} below {ledgers.root}"
        for name in ledgers.names():
            try:
                evidence = evidence_of(ledgers.ledger(name), beside)
                reasons = blocks(diagnose(evidence))
                rows.append({**topology_row(evidence), "problem": _problem(reasons)})
                has_problem = has_problem or bool(args.check and reasons)
            except CorruptError as error:  # still show the others
                has_problem = True
                problem = _problem([unreadable(str(error))])
                rows.append({**dict.fromkeys(_TOPOLOGY_COLUMNS), "topology": name, "problem": problem})
    print_rows(_fitting(rows, args.output), args.output, empty=f"no topology has a ledger in {place}")
    return PROBLEM if has_problem else OK


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


def _problem(reasons: Iterable[Diagnosis]) -> str | None:
    return one_line("; ".join(reason.text for reason in reasons)) or None


def topology_row(evidence: Evidence) -> dict[str, Any]:
    """`next`: the next txid; `committed`: all up to this txid are committed or skipped; `failed`, `skipped`: txids;
    `replayed`: replays that have begun and not ended, late ones marked; `lost`: transactions that a state does without;
    `coordinator`: its last outcome, at `coordinated` (UTC); `lag`: data in the sources that no transaction took yet."""
    view, outcome = evidence.view, evidence.outcome
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
    )
    return dict(zip(_TOPOLOGY_COLUMNS[:-1], values, strict=True))


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
        is_open = view.tx is not None and not view.tx.status.lets_others_pass
        evidence = evidence_of(ledger, Beside(())) if is_open and args.output in _TABLES else None
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
        record["plan"] = " ".join([_plan(view.tx), *plan_changes([tx for tx in (before, view.tx) if tx is not None])])
        record["times_ms"] = {name: f"{time_text(value)} UTC" for name, value in sorted(view.tx.times_ms.items())}
        record["times"] = record.pop("times_ms")
        record["attempts"] = {str(attempt.attempt): _past(attempt) for attempt in view.tx.attempts}
        if evidence is not None:
            record["diagnosis"] = str(diagnose_transaction(evidence, view.tx))
    print_record({"topology": args.topology, **record}, args.output)
    return OK


def _past(attempt: PastAttempt) -> str:
    begun = f"begun {time_text(attempt.begun_ms)} UTC by {attempt.by or 'nobody known'}"
    if not attempt.ended_ms:
        return f"{begun}: killed, or given up for the next one"
    return f"{begun}, failed {time_text(attempt.ended_ms)} UTC: {attempt.error}"


# ---- everything ------------------------------------------------------------------------------------------------


@trident_command
def export(args: Namespace) -> int | None:
    from airflow_trident.runtime.source_lists import export_ledger

    with open_ledger(args) as ledger:
        everything: dict[str, Json] = export_ledger(ledger)
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
    from airflow_trident.cli.console import topology_of
    from airflow_trident.runtime.source_lists import import_ledger
    from airflow_trident.runtime.state_agreement import require_agreement

    topology = topology_of(args)
    try:
        exported: Json = json.loads(Path(args.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{args.file} cannot be read ({error})", "Name a file that `airflow trident ledger export` wrote."
        ) from error
    with open_ledger(args) as ledger:
        import_ledger(ledger, exported)
        view = ledger.view(0)
        print(f"topology {args.topology}: imported; the next transaction is {view.next_txid}")
        require_agreement(ledger, topology)
    return OK


# ---- the definition --------------------------------------------------------------------------------------------


@trident_command
def accept(args: Namespace) -> int | None:
    from airflow_trident.cli.console import topology_of
    from airflow_trident.runtime.repair import accept_definition

    topology = topology_of(args)
    with open_ledger(args) as ledger:
        accepted = accept_definition(ledger, topology)
    for line in accepted.lines(args.topology):
        print(line)
    return OK


def _setting(command: Command, meaning: str) -> Callable[[Namespace], None]:
    @trident_command
    def tell(args: Namespace) -> int | None:
        from airflow_trident.runtime.local import owner_of_this_process

        with open_ledger(args) as ledger:
            record = ledger.set_command(command, by=str(owner_of_this_process(f"airflow trident {command}")))
        print(f"topology {args.topology}: {meaning} (command {record.command}, epoch {record.epoch})")
        return OK

    return tell


pause = _setting(Command.PAUSE, "begins no new transactions; those that were begun are finished")
resume = run = _setting(Command.RUN, "begins new transactions")
shutdown = _setting(Command.SHUTDOWN, "begins no new transactions any more; those that were begun are finished")


@trident_command
def query(args: Namespace) -> int | None:
    from airflow_trident.runtime.query import query_texts

    topology = topology_of(args)
    answer = query_texts(topology, args.query, args.args)
    print_rows(answer.as_json(), args.output, empty="no tuples")
    return OK


@trident_command
def state_get(args: Namespace) -> int | None:
    from airflow_trident.engine.state_queries import Reading
    from airflow_trident.runtime.query import json_value, parse_text

    spec = state_of(args)
    if len(args.key) != len(spec.keys) or spec.stateful is not None:
        raise UsageError(f"the key of state {args.state} is ({', '.join(map(str, spec.keys))})")
    key = tuple(parse_text(field, text) for field, text in zip(spec.keys, args.key, strict=True))
    with spec.factory.make_state(spec) as state:
        (value,) = Reading(state, spec).multi_get([key])
    if value is None:
        print_rows([], args.output, empty="no such key")
        return PROBLEM
    named: dict[str, Any] = dict(
        zip((*spec.key_names, *spec.value_names), map(json_value, (*key, *value)), strict=True)
    )
    print_rows([named], args.output, empty="")
    return OK


@trident_command
def plan(args: Namespace) -> int | None:
    plans = (
        topology.queries.compile(args.query) if args.query else topology.compile()
        for topology in topologies_of(args.dag_or_module)
    )
    texts = [explain(topology_plan, args.format) for topology_plan in plans]
    print("\n".join(texts), end="")
    return OK


_DONE = {Upkeep.FOLD: "folded", Upkeep.PUBLISH: "published"}


@trident_command
def fold(args: Namespace) -> int | None:
    return _keep_up(args, Upkeep.FOLD)


@trident_command
def publish(args: Namespace) -> int | None:
    return _keep_up(args, Upkeep.PUBLISH)


def _keep_up(args: Namespace, act: Upkeep) -> int:
    from airflow_trident.runtime.upkeep import keep_up

    done = keep_up(state_of(args), act, lambda line: say(f"state {args.state}: {line}"))
    say(f"state {args.state}: {_DONE[act] if done else f'nothing to {act}'}")
    return OK
