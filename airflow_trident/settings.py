"""The options of ``[trident]`` in Airflow's configuration: one table, for the provider info and for the tasks.

Values are read when they are used, never while a module is imported, so a test or a launcher can set
``AIRFLOW__TRIDENT__...`` first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError
from airflow_trident.names import (
    DEFAULT_MAX_MERGE_ROWS,
    DEFAULT_MAX_PARTITION_KEYS,
    DEFAULT_MAX_PENDING,
    DEFAULT_RETENTION,
)

if TYPE_CHECKING:
    from airflow_trident.io.paths import AnyPath

SECTION = "trident"


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `type`: string, integer, float or boolean; `default`: as text."""

    name: str
    type: str
    default: str
    description: str
    example: str | None = None


ZOOKEEPER_CONN_ID = Option(
    "zookeeper_conn_id", "string", "zookeeper_default", "The connection of the ledger, of type zookeeper."
)
ROOT = Option(
    "root",
    "string",
    "/airflow-trident",
    "Path of all topologies in ZooKeeper, below the connection's chroot.",
)
STAGING_DIR = Option(
    "staging_dir",
    "string",
    "",
    "Place of staged batches, equal for every worker and Spark executor: a folder, or a path in S3, HDFS, Azure or "
    "Google Cloud Storage. Empty: {AIRFLOW_HOME}/trident/staging.",
    "/mnt/shared/trident/staging",
)
SOURCES_DIR = Option(
    "sources_dir",
    "string",
    "",
    "Place of the lists of read files, equal for every worker, triggerer and submitted drain: a folder, or a path as "
    "for staging_dir. It belongs to the ledger: nothing else may delete there. Empty: sources, beside staging_dir.",
    "/mnt/shared/trident/sources",
)
STAGING_IN_LEDGER = Option(
    "staging_in_ledger",
    "string",
    "auto",
    "Where staged batches of up to 256 KB are kept. auto: in the ledger, if staging_dir is in an object store and "
    "rows_in_errors is True; on: always in the ledger; off: in staging_dir.",
    "on",
)
MAX_PENDING = Option(
    "max_pending", "integer", str(DEFAULT_MAX_PENDING), "Transactions of a topology that may be uncommitted at once."
)
RETENTION = Option(
    "retention",
    "integer",
    str(DEFAULT_RETENTION),
    "Committed transactions to keep in the ledger and in staging, unless a task has another number.",
)
TURN_WAIT_S = Option(
    "turn_wait_s",
    "float",
    "20",
    "Seconds that a task waits in its worker before it first releases the slot.",
)
RESCHEDULE_S = Option(
    "reschedule_s",
    "float",
    "15",
    "Least seconds between checks of a task without slot and triggerer, later a quarter of the waiting time. Below 5 "
    "Airflow 3.3 may fail it.",
)
DEFERRABLE = Option(
    "deferrable",
    "string",
    "auto",
    "Whether tasks wait in the triggerer, without a worker slot. auto: turn sensors that Airflow starts there (3.3); "
    "True: all tasks that wait; False: none. The triggerer must reach ZooKeeper.",
    "True",
)
POLL_S = Option(
    "poll_s",
    "float",
    "30",
    "Seconds between checks of a wait without an event, and between checks of a task's life.",
)

STUCK_AFTER_S = Option(
    "stuck_after_s",
    "float",
    "600",
    "Seconds after which a topology counts as blocked if Airflow does not start its next task (scheduled, queued or "
    "without a state).",
)

ROWS_IN_ERRORS = Option(
    "rows_in_errors",
    "boolean",
    "True",
    "Whether errors in ledger, page and commands, and results of bisect on the page, may quote rows. False: only logs "
    "of tasks and workers do.",
)

MAX_MERGE_ROWS = Option(
    "max_merge_rows",
    "integer",
    str(DEFAULT_MAX_MERGE_ROWS),
    "Rows of a batch for a state that takes its batch whole: the committer holds them in memory. More are an error "
    "before the commit.",
)

