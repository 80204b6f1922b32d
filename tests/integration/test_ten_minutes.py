"""The tutorial of ten minutes, block by block as it is written, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.fixtures.airflow import without_airflow
from tools.local_airflow.services import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "ten-minutes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INSTALL, *COMMANDS = [body for language, body in BLOCKS if language == "sh"]
START = "airflow trident zookeeper start --add-connection"
LAST = """\
setsid airflow standalone > standalone.log 2>&1 &
trap "kill -KILL -- -$! 2> kill.log || true; $(trap -p EXIT | sed "s/^trap -- '//; s/' EXIT$//")" EXIT
timeout 300 bash -c 'until (: > /dev/tcp/127.0.0.1/$AIRFLOW__API__PORT) 2> wait.log; do sleep 1; done'
airflow dags unpause words
echo be > in/3.txt
airflow dags trigger words --run-id third
timeout 300 bash -c 'until airflow dags list-runs words -o plain | grep -E "third.*(success|failed)"; do sleep 2; done'
airflow trident state get words count be
kill -KILL -- -$!
"""
"""What a person does in the UI, in a real scheduler: the killed run of `airflow dags test` must not block it."""


def test_what_the_tutorial_installs_is_what_the_package_offers() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'"airflow-trident\[(\w+)\]"', INSTALL)
    assert named in extras


@pytest.mark.parametrize("last", [False, pytest.param(True, marks=pytest.mark.rare)], ids=["killed", "in the UI"])
def test_the_tutorial_runs_as_it_is_written_and_a_kill_in_its_middle_changes_no_count(
    tmp_path: Path, last: bool
) -> None:
    """:param last: with the run in a real scheduler, beside the killed one, which Airflow lists as running."""
    (module,) = [body for language, body in BLOCKS if language == "python"]
    made, changed = INSTALL.splitlines()[:2]
    assert (made, changed) == ("mkdir ~/ten-minutes", "cd ~/ten-minutes")
    steps = [f"{made}\n{changed}\ndeactivate() {{ :; }}\n"]
    for block in COMMANDS:
        if block.startswith("airflow standalone"):  # lasts until a person ends it
            steps += [LAST] * last
            continue
        steps.append(block.replace(START, f"{START} --port {free_port()}"))
        if "mkdir dags" in block:
            steps.append(f"cat > dags/words.py <<'END OF FILE'\n{module}END OF FILE\n")
    stop = "trap 'test ! -d ~/ten-minutes || airflow-trident zookeeper stop' EXIT\n"
    done = subprocess.run(
        ["bash", "-e", "-c", stop + "echo '==== step'\n".join(steps)],
        env=_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = [
        line for language, body in BLOCKS if language == "text" for line in body.splitlines() if "transaction 1" in line
    ]
    assert [line for line in said if line not in done.stdout] == []
    counts = re.findall(r"^be +\| (\d+) *$", done.stdout, re.MULTILINE)
    assert counts == ["2", "600002", *["600003"] * last]
    assert counts[:2] == re.findall(r"^be +\| (\d+)$", PAGE, re.MULTILINE)
    again = done.stdout.split("==== step")[-3 if last else -2]
    assert re.findall(r"^(\d) +\| (\w+)", again, re.MULTILINE)[-2:] == [("1", "COMMITTED"), ("2", "COMMITTED")]
    assert not (tmp_path / "ten-minutes").exists()


def _environment(home: Path) -> dict[str, str]:
    kept = without_airflow()
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    return {
        **kept,
        "HOME": str(home),
        "PATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
    }
