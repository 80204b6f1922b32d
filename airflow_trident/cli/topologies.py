"""The topology, and the state of it, that a command line names."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident.cli.console import UsageError
from airflow_trident.contracts.state import StateSpec
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.topology.topology import Topology


def topology_of(args: Namespace) -> Topology:
    """:raises ConfigurationError: as :func:`topology_named`."""
    if args.dag and args.dag_file:
        raise UsageError("--dag and --dag-file exclude each other. Give one of them.")
    return topology_named(args.topology, dag_id=args.dag, dag_file=args.dag_file)


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
