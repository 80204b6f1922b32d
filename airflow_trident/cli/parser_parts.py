"""Arguments and helpers that several command definitions share."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ARG_VERBOSE, ActionCommand, Arg, lazy_load_command, positive_int

_COMMANDS = "airflow_trident.cli.commands"


def count(flag: str, help: str, metavar: str = "N", **more: Any) -> Arg:
    """A whole number of at least 1."""
    return Arg((flag,), help=help, type=positive_int(allow_zero=False), metavar=metavar, **more)


def repeated(flag: str, help: str, metavar: str, **more: Any) -> Arg:
    return Arg((flag,), help=help, action="append", default=[], metavar=metavar, **more)


ARG_CONN_ID = Arg(
    ("--zookeeper-conn-id",),
    help="Connection of type zookeeper that holds the ledger (default: option zookeeper_conn_id of section trident)",
    metavar="CONN_ID",
)
ARG_TOPOLOGY = Arg(("topology",), help="Name of the topology", metavar="TOPOLOGY")
ARG_TOPOLOGY_OR_ALL = Arg(
    ("topology",), help="Name of the topology; without it all are listed", nargs="?", metavar="TOPOLOGY"
)
ARG_DAG = Arg(("--dag",), help="DAG whose tasks hold the topology (default: search all DAGs)", metavar="DAG_ID")
ARG_DAG_FILE = Arg(
    ("--dag-file",),
    help="DAG file, or module:attribute, that holds the topology, instead of --dag",
    metavar="PATH",
)
TOPOLOGY_ARGS = (ARG_DAG, ARG_DAG_FILE, ARG_CONN_ID, ARG_VERBOSE)

ARG_ENGINE = Arg(
    ("--engine",),
    help="Engine (default: that of the topology's tasks, or spark)",
    choices=("spark", "local"),
)
ARG_SPARK_CONN_ID = Arg(
    ("--spark-conn-id",),
    help="Connection of type spark_connect, or spark with a master, for --engine spark (default: a session on this "
    "machine)",
    metavar="CONN_ID",
)
ARG_SPARK_CONF = repeated("--spark-conf", "A Spark setting; may be repeated", "KEY=VALUE")
ARG_STAGING_DIR = Arg(
    ("--staging-dir",), help="Folder of staged batches (default: option staging_dir of section trident)", metavar="DIR"
)
ARG_TXID = count("txid", "Transaction", "TXID")
ARG_PARTITION = Arg(("--partition",), help="Partition of a bound topology, such as 2026-11-24", metavar="KEY")
TXID_OR_PARTITION_ARGS = (
    count("txid", "Transaction; without it the last one of --partition", "TXID", nargs="?"),
    ARG_PARTITION,
)
ARG_DRY_RUN = Arg(("--dry-run",), help="Show what would be done, and do nothing", action="store_true")
CHOICE_ARGS = (
    count("--txid", "One transaction"),
    count("--from", "Lowest transaction", dest="first"),
    count("--to", "Highest transaction", "M", dest="last"),
)
ARG_MISSING = Arg(("--missing",), help="Partitions that are complete and have no transaction", action="store_true")
ARG_CHANGED = Arg(("--changed",), help="Committed partitions whose sources have changed since", action="store_true")
ARG_MAX_PENDING = count("--max-pending", "Uncommitted transactions at once (default of a drain: twice the group, or 3)")
ENGINE_ARGS = (ARG_ENGINE, ARG_SPARK_CONN_ID, ARG_SPARK_CONF, ARG_STAGING_DIR)


def command(
    name: str, place: str, help: str, args: tuple[Arg, ...], *examples: str, package: str = _COMMANDS
) -> ActionCommand:
    """:param place: the function as ``module.function`` in `package`."""
    return ActionCommand(
        name=name,
        help=help.partition(". ")[0].removesuffix("."),
        description=help,
        func=lazy_load_command(f"{package}.{place}"),
        args=args,
        epilog="\n".join(["examples:", *(f"  airflow trident {example}" for example in examples)]),
    )
