"""The commands about components in other programs: ``airflow trident qtopology`` and ``airflow trident child``."""

from __future__ import annotations

from functools import partial

from airflow.cli.cli_config import ARG_VERBOSE, Arg, GroupCommand

from airflow_trident.cli.parser import ARG_FORMAT
from airflow_trident.cli.parser_parts import command, count, repeated

_command = partial(command, package="airflow_trident.storm.commands")

ARG_FILE = Arg(("file",), help="Topology file of qtopology", metavar="FILE")
ARG_SET = repeated("--set", "A variable that replaces the file's; may be repeated", "VAR=VALUE")
ARG_FIELDS_OF = repeated(
    "--fields-of", 'Fields that a node emits (default: one field, "data string"); may be repeated', "NODE=FIELDS"
)

QTOPOLOGY = GroupCommand(
    name="qtopology",
    help="Topology files of qtopology",
    subcommands=(
        _command(
            "check",
            "components.check",
            "Read and compile a topology file, and show its content. Exit code 1 if it is invalid, with the place and "
            "the cure.",
            (ARG_FILE, ARG_SET, ARG_VERBOSE),
            "qtopology check topology.json",
            "qtopology check topology.json --set DATA=/data --set LEVEL=2",
        ),
        _command(
            "plan",
            "components.plan",
            "Print the plan of a topology file. Bolts whose output has no reader are sinks in it.",
            (ARG_FILE, ARG_SET, ARG_FIELDS_OF, ARG_FORMAT, ARG_VERBOSE),
            "qtopology plan topology.json",
            "qtopology plan topology.json --fields-of splitter='word string' --format mermaid",
        ),
    ),
)

ARG_COMPONENT = Arg(("component",), help="Program and arguments, behind --", nargs="+", metavar="CMD")
ARG_PROTOCOL = Arg(
    ("--protocol",),
    help="Its protocol: Storm's multilang, qtopology's 0.7 or seed, or module: a module of qtopology 2.x "
    "(default: multilang)",
    choices=("multilang", "0.7", "seed", "module"),
    default="multilang",
)
ARG_SPOUT = Arg(("--spout",), help="It is a spout: request tuples", action="store_true")
ARG_TUPLE = Arg(
    ("--fields",),
    help="Fields of a bolt's rows. With one field a line is its value, with several it is a JSON list or object "
    "(default: line string)",
    default="line string",
    metavar="FIELDS",
)
ARG_INIT = Arg(("--init",), help="Data of its initialization, JSON (default: {})", default="{}", metavar="JSON")
ARG_WORKING_DIR = Arg(("--working-dir",), help="Its folder (default: this one)", default=".", metavar="DIR")
ARG_MAX_ROWS = count("--max-rows", "Tuples to request from a spout (default: 10)", default=10)

CHILD = GroupCommand(
    name="child",
    help="Components in other programs",
    subcommands=(
        _command(
            "try",
            "components.try_child",
            "Drive one component by hand. Each line of standard input is a row, each line of standard output is JSON: "
            "an emit, an acknowledgement, a failure, the end. Exit code 1 if it failed a row or ended badly.",
            (
                ARG_PROTOCOL,
                ARG_SPOUT,
                ARG_TUPLE,
                ARG_INIT,
                ARG_WORKING_DIR,
                ARG_MAX_ROWS,
                ARG_VERBOSE,
                ARG_COMPONENT,
            ),
            "child try -- python split.py",
            "child try --protocol module --fields 'word string, n long' -- bolt.js",
            "child try --spout -- python feed.py",
        ),
    ),
)
