"""Differences between Spark 3.5 and 4.3, in one place: each function does on every version what the newest does itself.
Features that a version lacks completely are refused before the job starts.

The release numbers are those of Spark's API reference ("New in version" and "Changed in version").
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Field, has_times

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from airflow_trident.plan.stages import Plan

OLDEST = (3, 5)
TIMES_SINCE = (4, 1)
TRANSFORMS_SINCE = (4, 0)
"""3.5 cannot tell which settings a session has."""
CHECKSUMS_SINCE = (4, 1)
"""From here on Spark notices, behind a shuffle, that rows made again after the loss of an executor are others."""
_WORD = 0xFFFFFFFF


def release_of(version: str) -> tuple[int, int]:
    """``"4.2.0"`` -> ``(4, 2)``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def require_version(plan: Plan, version: str) -> None:
    """
    :param version: of the session; with Connect, of the server or of its client, whichever is older.
    :raises ConfigurationError: Spark is too old for the package, or for a type or a transform in the plan.
    """
    release = release_of(version)
    if release < OLDEST:
        raise ConfigurationError(
            f"Spark {version} is too old",
            "Use Spark {}.{} or newer (docs/compatibility.md).".format(*OLDEST),
        )
    transform = next((stage.transform for stage in plan.stages if stage.transform is not None), None)
    if transform is not None and release < TRANSFORMS_SINCE:
        raise ConfigurationError(
            f"{transform.name} needs Spark {TRANSFORMS_SINCE[0]}.{TRANSFORMS_SINCE[1]}, and this is {version}",
            "Use a newer Spark, or write it with each(), filter() and aggregate().",
        )
    field = None if release >= TIMES_SINCE else field_with_times(plan)
    if field is not None:
        raise ConfigurationError(
            f"field {field.name!r} is a {field.type}, and Spark {version} has no times of day",
            "Use Spark 4.1 or newer, engine='local', or keep the time as a string or a long.",
        )


def mixes_runs(version: str) -> str:
    """What to tell people about a Spark whose executors can be lost: without checksums it joins what the lost executor
    made to what is made again, also where the two differ. Empty if this release compares them.

    :param version: of the session.
    """
    if not version or release_of(version) >= CHECKSUMS_SINCE:
        return ""
    return (
        f"Spark {version} does not notice that code is not deterministic when it makes the rows of a lost executor "
        "again: behind a shuffle a batch can then have rows of two runs. Use Spark {}.{} or newer, or only functions "
        "without clocks, random numbers and lookups that change (docs/compatibility.md)".format(*CHECKSUMS_SINCE)
    )


def client_version() -> str:
    """Of the installed pyspark, which is also the client of Spark Connect."""
    return str(import_module("pyspark.version").__version__)


def require_server(server: str, client: str) -> str:
    """Spark Connect is compatible in one direction: a server takes clients of older releases.

    :returns: what to tell people about the two; empty if they are of one release.
    :raises ConfigurationError: the client is of a newer release than its server, which would fail at the first thing
        that the server does not know.
    """
    if release_of(client) > release_of(server):
        raise ConfigurationError(
            f"the Spark Connect server has Spark {server}, and the client here is pyspark {client}: Spark's "
            "servers take clients of their own release and of older ones only",
            f"Install pyspark {'{}.{}'.format(*release_of(server))} here, or run a server of "
            f"{'{}.{}'.format(*release_of(client))} or newer.",
        )
    return "" if release_of(client) == release_of(server) else f", from a client of {client}"


def require_jvm(jvm: str, client: str) -> None:
    """
    :param jvm: the version of the Spark in the driver's JVM.
    :raises ConfigurationError: pyspark is of another release. It calls methods of the JVM that differ between them.
    """
    if release_of(jvm) != release_of(client):
        raise ConfigurationError(
            f"pyspark {client} is at work with the jars of Spark {jvm}",
            f"Unset SPARK_HOME, let it name a Spark {'{}.{}'.format(*release_of(client))}, or install pyspark "
            f"{'{}.{}'.format(*release_of(jvm))}.",
        )


def require_master(master: str, client: str) -> None:
    """A standalone master talks to applications of its own release only.

    :param master: the version of its Spark.
    :param client: of the jars that submit.
    :raises ConfigurationError: they are of different releases.
    """
    if release_of(master) != release_of(client):
        raise ConfigurationError(
            f"the master of the standalone cluster has Spark {master}, and what is submitted here is of Spark {client}",
            f"Install pyspark {'{}.{}'.format(*release_of(master))} here (unset SPARK_HOME if it names another Spark), "
            f"or run a cluster of Spark {'{}.{}'.format(*release_of(client))}.",
        )


_IMAGES = ("spark.kubernetes.executor.container.image", "spark.kubernetes.container.image")
SAME_RELEASE = (
    "Give the executors the Spark of their driver: another image (spark.kubernetes.container.image, "
    "spark.kubernetes.executor.container.image), or another Spark on the workers of the standalone cluster or on the "
    "nodes of YARN (spark.yarn.jars)."
)


def driver_and_image() -> tuple[str, str]:
    """The version of Spark in this process's driver, and the image of its executors in Kubernetes; each "" if it is not
    known. With Spark Connect the driver is elsewhere."""
    with suppress(Exception):
        context: Any = import_module("pyspark").SparkContext._active_spark_context
        conf = context.getConf()
        return context.version, next(filter(None, map(conf.get, _IMAGES)), "")
    return "", ""


