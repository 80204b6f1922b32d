"""``airflow trident run | pause | resume | shutdown``: tell coordinators whether to begin new transactions."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from airflow_trident.cli.console import OK, open_ledger, trident_command
from airflow_trident.protocol.records import Command


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
