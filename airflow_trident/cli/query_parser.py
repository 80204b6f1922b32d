"""The commands that read (``query``, ``state get``, ``plan``), and those that keep states up (``fold``, ...)."""

from __future__ import annotations

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, Arg, GroupCommand

from airflow_trident.cli.parser_parts import (
    ARG_DAG,
    ARG_DAG_FILE,
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
    "Run a query of a topology over committed values, and print its tuples.",
    (ARG_TOPOLOGY, ARG_QUERY, ARG_QUERY_ARGS, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
    "query word_count count_of storm",
    "query word_count count_of storm -o json",
)


def _upkeep(name: str, help: str) -> ActionCommand:
    args = (ARG_TOPOLOGY, ARG_STATE, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE)
    return command(name, f"upkeep.{name}", help, args, f"state {name} customers latest")


STATE = GroupCommand(
    name="state",
    help="Values of a state, and its upkeep",
    subcommands=(
        command(
            "get",
            "query.state_get",
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
    "plan.plan",
    "Print the logical, the rewritten and the compiled plan of a topology. A stage is one pass over the data.",
    (ARG_PLAN_OF, ARG_PLAN_QUERY, ARG_FORMAT, ARG_VERBOSE),
    "plan word_count",
    "plan dags/word_count.py --format mermaid",
    "plan dags/word_count.py --format svg",
    "plan my_package.topologies:word_count",
    "plan my_package.topologies:word_count --query count_of",
)
