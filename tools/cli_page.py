"""Writes the tables of commands and options in docs/reference/cli.md, from the parser of `airflow trident`.

    python -m tools.cli_page

`tests/unit/test_docs.py` compares the page with the parser, so a changed help text is on the page, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
BEGIN, END = "<!-- generated: python -m tools.cli_page -->\n", "<!-- /generated -->\n"
OF_ALL = {"--verbose"}
"""Options of every command: the prose has them."""


def commands() -> Iterator[tuple[str, Any]]:
    """(name below `airflow trident`, command) of each, in the order of the parser."""
    from airflow.cli.cli_config import GroupCommand

    from airflow_trident.cli.parser import get_trident_cli_commands

    def below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for command in group.subcommands:
            if isinstance(command, GroupCommand):
                yield from below(command, f"{prefix}{command.name} ")
            else:
                yield f"{prefix}{command.name}", command

    (trident,) = get_trident_cli_commands()
    yield from below(trident, "")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def sections() -> set[str]:
    """The commands that have a section on the page."""
    return set(re.findall(r"^## airflow trident (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def command_table(of_parser: list[tuple[str, Any]]) -> str:
    described = sections()
    lines = ["| command | what it does |", "|---|---|"]
    for name, command in of_parser:
        arguments = " ".join(map(shown, filter(is_positional, command.args)))
        linked = f"[`{name}`](#airflow-trident-{name.replace(' ', '-')})" if name in described else f"`{name}`"
        lines.append(f"| {linked}{f' `{arguments}`' if arguments else ''} | {cell(command.help)} |")
    return "\n".join(lines)


def shown(argument: Any) -> str:
    """A positional argument, as `--help` shows it."""
    name, count = argument.kwargs["metavar"], argument.kwargs.get("nargs")
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(count, name)


def is_positional(argument: Any) -> bool:
    return not argument.flags[0].startswith("-")


def option_table(of_parser: list[tuple[str, Any]]) -> str:
    """Each option once, with the commands that take it: an option has one meaning, unless its help differs."""
    users: dict[tuple[str, str], list[str]] = {}
    for name, command in of_parser:
        for argument in command.args:
            if is_positional(argument) or argument.flags[-1] in OF_ALL:
                continue
            value = "" if "action" in argument.kwargs and argument.kwargs["action"] != "append" else value_of(argument)
            text = f"`{argument.flags[-1]}{value}`"
            users.setdefault((text, argument.kwargs["help"]), []).append(name)
    lines = ["| option | meaning | commands |", "|---|---|---|"]
    for (option, meaning), names in sorted(users.items()):
        taken_by = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {cell(option)} | {cell(meaning)} | {taken_by} |")
    return "\n".join(lines)


def value_of(argument: Any) -> str:
    choices = argument.kwargs.get("choices")
    return " " + ("|".join(choices) if choices else argument.kwargs.get("metavar") or "N")


def generated() -> str:
    of_parser = list(commands())
    return f"{command_table(of_parser)}\n\n{option_table(of_parser)}\n"


def page() -> str:
    """The page, with the tables as the parser has them."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{generated()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
