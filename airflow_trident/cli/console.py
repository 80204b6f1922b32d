"""What all commands share: errors as one line, exit codes, tables, connections.

The topology, and the state of it, that a command line names.

The last outcome of a coordinator and the lag of its sources, as text for commands.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError, TransitionError, TridentError, cleaned
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.partitions import Partitions, recorded
from airflow_trident.tasks.topology_search import engine_of, retention_of, topology_and_tasks
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow_trident.hooks.zookeeper import ZooKeeperHook
    from airflow_trident.ledger.ledger import Ledger, ZNodeLedger

OK, PROBLEM, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

Handler = Callable[[Namespace], "int | None"]


class UsageError(Exception):
    """The command line is wrong; exit code 2."""


def trident_command(handler: Handler) -> Callable[[Namespace], None]:
    """Decorates a handler of ``airflow trident``. It returns the exit code (None: 0). An error becomes one line on
    standard error; ``--verbose`` shows logs, warnings and the traceback."""

    @functools.wraps(handler)
    def command(args: Namespace) -> None:
        from airflow.utils.cli import suppress_logs_and_warning
        from airflow.utils.providers_configuration_loader import providers_configuration_loaded

        from airflow_trident.tasks.engines import install_resolver

        @suppress_logs_and_warning
        @providers_configuration_loaded
        def run(args: Namespace) -> None:
            if not args.verbose:
                _mute_handlers()
            _print_any_text()
            install_resolver()
            _see_all_connections()
            try:
                sys.exit(handler(args) or OK)
            except UsageError as error:
                _fail(error, USAGE)
            except KeyboardInterrupt:
                sys.exit(INTERRUPTED)
            except Exception as error:
                if args.verbose or not _is_expected(error):
                    raise
                _fail(error, PROBLEM)

        run(args)

    return command


def _print_any_text() -> None:
    """Print what the encoding of the output has no bytes for as an escape: a file's name need not be UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _see_all_connections() -> None:
    """Let Airflow also look for connections in its database, as ``airflow connections test`` does. By default a process
    only sees those of the environment and of secrets backends."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def _mute_handlers() -> None:
    """Hide log lines without disabling logging: the reason of a failed connection is taken from kazoo's log."""
    logging.disable(logging.NOTSET)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.CRITICAL + 1)


def _is_expected(error: Exception) -> bool:
    """Does the error's text say what is wrong? Any other error is a defect, and shows its traceback."""
    from airflow.providers.common.compat.sdk import AirflowException
    from sqlalchemy.exc import OperationalError, ProgrammingError

    return isinstance(error, TridentError | AirflowException | OperationalError | ProgrammingError | BrokenPipeError)


def _fail(error: Exception, code: int) -> None:
    if isinstance(error, BrokenPipeError):  # the reader of the pipe has closed it
        sys.stderr.close()
        sys.exit(PROBLEM)
    print(f"error: {one_line(text_of(error))}", file=sys.stderr)
    sys.exit(code)


def text_of(error: Exception) -> str:
    """The text of an error; with a cure, if it is of Airflow's database."""
    from sqlalchemy.exc import OperationalError, ProgrammingError

    if isinstance(error, OperationalError | ProgrammingError):
        return f"Airflow's metadata database cannot be used ({error.orig}). Create it with `airflow db migrate`."
    return str(error) or type(error).__name__


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---- options --------------------------------------------------------------------------------------------------


def signed(args: Namespace, did: str, *, ask: str = "") -> str:
    """The text that the ledger keeps about a person's act: the reason, the act, and who did it.

    :param did: the act: ``skipped``.
    :param ask: the error if the required reason is missing; empty: no reason is required.
    :raises UsageError: the required reason is missing.
    """
    from airflow_trident.runtime.local import owner_of_this_process

    reason, who = cleaned(args.reason.strip()), f"{did} by {owner_of_this_process()}"
    if ask and not reason:
        raise UsageError(ask)
    return f"{reason} ({who})" if reason else who


def require_one_choice(args: Namespace, all_of: str) -> None:
    """:raises UsageError: not exactly one of ``--txid``, ``--from`` with ``--to``, and the option `all_of` is given."""
    a_range = args.first is not None or args.last is not None
    if (args.txid is not None) + a_range + bool(getattr(args, all_of)) != 1:
        raise UsageError(f"which transactions? Give one of --txid N, --from N --to M, or --{all_of}.")
    if a_range and (args.first is None or args.last is None):
        raise UsageError("a range has two ends. Give --from N and --to M.")


def txid_of(args: Namespace, ledger: Ledger) -> int:
    """The transaction that the command line names: by its number, or the last one of ``--partition``.

    :raises UsageError: not one of them is given. :raises TransitionError: the partition has none.
    """
    if (args.txid is None) == (args.partition is None):
        raise UsageError("which transaction? Give its number, or --partition KEY for the last one of a partition.")
    if args.txid is not None:
        return int(args.txid)
    key = calendar_of(ledger).parse(args.partition).key
    txid = ledger.partition(key).entry.tx
    if not txid:
        name = ledger.topology_name
        raise TransitionError(
            f"the partition {key} of topology {name!r} has no transaction",
            f"Begin one with `airflow trident backfill {name} --partition {key}`.",
        )
    return txid


