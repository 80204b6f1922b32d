"""Streams: handles on nodes of the plan, with Trident's verbs in Python spelling.

Every verb returns a new stream and leaves the old one as it is. Fields are named by text (``"a, b"``) or a list.
Functions, filters and updaters are objects of the classes in `airflow_trident.operations` or plain functions.
"""

from __future__ import annotations

from airflow_trident.topology.grouped import GroupedStream
from airflow_trident.topology.querying import Querying
from airflow_trident.topology.state import TridentState

__all__ = ["GroupedStream", "Stream", "TridentState"]


class Stream(Querying):
    """A stream of batches of tuples (Trident: Stream)."""
