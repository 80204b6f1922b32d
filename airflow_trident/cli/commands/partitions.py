"""``airflow trident partitions``; and what ``backfill`` and ``drain`` do of a topology that is bound to partitions."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from airflow_trident.cli.console import (
    OK,
    PROBLEM,
    UsageError,
    calendar_of,
    one_line,
    open_ledger,
    print_rows,
    say,
    signed,
    time_text,
    topology_of,
    trident_command,
)

if TYPE_CHECKING:
    from airflow_trident.runtime.drains.drain import DrainResult
    from airflow_trident.runtime.drains.keys import AskedPartitions
    from airflow_trident.runtime.partition_status import KeyChoice, KeySelection, PartitionStatus
    from airflow_trident.topology.topology import Topology

_SHOWN = 10
"""The most partitions of one kind that are named one by one."""
_RARE = ("complete", "rows", "changed", "error")


@trident_command
def partitions(args: Namespace) -> int | None:
    from airflow_trident.runtime.partition_status import KeyChoice, chosen_partitions, partition_statuses

    choice = _choice(args)
    topology = topology_of(args) if choice is KeyChoice.CHANGED else None
    with open_ledger(args) as ledger:
        calendar = calendar_of(ledger)
        if topology is not None:
            statuses = list(chosen_partitions(ledger, topology, KeyChoice.CHANGED, args.first, args.last))
        else:
            statuses = partition_statuses(ledger, calendar, args.first, args.last)
    statuses = [status for status in statuses if choice is None or choice.has(status)]
    rows = [_row(status) for status in statuses]
    if args.output == "table":
        empty = {name for name in _RARE if all(row[name] is None for row in rows)}
        rows = [{name: _cell(value) for name, value in row.items() if name not in empty} for row in rows]
    which = "no partition" if choice is None else f"no partition is {choice}"
    print_rows(rows, args.output, empty=f"topology {args.topology}: {which}")
    return PROBLEM if choice is not None and statuses else OK


def _row(status: PartitionStatus) -> dict[str, Any]:
    """`revision`: the number of its last transaction; `complete`: when an open one is complete. Times are UTC."""
    is_open = status.status == "OPEN"
    return {
        "partition": status.key,
        "revision": status.n or None,
        "status": str(status.status),
        "txid": status.txid or None,
        "rows": dict(status.rows) if status.rows is not None else None,
        "committed": time_text(status.committed_ms),
        "complete": time_text(round(status.complete_at.timestamp() * 1000)) if is_open else None,
        "changed": str(status.change) if status.change else None,
        "error": one_line(status.error) or None,
    }


def _cell(value: Any) -> Any:
    return ", ".join(f"{name} {count:,}" for name, count in value.items()) if isinstance(value, dict) else value


# ---- which partitions ------------------------------------------------------------------------------------------


def _choice(args: Namespace) -> KeyChoice | None:
    """:raises UsageError: there are several."""
    from airflow_trident.runtime.partition_status import KeyChoice

    choices = [choice for choice in KeyChoice if getattr(args, choice)]
    if len(choices) > 1:
        raise UsageError("which partitions? Give one of --missing, --changed and --failed.")
    return choices[0] if choices else None


def selected_partitions(args: Namespace) -> KeySelection | None:
    """The partitions that a backfill names; None: it names transactions, or only ``--failed``.

    :raises UsageError: it names both.
    """
    from airflow_trident.runtime.partition_status import KeyChoice, KeySelection

    choice = _choice(args)
    are_keys = any(text is not None and not text.isdecimal() for text in (args.first, args.last))
    if args.partition is None and not are_keys and choice in (None, KeyChoice.FAILED):
        return None
    if args.txid is not None or (args.partition is not None and args.first is not None):
        raise UsageError("which partitions? Give --partition KEY or --from KEY --to KEY, and no transaction.")
    if choice is not None and args.redo:
        raise UsageError(f"--redo is for partitions that you name. Leave it out beside --{choice}.")
    if args.partition is not None and choice is None and args.last is None:
        return KeySelection(keys=(args.partition,))
    last = args.last or args.partition
    return KeySelection(choice=choice, first=args.partition or args.first, last=last)


def require_no_partition_options(args: Namespace) -> None:
    """:raises UsageError: transactions are named, with an option that is for partitions."""
    for option in ("redo", "gone", "empty", "reason"):
        if getattr(args, option):
            raise UsageError(f"--{option} is for partitions of a bound topology. Give --partition KEY, too.")


def failed_partitions() -> KeySelection:
    from airflow_trident.runtime.partition_status import KeyChoice, KeySelection

    return KeySelection(choice=KeyChoice.FAILED)


def number_of(option: str, text: str | None) -> int | None:
    """:raises UsageError: it is no transaction's number."""
    if text is None or (text.isascii() and text.isdecimal() and int(text) > 0):
        return None if text is None else int(text)
    raise UsageError(f"{option} {text!r} is no transaction. Give its number; or --partition KEY --to KEY.")


def asked_partitions(args: Namespace, topology: Topology, selection: KeySelection) -> AskedPartitions:
    """The request for the partitions of a selection, as the ledger and the sources are now. A topology without a ledger
    gets one."""
    from airflow_trident.names import Redo
    from airflow_trident.protocol.partitions import OnMissing
    from airflow_trident.runtime.drains.keys import AskedPartitions
    from airflow_trident.runtime.outcomes import register

    gone, empty = (getattr(args, name, None) for name in ("gone", "empty"))
    with open_ledger(args) as ledger:
        register(ledger, topology)
        return AskedPartitions(
            keys=selection.keys_of(ledger, topology),
            redo=selection.does_again(Redo.ASKED if getattr(args, "redo", False) else Redo.CHANGED),
            gone=OnMissing(gone) if gone else None,
            empty=OnMissing(empty) if empty else None,
            reason=signed(args, "asked") if getattr(args, "reason", "") else "",
        )


# ---- what became of them ---------------------------------------------------------------------------------------


def tell_partitions(topology: str, outcome: DrainResult) -> int:
    """Prints the partitions that are not done, some of the unchanged ones, and how many there are of each kind. Returns
    the exit code."""
    from airflow_trident.runtime.drains.keys import KeyOutcome
    from airflow_trident.runtime.waiting import paused

    keys = {kind: [result for result in outcome.keys if result.outcome is kind] for kind in KeyOutcome}
    for result in keys[KeyOutcome.FAILED]:
        say(f"partition {result.key}: failed: {result.detail}")
    for result in keys[KeyOutcome.UNFINISHED] if outcome.paused_by is None else ():
        say(f"partition {result.key}: {result.detail or 'not begun'}")
    for result in keys[KeyOutcome.UNCHANGED][:_SHOWN]:
        say(
            f"partition {result.key}: committed as transaction {result.txid}, and its sources are as they were; "
            "--redo does it again"
        )
    counts = [f"{len(results)} {kind}" for kind, results in keys.items() if results]
    counts += [f"{outcome.rows_read:,} rows read"] if outcome.keys else ["nothing to do"]
    say(f"topology {topology}: {', '.join(counts)}")
    if outcome.paused_by is not None:
        say(paused(topology, outcome.paused_by))
    return PROBLEM if keys[KeyOutcome.FAILED] or keys[KeyOutcome.UNFINISHED] else OK