def require_executors(executors: str, driver: str) -> None:
    """
    :param executors: the version of the pyspark that their Python workers import, which is part of their Spark.
    :param driver: the version of the driver's Spark.
    :raises ConfigurationError: they are of different releases.
    """
    if release_of(executors) != release_of(driver):
        raise ConfigurationError(
            f"the Python workers of the executors import pyspark {executors}, and their driver has Spark {driver}",
            SAME_RELEASE,
        )


def field_with_times(plan: Plan) -> Field | None:
    """The first field of a plan that is or contains a time of day."""
    schemas = (schema for stage in plan.stages for schema in (stage.schema, *(node.schema for node in stage.nodes)))
    return next((field for schema in schemas for field in schema if has_times(field.type)), None)


# ---- DataFrames ------------------------------------------------------------------------------------------------


def connect_functions() -> ModuleType:
    """The functions for DataFrames of Spark Connect: a package of its own since 4.0."""
    try:
        return import_module("pyspark.sql.connect.functions.builtin")
    except ModuleNotFoundError:
        return import_module("pyspark.sql.connect.functions")


def to_arrow(data: DataFrame) -> pa.Table:
    """All rows, in this process (`DataFrame.toArrow`, since 4.0)."""
    if hasattr(data, "toArrow"):
        return data.toArrow()
    older: Any = data
    if type(data).__module__.startswith("pyspark.sql.connect"):
        client = older._session.client
        return client.to_table(older._plan.to_proto(client))[0]
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.Table.from_batches(older._collect_as_arrow(), schema=to_arrow_schema(older.schema))


def repartition_by_id(functions: ModuleType, data: DataFrame, count: int, target: Column) -> DataFrame:
    """Sends each row to the partition whose number is in `target`, modulo `count` (`DataFrame.repartitionById`, since
    4.1).

    Older releases send a row by the hash of a column, so each number is replaced by one with the right hash.
    """
    if hasattr(data, "repartitionById"):
        return data.repartitionById(count, target)
    sent = functions.array(*(functions.lit(number) for number in hashed_to(count)))
    place = functions.pmod(target, functions.lit(count))
    return data.repartition(count, functions.element_at(sent, place + functions.lit(1)))


@lru_cache
def hashed_to(count: int) -> tuple[int, ...]:
    """For each of `count` partitions an int that Spark's hash partitioning sends there."""
    numbers: dict[int, int] = {}
    number = 0
    while len(numbers) < count:
        numbers.setdefault(spark_hash(number) % count, number)
        number += 1
    return tuple(numbers[place] for place in range(count))


def spark_hash(number: int) -> int:
    """Spark's `hash` of an int: Murmur3 (x86, 32 bits) of its four bytes with seed 42, as a signed int."""
    block = _rotated((number & _WORD) * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    mixed = (_rotated(42 ^ block, 13) * 5 + 0xE6546B64) & _WORD
    mixed ^= 4
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & _WORD
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


def try_mod(functions: ModuleType, left: Column, right: Column) -> Column:
    """The remainder, null where `right` is 0 (`try_mod`, since 4.0)."""
    if hasattr(functions, "try_mod"):
        return functions.try_mod(left, right)  # type: ignore[no-any-return]
    return functions.when(right != functions.lit(0), left % right)  # type: ignore[no-any-return]


def error_loggers() -> list[Any]:
    """Loggers to which Spark's client writes a page of JSON for an error in an expression (since 4.0)."""
    try:
        from pyspark.logger import PySparkLogger
    except ModuleNotFoundError:
        return []
    return [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]


# ---- Spark Connect ---------------------------------------------------------------------------------------------


_ALIVE = [
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.max_pings_without_data", 0),
]
"""A server that was stopped answers no ping, and each call would wait for ever. Servers refuse clients that ping them
more often than each five minutes."""


def channel_of(url: str, session_id: str) -> Any:
    """The channel for a session of this id (the public builders differ before 4.0)."""
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError:
        client: Any = import_module("pyspark.sql.connect.client")
        older = client.ChannelBuilder(url, _ALIVE)
        older.params["session_id"] = session_id
        return older
    builder: Any = DefaultChannelBuilder(url, _ALIVE)
    builder.set("session_id", session_id)
    return builder


def retry_at_most(session: Any, times: int) -> None:
    """Limits how often the session's client repeats a call that did not reach its server."""
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy
    except ImportError:
        session.client._retry_policy["max_retries"] = times
        return
    session.client.set_retry_policies([DefaultPolicy(max_retries=times)])


def release_session(session: Any) -> None:
    """The server ends the session's work and refuses its older clients. Before 4.0 it can only end the work: an older
    client that still lives may start again, and only the ledger's fence prevents harm."""
    if hasattr(session.client, "release_session"):
        session.client.release_session()
    else:
        session.client.interrupt_all()


def forget_session(session: Any) -> None:
    """Otherwise the interpreter keeps each session until it exits, and then closes it again."""
    for name in ("_on_exit", "_cleanup_ml"):  # since 4.2; in 4.0 and 4.1
        with suppress(AttributeError):
            atexit.unregister(getattr(session.client, name))
