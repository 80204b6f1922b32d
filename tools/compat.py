"""``make compat``: the engines' contract, and a transaction through Airflow, on each supported release of Spark; the
tasks, on each release of Airflow.

Each release has its own environment below ``.compat/``. The results are written to ``docs/compatibility.md``. An
environment for Spark uses the packages of the environment that runs this: only pyspark is installed in it. An
environment for Airflow is complete, because Airflow's parts fit only each other. The releases that are developed with
are those of the environment that runs this.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / ".compat"
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- generated: releases, by make compat -->", "<!-- /generated -->"

WHOLE = (
    ["tests/contracts/test_engine.py", "-k", "spark or connect"],
    [
        "tests/contracts/test_spark_versions.py",
        "tests/contracts/test_spark_plans.py",
        "tests/integration/test_spark_text.py",
        "tests/integration/test_spark_sessions.py",
        "tests/integration/test_airflow_spark.py",
        "tests/integration/test_drain.py",
        "tests/integration/test_ledger_embedded.py",
    ],
)
"""The contract of engines; then substitutes for newer functions, exchanges, text, Spark Connect with a second attempt,
a transaction through Airflow, a drain, and the ZooKeeper that this pyspark contains."""
REDUCED = (
    ["tests/contracts/test_engine.py", "-k", "spark and not connect and (word_count or expressions or vectors)"],
    [
        "tests/contracts/test_spark_versions.py",
        "tests/integration/test_spark_sessions.py::test_a_newer_attempt_on_connect_ends_the_older_ones_work",
        "tests/integration/test_airflow_spark.py",
    ],
)
"""For CI, where every minute counts; the one of sessions is a retry on Spark Connect."""
TASKS = (
    [
        "tests/integration/test_airflow_spark.py",
        "tests/integration/test_airflow_tasks.py",
        "tests/integration/test_days_in_airflow.py::test_a_template_gives_the_runs_of_a_classic_schedule_their_days",
    ],
)
"""A transaction through each kind of Spark connection; tasks that are cleared, killed, run twice; a bound topology."""
TRIGGERER = (["tests/integration/test_airflow_triggerer.py"],)
"""A real triggerer, to which waiting tasks are deferred."""
NO_SERVER, NO_TIMES = "brings a Connect server since 4.0", "this Spark has no times of day"


@dataclass(frozen=True)
class Cell:
    """One environment: its name and its packages.

    `whole`: installed with all their requirements. `here`: it is the environment that runs this. `lacks`: why a test
    may be skipped there, as a regular expression.
    """

    name: str
    packages: tuple[str, ...]
    whole: bool = False
    here: bool = False
    tests: tuple[list[str], ...] = WHOLE
    lacks: str = ""

    @property
    def room(self) -> Path:
        return ROOMS / self.name

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.here else self.room / "bin" / "python"


CELLS = (
    Cell("spark-3.5", ("pyspark==3.5.9",), lacks=f"{NO_SERVER}|{NO_TIMES}"),
    Cell("spark-4.0", ("pyspark==4.0.5",), lacks=NO_TIMES),
    Cell("spark-4.1", ("pyspark==4.1.4",)),
    Cell(
        "spark-4.2",
        tuple(f"{name}=={version(name)}" for name in ("pyspark", "apache-airflow")),
        here=True,
        tests=(*WHOLE, ["tests/integration/test_airflow_tasks.py"], *TRIGGERER),
    ),
    Cell("spark-4.3", ("pyspark==4.3.0",)),
    Cell("airflow-3.1", ("apache-airflow==3.1.8",), whole=True, tests=TASKS),
    Cell(
        "airflow-3.2",
        # as of its release: with newer ones its own API server does not start
        ("apache-airflow==3.2.2", "fastapi==0.136.3", "cadwyn==6.2.2", "starlette==1.0.1", "svcs==25.1.0"),
        whole=True,
        tests=TASKS + TRIGGERER,
    ),
)
ENDS = ("spark-3.5", "spark-4.3")


@dataclass(frozen=True)
class Counts:
    """The results of the tests of a cell. What is skipped for a reason that the cell does not name has failed."""

    passed: int
    failed: int
    skipped: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat ARGS=", description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", help=f"of {', '.join(cell.name for cell in CELLS)}; all of them")
    parser.add_argument("--reduced", action="store_true", help="few tests of the oldest and the newest, for CI")
    given = parser.parse_args()
    known = {cell.name: cell for cell in CELLS}
    if unknown := [name for name in given.cells if name not in known]:
        parser.error(f"no such environment: {', '.join(unknown)}; there are {', '.join(known)}")
    names = given.cells or (ENDS if given.reduced else tuple(known))
    found: dict[str, Counts] = {}
    for name in names:
        prepare(known[name])
        found[name] = tested(known[name], REDUCED if given.reduced else known[name].tests)
        print(f"{name}: {found[name]}", flush=True)
    if not given.reduced:
        write_page(found)
    return int(any(counts.failed or not counts.passed for counts in found.values()))


def prepare(cell: Cell) -> None:
    """Make the environment if it does not exist or has other packages."""
    if cell.here:
        cell.room.mkdir(parents=True, exist_ok=True)
        return
    stamp = cell.room / ".installed"
    wanted = " ".join(cell.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"{cell.name}: installing {wanted}", flush=True)
    run([sys.executable, "-m", "venv", "--clear", str(cell.room)])
    install = [str(cell.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if cell.whole:
        run([*install, "-r", "requirements/dev.in", "-e", ".[submit,redis,postgres,kafka,delta]", *cell.packages])
    else:
        run([*install, "--no-deps", *cell.packages])
        _lay_over(cell)
    stamp.write_text(wanted)


def _lay_over(cell: Cell) -> None:
    below = sysconfig.get_path("purelib")
    own = next((cell.room / "lib").glob("python3.*")) / "site-packages"
    # After the environment's own packages, so their files win. `addsitedir` is needed because this package is installed
    # editable. The prefix marks the packages there as installed (engine/spark/shipping.py asks for that).
    lines = f"import site; site.PREFIXES.append({sys.prefix!r}); site.addsitedir({below!r})\n"
    (own / "below.pth").write_text(lines)
    script = cell.room / "bin" / "airflow"
    script.write_text(f"#!{cell.python}\nfrom airflow.__main__ import main\nmain()\n")
    script.chmod(0o755)


def run(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def tested(cell: Cell, selections: tuple[list[str], ...]) -> Counts:
    """Run the tests; their output goes to the terminal."""
    counts = [_selection(cell, number, selection) for number, selection in enumerate(selections)]
    return Counts(*(sum(getattr(one, name) for one in counts) for name in ("passed", "failed", "skipped")))


def _selection(cell: Cell, number: int, selection: list[str]) -> Counts:
    report = cell.room / f"report-{number}.xml"
    report.unlink(missing_ok=True)
    # Warnings of an older library itself are not ours to mend.
    command = [str(cell.python), "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", f"--junitxml={report}"]
    path = os.pathsep.join([str(cell.python.parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    subprocess.run([*command, *selection], cwd=ROOT, env=environment, check=False, stdin=subprocess.DEVNULL)
    if not report.exists():
        return Counts(0, 1, 0)
    root = ElementTree.parse(report).getroot()
    suite = next(root.iter("testsuite")).attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    reasons = [skip.get("message") or "" for skip in root.iter("skipped")]
    unexplained = [why for why in reasons if not (cell.lacks and re.search(cell.lacks, why))]
    for why in unexplained:
        print(f"{cell.name}: skipped, though nothing says that it lacks that: {why}", flush=True)
    counted = Counts(int(suite["tests"]) - failed - skipped, failed, skipped)
    return replace(counted, failed=failed + len(unexplained), skipped=skipped - len(unexplained))


def write_page(found: dict[str, Counts]) -> None:
    """Put the counts between the marks of the page; rows of environments that did not run stay."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {
        line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith(("| spark", "| airflow"))
    }
    today = datetime.datetime.now(datetime.UTC).date()
    for cell in CELLS:
        if counts := found.get(cell.name):
            installed = ", ".join(package.replace("==", " ") for package in cell.packages)
            python = "{}.{}".format(*sys.version_info)
            results = f"{counts.passed} | {counts.failed} | {counts.skipped}"
            rows[cell.name] = f"| {cell.name} | {installed} | {python} | {results} | {today} |"
    head = "| environment | installed | Python | passed | failed | skipped | day |\n|---|---|---|---|---|---|---|"
    body = "\n".join(rows[cell.name] for cell in CELLS if cell.name in rows)
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n{body}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
