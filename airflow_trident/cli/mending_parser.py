"""The repair commands: ``airflow trident rebuild``, ``close``, ``accept-source``, ``take-back``."""

from __future__ import annotations

from airflow.cli.cli_config import ARG_VERBOSE, Arg

from airflow_trident.cli.parser_parts import (
    ARG_CONN_ID,
    ARG_DRY_RUN,
    ARG_TOPOLOGY,
    ARG_TXID,
    CHOICE_ARGS,
    ENGINE_ARGS,
    TOPOLOGY_ARGS,
    command,
    repeated,
)

ARG_REASON = Arg(("--reason",), help="Why; it is kept in the ledger (default: who did it)", metavar="TEXT", default="")
ARG_STATES = repeated("--state", "State to rebuild; may be repeated (default: all that lack transactions)", "NAME")
ARG_ACCEPT_LOSS = Arg(
    ("--accept-loss",),
    help="Continue without transactions that can no longer be replayed, permanently; needs --reason",
    action="store_true",
)
ARG_WHY = Arg(("--reason",), help="Why; it is kept in the ledger", metavar="TEXT", default="")
ARG_TAKE_OVER = Arg(
    ("--take-over",),
    dest="reason",
    help="Take over states that belong to another ledger. The text is the reason; the ledger keeps it",
    metavar="REASON",
    default="",
)
ARG_CLOSE_ALL = Arg(("--all",), help="All SKIPPED transactions", action="store_true")

REBUILD = command(
    "rebuild",
    "mending.rebuild",
    "Replay the committed transactions that a state lacks: after it was restored from an old copy, deleted or moved. "
    "Each is applied exactly once. You may kill and repeat the command. It names transactions that it cannot replay.",
    (ARG_TOPOLOGY, ARG_STATES, ARG_DRY_RUN, ARG_ACCEPT_LOSS, ARG_WHY, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "rebuild word_count --dry-run",
    "rebuild word_count --state count",
    'rebuild word_count --state count --accept-loss --reason "no newer copy"',
)
CLOSE = command(
    "close",
    "mending.close",
    "Close SKIPPED transactions permanently: they can no longer be backfilled, and the ledger forgets them.",
    (ARG_TOPOLOGY, *CHOICE_ARGS, ARG_CLOSE_ALL, ARG_WHY, ARG_CONN_ID, ARG_VERBOSE),
    'close word_count --txid 42 --reason "file was withdrawn"',
    'close word_count --from 40 --to 44 --reason "test data"',
    'close word_count --all --reason "nobody wants them"',
)
ACCEPT_SOURCE = command(
    "accept-source",
    "transactions.accept_source",
    "Let an uncommitted transaction use its corrected source, such as files that were corrected in place. It gets new "
    "metadata and a new attempt, and is FAILED until it is replayed. Refused once its commit has begun.",
    (
        ARG_TOPOLOGY,
        ARG_TXID,
        Arg(("--reason",), help="Why; it is kept in the ledger", metavar="TEXT", required=True),
        *TOPOLOGY_ARGS,
    ),
    'accept-source word_count 42 --reason "line 17 of a.csv had no amount"',
)
TAKE_BACK = command(
    "take-back",
    "transactions.take_back",
    "Take back a commit that has begun and can never succeed, if no state contains the transaction. It is FAILED then: "
    "skip it, or fix the cause and replay it. Every state first refuses the committers that still run.",
    (ARG_TOPOLOGY, ARG_TXID, ARG_REASON, *TOPOLOGY_ARGS),
    'take-back word_count 42 --reason "a sum beyond the field"',
)
