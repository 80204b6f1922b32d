"""Loads are those of nodes that somebody wrote: the example of Storm's documentation."""

from __future__ import annotations

from airflow_trident import Count, FixedBatchSpout, Function, MemoryState, Topology


class Same(Function):
    def execute(self, line: str) -> list[str]:
        return [line]


def test_the_default_is_not_counted_for_what_the_compiler_adds() -> None:
    made = Topology("loads").set_resource_defaults(cpu_percent=20, memory_mb=128)
    lines = made.new_stream("lines", FixedBatchSpout("line string", ["a"]))
    lines = lines.set_cpu_load(0.5).set_memory_load(0.5).shuffle()
    lines = lines.each("line", Same(), "one string").set_cpu_load(10).set_memory_load(512)
    lines = lines.each("line", Same(), "two string").set_cpu_load(50).set_memory_load(1024)
    words = lines.each("line", Same(), "word string")
    words.group_by("word").persistent_aggregate(MemoryState(), Count(), "n")
    loads = [(stage.cpu_percent, stage.memory_mb) for stage in made.compile().stages]
    assert (80, 1664) in loads


def test_the_projection_before_a_state_has_no_load_of_its_own() -> None:
    made = Topology("loads").set_resource_defaults(cpu_percent=20)
    lines = made.new_stream("lines", FixedBatchSpout("line string, n long", [("a", 1)])).set_cpu_load(5).shuffle()
    kept = lines.each("line", Same(), "word string")
    kept.partition_persist(MemoryState(), "word, n", keys="word")
    assert sum(stage.cpu_percent or 0 for stage in made.compile().stages) == 25
