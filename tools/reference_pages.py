"""Writes the tables of the reference that the code has already: the commands and options of `airflow trident`, the
options of Airflow's configuration, the fields of the connection, and the errors.

    python -m tools.reference_pages

`tests/unit/test_docs.py` compares the pages with the code, so a changed text is on the page, too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
CLI, CONFIGURATION, ERRORS = REFERENCE / "cli.md", REFERENCE / "configuration.md", REFERENCE / "errors.md"
BEGIN, END = "<!-- generated: {table}, by make reference -->\n", "<!-- /generated -->\n"
OF_ALL = {"--verbose"}
"""Options of every command: the prose has them."""


# ---- commands --------------------------------------------------------------------------------------------------


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
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


def sections() -> set[str]:
    """The commands that have a section on the page."""
    return set(re.findall(r"^## airflow trident (.+)$", CLI.read_text(encoding="utf-8"), re.MULTILINE))


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


def command_tables() -> str:
    of_parser = list(commands())
    return f"{command_table(of_parser)}\n\n{option_table(of_parser)}\n"


# ---- configuration ---------------------------------------------------------------------------------------------


def settings_table() -> str:
    from airflow_trident.settings import OPTIONS

    lines = ["| option | default | meaning |", "|---|---|---|"]
    lines += [f"| `{option.name}` | {option.default} | {cell(option.description)} |" for option in OPTIONS]
    return "\n".join([*lines, ""])


def connection_table() -> str:
    from airflow_trident.provider_info import get_provider_info

    (connection,) = get_provider_info()["connection-types"]
    lines = ["| extra | field in the UI | default | meaning |", "|---|---|---|---|"]
    for name, field in connection["conn-fields"].items():
        default = str(field["schema"].get("default", "")).lower()
        lines.append(f"| `{name}` | {field['label']} | {default} | {cell(field['description'])} |")
    return "\n".join([*lines, ""])


# ---- errors ----------------------------------------------------------------------------------------------------


def error_tables() -> str:
    """A table for each section of `airflow_trident.errors`: the first sentences of each class, and its cure."""
    from airflow_trident import errors

    source = Path(errors.__file__).read_text(encoding="utf-8")
    parts = re.split(r"^# ---- (.+?) -+$", source, flags=re.MULTILINE)[1:]
    tables = []
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        names = re.findall(r"^class (\w+)\(", body, re.MULTILINE)
        classes = [getattr(errors, name) for name in names if name.endswith(("Error", "Exception"))]
        rows = [error_row(kind) for kind in classes if kind is not errors.TridentError]
        if rows:
            head = "| class | cause | cure | retried |\n|---|---|---|---|"
            heading = title.partition(" (")[0]
            tables.append(f"## {heading[0].upper()}{heading[1:]}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(tables) + "\n"


def error_row(kind: type[Any]) -> str:
    from airflow_trident.errors import Outcome

    cause, *more = (inspect.getdoc(kind) or "").split("\n\n")
    cure = next((part.removeprefix("Cure: ") for part in more if part.startswith("Cure: ")), "")
    retried = "yes" if kind.outcome is Outcome.RETRY else "no"
    return f"| `{kind.__name__}` | {cell(cause)} | {cell(cure)} | {retried} |"


# ---- pages -----------------------------------------------------------------------------------------------------

TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    CLI: {"commands and options": command_tables},
    CONFIGURATION: {"options": settings_table, "the connection": connection_table},
    ERRORS: {"errors": error_tables},
}
"""Page -> name of a block -> what makes its tables."""


def written(page: Path) -> str:
    """The page, with its tables as the code has them."""
    text = page.read_text(encoding="utf-8")
    for table, make in TABLES[page].items():
        before, begin, rest = text.partition(BEGIN.format(table=table))
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{page.name} has no block {table!r}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


if __name__ == "__main__":
    for page in TABLES:
        page.write_text(written(page), encoding="utf-8")
