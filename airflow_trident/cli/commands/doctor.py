"""``airflow trident doctor``: checks everything that a topology needs."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from itertools import chain

from airflow_trident.cli.console import OK, PROBLEM, one_line, open_hook, trident_command
from airflow_trident.cli.doctor_checks import Level, ledger_checks, machine_checks
from airflow_trident.cli.spark_checks import spark_checks


@trident_command
def doctor(args: Namespace) -> int | None:
    levels: Counter[Level] = Counter()
    checks = (
        machine_checks(args.staging_dir),
        spark_checks(args.spark_conn_id, args.staging_dir),
        ledger_checks(open_hook(args)),
    )
    for check in chain(*checks):
        levels[check.level] += 1
        print(f"{check.level:<4}  {check.subject:<10}  {one_line(check.text)}", flush=True)
    print(", ".join(f"{levels[level]} {level}" for level in Level))
    return PROBLEM if levels[Level.FAIL] else OK
