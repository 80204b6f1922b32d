"""DAG runs of topologies that are bound to partitions: what a run asks for, and which schedules give a run its key.

The key is a text of the run. Its dates are never read: a manual run of a key has another date than the scheduled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.names import Redo
from airflow_trident.protocol.partitions import OnMissing, Partitions, PartitionStep
from airflow_trident.tasks.airflow_versions import KEYS_IN_ZONES

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

CONF = "trident"
"""The key in the ``conf`` of a run below which a person says how this run does its partition."""
_BY_THEMSELVES = frozenset({"scheduled", "asset_triggered"})
"""Types of runs that no person asked for."""
_WITH_KEYS = frozenset({"CronPartitionTimetable", "PartitionedAssetTimetable", "PartitionedAtRuntime"})
_CRONS = {
    PartitionStep.HOUR: "0 * * * *",
    PartitionStep.DAY: "0 0 * * *",
    PartitionStep.WEEK: "0 0 * * 1",
    PartitionStep.MONTH: "0 0 1 * *",
}
_EVERY = ["*"]
_AT_BEGIN: Mapping[PartitionStep, Mapping[int, list[Any]]] = {
    PartitionStep.HOUR: {0: [0]},
    PartitionStep.DAY: {0: [0], 1: [0]},
    PartitionStep.WEEK: {0: [0], 1: [0], 2: _EVERY, 4: [1]},
    PartitionStep.MONTH: {0: [0], 1: [0], 2: [1], 4: _EVERY},
}
"""Fields of a cron (minute, hour, day of the month, month, day of the week) that goes off only where one begins."""


# ---- what a run asks for ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """How a DAG run asks for its partition. `redo`: a person asked for it, so a COMMITTED one is done again. `gone`,
    `empty`: instead of those of the topology."""

    redo: bool
    gone: OnMissing | None = None
    empty: OnMissing | None = None


def key_of_run(context: Context, topology: str, partitions: Partitions, template: Any) -> str:
    """The key of the run's partition. It comes from the ``conf`` of the run, from a template, or is the run's own key.

    :param template: the rendered argument `partition` of the coordinator; None: it has none.
    :raises ConfigurationError: there is none, or a person gave two.
    """
    run = context["dag_run"]
    own, asked = (_text(key) for key in (getattr(run, "partition_key", None), _wishes(run).get("partition")))
    if own and asked and own != asked:
        raise ConfigurationError(
            f"run {run.run_id!r} has the partition key {own!r}, and its conf names the partition {asked!r}",
            "Leave one of them out.",
        )
    key = asked or _text(own if template is None else template)
    if not key:
        example = partitions.example
        raise ConfigurationError(
            f"run {run.run_id!r} has no partition key{'' if template is None else f' (partition= is {template!r})'}, "
            f"and topology {topology!r} is bound to partitions: it never asks what is new",
            f"Trigger a run with a key such as {example}: in the UI, or as partition_key by the API. Or use `airflow "
            f"""dags trigger {run.dag_id} --conf '{{"{CONF}": {{"partition": "{example}"}}}}'`. `airflow backfill """
            f"create` makes runs with keys, too. `airflow trident backfill {topology} --partition {example}` needs no "
            "run.",
        )
    return key


def _text(key: Any) -> str:
    """A key; "" if it is none, or what a template gives for none."""
    return "" if key is None or str(key).strip() in ("", "None") else str(key)


def order_of_run(context: Context, redo: Redo) -> RunOrder:
    """:param redo: of the coordinator.
    :raises ConfigurationError: the run's ``conf`` says something unknown."""
    run = context["dag_run"]
    wishes = _wishes(run)
    kind = str(getattr(run.run_type, "value", run.run_type))
    asked = kind not in _BY_THEMSELVES or bool(run.clear_number)
    return RunOrder(
        redo=wishes.get("redo", asked and redo is Redo.ASKED),
        gone=OnMissing(wishes["gone"]) if "gone" in wishes else None,
        empty=OnMissing(wishes["empty"]) if "empty" in wishes else None,
    )


def _wishes(run: Any) -> Mapping[str, Any]:
    """:raises ConfigurationError: the run's ``conf`` says something unknown."""
    conf = getattr(run, "conf", None)
    wishes = conf.get(CONF, {}) if isinstance(conf, Mapping) else {}
    is_valid: dict[str, Callable[[Any], bool]] = {
        "partition": lambda value: isinstance(value, str),
        "redo": lambda value: isinstance(value, bool),
        "gone": lambda value: value in tuple(OnMissing),
        "empty": lambda value: value in tuple(OnMissing),
    }
    if not isinstance(wishes, Mapping) or not all(
        name in is_valid and is_valid[name](value) for name, value in wishes.items()
    ):
        raise ConfigurationError(
            f"the conf of run {run.run_id!r} has {CONF!r}: {wishes!r}",
            'It may have "partition" (a key), "redo" (true or false), "gone" and "empty" ("take" or "error"), as in '
            f'{{"{CONF}": {{"gone": "take"}}}}.',
        )
    return wishes


# ---- schedules -------------------------------------------------------------------------------------------------


def require_coordinator(task: Any, partitions: Partitions) -> None:
    """Checks a coordinator of a bound topology while the DAG is built.

    :raises ConfigurationError: one of its arguments means nothing here, or the runs of its DAG have no fitting keys.
    """
    if task.max_transactions > 1:
        raise ConfigurationError(
            f"max_transactions={task.max_transactions}, and topology {task.topology_name!r} is bound to partitions: a "
            "run does the one of its key",
            "Leave it out. Partitions(lookback=...) lets scheduled runs do earlier partitions that have changed.",
        )
    if task.allow_backfill_runs:
        raise ConfigurationError(
            f"allow_backfill_runs=True, and topology {task.topology_name!r} is bound to partitions: runs of an Airflow "
            "backfill do the partitions of their keys",
            "Leave it out.",
        )
    if task.partition is not None:
        _require_template(task.partition, partitions)
    elif task.has_dag():
        require_schedule(task.topology_name, partitions, task.dag)


