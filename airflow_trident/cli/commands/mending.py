"""``airflow trident rebuild | close``: replay what a state lacks, and close transactions that nobody will replay."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_trident import settings
from airflow_trident.cli.commands.transactions import engine_of
from airflow_trident.cli.console import (
    OK,
    UsageError,
    open_ledger,
    require_one_choice,
    say,
    signed,
    spark_conf,
    trident_command,
)
from airflow_trident.cli.topologies import topology_of

if TYPE_CHECKING:
    from airflow_trident.protocol.records import LedgerView
    from airflow_trident.protocol.txids import Txids


@trident_command
def rebuild(args: Namespace) -> int | None:
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.runtime.mending.rebuild import Rebuild

    reason = args.reason.strip()
    if args.accept_loss != bool(reason):
        raise UsageError('a loss is accepted with a reason. Give --accept-loss and --reason "..." together.')
    conf = spark_conf(args.spark_conf)
    topology = topology_of(args)
    with open_ledger(args) as ledger:
        ledger.topology()  # an unknown name is an error here, not a new ledger
        done = Rebuild(
            ledger=ledger,
            topology=topology,
            engine=lambda: engine_of(args, conf, topology),
            staging_root=settings.staging_root(args.staging_dir),
            by=str(owner_of_this_process()),
            progress=say,
        ).run(args.state, accept_loss=reason, dry_run=args.dry_run)
    if not args.dry_run:
        for name, txids in done.replayed.items():
            if txids:
                say(f"state {name}: {len(txids)} transactions were replayed ({txids})")
    return OK


@trident_command
def close(args: Namespace) -> int | None:
    reason = signed(args, "closed", ask='closing is for good. Say why, with --reason "...".')
    with open_ledger(args) as ledger:
        txids = _to_close(args, ledger.view(0))
        for txid in txids:
            ledger.close_transaction(txid, reason)
    say(
        f"topology {args.topology}: {len(txids)} transactions are CLOSED ({txids})"
        if txids
        else f"topology {args.topology}: nothing to close"
    )
    return OK


def _to_close(args: Namespace, view: LedgerView) -> Txids:
    from airflow_trident.protocol.txids import Txids

    require_one_choice(args, "all")
    if args.txid is not None:
        return Txids.of(args.txid)  # the ledger refuses a wrong one and says why
    wanted = Txids.span(1, view.pointer.committed) if args.all else Txids.span(args.first, args.last)
    return view.exceptions.skipped & wanted
