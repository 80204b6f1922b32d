"""Every command of ``airflow trident`` is there, says what it does and shows how; reading them costs little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from airflow.cli.cli_config import GroupCommand
before = set(sys.modules)
from airflow_trident.cli.definition import get_trident_cli_commands

def walk(command, path):
    path = path + [command.name]
    if isinstance(command, GroupCommand):
        for one in command.subcommands:
            yield from walk(one, path)
    else:
        yield path, command

(trident,) = get_trident_cli_commands()
found = {" ".join(path): command for path, command in walk(trident, [])}
imported = {name.partition(".")[0] for name in set(sys.modules) - before}
heavy = sorted({"pyspark", "kazoo", "pyarrow", "pandas"} & imported)
from importlib import import_module
handlers = {}
for path, command in found.items():
    loader = command.func.__closure__[0].cell_contents
    module, _, name = loader.rpartition(".")
    handlers[path] = callable(getattr(import_module(module), name))
print(json.dumps({
    "heavy": heavy,
    "handlers": handlers,
    "help": {path: [command.help, command.description, command.epilog] for path, command in found.items()},
    "verbose": {path: any("--verbose" in arg.flags for arg in command.args) for path, command in found.items()},
}))
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_commands_of_the_design_are_there_and_each_has_a_handler(commands: dict[str, dict[str, object]]) -> None:
    assert commands["handlers"] == {
        f"trident {name}": True
        for name in (
            "zookeeper start",
            "zookeeper stop",
            "zookeeper status",
            "ledger list",
            "ledger show",
            "ledger export",
            "ledger accept",
            "backfill",
            "replay",
            "bisect",
            "skip",
            "run",
            "pause",
            "resume",
            "shutdown",
            "repair",
            "plan",
            "doctor",
        )
    }


def test_every_command_has_help_with_an_example_of_itself(commands: dict[str, dict[str, object]]) -> None:
    for path, texts in commands["help"].items():
        assert isinstance(texts, list)
        help_text, description, examples = texts
        assert help_text
        assert str(description).startswith(help_text)
        assert f"airflow {path}" in examples


def test_every_command_can_be_asked_for_logs(commands: dict[str, dict[str, object]]) -> None:
    assert all(commands["verbose"].values())


def test_reading_the_commands_imports_no_heavy_library(commands: dict[str, dict[str, object]]) -> None:
    assert commands["heavy"] == []
