"""Every command line of the documentation, and of the texts of errors and of the page, is one that is understood."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.cli.commands.partitions import selected_partitions
from airflow_trident.cli.commands.transactions import _selection
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.tasks.mending_order import MendingOrder
from tests.unit.test_docs import PAGES, fenced_blocks, name_of, text_of

SOURCE = Path(__file__).parents[2] / "airflow_trident"
QUOTED = re.compile(r"`(airflow [a-z][^`]*)`|\"(airflow trident [^\"]*)\"")


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
    """As Airflow would read the words after ``airflow trident``; `func` runs them. :raises ValueError: it would refuse
    them."""
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
    parser.set_defaults(func=command.func)
    for argument in command.args:
        argument.add_to_parser(parser)
    return parser.parse_args(rest)


@pytest.mark.parametrize("command", sorted(set(commands()), key=str), ids=str)
def test_every_command_line_of_the_pages_is_understood(command: Command) -> None:
    parse(command.words)


def test_a_command_line_that_is_wrong_would_be_found() -> None:
    for words in ("ledger lost", "take-back word_count", "backfill word_count --fail-all", "plan"):
        with pytest.raises(ValueError, match=r"command|required|unrecognized"):
            parse(tuple(words.split()))


# ---- commands in texts of the source ---------------------------------------------------------------------------------


def texts_of(path: Path) -> Iterator[str]:
    """The texts that a person may read, with ``{...}`` in the place of each value. No docstrings."""
    if path.suffix == ".js":
        yield re.sub(r"`\s*\+\s*`", "", re.sub(r"\$\{[^{}]*\}", "{...}", path.read_text(encoding="utf-8")))
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        text = None if id(node) in passed else text_in(node)
        if text is not None:
            passed |= {id(one) for one in ast.walk(node)}
            yield text


def text_in(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_in(one) or value_of(one) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = text_in(node.left), text_in(node.right)
        return None if None in parts else "".join(map(str, parts))
    return None


def value_of(node: ast.AST) -> str:
    is_options = isinstance(node, ast.FormattedValue) and ast.unparse(node.value) == "states"
    return "--state {...}" if is_options else "{...}"


@dataclass(frozen=True)
class Advice:
    """A command that a text of the source names, with ``{...}`` in the place of each value. `file`: in the package."""

    file: str
    text: str
    command: str


@cache
def advices() -> tuple[Advice, ...]:
    texts = (
        (path.relative_to(SOURCE).as_posix(), " ".join(text.split()))
        for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")])
        for text in texts_of(path)
    )
    return tuple(Advice(file, text, match[1] or match[2]) for file, text in texts for match in QUOTED.finditer(text))


def advised() -> Iterator[str]:
    """Each command of an advice, with a number in the place of each value."""
    for advice in advices():
        yield re.sub(r"\{\.\.\.\}|\b(TXID|REASON|WHY|HOST)\b", "7", advice.command)


@cache
def parser_of_airflow() -> argparse.ArgumentParser:
    from airflow.cli.cli_parser import get_parser

    return get_parser()


def require_understood(command: str) -> None:
    """:raises ValueError: Airflow has no such command, or it takes no such arguments. A text that names only the
    command, as `airflow trident repair`, names no arguments."""
    words = shlex.split(command)[1:]
    names = known_command(words)
    if len(names) == len(words):
        return
    if words[0] == "trident":
        args = parse(tuple(words[1:]))
        if words[1] == "backfill":
            selected_partitions(args) or _selection(args)  # the parser takes a backfill of nothing
        return
    parser: Any = parser_of_airflow()
    parser.parse_args(words)


def known_command(words: list[str]) -> list[str]:
    """The words that name the command."""
    from airflow.cli.cli_config import GroupCommand
    from airflow.cli.cli_parser import ALL_COMMANDS_DICT

    from airflow_trident.cli.parser import get_trident_cli_commands

    commands = {**ALL_COMMANDS_DICT, **{one.name: one for one in get_trident_cli_commands()}}
    names: list[str] = []
    while True:
        name = words[len(names)] if len(names) < len(words) else ""
        if name not in commands:
            raise ValueError(f"{' '.join(words)!r}: {name!r} is no command; there are {', '.join(commands)}")
        command = commands[name]
        names.append(name)
        if not isinstance(command, GroupCommand):
            return names
        commands = {one.name: one for one in command.subcommands}


@pytest.mark.parametrize("command", sorted(set(advised())))
def test_every_command_that_a_text_of_the_source_advises_is_understood(command: str) -> None:
    require_understood(command)


@pytest.mark.parametrize("action", [one for one in PageAction if one.needs_code])
@pytest.mark.parametrize("selected", [{"txid": 7}, {"first": 3, "last": 7}, {}])
def test_the_command_that_does_what_was_asked_for_on_the_page_is_understood(
    action: PageAction, selected: dict[str, int]
) -> None:
    about: dict[str, Any] = {"txid": 7} if action.about_one else selected
    order = MendingOrder(
        action=action, topology="words", dag_id="plays", incarnation="i", reason="it's mended", by="uwe", **about
    )
    require_understood(order.command)
    named = about.get("txid", about.get("first", "--failed"))
    assert action is PageAction.ACCEPT or str(named) in order.command


def test_a_wrong_command_in_a_text_would_be_found() -> None:
    for command in ("airflow trident ledger lost", "airflow trident skip 7 7 --now", "airflow dag list"):
        with pytest.raises((ValueError, SystemExit)):
            require_understood(command)
    assert len(set(advised())) > 40
