"""Upkeep of one state, started by a person or a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.contracts.upkeep import Upkeep, View, ViewDialect
from airflow_trident.engine.base import Engine
from airflow_trident.errors import ConfigurationError
from airflow_trident.staging.table_compaction import upkeep_folder

_UPSERTS = 'tables that persist_table(..., mode="upsert", keys=...) writes'
_IS_FOR = {
    Upkeep.COMPACT: f'{_UPSERTS}, or with mode="rewrite"',
    Upkeep.FOLD: "a DeltaState",
    Upkeep.PUBLISH: f"a DeltaState, and, as a view, for {_UPSERTS}",
}


def require_upkeep(spec: StateSpec, act: Upkeep, view: View | None = None) -> None:
    """Opens nothing.

    :param view: to publish; only tables of upserts are published as one.
    :raises ConfigurationError: the state has no such upkeep.
    """
    if act not in spec.factory.upkeep(spec):
        others = " and ".join(spec.factory.upkeep(spec))
        raise ConfigurationError(
            f"there is no `{act}` of state {spec.name!r} of topology {spec.topology!r}, {spec.describe()}",
            f"`{act}` is for {_IS_FOR[act]}{f'; this state has {others}' if others else ''}.",
        )
    if act is Upkeep.PUBLISH and spec.upserts and view is None:
        raise ConfigurationError(
            f"state {spec.name!r} of topology {spec.topology!r} is a table of upserts, which is published as a view, "
            "and nothing names that",
            "Name it: --view schema.name, or view= of the task. `airflow trident state view` prints its query.",
        )
    if view is not None and not (act is Upkeep.PUBLISH and spec.upserts):
        raise ConfigurationError(
            f"there is no view in `{act}` of state {spec.name!r} of topology {spec.topology!r}, {spec.describe()}",
            f"Leave it out: `publish` makes one for {_UPSERTS}.",
        )


def keep_up(
    spec: StateSpec,
    act: Upkeep,
    progress: Callable[[str], object],
    *,
    view: View | None = None,
    engine: Engine | None = None,
    staging_root: str | None = None,
) -> bool:
    """Does the upkeep.

    :param view: to publish.
    :param engine: makes the view, or compacts; None: this process compacts.
    :param staging_root: where an engine that compacts leaves its files: a folder that it and this process see.
    :return: was there anything to do?
    :raises ConfigurationError: the state has no such upkeep, or its store cannot be used.
    :raises StoreUnavailableError: the store does not answer, or others are always faster; nothing was changed.
    :raises OutcomeUnknownError: the store did not answer the commit; doing it again finds out.
    """
    require_upkeep(spec, act, view)
    if view is not None and engine is not None:
        query = latest_query(spec, ViewDialect.SPARK, view.table)
        return engine.publish_view(view, query, (spec.topology, spec.name), progress)
    state: Any
    with spec.factory.make_state(spec) as state:
        if engine is None:
            done: bool = getattr(state, act)(progress=progress)
            return done
        assert act is Upkeep.COMPACT
        assert staging_root is not None
        with upkeep_folder(staging_root, spec.topology) as (storage, slot):
            done = state.compact(progress=progress, by=lambda work: engine.compact_table(work, storage, slot, progress))
    return done


def require_compacting(spec: StateSpec, act: Upkeep) -> None:
    """:raises ConfigurationError: no engine takes part in this upkeep."""
    if act is not Upkeep.COMPACT:
        raise ConfigurationError(
            f"`{act}` of state {spec.name!r} of topology {spec.topology!r} is done by this process, without an engine",
            "Leave out engine and Spark connection.",
        )


def latest_query(spec: StateSpec, dialect: ViewDialect, table: str | None = None) -> str:
    """The query for the latest rows of a table of upserts.

    :param table: how the readers' catalogue names the table; None: by its place.
    :raises ConfigurationError: it is no such table, or it has no name in this dialect.
    """
    if not spec.upserts:
        raise ConfigurationError(
            f"there is no view of state {spec.name!r} of topology {spec.topology!r}, {spec.describe()}",
            f"A view is of {_UPSERTS}.",
        )
    state: Any
    with spec.factory.make_state(spec) as state:
        found: str = state.latest_query(dialect, table)
    return found
