"""Errors across process borders: from a Python worker through the JVM's texts back to a typed error.

Spark gives the driver only a text with a traceback. So a worker raises with a marker that holds the error as JSON in
Base64, which no layer escapes or wraps.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from airflow_trident import errors
from airflow_trident.engine.spark.versions import SAME_RELEASE, driver_and_image
from airflow_trident.errors import (
    ConfigurationError,
    ExecutorPackageError,
    SparkJobError,
    TridentError,
    error_text,
    own_class,
)
from airflow_trident.types import Json

_MARKER = re.compile(r"trident-error:([A-Za-z0-9+/=]+):")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_PACKAGE = re.compile(r"\[(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\] ([^\n]*)")
_OTHER_CLASS = re.compile(r"InvalidClassException: ((?:org\.apache\.spark|scala)\.[\w.$]+); local class incompatible")
"""What Java says of a class that is not the same on both sides."""
_FAILED_TASK = re.compile(r"Task (\d+) in stage [\d.]+ failed")
_FEW_PLACES = 3
_LOST_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \((\S+) executor (\w+)\)")
SAME_VERSION = "Install the same version of airflow-trident where the executors run."
CANNOT_BE_CAST = " cannot be cast to "
"""Message of our own casts; before Spark 4.0 such an error has no class."""
_EXPRESSION_ERRORS = (
    "ARITHMETIC_OVERFLOW",
    "CAST_OVERFLOW",
    "CAST_INVALID_INPUT",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "USER_RAISED_EXCEPTION",
    "INVALID_UTF8_STRING",
)
_READ_ERRORS = (
    "FAILED_READ_FILE",
    "Encountered error while reading file",
    "org.apache.parquet.",
    "org.apache.spark.sql.execution.datasources.parquet.",
    "ClassNotFoundException: Class org.apache.hadoop.fs.",
)
_CANCELLED = re.compile(r"_cancell?ed\]|\b(?:job|stage|task|operation|query)\b[^\n]{0,40} cancell?ed\b")
"""Of Spark's words; a column may be called so, too."""
_CAUSE = re.compile(r"^(?:Caused by: )?((?:[\w$]+\.)*[\w$]*(?:Exception|Error|Throwable)(?:\b.*)?)$", re.MULTILINE)


class WorkerError(RuntimeError):
    """Raised by a worker, so that :func:`translate` finds the typed error again."""


def to_worker_error(error: TridentError) -> WorkerError:
    """The marker first, then the text for readers of the executor's log."""
    content = base64.b64encode(json.dumps(to_json(error)).encode()).decode()
    return WorkerError(f"trident-error:{content}: {error}")


def to_json(error: TridentError) -> dict[str, Json]:
    state: dict[str, Json] = {
        name: value for name, value in error.__dict__.items() if isinstance(value, str | int | float | bool)
    }
    notes: list[Json] = list(getattr(error, "__notes__", ()))
    return {
        "type": own_class(error).__name__,
        "message": error.message,
        "cure": error.cure,
        "state": state,
        "notes": notes,
    }


def from_json(content: Any) -> TridentError:
    """The error that :func:`to_json` wrote; a SparkJobError if its type is not of this package."""
    kind = getattr(errors, str(content["type"]), SparkJobError)
    error = errors.rebuilt(kind, content["message"], content["cure"], content["state"])
    error.outcome = errors.Outcome(error.outcome)  # JSON holds only its text
    for note in content.get("notes", ()):
        error.add_note(note)
    return error


def translate(error: BaseException, subject: str) -> TridentError:
    """A typed error for any exception from Spark.

    :param subject: the work, for the text.
    """
    if isinstance(error, TridentError):
        return error
    text = str(error)
    if match := _MARKER.search(text):
        return from_json(json.loads(base64.b64decode(match[1])))
    if missing := _NO_MODULE.search(text):
        if missing[1].partition(".")[0] == "airflow_trident":
            return ExecutorPackageError(
                f"{subject}: the Python workers of Spark cannot import airflow_trident", SAME_VERSION
            )
        return ConfigurationError(
            f"{subject}: the Python workers of Spark cannot import {missing[1]}", "Install it where the executors run."
        )
    if unfit := _NO_PACKAGE.search(text):
        return ConfigurationError(f"{subject}: Spark's Python says: {unfit[1]}", "Install it where the executors run.")
    if "PYTHON_VERSION_MISMATCH" in text:
        return ConfigurationError(
            f"{subject}: the Python workers of Spark run another Python version than this process",
            "Set spark.pyspark.python to a Python of the same minor version.",
        )
    if other := other_release(text, subject):
        return other
    if _got_no_answer(error):
        return SparkJobError(
            f"{subject} failed: the JVM of Spark ended while it was at work, or does not answer ({error_text(error)})",
            "Killed with 9 it was short of memory more often than not: give the machine or the container more, or make "
            "the batches smaller. A retry starts another one.",
        )
    return SparkJobError(f"{subject} failed: {root_cause(text) or type(error).__name__}", cure_of(text))