MAX_PARTITION_KEYS = Option(
    "max_partition_keys",
    "integer",
    str(DEFAULT_MAX_PARTITION_KEYS),
    "Keys of one partition in the memory of a Python worker, for aggregators and reducers of your own. More are an "
    "error in the processing phase.",
)

OPTIONS: tuple[Option, ...] = (
    ZOOKEEPER_CONN_ID,
    ROOT,
    STAGING_DIR,
    SOURCES_DIR,
    STAGING_IN_LEDGER,
    MAX_PENDING,
    RETENTION,
    TURN_WAIT_S,
    RESCHEDULE_S,
    DEFERRABLE,
    POLL_S,
    STUCK_AFTER_S,
    ROWS_IN_ERRORS,
    MAX_MERGE_ROWS,
    MAX_PARTITION_KEYS,
)


def text(option: Option) -> str:
    """The option's value as it is written in the configuration, or its default if it is not set."""
    from airflow.providers.common.compat.sdk import conf

    return str(conf.get(SECTION, option.name, fallback=option.default))


def number(option: Option, *, least: float) -> float:
    """:raises ConfigurationError: not a number, below `least`, or not whole although the option is an integer."""
    value = text(option)
    try:
        parsed = float(value)
    except ValueError:
        parsed = least - 1
    if not least <= parsed < float("inf") or (option.type == "integer" and parsed != int(parsed)):
        raise ConfigurationError(
            f"[{SECTION}] {option.name} = {value!r} is not a number of at least {least:g}",
            f"Set it in airflow.cfg or as AIRFLOW__TRIDENT__{option.name.upper()}; the default is {option.default}.",
        )
    return parsed


def max_merge_rows() -> int:
    """:raises ConfigurationError: not a whole number from 1 upwards."""
    return int(number(MAX_MERGE_ROWS, least=1))


def max_partition_keys() -> int:
    """:raises ConfigurationError: not a whole number from 1 upwards."""
    return int(number(MAX_PARTITION_KEYS, least=1))


def flag(option: Option) -> bool:
    """:raises ConfigurationError: neither true nor false."""
    value = text(option).strip().lower()
    if value in ("true", "t", "1", "yes", "on"):
        return True
    if value in ("false", "f", "0", "no", "off", ""):
        return False
    raise ConfigurationError(
        f"[{SECTION}] {option.name} = {value!r} is neither True nor False"
        + (f", nor {option.default}" if option.type == "string" else ""),
        f"Set it in airflow.cfg or as AIRFLOW__TRIDENT__{option.name.upper()}.",
    )


def deferrable() -> bool | None:
    """Whether tasks wait in the triggerer, as configured; None: auto.

    :raises ConfigurationError: the option has an unknown value.
    """
    return None if text(DEFERRABLE).strip().lower() == "auto" else flag(DEFERRABLE)