def calendar_of(ledger: Ledger) -> Partitions:
    """The partitions that a topology is bound to, as its ledger has them.

    :raises ConfigurationError: it is bound to none.
    """
    partitions = recorded(ledger.topology().definition)
    if partitions is None:
        raise ConfigurationError(
            f"topology {ledger.topology_name!r} is not bound to partitions", "Name its transactions by their numbers."
        )
    return partitions


def pairs(option: str, lines: list[str], cure: str = "NAME=VALUE.") -> dict[str, str]:
    """The values of a repeated option. :raises UsageError: one is not ``NAME=VALUE``."""
    values: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"{option} {line!r} is not {cure}")
        values[name.strip()] = value
    return values


def spark_conf(lines: list[str]) -> dict[str, str]:
    return pairs("--spark-conf", lines, "KEY=VALUE. Write it like spark.sql.shuffle.partitions=8.")


# ---- where the ledger is ---------------------------------------------------------------------------------------


def open_hook(args: Namespace) -> ZooKeeperHook:
    from airflow_trident.hooks.zookeeper import ZooKeeperHook

    return ZooKeeperHook(args.zookeeper_conn_id)


def open_ledger(args: Namespace) -> ZNodeLedger:
    """The ledger of ``args.topology``; the caller closes it."""
    from airflow_trident.tasks import telemetry

    staging_dir = getattr(args, "staging_dir", None)
    ledger = open_hook(args).get_ledger(args.topology, staging_dir=staging_dir)
    telemetry.initialize()
    ledger.listener = telemetry.listen
    return ledger


# ---- output ----------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """One line of progress, shown at once."""
    print(_shown(one_line(line) if "\n" in line else line), flush=True)


def _shown(text: str) -> str:
    """The whole text, without what a terminal would obey."""
    return cleaned(text, len(text))


def print_rows(rows: Sequence[dict[str, Any]], output: str, *, empty: str) -> None:
    """Print rows in Airflow's formats: table, plain, json or yaml. `empty` is printed for a table without rows.

    JSON and YAML keep numbers and null, which Airflow's own printing turns into text.
    """
    if output == "json":
        print(json.dumps(list(rows), indent=2))
    elif output == "yaml":
        print_yaml(list(rows))
    elif not rows:
        print(empty)
    else:
        from airflow.cli.simple_table import AirflowConsole

        texts = [{key: "" if value is None else _shown(str(value)) for key, value in row.items()} for row in rows]
        AirflowConsole().print_as(texts, output)


def print_record(record: dict[str, Any], output: str) -> None:
    """Print one record: a line per field, nested fields as ``a.b``; or the record as JSON or YAML."""
    if output == "json":
        print(json.dumps(record, indent=2))
    elif output == "yaml":
        print_yaml(record)
    else:
        lines = list(_flat(record))
        width = max(len(name) for name, _ in lines)
        for name, value in lines:
            print(_shown(f"{name:<{width}}  {value}".rstrip()))


def print_yaml(data: Any) -> None:
    from airflow.utils import yaml

    print(yaml.dump(_encodable(data), sort_keys=False), end="")


def _encodable(data: Any) -> Any:
    """The data with lone surrogates as escapes: a writer of YAML takes none."""
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_encodable(value) for value in data]
    return data.encode("utf-8", "backslashreplace").decode() if isinstance(data, str) else data


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, dict) and value:
            lines += _flat(value, f"{prefix}{key}.")
        elif value is not None and value not in ("", {}, []):
            lines.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return lines


def topology_of(args: Namespace) -> Topology:
    """The topology. `args.engine` becomes that of its tasks, unless the command line names one.

    :raises ConfigurationError: as :func:`topology_named`.
    """
    return _found(args)[0]


def topology_and_retention(args: Namespace) -> tuple[Topology, int]:
    """The topology, and how many committed transactions its tasks keep where it was found.

    :raises ConfigurationError: as :func:`topology_named`.
    """
    topology, tasks = _found(args)
    return topology, retention_of(topology.name, tasks)


def _found(args: Namespace) -> tuple[Topology, list[Any]]:
    if args.dag and args.dag_file:
        raise UsageError("--dag and --dag-file exclude each other. Give one of them.")
    topology, tasks = topology_and_tasks(args.topology, dag_id=args.dag, dag_file=args.dag_file)
    if getattr(args, "engine", "") is None:  # of a command that takes --engine
        args.engine = str(engine_of(topology.name, tasks))
    return topology, tasks


def state_of(args: Namespace) -> StateSpec:
    """
    :raises UsageError: the topology has no such state.
    :raises ConfigurationError: as :func:`topology_named`.
    """
    topology = topology_of(args)
    if args.state not in topology.states:
        states = ", ".join(topology.states) or "none"
        raise UsageError(f"topology {args.topology} has no state {args.state!r}. It has {states}.")
    return topology.states[args.state]


def time_text(time_ms: int | None) -> str | None:
    """``2026-01-31 12:00:00`` in UTC; None for no time."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def lag_text(outcome: CoordinatorOutcome | None) -> str | None:
    """Data that no transaction has taken yet: ``lines: 3 files, 1,200 bytes``; None: not known."""
    if outcome is None or not outcome.lag_ms:
        return None
    if outcome.kind is OutcomeKind.NOTHING_NEW:
        return "none"
    parts = [
        f"{stream}: {', '.join(f'{count:,} {unit}' for unit, count in lag.items())}"
        for stream, lag in sorted(outcome.lag.items())
    ]
    return "; ".join(parts) or None
