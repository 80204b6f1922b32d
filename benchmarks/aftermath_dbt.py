"""`python -m benchmarks.aftermath_dbt DBT`: what an incremental model of dbt leaves behind after an accident.

DBT is the program of another environment, with dbt-core and dbt-postgres. The model selects the rows that are newer
than the newest row of its table, as in dbt's documentation, in a real PostgreSQL. It waits at a lock of the database,
where it is killed or overtaken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.postgres import PASSWORD, PostgresServer

ROWS = 1_000
WRITING, WRITTEN = 1, 2
"""The locks: one is taken while the rows are selected, the other after the model is committed."""
TIMEOUT_S = 300
MODEL = """{{ config(materialized='incremental') }}
SELECT value, at FROM arrived, (SELECT pg_advisory_xact_lock_shared(%d)) AS gate
{%% if is_incremental() %%} WHERE at > (SELECT coalesce(max(at), 0) FROM {{ this }}) {%% endif %%}
"""


@dataclass
class Project:
    """A dbt project in `folder` with a schema of its own."""

    dbt: str
    folder: Path
    server: PostgresServer
    schema: str

    def __post_init__(self) -> None:
        (self.folder / "models").mkdir(parents=True)
        (self.folder / "models" / "out.sql").write_text(MODEL % WRITING)
        hook = f"select pg_advisory_xact_lock_shared({WRITTEN})"
        project = {"name": "aftermath", "version": "1.0", "profile": "aftermath", "on-run-end": [hook]}
        (self.folder / "dbt_project.yml").write_text(json.dumps(project))  # JSON is YAML
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
        profile = {"aftermath": {"target": "here", "outputs": {"here": output}}}
        (self.folder / "profiles.yml").write_text(json.dumps(profile))
        self.execute(f"CREATE SCHEMA {self.schema}")
        self.execute(f"CREATE TABLE {self.schema}.arrived (value text, at bigint)")
        model = self.folder / "models" / "out.sql"
        model.write_text(model.read_text().replace("FROM arrived", f"FROM {self.schema}.arrived"))

    def execute(self, statement: str) -> Any:
        with self.server.connect() as connection:
            found = connection.execute(statement)
            return found.fetchone() if found.description else None

    def arrives(self, batch: int) -> None:
        """Insert a thousand rows of the hour `batch`."""
        self.execute(
            f"INSERT INTO {self.schema}.arrived SELECT '{batch}-' || n, {batch} FROM generate_series(1, {ROWS}) AS n"
        )

    def start(self) -> subprocess.Popen[bytes]:
        command = [self.dbt, "run", "--profiles-dir", ".", "--no-send-anonymous-usage-stats"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ})

    def run(self) -> None:
        self.ended(self.start())

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait(timeout=TIMEOUT_S):
            raise RuntimeError((self.folder / "log").read_text()[-3000:])

    def waiting(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Wait until `count` runs wait at a lock."""
        wanted = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while self.execute(wanted)[0] < count:
            if process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.1)

    def killed_at(self, lock: int) -> None:
        with self.server.connect() as holder:
            holder.execute(f"SELECT pg_advisory_lock({lock})")
            process = self.start()
            self.waiting(process, 1)
            process.kill()
            process.wait()

    @property
    def rows(self) -> int:
        return int(self.execute(f"SELECT count(*) FROM {self.schema}.out")[0])


def retry(project: Project) -> int:
    project.arrives(1)
    project.killed_at(WRITTEN)
    project.run()
    return ROWS


def kill(project: Project) -> int:
    project.arrives(1)
    project.killed_at(WRITING)
    project.run()
    return ROWS


def clear(project: Project) -> int:
    project.arrives(1)
    project.run()
    project.run()
    return ROWS


def late(project: Project) -> int:
    project.arrives(2)
    project.run()
    project.arrives(1)
    project.run()
    return 2 * ROWS


def two_at_once(project: Project) -> int:
    project.run()  # creates the table, without rows
    project.arrives(1)
    with project.server.connect() as holder:
        holder.execute(f"SELECT pg_advisory_lock({WRITING})")
        first, second = project.start(), None
        project.waiting(first, 1)
        second = project.start()
        project.waiting(second, 2)
    for process in (first, second):
        process.wait(timeout=TIMEOUT_S)
    return ROWS


ACCIDENTS: dict[str, Callable[[Project], int]] = {
    "retry: killed when all was written, run again": retry,
    "kill: killed while it wrote, run again": kill,
    "clear: it had succeeded, run again": clear,
    "late: rows of an hour that come when those of the next one are in": late,
    "two at once: thought dead, and went on beside its retry": two_at_once,
}
"""Accident -> a function that plays it and returns the right number of rows."""


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print("| what happened | rows | of |\n|---|---|---|")
    with ExitStack() as stack:
        server = PostgresServer()
        server.start()
        stack.callback(server.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, (what, play) in enumerate(ACCIDENTS.items()):
            project = Project(sys.argv[1], folder / str(number), server, f"aftermath_{number}")
            right = play(project)
            shown = f"{project.rows:,}" if project.rows == right else f"**{project.rows:,}**"
            print(f"| {what} | {shown} | {right:,} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
