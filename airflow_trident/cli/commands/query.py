"""``airflow trident query`` and ``airflow trident state get``: read what is committed."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_trident.cli.console import OK, PROBLEM, UsageError, print_rows, trident_command
from airflow_trident.cli.topologies import state_of, topology_of


@trident_command
def query(args: Namespace) -> int | None:
    from airflow_trident.runtime.query import query_texts

    topology = topology_of(args)
    result = query_texts(topology, args.query, args.args)
    print_rows(result.as_json(), args.output, empty="no tuples")
    return OK


@trident_command
def state_get(args: Namespace) -> int | None:
    from airflow_trident.engine.state_queries import Reading
    from airflow_trident.runtime.query import json_value, parse_text

    spec = state_of(args)
    if len(args.key) != len(spec.keys) or spec.stateful is not None:
        raise UsageError(f"the key of state {args.state} is ({', '.join(map(str, spec.keys))})")
    key = tuple(parse_text(field, text) for field, text in zip(spec.keys, args.key, strict=True))
    with spec.factory.make_state(spec) as state:
        (value,) = Reading(state, spec).multi_get([key])
    if value is None:
        print_rows([], args.output, empty="no such key")
        return PROBLEM
    named: dict[str, Any] = dict(
        zip((*spec.key_names, *spec.value_names), map(json_value, (*key, *value)), strict=True)
    )
    print_rows([named], args.output, empty="")
    return OK