def staging_root(path: AnyPath | None = None) -> str:
    """The place of staged batches: the task's own argument, else as configured, else a folder below AIRFLOW_HOME. An
    absolute path, or the URI of an object store.

    :raises ConfigurationError: it is neither, or a configured path is relative.
    """
    if path:
        from airflow_trident.io.object_stores import require_place
        from airflow_trident.io.places import absolute_root

        return absolute_root(require_place("staging_dir", path))
    if text(STAGING_DIR):
        return _configured_root(STAGING_DIR)
    home = os.path.expandvars(os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow")))
    return os.path.join(os.path.abspath(home), "trident", "staging")


def sources_root(staging_dir: AnyPath | None = None) -> str:
    """The place of what spouts keep beside the ledger: as configured, else beside the staged batches.

    :param staging_dir: the task's own argument.
    :raises ConfigurationError: as for :func:`staging_root`.
    """
    if text(SOURCES_DIR):
        return _configured_root(SOURCES_DIR)
    scheme, colon, path = staging_root(staging_dir).rpartition("://")
    path = path.rstrip("/")
    return f"{scheme}{colon}{path.rpartition('/')[0] or path}/sources"


def _configured_root(option: Option) -> str:
    from airflow_trident.io.object_stores import require_place
    from airflow_trident.io.places import absolute_root

    place = require_place(option.name, text(option))
    if ":" not in place.partition("/")[0] and not os.path.isabs(os.path.expanduser(place)):
        raise ConfigurationError(
            f"[{SECTION}] {option.name} = {place!r} is another folder in each process: it is relative",
            "Give the whole path of a folder that every worker and Spark executor sees.",
        )
    return absolute_root(place)


def chunk_bytes(staging_dir: AnyPath | None = None) -> int:
    """Staged batches of up to this many bytes are kept in the ledger; 0: none are.

    :param staging_dir: the task's own argument.
    :raises ConfigurationError: the option has an unknown value.
    """
    from airflow_trident.io.paths import is_object_uri, text_of_path
    from airflow_trident.ledger.ledger import CHUNK_BYTES

    value = text(STAGING_IN_LEDGER).strip().lower()
    if value not in ("auto", "on", "off"):
        raise ConfigurationError(
            f"[{SECTION}] {STAGING_IN_LEDGER.name} = {value!r} is none of auto, on and off",
            f"Set it in airflow.cfg or as AIRFLOW__TRIDENT__{STAGING_IN_LEDGER.name.upper()}.",
        )
    root = text_of_path(staging_dir or text(STAGING_DIR)).strip()
    in_objects = is_object_uri(root) and not root.lower().startswith("file:")
    automatic = value == "auto" and in_objects and flag(ROWS_IN_ERRORS)
    return CHUNK_BYTES if value == "on" or automatic else 0


def turn_wait_s(wait_s: float | None) -> float:
    """Seconds that a task waits in its worker: the task's own argument, else as configured."""
    return wait_s if wait_s is not None else number(TURN_WAIT_S, least=0)


def retention(retained: int | None = None) -> int:
    """Committed transactions to keep: the task's own argument, else as configured."""
    return retained or int(number(RETENTION, least=1))


def max_pending() -> int:
    return int(number(MAX_PENDING, least=1))


def parse_incarnation(value: object) -> str:
    """The incarnation of a topology from a template or an XCom; "" if there is none."""
    text = "" if value is None else str(value).strip()
    return "" if text == "None" else text


def parse_count(name: str, value: object, most: int | None = None) -> int:
    """A whole number from 1 upwards, as a template may give it.

    :raises ConfigurationError: it is not such a number, or above `most`.
    """
    try:
        count = int(str(value).strip())
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigurationError(f"{name} = {value!r} is not a whole number of at least 1", "Give a number like 2.")
    if most is not None and count > most:
        raise ConfigurationError(f"{name} = {value!r} is above {most:,}", "Give less: the next run takes what remains.")
    return count


def parse_txid(value: object) -> int:
    """A txid from a template or an XCom.

    :raises ConfigurationError: it is not a number from 1 upwards.
    """
    try:
        txid = int(str(value).strip())
    except ValueError:
        txid = 0
    if txid < 1:
        nothing = " The coordinator returned none: it was skipped, or a person marked it as success. Clear it."
        raise ConfigurationError(
            f"{value!r} is not a txid",
            "Give a whole number from 1 upwards, or the coordinator's output, as in txid=coordinator.output."
            + (nothing if str(value).strip() in ("", "None") else ""),
        )
    return txid


def parse_seconds(name: str, value: object, *, zero: bool = False) -> float | None:
    """A duration: seconds, also as a template gives them, or a timedelta; None if it was left out.

    :param zero: may it be 0?
    :raises ConfigurationError: it is negative, 0 where that is not allowed, not finite, or no duration.
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(str(value).strip())
    except ValueError:
        seconds = -1.0
    if not (0 < seconds < float("inf") or (zero and seconds == 0)):
        least = "0 seconds or more" if zero else "more than 0 seconds"
        raise ConfigurationError(f"{name} = {value!r}", f"Give {least}, a timedelta, or None.")
    return seconds


def parse_limit(name: str, value: object) -> int | None:
    """Like :func:`parse_count`; None if the value was left out, or a template left it empty."""
    return None if value is None or not str(value).strip() else parse_count(name, value)