def _require_template(partition: Any, partitions: Partitions) -> None:
    """:raises ConfigurationError: it is neither a template nor a key."""
    if hasattr(partition, "resolve"):
        return  # the output of a task
    if not isinstance(partition, str):
        raise ConfigurationError(f"partition= is {partition!r}", f"Give a template: {_template(partitions)}.")
    if "{{" not in partition and "{%" not in partition:
        partitions.parse(partition)


def require_schedule(topology: str, partitions: Partitions, dag: Any) -> None:
    """Checks, while the DAG is built, that its runs have keys of the topology's partitions. The coordinator has no
    argument `partition`, which makes any schedule possible.

    :raises ConfigurationError: they have none, or others, or the schedule leaves partitions out.
    """
    timetable = dag.timetable
    name = type(timetable).__name__
    if not _gives_keys(timetable):
        raise ConfigurationError(
            f"the runs of DAG {dag.dag_id!r} ({name}) have no partition keys, and topology {topology!r} is bound to "
            f"partitions ({partitions.describe()})",
            f"Give the DAG {_fitting(partitions)}; or the tasks a template: {_template(partitions)}.",
        )
    if "CronPartitionTimetable" in _names(timetable):
        _require_cron(partitions, dag.dag_id, timetable)


def _require_cron(partitions: Partitions, dag_id: str, timetable: Any) -> None:
    fitting = f"Use {_fitting(partitions)}."
    key_format = _value(timetable, "key_format")
    if key_format != partitions.key_format:
        raise ConfigurationError(
            f"DAG {dag_id!r} has keys in the format {key_format!r}, and a {partitions.step} is written as "
            f"{partitions.example}",
            fitting,
        )
    zone = _value(timetable, "timezone")
    zone_name = str(getattr(zone, "name", None) or zone)
    if zone_name != partitions.timezone:
        raise ConfigurationError(
            f"the schedule of DAG {dag_id!r} is in the time zone {zone_name}, and the partitions are in "
            f"{partitions.timezone}",
            fitting,
        )
    if partitions.timezone != "UTC" and not KEYS_IN_ZONES:
        raise ConfigurationError(
            f"this Airflow writes the keys of DAG {dag_id!r} in UTC, and the partitions are in {partitions.timezone}",
            f"Install Airflow 3.3; or give the tasks a template: {_template(partitions)}.",
        )
    cron = str(_value(timetable, "expression"))
    if not _begins_partitions(cron, partitions):
        raise ConfigurationError(
            f"DAG {dag_id!r} has the cron {cron!r}, which also goes off after a {partitions.step} has begun",
            f"{fitting} Partitions(complete_after=...) makes a run wait for its data. With your cron `airflow backfill "
            "create` leaves out the last one: it reads dates as midnight.",
        )
    offset = _value(timetable, "run_offset") or 0
    if not isinstance(offset, int) or offset >= 0:
        raise ConfigurationError(
            f"DAG {dag_id!r} has run_offset={offset!r}: its run begins when its {partitions.step} begins", fitting
        )


def _gives_keys(timetable: Any) -> bool:
    by_its_word = getattr(timetable, "partitioned", False) or getattr(timetable, "partitioned_at_runtime", False)
    return bool(by_its_word) or bool(_names(timetable) & _WITH_KEYS)


def _names(timetable: Any) -> set[str]:
    return {kind.__name__ for kind in type(timetable).__mro__}


def _value(timetable: Any, name: str) -> Any:
    """Airflow's own timetables have it as a private attribute, those for DAG files as a public one."""
    return getattr(timetable, name, None) if hasattr(timetable, name) else getattr(timetable, f"_{name}", None)


def _begins_partitions(cron: str, partitions: Partitions) -> bool:
    """Does the cron go off only where a partition begins? It may leave some out."""
    from croniter import croniter  # type: ignore[import-untyped]

    try:
        fields, nth_weekdays = croniter.expand(_PRESETS.get(cron, cron))
    except ValueError:  # Airflow refuses it, too, and says why
        return True
    step = PartitionStep(partitions.step)
    seconds = fields[5] if len(fields) > 5 else [0]
    return seconds == [0] and not nth_weekdays and all(fields[at] == only for at, only in _AT_BEGIN[step].items())


_PRESETS = {"@quarterly": "0 0 1 */3 *"}
"""Of Airflow, and not of croniter."""


def _template(partitions: Partitions) -> str:
    """Of the partition that ended with the run's data interval, or before a tick without one."""
    zone = "" if partitions.timezone == "UTC" else f".in_timezone('{partitions.timezone}')"
    ended = f"data_interval_end{zone}.subtract({partitions.step}s=1).strftime('{partitions.key_format}')"
    if partitions.step == PartitionStep.HOUR:
        ended = ended.replace("%M:%S", "00:00")
    return f'partition="{{{{ {ended} }}}}"'


def _fitting(partitions: Partitions) -> str:
    cron = _CRONS[PartitionStep(partitions.step)]
    return (
        f'schedule=CronPartitionTimetable("{cron}", timezone="{partitions.timezone}", run_offset=-1, '
        f'key_format="{partitions.key_format}")'
    )
