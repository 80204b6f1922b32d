"""Verbs for windows (Trident: tumblingWindow, slidingWindow, window)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.windows import DEFAULT_MAX_AHEAD, WindowConfig, milliseconds
from airflow_trident.plan.commit.window_updater import COMMIT_TIME, KEYS, VALUES, WindowUpdater, bounds_of
from airflow_trident.topology.signatures import aggregations, require_factory
from airflow_trident.topology.stream_base import S, named
from airflow_trident.topology.verbs.aggregate import Scope, aggregate
from airflow_trident.topology.verbs.rows import keeping, project
from airflow_trident.topology.verbs.states import new_values, persist
from airflow_trident.types import Field, Schema, ddl, is_nested, names_of, require_distinct, select

_TICK = Field(COMMIT_TIME, "long")


class WindowOptions(TypedDict, total=False):
    """Options of all windows; see `Stream.window`."""

    time: str | None
    lag: timedelta
    max_ahead: timedelta | None
    reopen: datetime | None
    bounds: bool
    name: str | None


def window(
    stream: S,
    groups: tuple[str, ...],
    config: WindowConfig,
    state: StateFactory,
    arguments: tuple[Any, ...],
    *,
    time: str | None = None,
    lag: timedelta = timedelta(0),
    max_ahead: timedelta | None = DEFAULT_MAX_AHEAD,
    reopen: datetime | None = None,
    bounds: bool = False,
    name: str | None = None,
) -> S:
    several = aggregations("window", stream.schema, arguments)
    reads = tuple(dict.fromkeys((*groups, *(field for aggregation in several for field in aggregation.reads))))
    field = _time_field(stream, config, time, lag, max_ahead)
    kept = select(stream.schema, reads or (_smallest(stream.schema).name,), "window")
    ends = bounds_of(config)
    require_distinct((*names_of(ends), *names_of(kept)))
    tick = (_TICK,) if config.timed else ()
    staged = tuple(dict.fromkeys((*kept, *(() if field is None else (field,)), *tick)))
    outputs = [output.name for aggregation in several for output in aggregation.output]
    name = name or f"{outputs[0]}_window"
    updater = WindowUpdater(
        state=name,
        config=config,
        kept=kept,
        staged=names_of(staged),
        bounds=ends,
        time="" if field is None else field.name,
        lag_ms=milliseconds(lag),
        max_ahead_ms=None if max_ahead is None else milliseconds(max_ahead),
        reopen_ms=_reopened(config, reopen),
    )
    spec = StateSpec(
        topology=stream.topology.name,
        name=name,
        keys=KEYS,
        values=VALUES,
        staged=staged,
        factory=_require_atomic(state),
        updater=updater,
        inputs=(ddl(kept),),  # with types: the tuples of open windows are kept with them
    )
    tuples = keeping(stream, tuple(field_name for field_name in names_of(staged) if field_name != COMMIT_TIME))
    fired = new_values(stream, persist(tuples, spec))
    aggregated = aggregate(fired, Scope.ALL, (*names_of(ends), *groups), arguments, {})
    return aggregated if bounds else project(aggregated, [*groups, *outputs])


def _time_field(
    stream: S, config: WindowConfig, time: str | None, lag: timedelta, max_ahead: timedelta | None
) -> Field | None:
    """The staged field with a tuple's time; None for count windows."""
    if not config.timed or time is None:
        if time is not None or lag or max_ahead != DEFAULT_MAX_AHEAD:
            raise PlanError(
                f"a {config} has no time, no lag and no max_ahead",
                "Give time=... with a duration, or none of them.",
            )
        return _TICK if config.timed else None
    if max_ahead is not None and milliseconds(max_ahead) < 0:
        raise PlanError(f"a {config} got max_ahead={max_ahead}", "Give a duration from 0 up, or None.")
    (field,) = select(stream.schema, named(stream, "window", time), "window")
    if field.type not in ("timestamp", "long"):
        raise FieldError(f"window: the time field {field} is no time", "Give a timestamp, or a long in ms.")
    return field


def _reopened(config: WindowConfig, reopen: datetime | None) -> int | None:
    """In milliseconds since 1970. :raises PlanError: the windows are not of time, or `reopen` has no zone."""
    if reopen is None:
        return None
    if not config.timed or reopen.tzinfo is None:
        raise PlanError(
            f"a {config} got reopen={reopen!r}",
            "Give windows of time, and no others, a datetime with its zone: datetime(2026, 3, 1, 12, tzinfo=UTC).",
        )
    return (reopen - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _require_atomic(state: object) -> StateFactory:
    factory = require_factory(state)
    if not factory.capabilities.atomic or factory.capabilities.keyvalue:
        raise PlanError(
            f"a window cannot be kept in {factory.describe()}: its keys must change together",
            "Give it an atomic state, such as SqliteState.",
        )
    return factory


def _smallest(schema: Schema) -> Field:
    """A field to keep when no field is read, so that tuples can be counted."""
    fixed = (field for field in schema if not is_nested(field.type) and field.type not in ("string", "binary"))
    return next(fixed, schema[0])
