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
ARG_STATES = repeated("--state", "The state to rebuild; may be repeated (default: all that lack something)", "NAME")
ARG_ACCEPT_LOSS = Arg(
    ("--accept-loss",),
    help="Go on without what cannot be replayed any more, for good; wants --reason",
    action="store_true",
)
ARG_WHY = Arg(("--reason",), help="Why; it is kept in the ledger", metavar="TEXT", default="")
ARG_TAKE_OVER = Arg(
    ("--take-over",),
    dest="reason",
    help="Take over states that belong to a ledger which this one never was. The text says why; the ledger keeps it",
    metavar="REASON",
    default="",
)
ARG_CLOSE_ALL = Arg(("--all",), help="All SKIPPED transactions", action="store_true")

REBUILD = command(
    "rebuild",
    "mending.rebuild",
    "Replay into a state what it lacks of the committed transactions: after it was restored from an old copy, deleted "
    "or moved. Each goes in exactly once; it may be killed and run again. What cannot be replayed any more is named.",
    (ARG_TOPOLOGY, ARG_STATES, ARG_DRY_RUN, ARG_ACCEPT_LOSS, ARG_WHY, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "rebuild word_count --dry-run",
    "rebuild word_count --state count",
    'rebuild word_count --state count --accept-loss --reason "no newer copy"',
)
CLOSE = command(
    "close",
    "mending.close",
    "Close SKIPPED transactions for good: they can never be backfilled any more, and nothing has to remember them.",
    (ARG_TOPOLOGY, *CHOICE_ARGS, ARG_CLOSE_ALL, ARG_WHY, ARG_CONN_ID, ARG_VERBOSE),
    'close word_count --txid 42 --reason "file was withdrawn"',
    'close word_count --from 40 --to 44 --reason "test data"',
    'close word_count --all --reason "nobody wants them"',
)
ACCEPT_SOURCE = command(
    "accept-source",
    "transactions.accept_source",
    "Have a transaction that is not committed take its source as it is now, after a person mended it: files that were "
    "changed in their place. It gets new metadata and a new attempt, and is FAILED until it is replayed. Refused once "
    "a commit of it has begun.",
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
    "Make a transaction FAILED whose commit has begun and can never succeed, if no state holds it: then it can be "
    "skipped, or replayed after the cause was mended. Every state is made to refuse committers still at work.",
    (ARG_TOPOLOGY, ARG_TXID, ARG_REASON, *TOPOLOGY_ARGS),
    'take-back word_count 42 --reason "a sum beyond the field"',
)
