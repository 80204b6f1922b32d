"""Runs all rewrites, in their order, until they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_trident.plan.graph import Sinks, same
from airflow_trident.plan.rewrites.filters import push_filters
from airflow_trident.plan.rewrites.lowering import lower
from airflow_trident.plan.rewrites.repartitions import collapse, colocate
from airflow_trident.plan.rewrites.unused_fields import prune


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pure function from sinks to sinks that keeps what reaches every sink. If it changes nothing it returns the same
    objects, so the loop ends."""

    name: str
    apply: Callable[[Sinks], Sinks]
    why_here: str


REWRITES = (
    Rewrite("lower", lower, "first: the others know only the kinds that it makes"),
    Rewrite("colocate", colocate, "before anything is taken out that shows what works on whole partitions"),
    Rewrite("collapse", collapse, "behind colocate, whose partition nodes it takes away where it can"),
    Rewrite("push_filters", push_filters, "behind collapse: fewer partition nodes to pass"),
    Rewrite("prune", prune, "last: it adds projections, which would be in the way of repartitions in a row"),
)


def rewrite(sinks: Sinks, rewrites: Sequence[Rewrite] = REWRITES) -> Sinks:
    """Runs each rewrite until it changes nothing, and all of them again until none does."""
    while True:
        before = sinks
        for one in rewrites:
            sinks = _until_still(one, sinks)
        if same(sinks, before):
            return sinks


def _until_still(one: Rewrite, sinks: Sinks) -> Sinks:
    while True:
        before, sinks = sinks, one.apply(sinks)
        if same(sinks, before):
            return sinks
