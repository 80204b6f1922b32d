"""Every example in dags/ loads without a heavy import, and runs as it is, on Spark."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.airflow import PROJECT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

EXAMPLES = sorted((PROJECT / "dags").glob("*.py"))
TEXTS = ("to be or not to be\n" * 50, "that is the question\n" * 50)

LOAD = """
import sys
before = set(sys.modules)
from airflow.dag_processing.dagbag import DagBag
bag = DagBag()
new = set(sys.modules) - before
heavy = {"pyspark", "kazoo", "pyarrow", "pandas"} & {name.partition(".")[0] for name in new}
# what only a running task needs: an eighth of the modules of the whole package, a third of the time
heavy |= {name for name in new if name.startswith(("airflow_trident.engine.", "airflow_trident.ledger.verbs"))}
tell({"dags": sorted(bag.dags), "errors": bag.import_errors, "heavy": sorted(heavy), "tasks":
    {dag_id: sorted(dag.task_ids) for dag_id, dag in bag.dags.items()}})
"""
RUN = """
import word_count, backfill_failed
def run(dag):
    done = dag.test()
    return [done.state, {ti.task_id: ti.state for ti in done.get_task_instances()}]
def words():
    (spec,) = word_count.topology.states.values()
    with spec.factory.make_state(spec) as state:
        return {key[0]: value[0] for key, value in state.items()}
"""


@pytest.fixture
def examples(airflow_home: AirflowHome) -> AirflowHome:
    """A home with the examples, and two files of input: plain text, and a compressed one."""
    for path in EXAMPLES:
        shutil.copy(path, airflow_home.dags)
    shutil.copytree(PROJECT / "dags" / "components", airflow_home.dags / "components")
    folder = airflow_home.folder / "demo" / "input"
    folder.mkdir(parents=True)
    (folder / "1.txt").write_text(TEXTS[0])
    (folder / "2.txt.gz").write_bytes(gzip.compress(TEXTS[1].encode()))
    airflow_home.options |= {
        "TRIDENT_DEMO_HOME": str(folder.parent),
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
    }
    return airflow_home


def test_all_examples_load_without_spark_zookeeper_client_and_arrow(examples: AirflowHome) -> None:
    told = examples.python(LOAD, from_nothing=True)
    assert told["errors"] == {}
    assert told["heavy"] == []
    forms = ["tweets_opaque", "tweets_partitioned"]
    assert told["dags"] == sorted([*forms, *(path.stem for path in EXAMPLES)])
    assert told["tasks"]["word_count"] == [f"word_count.{verb}" for verb in ("commit", "coordinate", "emit", "turn")]


@pytest.mark.spark
def test_the_word_count_commits_file_by_file_and_the_backfill_replays_the_damaged_one(examples: AirflowHome) -> None:
    packed = examples.folder / "demo" / "input" / "2.txt.gz"
    good = packed.read_bytes()
    packed.write_bytes(good[:-12] + bytes(4) + good[-8:])  # of the same size, and not to be unpacked
    program = f"""
import os
from pathlib import Path
first, second = run(word_count.dag), run(word_count.dag)
packed = Path({str(packed)!r})
times = packed.stat()
packed.write_bytes(bytes.fromhex({good.hex()!r}))
os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
tell({{"first": first, "second": second, "backfill": run(backfill_failed.dag), "again": run(word_count.dag),
    "words": words()}})
"""
    told = examples.python(RUN + program)
    assert told["first"][0] == "success"
    assert told["second"][0] == "failed"
    assert told["second"][1]["word_count.emit"] == "failed"
    assert told["backfill"] == ["success", {"backfill": "success"}]
    assert told["again"][1]["word_count.coordinate"] == "skipped"
    assert told["words"] == Counter(" ".join(TEXTS).split())


@pytest.mark.spark
def test_a_day_of_sales_with_a_late_and_a_corrected_file_is_its_last_files_and_no_more(examples: AirflowHome) -> None:
    program = """
import daily_sales
from datetime import date
from pathlib import Path
from deltalake import DeltaTable
def deliver(day, name, *lines):
    path = Path(daily_sales.HOME, "sales", f"day={day}", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("shop,cents\\n" + "".join(f"{line}\\n" for line in lines))
def run(day):
    return daily_sales.dag.test(run_conf={"trident": {"partition": day}}).state
def kept():
    with spec.factory.make_state(spec) as state:
        sums = sorted([str(day), shop, cents] for (day, shop), (cents,) in state.items())
    rows = DeltaTable(f"{daily_sales.HOME}/lake/sales").to_pyarrow_table().to_pylist()
    return [sums, sorted([str(row["day"]), row["shop"], row["cents"]] for row in rows)]
spec = daily_sales.topology.states["total_cents"]
deliver("2026-01-02", "a.csv", "mill,100", "inn,5")
deliver("2026-01-03", "a.csv", "mill,7")
done = [run("2026-01-02"), run("2026-01-03")]
deliver("2026-01-02", "a.csv", "mill,90")
deliver("2026-01-02", "late.csv", "mill,1")
tell([done, kept(), run("2026-01-02"), kept()])
"""
    done, before, again, after = examples.python(program)
    assert (done, again) == (["success", "success"], "success")
    third = ["2026-01-03", "mill", 7]
    assert before == [[["2026-01-02", "inn", 5], ["2026-01-02", "mill", 100], third]] * 2
    assert after == [
        [["2026-01-02", "mill", 91], third],
        [["2026-01-02", "mill", 1], ["2026-01-02", "mill", 90], third],
    ]


def test_the_words_of_a_bolt_in_another_program_are_counted_once(examples: AirflowHome) -> None:
    program = """
import multilang_words
done = [multilang_words.dag.test().state for _ in range(2)]
(spec,) = multilang_words.topology.states.values()
with spec.factory.make_state(spec) as state:
    tell([done, {key[0]: value[0] for key, value in state.items()}])
"""
    assert examples.python(program) == [["success", "success"], Counter(" ".join(TEXTS).split())]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_can_be_read_at_a_glance(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 50
