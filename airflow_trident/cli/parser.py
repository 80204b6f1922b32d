"""The commands of ``airflow trident`` for Airflow's CLI. Imports little, since every command of Airflow reads this.

The commands that read (``query``, ``state get``, ``plan``), and those that keep states up (``fold``, ...).

The repair commands: ``airflow trident rebuild``, ``close``, ``accept-source``, ``take-back``.
"""

from __future__ import annotations

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, Arg, CLICommand, GroupCommand, positive_int

from airflow_trident.cli.parser_parts import (
    ARG_CHANGED,
    ARG_CONN_ID,
    ARG_DAG,
    ARG_DAG_FILE,
    ARG_DRY_RUN,
    ARG_MAX_PENDING,
    ARG_MISSING,
    ARG_PARTITION,
    ARG_SPARK_CONF,
    ARG_SPARK_CONN_ID,
    ARG_STAGING_DIR,
    ARG_TOPOLOGY,
    ARG_TOPOLOGY_OR_ALL,
    ARG_TXID,
    CHOICE_ARGS,
    ENGINE_ARGS,
    TOPOLOGY_ARGS,
    TXID_OR_PARTITION_ARGS,
    command,
    count,
    repeated,
)
from airflow_trident.cli.parser_parts import command as _command
from airflow_trident.contracts.wing import wings

ARG_QUERY = Arg(("query",), help="Name of the query", metavar="QUERY")
ARG_QUERY_ARGS = Arg(("args",), help="A value for each argument of the query", nargs="*", metavar="ARG")
ARG_STATE = Arg(("state",), help="Name of the state", metavar="STATE")
ARG_KEY = Arg(("key",), help="A value for each key field", nargs="*", metavar="KEY")

