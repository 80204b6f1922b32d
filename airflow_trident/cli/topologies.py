"""The topology that a command line names."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident.cli.console import UsageError
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.topology.topology import Topology


def topology_of(args: Namespace) -> Topology:
    """:raises ConfigurationError: as :func:`topology_named`."""
    if args.dag and args.dag_file:
        raise UsageError("--dag and --dag-file exclude each other. Give one of them.")
    return topology_named(args.topology, dag_id=args.dag, dag_file=args.dag_file)
