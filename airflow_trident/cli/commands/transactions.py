"""``airflow trident drain | backfill | replay | bisect | repair | skip | accept-source | take-back | source``.

``airflow trident rebuild | close``: replay what a state lacks, and close transactions that nobody will replay.
"""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_trident import settings
from airflow_trident.cli.commands.partitions import (
    asked_partitions,
    failed_partitions,
    number_of,
    require_no_partition_options,
    selected_partitions,
    tell_partitions,
)
from airflow_trident.cli.console import (
    OK,
    PROBLEM,
    UsageError,
    open_ledger,
    require_one_choice,
    say,
    signed,
    spark_conf,
    topology_and_retention,
    topology_of,
    trident_command,
    txid_of,
)
from airflow_trident.errors import TridentError, guarded
from airflow_trident.tasks.task_instances import known_abandoned
from airflow_trident.tasks.topology_search import topology_and_tasks

if TYPE_CHECKING:
    from airflow_trident.engine.engine import Engine
    from airflow_trident.protocol.records import LedgerView, TxRecord
    from airflow_trident.protocol.txids import Txids
    from airflow_trident.runtime.backfill import Selection
    from airflow_trident.runtime.drains.drain import DrainResult
    from airflow_trident.runtime.drains.keys import AskedPartitions
    from airflow_trident.runtime.drains.limits import DrainLimits
    from airflow_trident.tasks.submitted_drain import SubmittedDrain
    from airflow_trident.topology.topology import Topology


@trident_command
def drain(args: Namespace) -> int | None:
    from airflow_trident.runtime.drains.limits import DrainLimits
    from airflow_trident.runtime.partition_status import KeyChoice, KeySelection

    limits = DrainLimits(
        max_transactions=args.max_transactions,
        max_time_s=args.max_time_s,
        max_pending=args.max_pending,
        group=args.group,
    )
    conf = spark_conf(args.spark_conf)
    topology, retention = topology_and_retention(args)
    asked = None
    if topology.partitions is not None:
        asked = asked_partitions(args, topology, KeySelection(choice=KeyChoice.MISSING))
    outcome = _drained(args, conf, topology, retention, limits, "drain", asked)
    if asked is not None:
        return tell_partitions(args.topology, outcome)
    _tell(args.topology, outcome)
    return OK


def _drained(
    args: Namespace,
    conf: dict[str, str],
    topology: Topology,
    retention: int,
    limits: DrainLimits,
    program: str,
    asked: AskedPartitions | None,
) -> DrainResult:
    """:param program: the name of the command."""
    from airflow_trident.protocol.records import Claim, OnFailure
    from airflow_trident.runtime.drains.drain import Drain
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.runtime.phases import Attempts

    owner = owner_of_this_process(f"airflow trident {program}")
    attempts = Attempts(
        owner=owner,
        on_failure=OnFailure.BLOCK if asked is None else OnFailure.SKIP,
        rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
        max_merge_rows=settings.max_merge_rows(),
        max_partition_keys=settings.max_partition_keys(),
    )
    # A partition keeps its claim for ever, and another process may have the same number.
    claim = Claim(key=f"{program}/{owner.place}" + ("" if asked is None else f"/{uuid.uuid4().hex}"))
    if (submitted := _submitted(args, conf, topology, asked)) is not None:
        return submitted.finish(submitted.start(attempts, claim, limits, retention))
    with open_ledger(args) as ledger, engine_of(args, conf, topology, one_shot=False) as engine:
        return Drain(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=settings.staging_root(args.staging_dir),
            attempts=attempts,
            claim=claim,
            limits=limits,
            retention=retention,
            progress=say,
            partitions=asked,
        ).run()


def _tell(topology: str, outcome: DrainResult) -> None:
    from airflow_trident.runtime.waiting import paused

    if outcome.committed:
        first, last = outcome.committed[0], outcome.committed[-1]
        count = len(outcome.committed)
        subject = f"transaction {first} is committed"
        if count > 1:
            subject = f"{count} transactions are committed ({first} to {last})"
        say(f"topology {topology}: {subject}, {outcome.rows_read:,} rows read")
    if outcome.paused_by is not None:
        say(paused(topology, outcome.paused_by))
    elif not outcome.committed:
        say(f"topology {topology}: nothing new")


