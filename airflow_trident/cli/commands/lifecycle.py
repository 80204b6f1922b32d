"""``airflow trident run | pause | resume | shutdown``: whether coordinators begin new transactions."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident.cli.console import OK, open_ledger, trident_command
from airflow_trident.protocol.records import Command


@trident_command
def pause(args: Namespace) -> int | None:
    return _set(args, Command.PAUSE, "begins no new transactions; those that were begun are finished")


@trident_command
def resume(args: Namespace) -> int | None:
    return _set(args, Command.RUN, "begins new transactions")


@trident_command
def run(args: Namespace) -> int | None:
    return _set(args, Command.RUN, "begins new transactions")


@trident_command
def shutdown(args: Namespace) -> int | None:
    return _set(args, Command.SHUTDOWN, "begins no new transactions any more; those that were begun are finished")


def _set(args: Namespace, command: Command, meaning: str) -> int:
    from airflow_trident.runtime.local import owner_of_this_process

    with open_ledger(args) as ledger:
        record = ledger.set_command(command, by=str(owner_of_this_process(f"airflow trident {command}")))
    print(f"topology {args.topology}: {meaning} (command {record.command}, epoch {record.epoch})")
    return OK
