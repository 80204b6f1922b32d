"""What a driver's error means: by the code of its database, whatever class the driver gives it."""

from __future__ import annotations

import itertools
import sqlite3

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from airflow_trident.io import database_drivers
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_drivers import Fault, errors_of, fault_of

PERMANENT_OF_MYSQL = (1044, 1045, 1049, 1054, 1142, 1146, 1153, 1175, 1364, 1665)
PASSING_OF_MYSQL = (1040, 1205, 1213, 1969, 2003, 2006, 2013, 3024)
OF_POSTGRES = {
    "08006": Fault.LOST,
    "08P01": Fault.SETTING,
    "42P05": Fault.SETTING,
    "57014": Fault.BUSY,
    "55P03": Fault.BUSY,
    "40P01": Fault.BUSY,
    "25006": Fault.READ_ONLY,
    "53100": Fault.FULL,
    "28P01": Fault.LOGIN,
    "42501": Fault.RIGHTS,
    "42703": Fault.ABSENT,
    "22003": Fault.VALUE,
    "P0001": Fault.VALUE,
    "XX001": Fault.DAMAGED,
}


@pytest.mark.parametrize("number", PERMANENT_OF_MYSQL)
def test_permanent_errors_of_mysql_are_permanent_although_pymysql_calls_them_operational(number: int) -> None:
    for error in (pymysql.err.OperationalError(number, "no"), pymysql.err.InternalError(number, "no")):
        wrapped = sa.exc.OperationalError("SELECT 1", {}, error)
        for raised in (error, wrapped):
            assert not fault_of(raised, "mysql", Connection()).passes


@pytest.mark.parametrize("number", PASSING_OF_MYSQL)
def test_errors_of_mysql_that_pass_are_tried_again(number: int) -> None:
    for database in ("mysql", "mariadb"):
        assert fault_of(pymysql.err.OperationalError(number, "no"), database, Connection()).passes


@pytest.mark.parametrize(("code", "kind"), OF_POSTGRES.items())
def test_a_code_of_postgres_says_more_than_its_class(code: str, kind: Fault) -> None:
    error = psycopg.errors.lookup(code)("no")
    assert fault_of(error, "postgresql", Connection()).kind is kind


def test_a_standby_is_no_mistake_of_the_table() -> None:
    error = psycopg.errors.FeatureNotSupported("cannot set transaction read-write mode during recovery")
    assert fault_of(error, "postgresql", Connection()).kind is Fault.READ_ONLY


def test_no_code_has_two_meanings() -> None:
    for table in (database_drivers._MYSQL_CODES, database_drivers._MSSQL_CODES, database_drivers._SQLITE_CODES):
        codes = list(itertools.chain.from_iterable(table.values()))
        assert len(codes) == len(set(codes))


def test_an_error_without_a_code_is_judged_by_its_class_and_words() -> None:
    cases = [
        (psycopg.OperationalError("server closed the connection"), Fault.LOST),
        (psycopg.OperationalError('FATAL: password authentication failed for user "x"'), Fault.LOGIN),
        (psycopg.OperationalError('FATAL: database "x" does not exist'), Fault.LOGIN),
        (psycopg.DataError("date too large (after year 10K): 'infinity'"), Fault.UNREADABLE),
        (ConnectionResetError(104, "reset"), Fault.LOST),
        (TimeoutError("timed out"), Fault.LOST),
        (sa.exc.StatementError("no", "SELECT 1", {}, TypeError("no date")), Fault.VALUE),
        (sa.exc.PendingRollbackError("no"), Fault.UNAVAILABLE),
    ]
    assert [fault_of(error, "postgresql", Connection()).kind for error, _ in cases] == [kind for _, kind in cases]


def test_a_code_of_sqlite_counts_without_its_extension() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (n int PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1)")
    try:
        with pytest.raises(sqlite3.IntegrityError) as caught:
            connection.execute("INSERT INTO t VALUES (1)")
    finally:
        connection.close()
    assert fault_of(caught.value, "sqlite", Connection()).kind is Fault.VALUE


def test_secrets_of_a_connection_are_in_no_text() -> None:
    where = Connection(password="very secret", extra={"token": "also secret"})
    fault = fault_of(pymysql.err.OperationalError(1045, "very secret and also secret"), "mysql", where)
    assert "secret" not in fault.text


def test_what_is_caught_includes_what_sqlalchemy_does_not_wrap() -> None:
    engine = sa.create_engine("mysql+pymysql://nowhere/x")
    assert issubclass(pymysql.err.OperationalError, errors_of(engine.dialect))
    assert not issubclass(FileNotFoundError, errors_of(engine.dialect))
