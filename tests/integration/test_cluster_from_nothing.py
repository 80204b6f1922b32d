"""The tutorial of a cluster from its first block: the package is built and installed into a new environment by pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.namespaces import has_namespaces
from tests.integration.test_on_a_cluster import INSTALL, ROOT, follow

# Minutes: pip installs 1.2 GB.
pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

CONSTRAINTS = "https://raw.githubusercontent.com/apache/airflow/constraints-3.3.2/constraints-$PYTHON.txt"
PACKAGE = '"airflow-trident['
LOOK = """
import airflow_trident, airflow, pyspark
print("INSTALLED", *(one.__file__ for one in (airflow_trident, airflow, pyspark)))
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (made,) = folder.glob("*.whl")
    return made


def test_the_tutorial_of_a_cluster_runs_with_what_its_first_block_installs(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package comes from the wheel, the versions from the project's lock: Airflow's constraints are on no package
    registry. The cluster's machine has the new environment, as any has that Spark's Python runs on."""
    # HOME is an empty folder there, and pip would fetch everything each time
    monkeypatch.setenv("PIP_CACHE_DIR", os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip"))
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert CONSTRAINTS in INSTALL
    named, _, extras = INSTALL.partition(PACKAGE)
    extras, _, rest = extras.partition(']"')
    assert rest, INSTALL
    install = f'{named}"airflow-trident[{extras}] @ {wheel.as_uri()}"{rest}'
    lock = ROOT / "requirements" / "dev.lock"
    install = install.replace(CONSTRAINTS, str(lock)).replace("pip install", f"pip install -q -c {lock}")
    printed = follow(tmp_path, f"{install}python -c '{LOOK}'\n", [str(Path(sys.base_prefix) / "bin")], ("venv", "yarn"))
    (line,) = [line for line in printed.splitlines() if line.startswith("INSTALLED")]
    _, *places = line.split()
    assert [one for one in places if not one.startswith(str(tmp_path / "home" / "on-a-cluster" / "venv"))] == []
    if not has_namespaces():
        pytest.skip("all else held; without namespaces nobody looked at which folders the cluster sees")
