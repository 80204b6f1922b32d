"""A topology in the process of a test: with a ledger in memory, the local engine and a folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.io.paths import AnyPath
from airflow_trident.ledger.ledger import Ledger, MemoryLedger
from airflow_trident.operations.state_functions import Row
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.topology.stream_base import StateHandle
from airflow_trident.topology.topology import Topology


@contextmanager
def local_runner(
    topology: Topology,
    *,
    ledger: Ledger | None = None,
    engine: Engine | None = None,
    staging_root: AnyPath | None = None,
) -> Iterator[LocalRunner]:
    """A runner of the topology; what is not named is new, and goes at the end.

    >>> with local_runner(topology) as runner:
    ...     runner.run()
    ...     assert contents(counts) == {("cow",): (2,)}

    :param ledger: used by several runs, for instance to test a restart. The caller closes it.
    """
    with ExitStack() as opened:
        yield LocalRunner(
            ledger=opened.enter_context(MemoryLedger(topology.name)) if ledger is None else ledger,
            topology=topology,
            engine=opened.enter_context(LocalEngine()) if engine is None else engine,
            staging_root=staging_root or opened.enter_context(tempfile.TemporaryDirectory(prefix="trident-")),
        )


def contents(state: StateHandle) -> dict[Row, Row]:
    """The rows of a state: key -> values, both as tuples of fields."""
    spec = state.spec
    with spec.factory.make_state(spec) as opened:
        return dict(opened.items())
