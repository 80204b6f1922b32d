"""``airflow trident plan``: shows the plan of a topology."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident.cli.console import OK, trident_command
from airflow_trident.plan.show.explain import explain
from airflow_trident.tasks.topology_search import topologies_of


@trident_command
def plan(args: Namespace) -> int | None:
    plans = (
        topology.queries.compile(args.query) if args.query else topology.compile()
        for topology in topologies_of(args.dag_or_module)
    )
    texts = [explain(one, args.format) for one in plans]
    print("\n".join(texts), end="")
    return OK
