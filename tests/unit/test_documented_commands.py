"""Every command line of the documentation is one that the commands understand."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.test_docs import PAGES, fenced_blocks, name_of, text_of


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)


def commands() -> Iterator[Command]:
    """Those that a reader can type: lines of indented blocks, and of fenced ones of the shell."""
    for page in PAGES:
        fenced = [line for language, body in fenced_blocks(page) if language == "sh" for line in body.splitlines()]
        for line in [*text_of(page).splitlines(), *(f"    {line}" for line in fenced)]:
            found = re.match(r"\s+(?:\$ )?airflow trident (.+)", line)
            if found:
                yield Command(name_of(page), tuple(shlex.split(found[1], comments=True)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def parse(words: tuple[str, ...]) -> argparse.Namespace:
    """As Airflow would read the words after ``airflow trident``. :raises ValueError: it would refuse them."""
    from airflow.cli.cli_config import GroupCommand

    from airflow_trident.cli.parser import get_trident_cli_commands

    (command,) = get_trident_cli_commands()
    rest = list(words)
    while isinstance(command, GroupCommand):
        name = rest.pop(0) if rest else ""
        by_name = {one.name: one for one in command.subcommands}
        if name not in by_name:
            raise ValueError(f"{name!r} is no command; there are {', '.join(by_name)}")
        command = by_name[name]
    parser = _Parser(add_help=False)
    for argument in command.args:
        argument.add_to_parser(parser)
    return parser.parse_args(rest)


@pytest.mark.parametrize("command", sorted(set(commands()), key=str), ids=str)
def test_every_command_line_of_the_pages_is_understood(command: Command) -> None:
    parse(command.words)


def test_a_command_line_that_is_wrong_would_be_found() -> None:
    for words in ("ledger lost", "skip word_count", "backfill word_count --fail-all", "plan"):
        with pytest.raises(ValueError, match=r"command|required|unrecognized"):
            parse(tuple(words.split()))
