"""What differs between Airflow 3.1 and 3.3, in one place, beside what the providers' compatibility layer covers."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow import __version__

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.dag_processing.dagbag import DagBag
    from airflow.providers.common.compat.sdk import Asset, Context
    from airflow.sdk.exceptions import AirflowRescheduleException
else:
    try:
        from airflow.sdk.exceptions import AirflowRescheduleException
    except ImportError:  # 3.1
        from airflow.exceptions import AirflowRescheduleException

__all__ = ["AirflowRescheduleException"]

_RELEASE = tuple(map(int, __version__.split(".")[:2]))
DEFERS = _RELEASE >= (3, 2)
"""May tasks be deferred? In 3.1 the triggerer ends when two threads ask it at once ("Response read out of order")."""
STARTS_IN_TRIGGERER = _RELEASE >= (3, 3)
"""Does a sensor that says so begin in the triggerer? Older schedulers pass over what it says."""

PARTITIONS_ASSETS = _RELEASE >= (3, 3)
"""May a task say at its end which partitions of an asset it has made?"""


def add_partition_event(context: Context, asset: Asset, key: str, extra: dict[str, Any]) -> None:
    """One event of a partition of an asset, when the task succeeds.

    ``outlet_events[asset].add_partitions`` has one `extra` for all partitions, though each of what is sent to Airflow
    has its own. So each has an accessor here, under a key that equals no other.
    """
    from airflow.sdk.definitions.asset import AssetUniqueKey
    from airflow.sdk.execution_time.context import OutletEventAccessor

    class OneEvent(AssetUniqueKey):
        __eq__ = object.__eq__
        __hash__ = object.__hash__

    events: Any = context["outlet_events"]
    of_asset = OneEvent(name=asset.name, uri=asset.uri)
    events._dict[of_asset] = OutletEventAccessor(key=of_asset, extra=extra, partition_keys={key})


def asset_events_since(asset: Asset, since: datetime) -> list[Any]:
    """The `extra` of each event of the asset that Airflow has, asked from a task."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    found = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).after(since.isoformat())
    return [event.extra for event in found]


def recall(context: Context, key: str) -> Any:
    """What an earlier try of the task remembered; None where Airflow (before 3.3) has no such store."""
    store = context.get("task_state_store")
    return None if store is None else store.get(key)


def remember(context: Context, key: str, value: Any) -> None:
    """Keep a value for later tries of the task, as long as the run is kept; None forgets it. Before 3.3: no effect."""
    store = context.get("task_state_store")
    if store is None:
        return
    if value is None:
        store.delete(key)
        return
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    store.set(key, value, retention=NEVER_EXPIRE)


def file_bag(path: str) -> DagBag:
    """The DAGs of one file, read as the DAG processor reads it."""
    kind: Any = _dag_bags().DagBag
    bag: DagBag = kind(dag_folder=path, safe_mode=False, **_known(kind, include_examples=False))
    return bag


def bundle_bag(bundle: Any) -> DagBag:
    """The DAGs of a bundle."""
    kind: Any = _dag_bags().BundleDagBag
    known = _known(kind, bundle_name=bundle.name)
    bag: DagBag = kind(dag_folder=str(bundle.path), bundle_path=bundle.path, **known)
    return bag


def _dag_bags() -> ModuleType:
    try:
        return import_module("airflow.dag_processing.dagbag")
    except ModuleNotFoundError:  # 3.1
        return import_module("airflow.models.dagbag")


def _known(kind: type, **options: Any) -> dict[str, Any]:
    """Those of the options that this release takes."""
    taken = inspect.signature(kind).parameters
    return {name: value for name, value in options.items() if name in taken}
