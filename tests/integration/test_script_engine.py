"""What counts of what a script wrote, and what is refused, with its output's name and a cure."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import FileSink, FileSpout, Script
from airflow_trident.errors import (
    ConfigurationError,
    SourceChangedError,
    SparkJobError,
    StagingError,
    TridentError,
    UserCodeError,
)
from airflow_trident.staging.area import StagingArea
from tests.fixtures.script import Run, daily, engine, job_of, orders, written

GOOD = {"customer": ("string", ["ann"]), "cents": ("long", [12])}
TURNED = dict(reversed(GOOD.items()))


def well(run: Run) -> None:
    written(run.folder("daily"), GOOD)


def _with(**more: object) -> Callable[[Run], None]:
    return lambda run: written(run.folder("daily"), {**GOOD, **more})  # type: ignore[arg-type]


def _nested(run: Run) -> None:
    written(run.folder("daily") / "day=1", GOOD)
    (run.folder("daily") / "_SUCCESS").touch()


def _text(run: Run) -> None:
    well(run)
    (run.folder("daily") / "part-1.csv").write_text("ann,12")


def _pandas(run: Run) -> None:
    well(run)
    pq.write_table(pa.table({"customer": ["ann"], "cents": [1]}), run.folder("daily") / "more.parquet")


def _old_times(run: Run) -> None:
    well(run)
    found = next(run.folder("daily").glob("*.parquet"))
    metadata = pq.read_schema(found).metadata
    table = pa.table({"customer": ["ann"], "cents": pa.array([1], pa.timestamp("ns"))}).replace_schema_metadata(
        metadata
    )
    pq.write_table(table, found, use_deprecated_int96_timestamps=True)


def _raises(run: Run) -> None:
    raise RuntimeError('File "job.py", line 3\nZeroDivisionError: division by zero')


REFUSED: dict[str, tuple[Callable[[Run], None], type[TridentError], str, str]] = {
    "nothing": (
        lambda run: None,
        UserCodeError,
        "wrote nothing to its output 'daily'",
        'trident.output(spark, "daily")',
    ),
    "half": (
        lambda run: written(run.folder("daily"), GOOD, success=False),
        UserCodeError,
        "left no _SUCCESS in its output 'daily'",
        "marksuccessfuljobs",
    ),
    "a column less": (
        lambda run: written(run.folder("daily"), {"cents": GOOD["cents"]}),
        UserCodeError,
        "its output 'daily' without customer: it has (cents long), declared is (customer string, cents long)",
        "Select and cast",
    ),
    "a column more": (_with(day=("string", ["1"])), UserCodeError, "with day, which nobody declared", "declare"),
    "another type": (
        _with(cents=("string", ["1"])),
        UserCodeError,
        "with other types of cents: it has (customer string, cents string)",
        "cast",
    ),
    "a nested type": (
        _with(cents=({"type": "array", "elementType": "long", "containsNull": True}, [[1]])),
        UserCodeError,
        "it has (customer string, cents array<long>)",
        "cast",
    ),
    "folders": (_nested, UserCodeError, "wrote the folder 'day=1' into its output 'daily'", "without partitionBy()"),
    "text": (_text, UserCodeError, "'part-1.csv' into its output 'daily', which is no Parquet file", "write.parquet"),
    "not by Spark": (_pandas, UserCodeError, "'more.parquet' into its output 'daily'", "write.parquet"),
    "old timestamps": (_old_times, UserCodeError, "as INT96", "TIMESTAMP_MICROS"),
    "an error": (_raises, SparkJobError, "ZeroDivisionError: division by zero", "What it printed is above"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_script_did_wrong_is_told_with_its_output_and_a_cure_and_nothing_is_published(
    tmp_path: Path, what: str
) -> None:
    play, kind, message, cure = REFUSED[what]
    with pytest.raises(kind) as raised:
        engine(play).run(job_of(daily(tmp_path), tmp_path))
    assert message in raised.value.message
    assert cure in raised.value.cure
    assert not list(tmp_path.rglob("manifest.json"))
    assert not list(tmp_path.rglob("*.script.json"))


def test_a_file_that_changes_while_the_script_runs_fails_the_attempt(tmp_path: Path) -> None:
    def changes(run: Run) -> None:
        well(run)
        (tmp_path / "orders/a.csv").write_text("customer,cents\nann,9\n")

    job, runs = job_of(daily(tmp_path), tmp_path), list[Run]()
    (tmp_path / "orders/a.csv").touch()
    with pytest.raises(SourceChangedError, match="changed since the transaction recorded it"):
        engine(changes, runs).run(job)
    with pytest.raises(SourceChangedError):  # and the next one does not run at all
        engine(changes, runs).run(job)
    assert len(runs) == 1


def test_a_narrower_number_is_widened_as_behind_a_transform(tmp_path: Path) -> None:
    def narrow(run: Run) -> None:
        written(run.folder("daily"), GOOD)
        narrower = {"cents": ("integer", [7, None]), "customer": ("string", ["bob", "eve"])}
        written(run.folder("daily"), narrower, name="part-1")

    script = daily(tmp_path)
    manifest = engine(narrow).run(job_of(script, tmp_path))
    area = StagingArea(str(tmp_path / "staging"))
    area.publish(manifest)
    (sink,) = script.compile().staged
    rows = area.read(manifest, "daily", sink.schema).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("ann", 12), ("bob", 7), ("eve", None)]
    schemas = [pq.read_schema(tmp_path / "staging" / file.path) for file in manifest.files]
    assert {str(one.field("cents").type) for one in schemas} == {"int64"}, "tables take the files as they are"


def test_columns_in_another_order_several_files_and_none_are_what_was_declared(tmp_path: Path) -> None:
    def several(run: Run) -> None:
        written(run.folder("daily"), TURNED)
        written(run.folder("daily"), GOOD, name="part-1")
        (run.folder("none")).mkdir()
        (run.folder("none") / "_SUCCESS").touch()

    script = daily(tmp_path, none=("n long", FileSink(str(tmp_path / "none"))))
    manifest = engine(several).run(job_of(script, tmp_path))
    area = StagingArea(str(tmp_path / "staging"))
    area.publish(manifest)
    schemas = {sink.name: sink.schema for sink in script.compile().staged}
    assert area.read(manifest, "daily", schemas["daily"]).to_pylist() == [{"customer": "ann", "cents": 12}] * 2
    assert area.read(manifest, "none", schemas["none"]).num_rows == 0
    assert manifest.rows == {"daily": 2}


def test_only_a_run_that_wrote_all_outputs_whole_counts(tmp_path: Path) -> None:
    script = daily(tmp_path, other=("customer string, cents long", FileSink(str(tmp_path / "other"))))

    def again(run: Run) -> None:
        written(run.folder("daily"), GOOD)  # a driver that died before its second output
        run.number = "app-2"
        written(run.folder("daily"), {**GOOD, "cents": ("long", [77])})
        written(run.folder("other"), GOOD)

    manifest = engine(again).run(job_of(script, tmp_path))
    assert {Path(file.path).parent.name for file in manifest.files} == {"app-2"}

    def twice(run: Run) -> None:
        again(run)
        run.number = "app-1"
        written(run.folder("other"), GOOD)

    with pytest.raises(StagingError, match=r"2 times in one attempt \(app-1, app-2\)"):
        engine(twice).run(job_of(script, tmp_path, attempt=1))

    def crossed(run: Run) -> None:
        written(run.folder("daily"), GOOD)
        run.number = "app-2"
        written(run.folder("other"), GOOD)

    with pytest.raises(StagingError, match=r"no run of script 'job\.py' wrote all of daily, other"):
        engine(crossed).run(job_of(script, tmp_path, attempt=2))


def test_what_a_run_writes_when_its_attempt_is_over_is_in_no_manifest(tmp_path: Path) -> None:
    script, late = daily(tmp_path), list[Run]()

    def dies(run: Run) -> None:
        late.append(run)
        raise RuntimeError("killed")

    with pytest.raises(SparkJobError):
        engine(dies).run(job_of(script, tmp_path))

    def while_another_writes(run: Run) -> None:
        well(late[0])
        well(run)

    for attempt in (0, 1):  # the same attempt once more, and the next one
        manifest = engine(while_another_writes).run(job_of(script, tmp_path, attempt))
        assert manifest.rows == {"daily": 1}


def test_nothing_runs_for_a_batch_without_anything_and_an_input_without_is_an_empty_file(tmp_path: Path) -> None:
    spouts = {
        kind: FileSpout(str(tmp_path / f"none-{kind}"), format=kind, fields="customer string, cents long")
        for kind in ("csv", "json", "parquet")
    }
    for kind in spouts:
        (tmp_path / f"none-{kind}").mkdir()
    script = Script(
        "daily",
        inputs={"orders": orders(tmp_path / "orders"), **spouts},
        outputs={"daily": ("customer string, cents long", FileSink(str(tmp_path / "lake")))},
    )
    runs: list[Run] = []
    assert engine(well, runs).run(job_of(script, tmp_path, empty=True)).files == ()
    assert runs == []
    engine(well, runs, ("2026",)).run(job_of(script, tmp_path, attempt=1))
    (run,) = runs
    assert run.arguments == ["2026"]
    assert run.job["transaction"] == {"topology": "daily", "txid": 1, "attempt": 1, "time_ms": 99}
    assert run.input("orders") == [tmp_path / "orders/a.csv"]
    assert [path.read_bytes() for kind in ("csv", "json") for path in run.input(kind)] == [b"customer,cents\n", b""]
    (empty,) = run.input("parquet")
    assert pq.read_table(empty).schema.names == ["customer", "cents"]
    # the module that it imports needs nothing of this package
    code = "import airflow_trident_script, sys; print({'airflow', 'airflow_trident', 'pyspark'} & {*sys.modules})"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(run.modules).parent, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"


def test_a_file_whose_name_spark_would_take_for_a_pattern_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    script, runs = daily(tmp_path), list[Run]()
    (tmp_path / "orders/a.csv").rename(tmp_path / "orders/a[1].csv")
    with pytest.raises(ConfigurationError, match=r"a\[1\].csv' has '\[' in its name"):
        engine(well, runs).run(job_of(script, tmp_path))
    assert runs == []


@pytest.mark.parametrize("name", ["_a.csv", ".a.csv", "a.csv._COPYING_"])
def test_a_file_whose_name_spark_would_pass_over_is_refused_before_the_script_runs(tmp_path: Path, name: str) -> None:
    path, runs = tmp_path / name, list[Run]()
    path.write_text("customer,cents\nann,5\n")
    script = Script(
        "daily",
        inputs={"orders": FileSpout(str(path), format="csv", fields="customer string, cents long")},
        outputs={"daily": ("customer string, cents long", FileSink(str(tmp_path / "lake")))},
    )
    with pytest.raises(ConfigurationError, match=f"{re.escape(name)}' has a name that Spark's readers pass over"):
        engine(well, runs).run(job_of(script, tmp_path))
    assert runs == []
