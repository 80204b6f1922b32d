"""Incremental models of dbt as its documentation shows them, in a real PostgreSQL.

A run waits at locks of the database, where it is killed or overtaken. Each run has locks of its own, which others pass.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.aftermath.accidents import ROWS, TIMEOUT_S, Accident, At, Left
from tests.fixtures.postgres import PASSWORD, PostgresServer

GATE = "(SELECT pg_advisory_xact_lock_shared({{ var('run') * 10 + %d }})) AS gate"
HOOK = "select pg_advisory_xact_lock_shared({{ var('run') * 10 + %d }})"
NEWEST = """SELECT value, at FROM {{ source('raw', 'arrived') }}, %s
{%% if is_incremental() %%} WHERE at %s (SELECT coalesce(max(at), '2026-01-01') FROM {{ this }}) {%% endif %%}
"""
MODELS = {
    "dbt, `incremental`": (
        "{{ config(materialized='incremental') }}\n" + NEWEST % (GATE % 2, ">"),
        False,
    ),
    "dbt, `incremental` with `unique_key`": (
        "{{ config(materialized='incremental', unique_key='value') }}\n" + NEWEST % (GATE % 2, ">="),
        False,
    ),
    "dbt, `microbatch`": (
        "{{ config(materialized='incremental', incremental_strategy='microbatch', unique_key='value', event_time='at',"
        " begin='2026-01-01', batch_size='hour') }}\nSELECT value, at FROM {{ source('raw', 'arrived') }}, " + GATE % 2,
        True,
    ),
}
"""What the table says -> the model, and whether a run is given the hour of its batch, as the run of a DAG has one."""
LOCKS = {At.BEGIN: 1, At.DECIDED: 1, At.MIDDLE: 2, At.WRITTEN: 3}
"""Before the model; while its rows are selected; after it is committed. There is no place between the first two."""
_RUNS = count(1)
Meanwhile: TypeAlias = Callable[[subprocess.Popen[bytes]], object]


@dataclass
class Project:
    """A dbt project in `folder` with a schema of its own. `dbt`: the program."""

    dbt: str
    folder: Path
    server: PostgresServer
    way: str
    schema: str = field(init=False)

    def __post_init__(self) -> None:
        self.schema = f"aftermath_{next(_RUNS)}"
        models = self.folder / "models"
        models.mkdir(parents=True)
        (models / "out.sql").write_text(MODELS[self.way][0])
        table = {"name": "arrived", "config": {"event_time": "at"}}
        sources = {"sources": [{"name": "raw", "schema": self.schema, "tables": [table]}]}
        (models / "sources.yml").write_text(json.dumps(sources))  # JSON is YAML
        hooks = {"on-run-start": [HOOK % LOCKS[At.BEGIN]], "on-run-end": [HOOK % LOCKS[At.WRITTEN]]}
        project = {"name": "aftermath", "version": "1.0", "profile": "aftermath", **hooks}
        (self.folder / "dbt_project.yml").write_text(json.dumps(project))
        (self.folder / "profiles.yml").write_text(json.dumps(self._profile()))
        self.execute(f"CREATE SCHEMA {self.schema}")
        self.execute(f"CREATE TABLE {self.schema}.arrived (value text, at timestamp)")

    def _profile(self) -> dict[str, Any]:
        one = self.server.connection
        output = {
            "type": "postgres",
            "host": one.host,
            "port": one.port,
            "user": one.login,
            "password": PASSWORD,
            "dbname": one.schema,
            "schema": self.schema,
            "threads": 1,
        }
        return {"aftermath": {"target": "here", "outputs": {"here": output}}}

    def execute(self, statement: str) -> Any:
        with self.server.connect() as connection:
            found = connection.execute(statement)
            return found.fetchone() if found.description else None

    def arrives(self, batch: int) -> None:
        """A thousand rows of the hour `batch` come, all at different milliseconds."""
        at = f"timestamp '2026-01-01' + interval '{batch} hours' + n * interval '1 ms'"
        rows = f"SELECT '{batch}-' || n, {at} FROM generate_series(0, {ROWS - 1}) AS n"
        self.execute(f"INSERT INTO {self.schema}.arrived {rows}")

    def start(self, batch: int, run: int) -> subprocess.Popen[bytes]:
        """:param run: a number of its own, which chooses its locks."""
        command = [
            self.dbt,
            "run",
            "--profiles-dir",
            ".",
            "--target-path",
            f"target-{run}",
            "--log-path",
            f"logs-{run}",
        ]
        command += ["--no-send-anonymous-usage-stats", "--vars", json.dumps({"run": run})]
        if MODELS[self.way][1]:
            command += ["--event-time-start", f"2026-01-01 {batch:02}:00:00"]
            command += ["--event-time-end", f"2026-01-01 {batch + 1:02}:00:00"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def run(self, batch: int) -> str:
        return self.end(self.start(batch, next(_RUNS)))

    def end(self, process: subprocess.Popen[bytes]) -> str:
        try:
            return "failed" if process.wait(timeout=TIMEOUT_S) else "success"
        finally:
            process.kill()

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def stopped_at(self, place: At, batch: int, meanwhile: Meanwhile) -> subprocess.Popen[bytes]:
        """Start a run, and do something while it waits at a place."""
        run = next(_RUNS)
        lock = run * 10 + LOCKS[place]
        with self.server.connect() as holder:
            holder.execute(f"SELECT pg_advisory_lock({lock})")
            process = self.start(batch, run)
            waits = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {lock}"
            deadline = time.monotonic() + TIMEOUT_S
            while not self.execute(waits)[0]:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise RuntimeError(f"dbt did not come to the lock {place}: {self.said()}")
                time.sleep(0.1)
            meanwhile(process)
        return process

    def values(self) -> list[str]:
        with self.server.connect() as connection:
            return [value for (value,) in connection.execute(f"SELECT value FROM {self.schema}.out")]


def left_by(dbt: str, way: str, accident: Accident, folder: Path, server: PostgresServer) -> Left:
    """Play an accident, after a first run that made the table, which is empty.

    :param dbt: the program of another environment, with dbt-core and dbt-postgres.
    :param folder: an empty one of its own.
    """
    project = Project(dbt, folder, server, way)
    if project.run(0) == "failed":
        raise RuntimeError(f"dbt cannot make its table: {project.said()}")
    project.arrives(1)
    ended = ", ".join(_played(project, accident))
    return Left.of(project.values(), accident, ended)


def _played(project: Project, accident: Accident) -> list[str]:
    if accident.waits:
        ended: list[str] = []
        old = project.stopped_at(accident.waits, 1, lambda _: ended.append(project.run(1)))
        return [*ended, f"the old one: {project.end(old)}"]
    if accident.dies and accident.dies in LOCKS:
        project.stopped_at(accident.dies, 1, _kill)
        ended = ["killed"]
    else:  # to dbt, a task that is killed after its dbt has ended is one that is cleared
        ended = [project.run(1)]
    if accident is Accident.LATE:
        project.arrives(2)
        ended.append(project.run(2))
    return [*ended, project.run(1)]


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
