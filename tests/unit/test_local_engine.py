"""What the local engine gives is the same in every process."""

from __future__ import annotations

from airflow_trident import Count, FixedBatchSpout, Topology
from airflow_trident.engine.local import LocalEngine
from tests.fixtures.engine import JobOf, keep, run


def counted(topology: Topology) -> None:
    keys = [(f"key {number}",) for number in range(40)]
    stream = topology.new_stream("keys", FixedBatchSpout("k string", keys)).partition_by("k").parallelism_hint(4)
    keep(stream.each("k", lambda k: [k], "again string").partition_aggregate(Count(), "n"))


def test_partitions_do_not_depend_on_the_salt_of_pythons_hashes(job_of: JobOf) -> None:
    """A replay, which is another process, must give what the attempt gave: these are counts of another process."""
    assert run(LocalEngine(), job_of(counted)) == {"rows": ["(11,)", "(11,)", "(9,)", "(9,)"]}