def other_release(text: str, subject: str) -> ConfigurationError | None:
    """The error if Java says that processes of Spark are of different releases, else None.

    Java compares the classes of what it is sent, so an executor refuses its first task, before it starts any Python. It
    does not say which release it has.
    """
    other, lost = _OTHER_CLASS.search(text), _LOST_TASK.search(text)
    if other is None:
        return None
    if lost is None:
        return ConfigurationError(
            f"{subject}: processes of this Spark are of different releases: they differ in {other[1]}", SAME_RELEASE
        )
    version, image = driver_and_image()
    driver = f", which has Spark {version}" if version else ""
    of_image = f", in a pod of the image {image!r}," if image else ""
    return ConfigurationError(
        f"{subject}: executor {lost[2]} on {lost[1]}{of_image} has another release of Spark than its driver{driver}: "
        f"they differ in {other[1]}",
        SAME_RELEASE,
    )


def _got_no_answer(error: BaseException) -> bool:
    """Was there no answer? If the connection broke, Py4J names only the call (`py4j.protocol.get_return_value`); an
    answer of the JVM contains a trace."""
    if type(error).__name__ == "Py4JError":
        return str(error).startswith("An error occurred while calling ") and "\n" not in str(error)
    return isinstance(error, ConnectionError | EOFError) or type(error).__name__ == "Py4JNetworkError"


def is_expression_error(error: BaseException) -> bool:
    """Did an expression in the JVM refuse a value? The JVM does not say in which row."""
    text = str(error)
    is_expression = CANNOT_BE_CAST in text or any(f"[{name}" in text for name in _EXPRESSION_ERRORS)
    return is_expression and not _MARKER.search(text)


def is_read_error(error: BaseException) -> bool:
    """Did Spark itself fail to read a file? Before Spark 4.0 such an error has no class. Values of damaged Parquet
    pages fail outside of the file's reader, where a later step decodes them. Executors may lack a file system that the
    driver has."""
    text = str(error)
    return any(phrase in text for phrase in _READ_ERRORS) and not _MARKER.search(text)


def is_lost_worker(text: str) -> bool:
    """Did a Python worker end without a word?"""
    lowered = text.lower()
    crashed = "python worker exited unexpectedly" in lowered
    return crashed or ("eofexception" in lowered and "api.python" in lowered)


def lost_worker(error: Exception, subject: str, places: Sequence[str]) -> SparkJobError:
    """:param subject: the work, for the text.
    :param places: where its reading may have been, as people know them.
    """
    few = ", ".join(places[:_FEW_PLACES])
    more = f" and {len(places) - _FEW_PLACES} more" if len(places) > _FEW_PLACES else ""
    one_of = "one of: " if len(places) > 1 else ""
    return SparkJobError(
        f"{subject} failed: a Python worker of Spark ended while it was at {one_of}{few}{more}", cure_of(str(error))
    )


def failed_task(text: str) -> int | None:
    """The number of the task that failed, which is that of its partition; None: the text has none."""
    match = _FAILED_TASK.search(text)
    return int(match[1]) if match else None


def root_cause(text: str) -> str:
    """The line of a Java or Python stack trace that states the fault: the last cause, cut to 400 characters."""
    causes = [match[1] for match in _CAUSE.finditer(text)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Spark Connect has the message in the first line, and only the Java class in the stack trace.
    is_bare = bool(causes) and causes[-1].replace(".", "").isalnum() and lines[0].startswith("[")
    cause = causes[-1] if causes and not is_bare else (lines[0] if lines else "")
    return cause[:400]


def cure_of(text: str) -> str:
    lowered = text.lower()
    if "outofmemory" in lowered or "java heap space" in lowered:
        return "Give the driver or the executors more memory, or make the batches smaller."
    if "maxresultsize" in lowered:
        return "Raise spark.driver.maxResultSize, or make the batches or the number of partitions smaller."
    if "master removed our application: failed" in lowered:
        # Spark's Master gives an application up after `spark.deploy.maxExecutorRetries` failures while none runs.
        return (
            "Its executors ended one after the other, and none was left. Their logs say why: on the worker's page, or "
            "in its folder, work/<application>/<executor>/stderr. Killed with 9 they were short of memory more often "
            "than not. A retry begins anew."
        )
    if "master removed our application: killed" in lowered:
        return "The application was killed on the master; run the task again if that was not intended."
    if _CANCELLED.search(lowered):
        return "It was cancelled; run the task again if that was not intended."
    if "session_closed" in lowered or "session_not_found" in lowered or "session_changed" in lowered:
        return "A newer attempt took the session over, or the server was restarted; a retry opens a new one."
    if is_lost_worker(text):
        return (
            "A Python worker of Spark ended while it was at work: it was killed, such as for lack of memory, or a "
            "library crashed on what it read. `airflow trident ledger show TOPOLOGY TXID` names the files or positions "
            "of the batch, and the executor's log has the worker's last words. A retry begins anew."
        )
    if "connection refused" in lowered or "unavailable" in lowered:
        return "Check that Spark runs and can be reached; a retry begins anew."
    return "See the log of the Spark application; a retry begins anew."
