"""The differences between Airflow 3.1 and 3.3 that the providers' compatibility layer does not cover."""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow import __version__

from airflow_trident.names import require_flags

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
"""Can tasks be deferred? In 3.1 the triggerer ends when two threads ask it at once ("Response read out of order")."""
STARTS_IN_TRIGGERER = _RELEASE >= (3, 3)
"""Can a sensor start in the triggerer? Older schedulers ignore that request."""

_NOT_DEFERRED = (
    f"deferrable=True counts for nothing in Airflow {__version__}: its triggerer ends when two threads ask it at once. "
    "Tasks that wait give their slot back and look again. Leave it out, or use Airflow 3.2 or newer."
)

KEYS_IN_ZONES = _RELEASE >= (3, 3)
"""Does CronPartitionTimetable write keys in its time zone? 3.2 writes them in UTC."""
PARTITIONS_ASSETS = _RELEASE >= (3, 3)
"""Can a task report partitions of an asset when it succeeds?"""


def weight_rule(name: str) -> Any:
    """A rule as a task keeps it. Before Airflow 3.3 that is an object, and a DAG with a text is not serialized."""
    load = getattr(import_module("airflow.sdk.bases.operator"), "validate_and_load_priority_weight_strategy", None)
    return name if load is None else load(name)


def checked_deferrable(deferrable: bool | None) -> bool | None:
    """A task's argument `deferrable`, unchanged. Warns, while a DAG is built, if this Airflow cannot do that.

    :raises ConfigurationError: it is neither True, False nor None.
    """
    if deferrable is not None:
        require_flags("a task", deferrable=deferrable)
    if deferrable and not DEFERS:
        warnings.warn(_NOT_DEFERRED, UserWarning, stacklevel=1)  # of one place, so it is said once for a DAG
    return deferrable


def add_partition_event(context: Context, asset: Asset, key: str, extra: dict[str, Any]) -> None:
    """Add an event for one partition of an asset, which Airflow writes when the task succeeds.

    ``outlet_events[asset].add_partitions`` takes one `extra` for all partitions, although Airflow's API has one for
    each. So each partition gets its own accessor here, under a key that equals no other key.
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
    """The `extra` of each event of the asset since then. Asks Airflow from a task."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    accessor = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).after(since.isoformat())
    return [event.extra for event in accessor]


def remembers(context: Context) -> bool:
    """Can a later try of the task know what this one stored? Not before Airflow 3.3."""
    return context.get("task_state_store") is not None


def recall(context: Context, key: str) -> Any:
    """The value that an earlier try of the task stored; None if Airflow (before 3.3) has no such store."""
    store = context.get("task_state_store")
    return None if store is None else store.get(key)


def remember(context: Context, key: str, value: Any) -> None:
    """Store a value for later tries of the task, as long as the run exists; None deletes it. No effect before 3.3."""
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
    settings = _known(kind, bundle_name=bundle.name)
    bag: DagBag = kind(dag_folder=str(bundle.path), bundle_path=bundle.path, **settings)
    return bag


def _dag_bags() -> ModuleType:
    try:
        return import_module("airflow.dag_processing.dagbag")
    except ModuleNotFoundError:  # 3.1
        return import_module("airflow.models.dagbag")


def _known(kind: type, **options: Any) -> dict[str, Any]:
    """The options that this release of Airflow takes."""
    taken = inspect.signature(kind).parameters
    return {name: value for name, value in options.items() if name in taken}