@trident_command
def backfill(args: Namespace) -> int | None:
    from airflow_trident.runtime.backfill import Backfill, BackfillOutcome
    from airflow_trident.runtime.drains.limits import DrainLimits, parse_group
    from airflow_trident.runtime.local import owner_of_this_process

    conf, group = spark_conf(args.spark_conf), parse_group(args.group)
    keys = selected_partitions(args)
    selection = _selection(args) if keys is None else None
    topology, retention = topology_and_retention(args)
    if selection is not None and selection.failed and topology.partitions is not None:
        keys = failed_partitions()
    if keys is not None:
        asked = asked_partitions(args, topology, keys)
        limits = DrainLimits(group=group)
        return tell_partitions(args.topology, _drained(args, conf, topology, retention, limits, "backfill", asked))
    assert selection is not None
    require_no_partition_options(args)
    with open_ledger(args) as ledger:
        ledger.topology()  # an unknown name is an error here, not a new ledger
        results = Backfill(
            ledger=ledger,
            topology=topology,
            engine=lambda: engine_of(args, conf, topology, one_shot=args.txid is not None),
            staging_root=settings.staging_root(args.staging_dir),
            owner=owner_of_this_process("airflow trident backfill"),
            retention=retention,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
            max_merge_rows=settings.max_merge_rows(),
            max_partition_keys=settings.max_partition_keys(),
            progress=say,
            group=group,
            orphans=lambda records: known_abandoned(records, ledger.workers()),
        ).run(selection)
    failed = sum(backfilled.outcome is BackfillOutcome.FAILED for backfilled in results)
    if failed:
        say(f"{failed} of {len(results)} transactions failed again")
    unfinished = any(backfilled.outcome is BackfillOutcome.AT_WORK for backfilled in results)
    return PROBLEM if failed or unfinished else OK


def _selection(args: Namespace) -> Selection:
    from airflow_trident.runtime.backfill import Selection

    require_one_choice(args, "failed")
    if args.failed:
        return Selection(failed=True)
    first, last = (number_of(option, text) for option, text in (("--from", args.first), ("--to", args.last)))
    return Selection(first=args.txid or first, last=args.txid or last)


@trident_command
def replay(args: Namespace) -> int | None:
    from airflow_trident.runtime.debugging import dry_replay

    conf = spark_conf(args.spark_conf)
    topology = topology_of(args)
    with open_ledger(args) as ledger, engine_of(args, conf, topology) as engine:
        ledger.topology()
        root = settings.staging_root(args.staging_dir)
        differences = dry_replay(ledger, topology, txid_of(args, ledger), engine, root, say, shake=args.shake)
    for difference in differences:
        rows = f"{difference.staged_rows} rows were staged, {difference.replayed_rows} replayed"
        if difference.equal:
            say(f"state {difference.state}: equal ({rows})")
            continue
        say(
            f"state {difference.state}: DIFFERENT ({rows}; {difference.missing_rows} missing, {difference.extra_rows} "
            "extra)"
        )
        if difference.only_reals is not None:
            say(f"  in real numbers only, by at most {difference.only_reals:.1e} of the larger one")
        for sign, examples in (("-", difference.missing), ("+", difference.extra)):
            for row in examples:
                say(f"  {sign} {row!r}")
    return OK if all(difference.equal for difference in differences) else PROBLEM


@trident_command
def bisect(args: Namespace) -> int | None:
    from airflow_trident.runtime.debugging import bisect as find_poison
    from airflow_trident.runtime.debugging import poison_lines

    conf = spark_conf(args.spark_conf)
    topology = topology_of(args)
    with open_ledger(args) as ledger, engine_of(args, conf, topology) as engine:
        ledger.topology()
        txid = txid_of(args, ledger)
        poison = find_poison(ledger, topology, txid, engine, say)
    for line in poison_lines(txid, poison):
        say(line)
    return PROBLEM if poison is None else OK


@trident_command
def repair(args: Namespace) -> int | None:
    from airflow_trident.runtime.repair import repair as seed_ledger

    topology = topology_of(args)
    with open_ledger(args) as ledger:
        root = settings.staging_root(args.staging_dir)
        take_over = signed(args, "taken over") if args.reason else ""
        seed_ledger(ledger, topology, root, dry_run=args.dry_run, take_over=take_over, progress=say)
    return OK


@trident_command
def skip(args: Namespace) -> int | None:
    with open_ledger(args) as ledger:
        args.txid = txid_of(args, ledger)
        record = ledger.skip(args.txid, signed(args, "skipped"))

    def find() -> Topology:
        return topology_and_tasks(args.topology)[0]

    how = late_text(args, find) if record.partition is None else again_text(args, record)
    say(f"topology {args.topology}: transaction {args.txid} is SKIPPED, later ones may pass. {how}")
    return OK


