"""``airflow trident qtopology`` and ``airflow trident child``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.airflow import AirflowHome, airflow_home
from tests.fixtures.cli import Site

__all__ = ["airflow_home"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]
COMPONENTS = Path(__file__).parent.parent / "programs" / "components"
PYTHON = f"{sys.executable} -I -S"
FILE: dict[str, Any] = {
    "general": {"heartbeat": 1000, "name": "first"},
    "workers": [{"name": "w1"}],
    "spouts": [
        {"name": "pump", "worker": "w1", "working_dir": "${DIR}", "cmd": "numbers.js", "args": ["3"], "init": {}}
    ],
    "bolts": [
        {
            "name": "odd",
            "worker": "w1",
            "type": "sys",
            "working_dir": "",
            "cmd": "forward",
            "inputs": [{"source": "pump", "stream_id": "odd"}, {"source": "pump"}],
            "init": {},
        },
        {
            "name": "off",
            "worker": "w1",
            "working_dir": "",
            "cmd": "x",
            "inputs": [{"source": "odd"}],
            "init": {},
            "disabled": True,
        },
    ],
    "variables": {"DIR": "/a"},
}


def tried(home: AirflowHome, *arguments: str, lines: str = "") -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "airflow"), "trident", "child", "try", *arguments],
        env=home.environment,
        cwd=home.folder,
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_topology_file_is_checked_and_what_is_wrong_is_one_line(airflow_home: AirflowHome) -> None:
    good, bad = airflow_home.folder / "good.json", airflow_home.folder / "bad.json"
    good.write_text(json.dumps(FILE))
    bad.write_text(json.dumps({**FILE, "bolts": [{**FILE["bolts"][0], "inputs": [{"source": "pomp"}]}]}))
    site = Site(airflow_home, sys.modules[__name__])
    fine, wrong, unset, odd, plan, drawn = site.tridents(
        f"qtopology check {good} --set DIR=/b",
        f"qtopology check {bad}",
        f"qtopology check {good} --set DIRR=/b",
        f"qtopology check {good} --set DIR",
        f"qtopology plan {good} --fields-of 'pump=n long, text string'",
        f"qtopology plan {good} --format mermaid",
    )
    assert fine.out.splitlines() == [
        f"{good}: 1 spouts, 1 bolts, 1 workers",
        "  spout pump: subproc numbers.js 3 in /b @ w1",
        "  bolt odd: sys forward @ w1 <- pump:odd, pump",
        "  nobody reads: odd",
        "  note: bolt 'off' is disabled",
    ]
    assert wrong.code == 1
    assert f"{bad}: Bolt 'odd' is using unknown input source 'pomp'. The nodes are: odd, pump." in wrong.error
    assert "Did you mean 'dir'?" in unset.error
    assert odd.code == 2
    assert plan.out.startswith("topology first\n")
    assert "NodeSpout 'numbers.js 3' (subproc, 0.7) through /spool/first/pump" in plan.out
    assert "BoltSink(NodeBolt 'forward' (sys))" in plan.out
    assert "not exactly once: state odd with stream pump" in plan.out
    assert drawn.out.startswith("flowchart")


def test_a_bolt_is_driven_by_hand_line_by_line(airflow_home: AirflowHome) -> None:
    shell = [sys.executable, "-I", "-S", str(COMPONENTS / "shell.py"), "Bolt"]
    assert tried(airflow_home, "--", *shell, lines="snow white\n\nand\n") == (
        0,
        [
            {"emit": ["snow"], "stream": "default", "row": 0},
            {"emit": ["white"], "stream": "default", "row": 0},
            {"ack": 0},
            {"ack": 1},
            {"emit": ["and"], "stream": "default", "row": 2},
            {"ack": 2},
            {"end": 0, "well": True},
        ],
        "",
    )


def test_a_row_that_is_failed_and_a_bolt_that_dies_are_seen(airflow_home: AirflowHome) -> None:
    recorder = [sys.executable, "-I", "-S", str(COMPONENTS / "recorder.py"), str(airflow_home.folder / "told")]
    code, said, _ = tried(airflow_home, "--fields", "word string, n int", "--", *recorder, lines='["bad", 1]\n')
    assert (code, said[0]) == (1, {"fail": 0, "error": "this one is bad"})
    code, said, error = tried(airflow_home, "--fields", "word string, n int", "--", *recorder, lines="[1]\n")
    assert (code, said) == (2, [])
    assert "line 1 of the input is no row" in error
    shell = [sys.executable, "-I", "-S", str(COMPONENTS / "shell.py"), "Exit7"]
    code, said, error = tried(airflow_home, "--", *shell, lines="go now\n")
    assert (code, said[0]["emit"]) == (1, ["go"])
    assert "ended with code 7 before it acknowledged the row" in error


def test_a_spout_is_asked_by_hand(airflow_home: AirflowHome) -> None:
    (airflow_home.folder / "items").mkdir()
    for item in ("a", "bb", "ccc"):
        (airflow_home.folder / "items" / item).touch()
    queue = [sys.executable, "-I", "-S", str(COMPONENTS / "queue_spout.py"), str(airflow_home.folder)]
    code, said, _ = tried(airflow_home, "--spout", "--max-rows", "2", "--", *queue)
    assert code == 0
    assert said == [
        {"emit": [1, "a"], "stream": "default", "id": "a"},
        {"emit": [2, "bb"], "stream": "default", "id": "bb"},
        {"end": 0, "well": True},
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node: there is no node on PATH")
def test_components_of_qtopology_are_driven_by_hand(airflow_home: AirflowHome) -> None:
    options = ["--protocol", "module", "--working-dir", str(COMPONENTS)]
    code, said, _ = tried(airflow_home, *options, "--init", '{"items": 1}', "--spout", "--", "number_module.js")
    assert (code, said[0]["emit"]["n"], said[0]["stream"]) == (0, 1, "odd")
    code, said, error = tried(airflow_home, *options, "--", "gone.js", lines="x\n")
    assert (code, said) == (1, [])
    assert "Cannot find module" in error
