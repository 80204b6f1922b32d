"""The tutorial of a cluster, block by block as it is written: a real YARN and S3, and a driver and executors that see
neither Airflow's folder nor the reader's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.fixtures.airflow import without_airflow
from tests.fixtures.namespaces import has_namespaces
from tools.local_airflow.services import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "on-a-cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"((?:^(?!```)[^\n]*\n)*)^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INSTALL, *_ = [body for _, language, body in BLOCKS if language == "sh"]
START = "airflow trident zookeeper start --add-connection"
CLEAN_UP = "airflow trident zookeeper stop"
SAFETY_NET_S = 3600
"""Only so that a step that never ends is noticed; how long it took is printed."""
ELSEWHERE = """#!/bin/sh
# java, and for the cluster on what is another machine: the reader's folder has nothing there but SEEN
case "$*" in
*MiniYarn.java*) ;;
*) exec JAVA "$@" ;;
esac
hide='for one in SEEN; do mkdir HELD/$one && mount --bind READER/$one HELD/$one || exit; done
mount -t tmpfs none READER || exit
for one in SEEN; do mkdir READER/$one && mount --bind HELD/$one READER/$one || exit; done
cd READER/yarn && exec JAVA "$@"'
exec unshare --user --map-root-user --mount sh -c "$hide" java "$@"
"""
LOOK = """
import json, os, sys
import boto3
client = boto3.client("s3")
def cluster():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, said = (open(f"/proc/{pid}/{file}").read() for file in ("comm", "cmdline"))
        except OSError:  # it ended meanwhile
            continue
        if name.strip() == "java" and "MiniYarn.java" in said:
            return pid
told = {"names": [], "manifests": [], "seen": os.listdir(f"/proc/{cluster()}/root{os.getcwd()}")}
for one in client.list_objects_v2(Bucket="trident")["Contents"]:
    told["names"].append(one["Key"])
    if one["Key"].endswith("manifest.json"):
        told["manifests"].append(client.get_object(Bucket="trident", Key=one["Key"])["Body"].read().decode())
print("LOOKED " + json.dumps(told))
"""


def test_what_the_tutorial_of_a_cluster_installs_is_what_the_package_offers() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'"airflow-trident\[([\w,]+)\]"', INSTALL)
    assert set(named.split(",")) <= set(extras)


@pytest.mark.rare  # one and a half minutes on an idle machine; CI runs it for itself
def test_the_tutorial_of_a_cluster_runs_as_it_is_written_and_nothing_is_shared_but_the_bucket(tmp_path: Path) -> None:
    install = INSTALL.split("python3 -m venv")[0] + "deactivate() { :; }\n"
    follow(tmp_path, install, [str(Path(sys.executable).parent)])
    if not has_namespaces():
        pytest.skip("all else held; without namespaces nobody looked at which folders the cluster sees")


def follow(folder: Path, install: str, path: list[str], seen: tuple[str, ...] = ("yarn",)) -> str:
    """Do what the tutorial says, and look at what comes of it. Prints how long it took. Returns what was printed.

    :param install: instead of its first block.
    :param path: folders of programs, for the beginning of PATH.
    :param seen: all that the cluster sees of the reader's folder: its own, and what is on each of its machines.
    """
    home = folder / "home"
    home.mkdir()
    try:
        done = subprocess.run(
            ["bash", "-e", "-c", 'echo "==== step after $SECONDS s"\n'.join([install, *_steps()])],
            env=_environment(folder, home, path, seen),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SAFETY_NET_S,
        )
    finally:
        _end_all(str(home))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = [
        line for _, language, body in BLOCKS if language == "text" for line in body.splitlines() if "topology" in line
    ]
    assert said
    assert [line for line in said if line not in done.stdout] == []
    counts = re.findall(r"^be +\| (\d+) *$", done.stdout, re.MULTILINE)
    assert counts == ["40000", "40001"] == re.findall(r"^be +\| (\d+)$", PAGE, re.MULTILINE)
    _assert_apart(done.stdout, seen)
    assert not (home / "on-a-cluster").exists()
    installed, *_, end = re.findall(r"^==== step after (\d+) s$", done.stdout, re.MULTILINE)
    first = re.search(rf"{re.escape(said[0])}.*?^==== step after (\d+) s$", done.stdout, re.MULTILINE | re.DOTALL)
    assert first
    print(f"MEASURED installed after {installed} s, first commit after {first[1]} s, end after {end} s")
    return done.stdout


def _steps() -> list[str]:
    """What a reader types and saves, and a look at the end, before all is removed."""
    bucket, zookeeper, found = free_port(), free_port(), []
    for before, language, body in BLOCKS[1:]:
        if language == "sh":
            text = body.replace(START, f"{START} --port {zookeeper}").replace("5123", str(bucket))
            found.append(f"python -c '{LOOK}'\n{text}" if CLEAN_UP in body else text)
        elif language != "text":
            *_, path = re.findall(r"`([\w/]+\.\w+)`", before)
            found.append(f"mkdir -p {os.path.dirname(path)}\ncat > {path} <<'END OF FILE'\n{body}END OF FILE\n")
    return found


def _assert_apart(printed: str, seen: tuple[str, ...]) -> None:
    (line,) = re.findall(r"^LOOKED (.*)$", printed, re.MULTILINE)
    told = json.loads(line)
    # A driver in the cluster, then one beside the task: whatever one of them is told to read or write is in the bucket.
    submitted = re.findall(r"--deploy-mode (\w+) \S+/app\.py (\S+) (\S+)", printed)
    assert [mode for mode, *_ in submitted] == ["cluster", "client"]
    named = [name for _, *names in submitted for name in names]
    assert [name for name in named if not name.startswith("s3://trident/staging/drains/words-")] == []
    if has_namespaces():
        assert sorted(told["seen"]) == sorted(seen)
    staged = [name for name in told["names"] if name.startswith("staging/")]
    assert sum(name.endswith(".parquet") for name in staged) == 2, staged
    assert len(told["manifests"]) == 2
    assert not [one for one in told["manifests"] if "/on-a-cluster" in one]
    assert not [name for name in staged if "drains" in name]  # orders and answers were there, and are gone


def _environment(folder: Path, home: Path, programs: list[str], seen: tuple[str, ...]) -> dict[str, str]:
    kept = without_airflow()
    commands, held = folder / "commands", folder / "held"
    commands.mkdir()
    held.mkdir()
    java = shutil.which("java")
    assert java
    text = ELSEWHERE.replace("JAVA", java).replace("READER", str(home / "on-a-cluster")).replace("HELD", str(held))
    text = text.replace("SEEN", " ".join(seen))
    (commands / "java").write_text(text)
    (commands / "java").chmod(0o755)
    path = os.pathsep.join([*([str(commands)] if has_namespaces() else []), *programs, kept["PATH"]])
    return {**kept, "HOME": str(home), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


def _end_all(home: str) -> None:
    """Where the tutorial did not come to its end: what it started runs in its folder, or names it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if home in f"{process.environ().get('HOME', '')} {' '.join(process.cmdline())}":
                process.send_signal(signal.SIGKILL)