def again_text(args: Namespace, record: TxRecord) -> str:
    """How the partition of a transaction is done after all, or how the transaction is replayed."""
    if record.partition is not None:
        return f"`airflow trident backfill {args.topology} --partition {record.partition.key}` does it again."
    return f"`airflow trident backfill {args.topology} --txid {record.txid}` replays it, or clear its run."


def late_text(args: Namespace, find: Callable[[], Topology]) -> str:
    """What a backfill can still do for a skipped transaction: that depends on the states, which only the code knows.

    :param find: gives the topology, or raises: the command needs no DAG file.
    """
    backfill = f"`airflow trident backfill {args.topology} --txid {args.txid}`"
    until = (
        "only until a later transaction commits; after that, only a rebuild of the state from its sources takes it in"
    )
    try:
        with guarded("the DAG files"):
            states = find().states
    except TridentError:
        return f"{backfill} applies it after all; if a state depends on the order of transactions, {until}."
    ordered = sorted(name for name, spec in states.items() if not spec.commutes)
    if not ordered:
        return f"{backfill} applies it after all."
    named = f"State {ordered[0]} depends" if len(ordered) == 1 else f"States {', '.join(ordered)} depend"
    return f"{named} on the order of transactions: {backfill} applies it {until}."


@trident_command
def accept_source(args: Namespace) -> int | None:
    from airflow_trident.runtime.repair import accept_source as take_source

    reason = signed(args, "accepted", ask='why? Give --reason "what was mended".')
    topology = topology_of(args)
    with open_ledger(args) as ledger:
        record = take_source(ledger, topology, txid_of(args, ledger), reason)
    say(
        f"topology {args.topology}: transaction {record.txid} takes its source as it is now and is {record.status}. "
        f"{again_text(args, record)}"
    )
    return OK


@trident_command
def mark_read(args: Namespace) -> int | None:
    from airflow_trident.runtime.local import LocalRunner
    from airflow_trident.runtime.source_lists import mark_read as mark
    from airflow_trident.spouts.files.read_options import moment_ns

    before_ns = moment_ns("--before", args.before) if args.before else None
    conf = spark_conf(args.spark_conf)
    topology, retention = topology_and_retention(args)
    with open_ledger(args) as ledger, engine_of(args, conf, topology) as engine:
        root = settings.staging_root(args.staging_dir)
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=engine, staging_root=root, retention=retention, progress=say
        )
        txid, marked = mark(runner, args.stream, before_ns)
    say(f"topology {args.topology}: {marked} more files of stream {args.stream} count as read since transaction {txid}")
    return OK


@trident_command
def take_back(args: Namespace) -> int | None:
    from airflow_trident.runtime.local import owner_of_this_process
    from airflow_trident.runtime.repair import take_back as let_go

    topology = topology_of(args)
    owner = owner_of_this_process("airflow trident take-back")
    with open_ledger(args) as ledger:
        ledger.topology()
        let_go(ledger, topology, args.txid, owner=owner, reason=signed(args, "taken back"), progress=say)
    say(
        f"topology {args.topology}: transaction {args.txid} is FAILED, and no state holds it. Replay it (`airflow "
        f"trident backfill {args.topology} --txid {args.txid}`), or let the others pass: `airflow trident skip "
        f"{args.topology} {args.txid}`."
    )
    return OK


def engine_of(args: Namespace, conf: dict[str, str], topology: Topology, *, one_shot: bool = True) -> Engine:
    from airflow_trident.names import EngineKind
    from airflow_trident.tasks.engines import make_engine

    return make_engine(
        EngineKind(args.engine),
        conn_id=args.spark_conn_id,
        conf=conf,
        app_name=f"airflow trident {topology.name}",
        topology=topology,
        one_shot=one_shot,
    )


def _submitted(
    args: Namespace, conf: dict[str, str], topology: Topology, asked: AskedPartitions | None
) -> SubmittedDrain | None:
    """The drain, if it runs as a Spark application of its own; None if it runs in this process."""
    from airflow_trident.tasks.submitted_drain import SubmittedDrain, is_submitted

    if not is_submitted(args.engine, args.spark_conn_id):
        return None
    return SubmittedDrain(
        topology=topology,
        conn_id=args.spark_conn_id,
        conf=conf,
        app_name=f"airflow trident {args.topology}",
        zookeeper_conn_id=args.zookeeper_conn_id,
        staging_root=settings.staging_root(args.staging_dir),
        say=say,
        partitions=asked,
    )


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
