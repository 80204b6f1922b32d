"""Rows on their way through a run on Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.engine.spark.worker import Work
from airflow_trident.plan.graph import SinkNode, ordered
from airflow_trident.types import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD = 300
"""Longest description of a job, in characters."""


@dataclass(frozen=True)
class Flow:
    """Rows on their way: a DataFrame, and a Python pass after it that may still take in more nodes. `schema`: of the
    result. `partitions`: their number. `sized`: does Spark know the size? For rows read by Python it knows only the
    split numbers."""

    data: DataFrame
    schema: Schema
    partitions: int
    work: Work | None = None
    what: str = ""
    marked: bool = False
    sized: bool = False


def told(sink: SinkNode) -> str:
    """The names of the nodes that lead to the sink, for Spark's UI."""
    text = " > ".join(dict.fromkeys(node.name for node in ordered([sink]) if node.name))
    return text if len(text) <= _TOLD else f"... {text[-_TOLD:]}"


def sized_of(flows: Iterable[Flow]) -> bool:
    """Does Spark know the sizes of all of them?"""
    return all(one.sized for one in flows)
