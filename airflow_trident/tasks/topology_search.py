"""Finds Topology objects by DAG id, DAG file, or ``module:attribute``, for commands that need the code.

Reads DAG files as the DAG processor does, but writes nothing to the database.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError, error_text, guarded, is_foreign
from airflow_trident.names import EngineKind
from airflow_trident.tasks.airflow_versions import bundle_bag, file_bag
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import DAG


@dataclass(frozen=True, slots=True)
class Found:
    """Topologies and their places, ``name -> (topology, place)``. `rivals`: the place of a different topology with the
    same name; `broken`: unreadable DAG files and the reasons; `dags`: ids of the DAGs; `tasks`: of the topology."""

    topologies: dict[str, tuple[Topology, str]] = field(default_factory=dict)
    tasks: dict[str, list[Any]] = field(default_factory=dict)
    rivals: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    dags: tuple[str, ...] = ()


def topology_named(name: str, *, dag_id: str | None = None, dag_file: str | None = None) -> Topology:
    """The topology of this name in the tasks of a DAG, in a DAG file or module, or else in any DAG.

    :raises ConfigurationError: there is none (the text lists what was found), or there are two different ones.
    """
    return topology_and_tasks(name, dag_id=dag_id, dag_file=dag_file)[0]


def topology_and_tasks(
    name: str, *, dag_id: str | None = None, dag_file: str | None = None
) -> tuple[Topology, list[Any]]:
    """:func:`topology_named`, with its tasks in the DAGs that were read; a module has none.

    :raises ConfigurationError: as :func:`topology_named`.
    """
    search = _search(dag_id, dag_file)
    return _one(name, search, dag_id, dag_file)[0], search.tasks.get(name, [])


def retention_of(name: str, tasks: Iterable[Any]) -> int:
    """Committed transactions that whoever commits for these tasks has to keep: the most that one of those of this
    topology keeps, which is as configured if it was given nothing. A commit by somebody else must not remove them."""
    own_tasks = [task for task in tasks if name in {topology.name for topology in _topologies_of_task(task)}]
    retentions = [_argument(task, "retention") for task in own_tasks if _keeps(task)]
    return max(settings.retention(settings.parse_limit("retention", retention)) for retention in retentions or [None])


def engine_of(name: str, tasks: Iterable[Any]) -> EngineKind:
    """The engine that the tasks of this topology are given. Spark, if no task says it, or tasks differ."""
    own_tasks = (task for task in tasks if name in {topology.name for topology in _topologies_of_task(task)})
    engines = {EngineKind(engine) for task in own_tasks if (engine := _argument(task, "engine")) is not None}
    return engines.pop() if len(engines) == 1 else EngineKind.SPARK


def _argument(task: Any, name: str) -> Any:
    """An argument of a task, mapped or not."""
    return getattr(task, "partial_kwargs", {}).get(name, getattr(task, name, None))


def _keeps(task: Any) -> bool:
    """Does it commit, and keep what it was given, or as configured?"""
    kind = getattr(task, "operator_class", type(task))
    follows = getattr(kind, "retention_of_others", False) and _argument(task, "retention") is None
    return not follows and "retention" in inspect.signature(kind.__init__).parameters


def _one(name: str, search: Found, dag_id: str | None, dag_file: str | None) -> tuple[Topology, str]:
    if name in search.rivals:
        raise ConfigurationError(
            f"topology {name!r} is one thing in {search.topologies[name][1]} and another in {search.rivals[name]}",
            "Say which one with --dag DAG_ID; a name belongs to one topology.",
        )
    if name in search.topologies:
        return search.topologies[name]
    location = f"DAG {dag_id!r}" if dag_id else (dag_file or "the DAGs of this Airflow")
    raise ConfigurationError(
        f"there is no topology {name!r} in {location}; found: {_listing(search)}{_broken(search)}",
        "Name where it is with --dag DAG_ID or --dag-file PATH.",
    )


def topologies_of(dag_or_module: str) -> list[Topology]:
    """All topologies of a DAG (by id), a DAG file, or ``module:attribute``; or the topology of this name in any DAG.

    :raises ConfigurationError: it does not exist, or has no topology.
    """
    is_place = ":" in dag_or_module or dag_or_module.endswith(".py") or os.path.exists(dag_or_module)
    if is_place:
        search = _search(None, dag_or_module)
    else:
        search = _from_bundles(dag_or_module)
        if dag_or_module not in search.dags and dag_or_module in search.topologies:
            return [_one(dag_or_module, search, None, None)[0]]
        _require_dag(dag_or_module, search)
    if not search.topologies:
        raise ConfigurationError(
            f"{dag_or_module} has no task with a topology{_broken(search)}",
            "Name a DAG of Trident tasks, its file, or module:attribute of a Topology.",
        )
    return [topology for topology, _ in search.topologies.values()]


def _search(dag_id: str | None, place: str | None) -> Found:
    if place and ":" in place:
        return _from_attribute(place)
    if place:
        return _from_file(Path(place))
    if dag_id:
        return _from_dag(dag_id)
    return _from_bundles(None)


# ---- module:attribute ------------------------------------------------------------------------------------------


def _from_attribute(place: str) -> Found:
    module_name, _, attribute = place.rpartition(":")
    value: object = _load_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigurationError(f"{module_name} has no {attribute!r}", "Name a Topology in it.")
        value = getattr(value, part)
    if callable(value) and not isinstance(value, type):
        with guarded(place):
            value = value()
    if not isinstance(value, Topology):
        raise ConfigurationError(f"{place} is a {type(value).__name__}, no Topology", "Name a Topology.")
    return Found({value.name: (value, place)})


def _load_module(module_name: str) -> ModuleType:
    """By name, from the current folder or the Python path; or by file."""
    try:
        if module_name.endswith(".py"):
            return _loaded_from(module_name)
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(module_name)
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise ConfigurationError(
            f"{module_name} cannot be imported ({error_text(error)})",
            "Name a module on the Python path or below the current folder, or a file, as in dags/wc.py:topology.",
        ) from None


def _loaded_from(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_name_for(file), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        if before is not None:
            sys.modules[spec.name] = before
        raise
    return module


def _name_for(file: str) -> str:
    """The module's name: that of the file, unless it is another module's. A file ``redis.py`` must not stand in the
    place of the package, in a process that goes on to work with it."""
    name, path = Path(file).stem, os.path.abspath(file)
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None) or "built in"
    if module is None:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        origin = path if spec is None else spec.origin
    if origin is not None and os.path.abspath(origin) == path:
        return name
    return f"{name}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"


# ---- DAGs ------------------------------------------------------------------------------------------------------


def _from_file(path: Path) -> Found:
    if not path.is_file():
        raise ConfigurationError(f"there is no DAG file {path}", "Name a Python file that defines a DAG.")
    folder = str(path.absolute().parent)
    if folder not in sys.path:  # as in the DAG processor: DAG files import modules beside them
        sys.path.append(folder)
    with guarded(f"the DAG file {path}", loads=True):
        bag = file_bag(str(path.absolute()))
    broken = {file: _last_line(text) for file, text in bag.import_errors.items()}
    if broken:
        raise ConfigurationError(f"{path} cannot be read: {'; '.join(broken.values())}", "Correct the DAG file.")
    return _from_dags(list(bag.dags.values()), broken)


def _from_dag(dag_id: str) -> Found:
    search = _from_bundles(dag_id)
    _require_dag(dag_id, search)
    return search


def _require_dag(dag_id: str, search: Found) -> None:
    if dag_id not in search.dags:
        raise ConfigurationError(
            f"there is no DAG {dag_id!r}; found: {', '.join(search.dags) or 'none'}{_broken(search)}",
            "Look at `airflow dags list`, or name a DAG file.",
        )


def _from_bundles(dag_id: str | None) -> Found:
    """Read the DAG files of all bundles. With `dag_id`: stop at the bundle that has this DAG, and return only its
    topologies."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    dags: list[DAG] = []
    broken: dict[str, str] = {}
    for bundle in DagBundlesManager().get_all_dag_bundles():
        bundle.initialize()
        with guarded(f"a DAG file of bundle {bundle.name}", loads=True):
            bag = bundle_bag(bundle)
        broken.update({file: _last_line(text) for file, text in bag.import_errors.items()})
        if dag_id in bag.dags:
            return _from_dags([bag.dags[dag_id]], broken)
        dags += bag.dags.values()
    return _from_dags(dags, broken)


def _from_dags(dags: Sequence[DAG], broken: dict[str, str]) -> Found:
    search = Found(broken=broken, dags=tuple(dag.dag_id for dag in dags))
    for dag in dags:
        for task in dag.tasks:
            for topology in _topologies_of_task(task):
                place = f"DAG {dag.dag_id}"
                search.tasks.setdefault(topology.name, []).append(task)
                first, _ = search.topologies.setdefault(topology.name, (topology, place))
                if first.compile().digest != topology.compile().digest:
                    search.rivals.setdefault(topology.name, place)
    return search


def _topologies_of_task(task: object) -> list[Topology]:
    kept = getattr(task, "partial_kwargs", {})  # a mapped task keeps its arguments here
    topology = kept.get("topology") or getattr(task, "topology", None)
    several: Sequence[object] = kept.get("topologies") or getattr(task, "topologies", None) or [topology]
    return [topology for topology in several if isinstance(topology, Topology)]


def _listing(search: Found) -> str:
    return ", ".join(f"{name} ({place})" for name, (_, place) in sorted(search.topologies.items())) or "none"


def _broken(search: Found) -> str:
    if not search.broken:
        return ""
    return f" (not read: {', '.join(f'{file}: {text}' for file, text in sorted(search.broken.items()))})"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
