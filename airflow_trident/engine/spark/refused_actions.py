"""Refuses actions and writes while a transform is being planned, before they have any effect.

The methods of Spark's classes are wrapped once per process; in other threads and at other times they work as before.
Calls that bypass Python's classes (objects of the JVM, `open()`, other libraries, threads of the function) are not
detected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any

from airflow_trident.errors import PlanError, UserCodeError
from airflow_trident.operations.sql import plain, require_query

_INSIDE: ContextVar[str] = ContextVar("inside_transform", default="")
_LOCK = Lock()
_WRAPPED: set[type] = set()

_FRAME_ACTIONS = (
    *("collect", "toArrow", "toPandas", "toLocalIterator", "take", "head", "first", "tail", "show", "count", "isEmpty"),
    *("foreach", "foreachPartition", "cache", "persist", "unpersist", "checkpoint", "localCheckpoint"),
    *("createGlobalTempView", "createOrReplaceGlobalTempView", "approxQuantile", "corr", "cov", "pandas_api"),
    "toJSON",
)
_FRAME_WRITERS = ("write", "writeStream", "rdd")
_FRAME_WRITES = ("writeTo", "mergeInto")
_CONNECT_FRAME = "pyspark.sql.connect.dataframe"
_SESSION = ("stop",)
_CONTEXT_READS = frozenset(
    {
        *("accumulator", "appName", "applicationId", "broadcast", "defaultMinPartitions", "defaultParallelism"),
        *("environment", "getConf", "getLocalProperty", "master", "pythonExec", "pythonVer", "resources", "serializer"),
        *("sparkHome", "sparkUser", "startTime", "uiWebUrl", "version"),
    }
)
"""What a function may have of a SparkContext; Spark's own Python code needs some, and names with an underscore."""
_CATALOG = (
    *("cacheTable", "uncacheTable", "clearCache", "createTable", "createExternalTable", "dropGlobalTempView"),
    *("recoverPartitions", "refreshTable", "refreshByPath"),
)


@contextmanager
def no_actions(node: str) -> Iterator[None]:
    """Inside, in this thread, actions and writes are errors of the user's code.

    :param node: the transform, for the error.
    """
    _wrap_all()
    token = _INSIDE.set(node)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def _wrap_all() -> None:
    """Wraps the classes of this process: classic ones, and those of Connect if anybody has imported them. To import
    them takes a third of a second, and a process with a classic session cannot open one of Connect."""
    with _LOCK:
        for frame, session, catalog in _classes():
            if frame in _WRAPPED:
                continue
            _WRAPPED.add(frame)
            for name in (*_FRAME_ACTIONS, *_FRAME_WRITES):
                _wrap(frame, name)
            for name in _FRAME_WRITERS:
                _wrap_property(frame, name)
            for name in _SESSION:
                _wrap(session, name)
            _wrap_context(session)
            _wrap_builder(session)
            for name in _CATALOG:
                _wrap(catalog, name)
            _wrap_sql(session)


def _classes() -> Iterator[tuple[type, type, type]]:
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.session import SparkSession

    yield DataFrame, SparkSession, Catalog
    if _CONNECT_FRAME not in sys.modules:
        return
    try:
        from pyspark.sql.connect.catalog import Catalog as ConnectCatalog
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError:  # the packages that Connect needs are not installed
        return
    yield ConnectFrame, ConnectSession, ConnectCatalog


def _refuse(action: str) -> None:
    node = _INSIDE.get()
    if node:
        raise UserCodeError(
            f"{node} calls {action}, and a transform only plans: it must neither act nor write",
            "Return the DataFrame; what it gives is staged and committed once. Leave out count(), show(), cache() and "
            "the like: what several states read is kept by itself. Settings belong into spark_conf.",
            node=node,
        )


def _wrap(kind: type, name: str) -> None:
    original = kind.__dict__.get(name)
    if not callable(original):
        return
    made: Callable[..., Any] = original

    @wraps(made)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(f"{name}()")
        return made(self, *args, **kwargs)

    setattr(kind, name, wrapper)


def _wrap_property(kind: type, name: str) -> None:
    original = kind.__dict__.get(name)
    get = original.fget if isinstance(original, property) else getattr(original, "func", None)
    if get is None:
        return
    made: Callable[..., Any] = get

    @wraps(made)
    def getter(self: Any) -> Any:
        _refuse(name)
        return made(self)

    setattr(kind, name, property(getter))


class _Context:
    """A SparkContext without what acts, or changes the application for others."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name not in _CONTEXT_READS:
            _refuse(f"sparkContext.{name}")
        return getattr(self._context, name)


def _wrap_context(kind: type) -> None:
    original = kind.__dict__.get("sparkContext")
    if not isinstance(original, property) or original.fget is None:
        return
    made: Callable[[Any], Any] = original.fget

    @wraps(made)
    def getter(self: Any) -> Any:
        return _Context(made(self)) if _INSIDE.get() else made(self)

    kind.sparkContext = property(getter)  # type: ignore[attr-defined]


def _wrap_builder(kind: Any) -> None:
    """`SparkSession.builder.config(...).getOrCreate()` sets that for the session that others in the process use."""
    builder = kind.Builder
    made: Callable[..., Any] = builder.getOrCreate

    @wraps(made)
    def get_or_create(self: Any) -> Any:
        if self._options:
            _refuse("SparkSession.builder with settings")
        return made(self)

    builder.getOrCreate = get_or_create


def _wrap_sql(kind: type) -> None:
    original = kind.__dict__.get("sql")
    assert original is not None
    made: Callable[..., Any] = original

    @wraps(made)
    def sql(self: Any, sqlQuery: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 - as Spark calls it
        if _INSIDE.get() and isinstance(sqlQuery, str):
            _require_reads(sqlQuery)
        return made(self, sqlQuery, *args, **kwargs)

    kind.sql = sql  # type: ignore[attr-defined]


def _require_reads(text: str) -> None:
    words = plain(text).upper().split(None, 5)[:5]
    if words[:1] == ["CREATE"]:
        if words[1:3] == ["OR", "REPLACE"]:
            del words[1:3]
        if words[1:2] in (["TEMPORARY"], ["TEMP"]) and words[2:3] in (["VIEW"], ["FUNCTION"]):
            return  # of the attempt's own session
    upper = " ".join(words)
    if upper.startswith(("DESCRIBE", "DESC ", "SHOW", "EXPLAIN")):
        return
    try:
        require_query(text)
    except PlanError as error:
        node = _INSIDE.get()
        raise UserCodeError(f"{node}: {error.message}", error.cure, node=node) from error
