"""The commands that ask: ``airflow trident query`` and ``airflow trident state get``."""

from __future__ import annotations

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, Arg, GroupCommand

from airflow_trident.cli.definition_parts import ARG_DAG, ARG_DAG_FILE, ARG_TOPOLOGY, command

ARG_QUERY = Arg(("query",), help="Name of the query", metavar="QUERY")
ARG_QUERY_ARGS = Arg(("args",), help="A value for each argument of the query", nargs="*", metavar="ARG")
ARG_STATE = Arg(("state",), help="Name of the state", metavar="STATE")
ARG_KEY = Arg(("key",), help="A value for each key field", nargs="*", metavar="KEY")

QUERY = command(
    "query",
    "query",
    "query",
    "Run a query of a topology over what is committed, and print its tuples.",
    (ARG_TOPOLOGY, ARG_QUERY, ARG_QUERY_ARGS, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
    "query word_count count_of storm",
    "query word_count count_of storm -o json",
)
STATE = GroupCommand(
    name="state",
    help="What is in a state",
    subcommands=(
        command(
            "get",
            "query",
            "state_get",
            "Print the committed value of a key. Exit code 1 if there is none.",
            (ARG_TOPOLOGY, ARG_STATE, ARG_KEY, ARG_OUTPUT, ARG_DAG, ARG_DAG_FILE, ARG_VERBOSE),
            "state get word_count count storm",
        ),
    ),
)
