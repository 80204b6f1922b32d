"""The tables in which a batch replaces rows by copy-on-write, as an attempt finds them."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.engine.engine import Job
from airflow_trident.errors import state_code
from airflow_trident.plan.nodes import PersistNode


def with_tables(job: Job) -> Job:
    """The job with the tables as they are committed now. Reading them is a part of the attempt: it may fail like its
    other work, and counts in its time.

    :raises StoreUnavailableError: a table does not answer.
    :raises ConfigurationError: a table cannot be used as it is.
    """
    tables = {}
    for sink in job.plan.staged:
        if isinstance(sink, PersistNode) and sink.state.rewrites:
            with state_code(sink.name), sink.state.factory.make_state(sink.state) as state:
                tables[sink.name] = state.committed()
    return replace(job, tables=tables) if tables else job
