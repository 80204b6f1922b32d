"""Every command of ``airflow trident`` is there, says what it does and shows how; reading them costs little."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from airflow.cli.cli_config import GroupCommand
before = set(sys.modules)
from airflow_trident.cli.parser import get_trident_cli_commands

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
        cwd=ROOT,
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
            "connect-server start",
            "connect-server stop",
            "connect-server status",
            "spark-archive",
            "rebuild",
            "close",
            "ledger list",
            "ledger show",
            "ledger export",
            "ledger import",
            "ledger accept",
            "checks",
            "drain",
            "partitions",
            "backfill",
            "replay",
            "bisect",
            "skip",
            "accept-source",
            "source mark-read",
            "take-back",
            "run",
            "pause",
            "resume",
            "shutdown",
            "repair",
            "deploy",
            "undeploy",
            "worker",
            "workers",
            "query",
            "state get",
            "state fold",
            "state publish",
            "plan",
            "qtopology check",
            "qtopology plan",
            "child try",
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


def test_every_command_that_an_error_or_a_page_names_exists(commands: dict[str, dict[str, object]]) -> None:
    paths = [*ROOT.glob("airflow_trident/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    paths.remove(ROOT / "docs" / "changelog.md")  # it names commands that are gone
    known = {tuple(path.split()[1:]) for path in commands["help"]}
    groups = {path[:depth] for path in known for depth in range(1, len(path))}
    cited: set[tuple[str, ...]] = set()
    for path in paths:
        # a text may go on in the next string literal of the source
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        cited |= {tuple(words.split()) for words in re.findall(r"airflow trident((?: [a-z-]+){1,2})", text)}
    assert len(cited) > 10
    assert {words for words in cited if words[:1] not in known and words not in known | groups} == set()


def test_every_command_can_be_asked_for_logs(commands: dict[str, dict[str, object]]) -> None:
    assert all(commands["verbose"].values())


def test_reading_the_commands_imports_no_heavy_library(commands: dict[str, dict[str, object]]) -> None:
    assert commands["heavy"] == []
