"""``airflow trident rebuild | close``: states that are behind, and transactions that nobody will replay."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_trident import settings
from airflow_trident.cli.commands.transactions import engine_of, say, spark_conf
from airflow_trident.cli.console import OK, UsageError, open_ledger, trident_command
from airflow_trident.cli.topologies import topology_named

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
    topology = topology_named(args.topology, dag_id=args.dag, dag_file=args.dag_file)
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
    from airflow_trident.runtime.local import owner_of_this_process

    reason = args.reason.strip()
    if not reason:
        raise UsageError('closing is for good. Say why, with --reason "...".')
    with open_ledger(args) as ledger:
        txids = _to_close(args, ledger.view(0))
        for txid in txids:
            ledger.close_transaction(txid, f"{reason} (closed by {owner_of_this_process()})")
    say(
        f"topology {args.topology}: {len(txids)} transactions are CLOSED ({txids})"
        if txids
        else f"topology {args.topology}: nothing to close"
    )
    return OK


def _to_close(args: Namespace, view: LedgerView) -> Txids:
    from airflow_trident.protocol.txids import Txids

    a_range = args.first is not None or args.last is not None
    if (args.txid is not None) + a_range + bool(args.all) != 1:
        raise UsageError("which transactions? Give one of --txid N, --from N --to M, or --all.")
    if a_range and (args.first is None or args.last is None):
        raise UsageError("a range has two ends. Give --from N and --to M.")
    if args.txid is not None:
        return Txids.of(args.txid)  # whatever it is, the ledger says why it cannot be closed
    wanted = Txids.span(1, view.pointer.committed) if args.all else Txids.span(args.first, args.last)
    return view.exceptions.skipped & wanted
