"""``airflow-trident ...``: the commands of ``airflow trident``, for Airflow 3.1, which takes none from providers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Iterable, Sequence

from airflow.cli.cli_config import CLICommand, GroupCommand

from airflow_trident.cli.parser import get_trident_cli_commands

PROGRAM = "airflow-trident"


def make_parser() -> ArgumentParser:
    (trident,) = get_trident_cli_commands()
    assert isinstance(trident, GroupCommand)
    parser = ArgumentParser(prog=PROGRAM, description=trident.description or trident.help)
    _fill(parser, trident.subcommands)
    return parser


def _fill(parser: ArgumentParser, commands: Iterable[CLICommand]) -> None:
    places = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        below = places.add_parser(
            command.name,
            help=command.help,
            description=command.description or command.help,
            epilog=command.epilog,
            formatter_class=RawTextHelpFormatter,
        )
        if isinstance(command, GroupCommand):
            _fill(below, command.subcommands)
            continue
        for arg in command.args:
            arg.add_to_parser(below)
        below.set_defaults(func=command.func)


def main(arguments: Sequence[str] | None = None) -> None:
    """:param arguments: default: the arguments of the process."""
    args = make_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    args.func(args)


if __name__ == "__main__":
    main()
