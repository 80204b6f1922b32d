"""``airflow trident workers``: who works on a topology now."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from airflow_trident.cli.console import OK, open_ledger, print_rows, trident_command
from airflow_trident.cli.outcomes import time_text


@trident_command
def workers(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        found = ledger.workers()
    rows = []
    for worker in found:
        row = asdict(worker)
        del row["name"]
        row["since"] = time_text(row.pop("since_ms"))
        rows.append(row)
    print_rows(rows, args.output, empty=f"nobody works on topology {args.topology}")
    return OK
