"""``airflow trident deploy | undeploy | worker | workers``: topologies on named workers, and who works on what now."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
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
    trident_command,
)
from airflow_trident.cli.outcomes import time_text
from airflow_trident.cli.topologies import topology_of

if TYPE_CHECKING:
    from airflow_trident.protocol.deployment import Roster
    from airflow_trident.runtime.deployed.named_worker import NamedWorker
    from airflow_trident.topology.topology import Topology


@trident_command
def deploy(args: Namespace) -> int | None:
    from airflow_trident.ledger.deployments import Deployments
    from airflow_trident.protocol.deployment_steps import require_workers
    from airflow_trident.runtime.local import owner_of_this_process

    topology = topology_of(args)
    hints = topology.placement_hints
    workers = _names(args.workers) or hints.workers
    weight = args.weight or hints.weight
    affinity = hints.affinity if args.affinity is None else _names(args.affinity)
    require_workers(topology.name, workers, affinity, weight)  # before a ledger is made for it
    topology.compile()
    with open_ledger(args) as ledger:
        ledger.register(topology.definition())
        Deployments(ledger.znodes, settings.text(settings.ROOT)).ensure_folder()
        by = str(owner_of_this_process("airflow trident deploy"))
        made = ledger.deploy(workers, weight=weight, affinity=affinity, by=by)
    say(
        f"topology {args.topology} is deployed on {', '.join(made.workers)} (epoch {made.epoch}). Each registers with "
        f"`airflow trident worker NAME`; `airflow trident workers {args.topology}` shows how far they are."
    )
    return OK


@trident_command
def undeploy(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        before = ledger.undeploy()
    say(f"topology {args.topology} is taken from {', '.join(before.workers)}, which finish what they began")
    return OK


@trident_command
def worker(args: Namespace) -> int | None:
    made = _worker_of(args)
    with _ending_on_signals(made):
        finished = made.run()
    if not finished:  # a thread at work cannot be ended from outside, and would keep the process
        sys.stdout.flush()
        os._exit(PROBLEM)
    return OK


@trident_command
def workers(args: Namespace) -> int | None:
    from airflow_trident.ledger.deployments import Deployments

    rows: list[dict[str, Any]] = []
    if args.topology is None:
        with closing(open_hook(args).get_conn()) as znodes:
            deployed = Deployments(znodes, settings.text(settings.ROOT)).read()
        for _, roster in sorted(deployed.rosters.items()):
            rows += _named(roster)
        for topology, error in sorted(deployed.unreadable.items()):
            rows.append(_row(topology, error=error))
        print_rows(rows, args.output, empty="no topology is deployed on workers")
        return OK
    with open_ledger(args) as ledger:
        found = ledger.workers()
        named = Deployments(ledger.znodes, settings.text(settings.ROOT)).roster(args.topology)
    if named is not None:
        rows += _named(named)
    places = {(row["host"], row["pid"]) for row in rows}
    for one in found:
        if (one.host, one.pid) not in places:  # a named worker's drain is at work there, too
            rows.append(
                _row(args.topology, **{name: value for name, value in asdict(one).items() if name in _PLACE_OF_TASK})
                | {"since": time_text(one.since_ms)}
            )
    print_rows(rows, args.output, empty=f"nobody works on topology {args.topology}")
    return OK


_PLACE_OF_TASK = ("host", "pid", "task", "txid")


def _row(topology: str, **more: Any) -> dict[str, Any]:
    """`epoch`: the last one that the worker acknowledged; `told`: the command of all workers, with its epoch."""
    row: dict[str, Any] = {"topology": topology, "worker": "", "status": "", "epoch": None, "told": ""}
    return row | {"host": "", "pid": None, "task": "", "txid": None, "since": "", "error": ""} | more


def _named(roster: Roster) -> Iterator[dict[str, Any]]:
    deployment = roster.deployment
    for name in deployment.workers:
        said, process = roster.acknowledged.get(name), roster.live.get(name)
        yield _row(
            deployment.topology,
            worker=name,
            status=str(roster.standing(name)),
            epoch=said.epoch if said is not None else None,
            told=f"{deployment.command} {deployment.epoch}",
            host=process.host if process is not None else "",
            pid=process.pid if process is not None else None,
            task=process.task if process is not None else "",
            since=time_text(process.since_ms) if process is not None else "",
            error=said.error if said is not None else "",
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


# ---- the worker ------------------------------------------------------------------------------------------------


def _worker_of(args: Namespace) -> NamedWorker:
    """:raises ConfigurationError: there is no code of a topology that it is to serve."""
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.deployed.named_worker import Patience
    from airflow_trident.runtime.drains.drain import DrainLimits
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.runtime.phases import Attempts
    from airflow_trident.tasks.named_workers import make_worker

    conf = spark_conf(args.spark_conf)
    _require_times(args)

    def code_of(name: str) -> Topology:
        return topology_of(Namespace(**{**vars(args), "topology": name}))

    for name in args.topologies:
        code_of(name)
    owner = owner_of_this_process(f"airflow trident worker {args.name}")
    return make_worker(
        args.name,
        open_hook(args),
        only=args.topologies,
        code_of=code_of,
        engine_of=lambda topology: engine_of(args, conf, topology, one_shot=False),
        children_here=args.spark_conn_id is None,
        staging_dir=args.staging_dir,
        attempts=Attempts(owner=owner, rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS)),
        claim=Claim(key=f"worker/{owner.place}"),
        limits=DrainLimits(max_pending=args.max_pending or settings.max_pending()),
        retention=None,
        patience=Patience(poll_s=args.poll_s, wait_s=args.wait_s, stop_s=args.stop_s),
        progress=say,
    )


def _require_times(args: Namespace) -> None:
    for option in ("poll_s", "wait_s", "stop_s"):
        if not 0 <= getattr(args, option) < float("inf"):
            raise UsageError(f"--{option.replace('_', '-')} is no number of seconds. Give 0 or more.")


@contextmanager
def _ending_on_signals(made: NamedWorker) -> Iterator[None]:
    """The first signal asks it to end, a second one ends the process as ever."""
    kinds: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def asked(_number: int, _frame: object) -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        made.stop()

    for kind in kinds:
        signal.signal(kind, asked)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
