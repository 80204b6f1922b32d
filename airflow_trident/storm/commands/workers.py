"""``airflow trident deploy | undeploy | worker | workers``: run topologies on named workers, and show who works now."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.cli.commands.transactions import engine_of
from airflow_trident.cli.console import (
    OK,
    PROBLEM,
    UsageError,
    open_hook,
    open_ledger,
    print_rows,
    say,
    spark_conf,
    time_text,
    topology_and_retention,
    topology_of,
    trident_command,
)
from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import TridentError
from airflow_trident.names import require_name
from airflow_trident.protocol.diagnosis import blocks, diagnose
from airflow_trident.tasks.task_instances import evidence_of

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.storm.workers.deployments import Deployed
    from airflow_trident.storm.workers.worker import NamedWorker
    from airflow_trident.topology.topology import Topology


@trident_command
def deploy(args: Namespace) -> int | None:
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.storm.qtopology_import import ImportedTopology
    from airflow_trident.storm.workers.deployment import PlacementHints, require_workers
    from airflow_trident.storm.workers.deployments import Deployments
    from airflow_trident.storm.workers.deployments import deploy as deploy_on

    topology = topology_of(args)
    hints = topology.placement_hints if isinstance(topology, ImportedTopology) else PlacementHints()
    workers = _names(args.workers) or hints.workers
    weight = args.weight or hints.weight
    affinity = hints.affinity if args.affinity is None else _names(args.affinity)
    for name in workers:
        require_name("worker", name)
    require_workers(topology.name, workers, affinity, weight)  # before its ledger is created
    topology.compile()
    with open_hook(args).get_ledgers() as ledgers:
        ledger = ledgers.ledger(topology.name)
        ledger.register(topology.definition())
        Deployments(ledgers.znodes, ledgers.root).ensure_folder()
        by = str(owner_of_this_process("airflow trident deploy"))
        made = deploy_on(ledger, workers, weight=weight, affinity=affinity, by=by)
    say(
        f"topology {args.topology} is deployed on {', '.join(made.workers)} (epoch {made.epoch}). Each registers with "
        f"`airflow trident worker NAME`; `airflow trident workers {args.topology}` shows how far they are."
    )
    return OK


@trident_command
def undeploy(args: Namespace) -> int | None:
    from airflow_trident.storm.workers.deployments import undeploy as undeploy_from

    with open_ledger(args) as ledger:
        before = undeploy_from(ledger)
    names = ", ".join(before.workers) or "its workers"
    say(f"topology {args.topology} is taken from {names}, which finish what they began")
    return OK


@trident_command
def worker(args: Namespace) -> int | None:
    made = _worker_of(args)
    with _ending_on_signals(made):
        finished = made.run()
    if not finished:  # a working thread cannot be stopped, and would keep the process alive
        sys.stdout.flush()
        os._exit(PROBLEM)
    return OK


@trident_command
def workers(args: Namespace) -> int | None:
    from airflow_trident.storm.workers.deployments import Deployments, rows_of

    with open_hook(args).get_ledgers() as ledgers:
        at_work = [] if args.topology is None else _at_work(ledgers.ledger(args.topology))
        deployed = Deployments(ledgers.znodes, ledgers.root).read(None if args.topology is None else [args.topology])
        still = {name: _standstill(ledgers.ledger(name), deployed) for name in sorted(deployed.rosters)}
    rows = [_row(**row) for _, roster in sorted(deployed.rosters.items()) for row in rows_of(roster)]
    whole = sorted({**still, **deployed.unreadable}.items())
    rows += [_row(topology=name, error=error) for name, error in whole if error]
    places = {(row["host"], row["pid"]) for row in rows}  # here a named worker's drain is at work, too
    rows += [row for row in at_work if (row["host"], row["pid"]) not in places]
    nobody = "no topology is deployed on workers"
    print_rows(
        rows, args.output, empty=nobody if args.topology is None else f"nobody works on topology {args.topology}"
    )
    return PROBLEM if any(row["error"] for row in rows) else OK


def _standstill(ledger: Ledger, deployed: Deployed) -> str:
    """As on the page, in `doctor` and in `ledger list --check`."""
    try:
        evidence = replace(evidence_of(ledger, Beside((deployed,))), outcome=None)
    except TridentError as error:
        return str(error)
    idle = (each for each in blocks(diagnose(evidence)) if each.culprit is None or each.culprit in evidence.stalled)
    return "; ".join(map(str, idle))


def _at_work(ledger: Ledger) -> list[dict[str, Any]]:
    """Tasks and drains that work on a topology now.

    :raises UnknownTopologyError: there is no such topology.
    """
    columns = ("host", "pid", "task", "txid", "since_ms")
    return [
        _row(
            topology=ledger.topology_name, **{name: value for name, value in asdict(session).items() if name in columns}
        )
        for session in ledger.workers()
    ]


def _row(*, since_ms: int | None = None, **cells: Any) -> dict[str, Any]:
    """A row with all columns. Named workers have `worker` to `told`, tasks have `txid`."""
    empty: dict[str, Any] = {"topology": "", "worker": "", "status": "", "epoch": None, "told": "", "host": None}
    empty |= {"pid": None, "task": None, "txid": None, "since": "", "error": ""}
    return empty | ({} if since_ms is None else {"since": time_text(since_ms)}) | cells


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


# ---- the worker ------------------------------------------------------------------------------------------------


def _worker_of(args: Namespace) -> NamedWorker:
    """:raises ConfigurationError: the code of a topology in `args.topologies` is not found."""
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.limits import DrainLimits
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.runtime.phases import Attempts
    from airflow_trident.storm.operators import bolts_run_here, make_worker
    from airflow_trident.storm.workers.worker import Patience

    conf = spark_conf(args.spark_conf)
    _require_times(args)

    retentions: dict[str, int] = {}
    arguments: dict[str, Namespace] = {}

    def code_of(name: str) -> Topology:
        arguments[name] = Namespace(**{**vars(args), "topology": name})
        topology, retentions[name] = topology_and_retention(arguments[name])
        return topology

    for name in args.topologies:
        code_of(name)
    owner = owner_of_this_process(f"airflow trident worker {args.name}")
    return make_worker(
        args.name,
        open_hook(args),
        only=args.topologies,
        code_of=code_of,
        engine_of=lambda topology: engine_of(arguments[topology.name], conf, topology, one_shot=False),
        children_here=lambda topology: bolts_run_here(arguments[topology.name].engine, args.spark_conn_id, conf),
        staging_dir=args.staging_dir,
        attempts=Attempts(
            owner=owner,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
            max_merge_rows=settings.max_merge_rows(),
            max_partition_keys=settings.max_partition_keys(),
        ),
        claim=Claim(key=f"worker/{owner.place}"),
        limits=DrainLimits(max_pending=args.max_pending),
        retention_of=retentions.__getitem__,
        patience=Patience(poll_s=args.poll_s, wait_s=args.wait_s, stop_s=args.stop_s),
        progress=say,
    )


def _require_times(args: Namespace) -> None:
    for option in ("poll_s", "wait_s", "stop_s"):
        if not 0 <= getattr(args, option) < float("inf"):
            raise UsageError(f"--{option.replace('_', '-')} is no number of seconds. Give 0 or more.")


@contextmanager
def _ending_on_signals(made: NamedWorker) -> Iterator[None]:
    """The first signal asks the worker to end; a second one ends the process as usual."""
    kinds: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def on_signal(_number: int, _frame: object) -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        made.stop()

    for kind in kinds:
        signal.signal(kind, on_signal)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
