"""The topology, and the state of it, that a command line names."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_trident.cli.console import UsageError
from airflow_trident.contracts.state import StateSpec
from airflow_trident.tasks.topology_search import engine_of, retention_of, topology_and_tasks
from airflow_trident.topology.topology import Topology


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
        known = ", ".join(topology.states) or "none"
        raise UsageError(f"topology {args.topology} has no state {args.state!r}. It has {known}.")
    return topology.states[args.state]
