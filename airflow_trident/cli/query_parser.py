"""The commands that read (``query``, ``state get``, ``plan``), and those that keep states up (``compact``, ...)."""

from __future__ import annotations

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, Arg, GroupCommand

from airflow_trident.cli.parser_parts import (
    ARG_DAG,
    ARG_DAG_FILE,
    ARG_SPARK_CONF,
    ARG_STAGING_DIR,
    ARG_TOPOLOGY,
    command,
)

ARG_QUERY = Arg(("query",), help="Name of the query", metavar="QUERY")
ARG_QUERY_ARGS = Arg(("args",), help="A value for each argument of the query", nargs="*", metavar="ARG")
ARG_STATE = Arg(("state",), help="Name of the state", metavar="STATE")
ARG_KEY = Arg(("key",), help="A value for each key field", nargs="*", metavar="KEY")

QUERY = command(
    "query",
    "query.query",
    "Run a query of a topology over what is committed, and print its tuples.",
    (ARG_TOPOLOGY, ARG_QUERY, ARG_QUERY_ARGS, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
    "query word_count count_of storm",
    "query word_count count_of storm -o json",
)


ARG_TABLE = Arg(
    ("--table",), help="How the readers' catalogue names the table (default: by its place)", metavar="SCHEMA.NAME"
)
ARG_VIEW = Arg(
    ("--view",),
    help="Of a table of upserts: the view that Spark makes or replaces, in a catalogue that outlives the session",
    metavar="SCHEMA.NAME",
)
ARG_VIEW_CONN_ID = Arg(
    ("--spark-conn-id",),
    help="Connection of type spark_connect (default: a session on this machine)",
    metavar="CONN_ID",
)
ARG_COMPACTING = Arg(
    ("--engine",), help="What finds and writes the rows (default: local)", choices=("local", "spark"), default="local"
)
ARG_DIALECT = Arg(
    ("--dialect",), help="Whose SQL (default: spark)", choices=("spark", "duckdb", "trino"), default="spark"
)


def _upkeep(name: str, help: str, *more: Arg, examples: tuple[str, ...] = ()) -> ActionCommand:
    args = (ARG_TOPOLOGY, ARG_STATE, *more, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE)
    return command(name, f"upkeep.{name}", help, args, f"state {name} customers latest", *examples)


STATE = GroupCommand(
    name="state",
    help="What is in a state, and its upkeep",
    subcommands=(
        command(
            "get",
            "query.state_get",
            "Print the committed value of a key. Exit code 1 if there is none.",
            (ARG_TOPOLOGY, ARG_STATE, ARG_KEY, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
            "state get word_count count storm",
        ),
        _upkeep(
            "compact",
            "Leave out what counts no more of a table of upserts. The latest row of each key is written anew, and "
            "small files become larger ones, also of a table of rewritten rows, in one commit that changes no answer. "
            "The local engine needs memory for the keys of all rows.",
            ARG_COMPACTING,
            ARG_VIEW_CONN_ID,
            ARG_SPARK_CONF,
            ARG_STAGING_DIR,
            examples=("state compact customers latest --engine spark --spark-conn-id lake",),
        ),
        _upkeep("fold", "Make one file of all that batches have left of a DeltaState. No value changes."),
        _upkeep(
            "publish",
            "Let others read a state as it is. The values of a DeltaState are written to a table with one row for "
            "each key: all of the state is read and written, unless nothing was committed since the last time. Of a "
            "table of upserts Spark makes a view (--view).",
            ARG_VIEW,
            ARG_TABLE,
            ARG_VIEW_CONN_ID,
            ARG_SPARK_CONF,
            examples=("state publish customers latest --view sales.customers_latest --spark-conn-id lake",),
        ),
        _upkeep(
            "view",
            "Print the query for the latest rows of a table of upserts. Put CREATE VIEW name AS before it where the "
            "engine has views.",
            ARG_DIALECT,
            ARG_TABLE,
            examples=("state view customers latest --dialect trino --table lake.sales.customers",),
        ),
    ),
)

ARG_PLAN_OF = Arg(
    ("dag_or_module",), help="DAG id, DAG file, or module:attribute of a Topology", metavar="DAG_OR_MODULE"
)
ARG_FORMAT = Arg(
    ("--format",), help="Format (default: text)", choices=("text", "mermaid", "svg", "json"), default="text"
)
ARG_PLAN_QUERY = Arg(("--query",), help="Of one of the topology's queries", metavar="NAME")

PLAN = command(
    "plan",
    "plan.plan",
    "Print the logical, the rewritten and the compiled plan of a topology. Stages are what runs in one pass over the "
    "data.",
    (ARG_PLAN_OF, ARG_PLAN_QUERY, ARG_FORMAT, ARG_VERBOSE),
    "plan word_count",
    "plan dags/word_count.py --format mermaid",
    "plan dags/word_count.py --format svg",
    "plan my_package.topologies:word_count",
    "plan my_package.topologies:word_count --query count_of",
)