QUERY = command(
    "query",
    "ledger.query",
    "Run a query of a topology over committed values, and print its tuples.",
    (ARG_TOPOLOGY, ARG_QUERY, ARG_QUERY_ARGS, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
    "query word_count count_of storm",
    "query word_count count_of storm -o json",
)


def _upkeep(name: str, help: str) -> ActionCommand:
    args = (ARG_TOPOLOGY, ARG_STATE, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE)
    return command(name, f"ledger.{name}", help, args, f"state {name} customers latest")


STATE = GroupCommand(
    name="state",
    help="Values of a state, and its upkeep",
    subcommands=(
        command(
            "get",
            "ledger.state_get",
            "Print the committed value of a key. Exit code 1 if there is none.",
            (ARG_TOPOLOGY, ARG_STATE, ARG_KEY, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
            "state get word_count count storm",
        ),
        _upkeep("fold", "Compact the files of a DeltaState into one. No value changes."),
        _upkeep(
            "publish",
            "Write the values of a DeltaState to a table with one row for each key, for other readers. This reads and "
            "writes the whole state, unless nothing was committed since the last time.",
        ),
    ),
)

ARG_PLAN_OF = Arg(
    ("dag_or_module",), help="Topology, DAG id, DAG file, or module:attribute of a Topology", metavar="DAG_OR_MODULE"
)
ARG_FORMAT = Arg(
    ("--format",), help="Format (default: text)", choices=("text", "mermaid", "svg", "json"), default="text"
)
ARG_PLAN_QUERY = Arg(("--query",), help="Show the plan of this query", metavar="NAME")

PLAN = command(
    "plan",
    "ledger.plan",
    "Print the logical, the rewritten and the compiled plan of a topology. A stage is one pass over the data.",
    (ARG_PLAN_OF, ARG_PLAN_QUERY, ARG_FORMAT, ARG_VERBOSE),
    "plan word_count",
    "plan dags/word_count.py --format mermaid",
    "plan dags/word_count.py --format svg",
    "plan my_package.topologies:word_count",
    "plan my_package.topologies:word_count --query count_of",
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

ARG_CHECKS_TXID = count("--txid", "Only this transaction")

CHECKS = command(
    "checks",
    "ledger.checks",
    "Print the rules of each transaction: the number that was measured, what it must be, and the verdict.",
    (ARG_TOPOLOGY, ARG_CHECKS_TXID, ARG_OUTPUT, ARG_CONN_ID, ARG_VERBOSE),
    "checks word_count",
    "checks word_count --txid 42 -o json",
)

REBUILD = command(
    "rebuild",
    "transactions.rebuild",
    "Replay the committed transactions that a state lacks: after it was restored from an old copy, deleted or moved. "
    "Each is applied exactly once. You may kill and repeat the command. It names transactions that it cannot replay.",
    (ARG_TOPOLOGY, ARG_STATES, ARG_DRY_RUN, ARG_ACCEPT_LOSS, ARG_WHY, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "rebuild word_count --dry-run",
    "rebuild word_count --state count",
    'rebuild word_count --state count --accept-loss --reason "no newer copy"',
)
CLOSE = command(
    "close",
    "transactions.close",
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
        *TXID_OR_PARTITION_ARGS,
        Arg(("--reason",), help="Why; it is kept in the ledger", metavar="TEXT", required=True),
        *TOPOLOGY_ARGS,
    ),
    'accept-source word_count 42 --reason "line 17 of a.csv had no amount"',
)
SOURCE = GroupCommand(
    name="source",
    help="Files that a FileSpout has read",
    subcommands=(
        command(
            "mark-read",
            "transactions.mark_read",
            "Count all files that are there as read, as they are now, by a transaction without files. So a stream "
            "begins with what comes later, or its list of read files is made anew after it was lost.",
            (
                ARG_TOPOLOGY,
                Arg(("stream",), help="Name of the stream", metavar="STREAM"),
                Arg(("--before",), help="Only files that are older, as in 2026-01-31T00:00:00Z", metavar="TIME"),
                *ENGINE_ARGS,
                *TOPOLOGY_ARGS,
            ),
            "source mark-read word_count lines",
            "source mark-read word_count lines --before 2026-01-31T00:00:00Z",
        ),
    ),
)
TAKE_BACK = command(
    "take-back",
    "transactions.take_back",
    "Take back a commit that has begun and can never succeed, if no state contains the transaction. It is FAILED then: "
    "skip it, or fix the cause and replay it. Every state first refuses the committers that still run.",
    (ARG_TOPOLOGY, ARG_TXID, ARG_REASON, *TOPOLOGY_ARGS),
    'take-back word_count 42 --reason "a sum beyond the field"',
)


ARG_OPTION_TXID = count("--txid", "The transaction")


def _port(usual: int) -> Arg:
    text = f"Port of 127.0.0.1; 0 for any free one (default: {usual})"
    return Arg(("--port",), help=text, type=positive_int(allow_zero=True), default=usual, metavar="PORT")


# ---- zookeeper -------------------------------------------------------------------------------------------------

ARG_DATA_DIR = Arg(
    ("--data-dir",), help="Folder of the server's data (default: {AIRFLOW_HOME}/trident/zookeeper)", metavar="DIR"
)
ARG_PORT = _port(2181)

ARG_ADD_CONNECTION = Arg(
    ("--add-connection",),
    help="Put the connection to it into Airflow's database, under the id of [trident] zookeeper_conn_id",
    action="store_true",
)


def _server(
    name: str, help: str, description: str, folder: Arg, start: tuple[Arg, ...], stopped: str, does: str, example: str
) -> GroupCommand:
    """
    :param start: further arguments of `start`.
    :param stopped: a sentence about the effect of `stop`.
    :param does: the verb for what `status` checks.
    :param example: example arguments of `start`.
    """
    module = name.replace("-", "_")
    text = "Start the server and return when it answers. It continues in the background; a running server is kept."
    look = f"Show whether the server {does}, and where. Exit code 1 if it does not."
    arguments = (folder, ARG_VERBOSE)
    examples = f"{name} start", f"{name} start {example}"
    return GroupCommand(
        name=name,
        help=help,
        description=description,
        subcommands=(
            _command("start", f"{module}.start", text, (folder, *start, ARG_VERBOSE), *examples),
            _command("stop", f"{module}.stop", f"Stop the server. {stopped}", arguments, f"{name} stop"),
            _command("status", f"{module}.status", look, arguments, f"{name} status"),
        ),
    )


_ZOOKEEPER = _server(
    "zookeeper",
    "A ZooKeeper server on this machine",
    "A real ZooKeeper server of one node on this machine, from the jars of pyspark; needs Java. "
    "For development: run an ensemble of three or more for production.",
    ARG_DATA_DIR,
    (ARG_PORT, ARG_ADD_CONNECTION),
    stopped="Its data stay.",
    does="runs",
    example="--add-connection",
)

# ---- Spark Connect server --------------------------------------------------------------------------------------

ARG_SERVER_DIR = Arg(
    ("--data-dir",), help="Folder of the server (default: {AIRFLOW_HOME}/trident/connect-server)", metavar="DIR"
)
ARG_CONNECT_PORT = _port(15002)
ARG_HEAP_MB = count("--heap-mb", "Memory of its Java (default: 1024)", "HEAP_MB", default=1024)
ARG_MASTER = Arg(("--master",), help="Where its jobs run (default: local[*])", default="local[*]", metavar="URL")

_CONNECT_SERVER = _server(
    "connect-server",
    "A Spark Connect server on this machine",
    "A Spark Connect server on this machine, from the installed pyspark; needs Java. Tasks with a "
    "connection of type spark_connect then start no Spark of their own.",
    ARG_SERVER_DIR,
    (ARG_CONNECT_PORT, ARG_HEAP_MB, ARG_MASTER, ARG_SPARK_CONF),
    stopped="Tasks that use it fail and may be retried.",
    does="answers",
    example="--heap-mb 4096 --master 'local[4]' --spark-conf spark.sql.shuffle.partitions=4",
)
_SPARK_ARCHIVE = _command(
    "spark-archive",
    "connect_server.spark_archive",
    "Make the class archive that lets Spark start in half the time. It takes half a minute, once for each Java and "
    "pyspark on a machine; Spark on this machine then uses it.",
    (ARG_VERBOSE,),
    "spark-archive",
)

# ---- ledger ----------------------------------------------------------------------------------------------------

ARG_CHECK = Arg(("--check",), help="Exit code 1 if a topology is blocked", action="store_true")
ARG_EXPORT_FILE = Arg(("--output",), help="File to write (default: standard output)", metavar="FILE")

ARG_IMPORT_FILE = Arg(("file",), help="File that `ledger export` wrote", metavar="FILE")

_LEDGER = GroupCommand(
    name="ledger",
    help="Transactions as the ledger has them",
    subcommands=(
        _command(
            "list",
            "ledger.list_",
            "List all topologies, or one topology's transactions. Committed transactions are kept up to the "
            "retention; failed and skipped ones always.",
            (ARG_TOPOLOGY_OR_ALL, ARG_CHECK, ARG_OUTPUT, ARG_CONN_ID, ARG_VERBOSE),
            "ledger list",
            "ledger list --check -o json",
            "ledger list word_count",
            "ledger list word_count -o json",
        ),
        _command(
            "show",
            "ledger.show",
            "Show everything about one transaction. Its batch, attempts, staged files, times and last error.",
            (ARG_TOPOLOGY, ARG_TXID, ARG_OUTPUT, ARG_CONN_ID, ARG_VERBOSE),
            "ledger show word_count 42",
        ),
        _command(
            "export",
            "ledger.export",
            "Write a topology's whole ledger as JSON, with the lists of read files.",
            (ARG_TOPOLOGY, ARG_EXPORT_FILE, ARG_STAGING_DIR, ARG_CONN_ID, ARG_VERBOSE),
            "ledger export word_count",
            "ledger export word_count --output word_count.json",
        ),
        _command(
            "import",
            "ledger.import_",
            "Restore a ledger from the output of `ledger export`. Only for a topology without a ledger, or with one "
            "that never began a transaction. The states must not contain more than the export.",
            (ARG_TOPOLOGY, ARG_IMPORT_FILE, ARG_STAGING_DIR, *TOPOLOGY_ARGS),
            "ledger import word_count word_count.json",
        ),
        _command(
            "accept",
            "ledger.accept",
            "Accept the changed definition of a topology. Shows what changed and records it, so that its tasks run "
            "again. The states are not converted: a state with other fields needs a new name or new data.",
            (ARG_TOPOLOGY, *TOPOLOGY_ARGS),
            "ledger accept word_count --dag word_count",
        ),
    ),
)

# ---- transactions ----------------------------------------------------------------------------------------------

ARG_FAILED = Arg(
    ("--failed",),
    help="All transactions that no task will finish: FAILED, interrupted, or processed without a committer; or "
    "partitions whose last attempt failed",
    action="store_true",
)
ARG_MAX_TRANSACTIONS = count("--max-transactions", "Begin at most this number")
ARG_MAX_TIME_S = count("--max-time-s", "Begin none after this number of seconds", "S")
ARG_GROUP = Arg(
    ("--group",),
    help="Transactions that are processed and committed together, at most; 1: each by itself (default: auto, by "
    "amount and duration)",
    default="auto",
    metavar="N",
)
ARG_REPLAY_DRY_RUN = Arg(
    ("--dry-run",), help="Required: nothing is committed (use `backfill` for that)", action="store_true", required=True
)
ARG_REPLAY_SHAKE = Arg(
    ("--shake",),
    help="Change partitions, adaptive execution and the order of the input: finds code that depends on them",
    action="store_true",
)
ARG_BISECT_ENGINE = Arg(
    ("--engine",),
    help="Engine for the parts (default: local)",
    choices=("local", "spark"),
    default="local",
)

ARG_PARTITION_FAILED = Arg(("--failed",), help="Partitions whose last attempt failed", action="store_true")
_PARTITIONS = _command(
    "partitions",
    "partitions.partitions",
    "List the partitions of a bound topology, from the first one to now. `--changed` looks at the sources of the "
    "committed ones, which needs the topology's code. Exit code 1 if a choice has any.",
    (
        ARG_TOPOLOGY,
        ARG_MISSING,
        ARG_CHANGED,
        ARG_PARTITION_FAILED,
        Arg(("--from",), help="First partition", dest="first", metavar="KEY"),
        Arg(("--to",), help="Last partition", dest="last", metavar="KEY"),
        ARG_OUTPUT,
        *TOPOLOGY_ARGS,
    ),
    "partitions shop",
    "partitions shop --missing --from 2026-11-01 -o json",
    "partitions shop --changed",
)
_ON_MISSING = ("error", "take")
_BACKFILL = _command(
    "backfill",
    "transactions.backfill",
    "Replay transactions that are not committed, lowest first, in this process. Each is processed under a new attempt "
    "and committed exactly once, also beside other tasks. Processed transactions above it are committed, too. For a "
    "bound topology, do partitions that are missing, failed or changed, or that you name.",
    (
        ARG_TOPOLOGY,
        count("--txid", "One transaction"),
        Arg(("--from",), help="Lowest transaction", dest="first", metavar="N"),
        Arg(("--to",), help="Highest transaction; or the last partition of a range", dest="last", metavar="M"),
        ARG_FAILED,
        ARG_PARTITION,
        ARG_MISSING,
        ARG_CHANGED,
        Arg(
            ("--redo",),
            help="Do committed partitions again, also if their sources are as they were",
            action="store_true",
        ),
        Arg(
            ("--gone",),
            help="If data that a partition has read are gone: fail, or lose their rows",
            choices=_ON_MISSING,
        ),
        Arg(("--empty",), help="If a partition has no data: fail, or empty it", choices=_ON_MISSING),
        ARG_REASON,
        ARG_GROUP,
        *ENGINE_ARGS,
        *TOPOLOGY_ARGS,
    ),
    "backfill word_count --failed",
    "backfill word_count --txid 42 --spark-conf spark.sql.shuffle.partitions=8",
    "backfill word_count --from 40 --to 44 --dag-file dags/word_count.py",
    "backfill word_count --failed --group 1",
    "backfill shop --missing",
    "backfill shop --partition 2026-11-24 --redo",
    'backfill shop --partition 2026-11-24 --to 2026-11-30 --gone take --reason "test orders are deleted"',
)
_DRAIN = _command(
    "drain",
    "transactions.drain",
    "Begin, process and commit transactions until nothing is new, in this process and one Spark application. The "
    "processing of later ones overlaps the commit of earlier ones. For a bound topology, do the missing partitions.",
    (ARG_TOPOLOGY, ARG_MAX_TRANSACTIONS, ARG_MAX_TIME_S, ARG_MAX_PENDING, ARG_GROUP, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "drain word_count",
    "drain word_count --max-transactions 100 --max-time-s 600",
    "drain word_count --group 1",
)
_REPLAY = _command(
    "replay",
    "transactions.replay",
    "Run a transaction again without committing, and compare with what was staged. Finds sources that do not give the "
    "same batch again, and functions that depend on more than their input. Exit code 1 on a difference.",
    (ARG_TOPOLOGY, ARG_OPTION_TXID, ARG_PARTITION, ARG_REPLAY_DRY_RUN, ARG_REPLAY_SHAKE, *ENGINE_ARGS, *TOPOLOGY_ARGS),
    "replay word_count --txid 42 --dry-run",
    "replay word_count --txid 42 --dry-run --shake",
)
_BISECT = _command(
    "bisect",
    "transactions.bisect",
    "Find the input rows that make a transaction fail. Runs parts of its batch without committing, about "
    "two runs per halving. Exit code 1 if it does not fail.",
    (ARG_TOPOLOGY, *TXID_OR_PARTITION_ARGS, ARG_BISECT_ENGINE, ARG_SPARK_CONN_ID, ARG_SPARK_CONF, *TOPOLOGY_ARGS),
    "bisect word_count 42",
)
_REPAIR = _command(
    "repair",
    "transactions.repair",
    "Create a ledger that was wiped, or restored from an old copy, from the states. Pause the DAG first: no task may "
    "run during the repair. Transactions that no state contains are forgotten and their data are read again.",
    (ARG_TOPOLOGY, ARG_DRY_RUN, ARG_TAKE_OVER, ARG_STAGING_DIR, *TOPOLOGY_ARGS),
    "repair word_count --dry-run",
    "repair word_count",
    'repair word_count --take-over "the ledger was deleted"',
)
_SKIP = _command(
    "skip",
    "transactions.skip",
    "Let later transactions pass one that is not committed. It can still be backfilled.",
    (ARG_TOPOLOGY, *TXID_OR_PARTITION_ARGS, ARG_REASON, ARG_CONN_ID, ARG_VERBOSE),
    'skip word_count 42 --reason "file was withdrawn"',
)

# ---- lifecycle -------------------------------------------------------------------------------------------------


def _lifecycle(name: str, help: str) -> ActionCommand:
    return _command(name, f"ledger.{name}", help, (ARG_TOPOLOGY, ARG_CONN_ID, ARG_VERBOSE), f"{name} word_count")


_PAUSE = _lifecycle("pause", "Begin no new transactions. Begun transactions are finished.")
_SHUTDOWN = _lifecycle(
    "shutdown", "Begin no new transactions until `run`, and end on workers. Begun transactions are finished."
)
_RUN = _lifecycle("run", "Begin new transactions: reverts `pause` and `shutdown`.")
_RESUME = _lifecycle("resume", "Begin new transactions again after a pause.")

# ---- the rest --------------------------------------------------------------------------------------------------

ARG_DOCTORS_SPARK = Arg(
    ("--spark-conn-id",), help="Also check the Spark of this connection: its version and workers", metavar="CONN_ID"
)
_DOCTOR = _command(
    "doctor",
    "doctor.doctor",
    "Check that everything a topology needs is there and in order. One line per check: ok, warn or fail, with the "
    "cure. Exit code 1 if anything fails.",
    (ARG_STAGING_DIR, ARG_CONN_ID, ARG_DOCTORS_SPARK, ARG_VERBOSE),
    "doctor",
    "doctor --spark-conn-id spark_connect",
)


def get_trident_cli_commands() -> list[CLICommand]:
    """The function that the provider info names under ``cli``."""
    return [
        GroupCommand(
            name="trident",
            help="Exactly-once transactions",
            description="Exactly-once batches on Spark, with a transaction ledger in ZooKeeper.",
            subcommands=(
                _ZOOKEEPER,
                _CONNECT_SERVER,
                _SPARK_ARCHIVE,
                _LEDGER,
                CHECKS,
                _DRAIN,
                _PARTITIONS,
                _BACKFILL,
                _REPLAY,
                _BISECT,
                _SKIP,
                ACCEPT_SOURCE,
                SOURCE,
                TAKE_BACK,
                CLOSE,
                _RUN,
                _PAUSE,
                _RESUME,
                _SHUTDOWN,
                REBUILD,
                _REPAIR,
                QUERY,
                STATE,
                PLAN,
                *(command for wing in wings() for command in wing.commands()),
                _DOCTOR,
            ),
        )
    ]
