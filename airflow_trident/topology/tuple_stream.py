"""Verbs that give a stream of the same class: tuple by tuple, of whole DataFrames on Spark, and repartitioning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from airflow_trident.children.bolt import ChildBolt
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.operations.grouping import CustomGrouping
from airflow_trident.plan.groupings import Grouping
from airflow_trident.topology.stream_base import StreamBase
from airflow_trident.topology.verbs import child_bolt, each, repartition, transform
from airflow_trident.types import FieldSpec


class TupleStream(StreamBase):
    """What a stream's tuples go through, before they are aggregated or come to a state."""

    def name(self, label: str) -> Self:
        """Put a label before the names of the nodes that follow; it shows in plans, errors and Spark's UI."""
        return replace(self, label=label)

    # ---- tuple by tuple ----------------------------------------------------------------------------------------

    def each(self, inputs: FieldSpec | Expression, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Append what `function` gives to every tuple: none drops the tuple, several repeat it.

        ``each("line", Split(), "word string")`` calls ``function(line)`` for an iterable of values (tuples, if more
        than one field is declared). ``each(split(col("line"), " "), "words")`` appends a column expression, which
        stays in the JVM on Spark; ``explode(...)`` gives one tuple per element.

        :param outputs: new fields with types; names alone where types are annotated or follow from the expression.
        :raises FieldError: unknown or doubled field, or a type that is not known.
        """
        return each.each(self, inputs, function, outputs)

    def filter(self, inputs: FieldSpec | Expression | Any, filter: Any = None) -> Self:
        """Keep the tuples for which `filter` is true.

        ``filter("word", NotEmpty())``, ``filter(NotEmpty())`` (all fields), ``filter(col("n") > 0)``; null drops.
        """
        return each.filter(self, inputs, filter)

    def map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by ``function(*values)``: one value, or a tuple of values if there are several fields.

        :param outputs: the new fields; without them names and types stay.
        """
        return each.map(self, "map", function, outputs)

    def flat_map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by each element of ``function(*values)``."""
        return each.map(self, "flat_map", function, outputs)

    def bolt(self, inputs: FieldSpec, bolt: ChildBolt, streams: Mapping[str, FieldSpec]) -> dict[str, Self]:
        """What a component in another program emits for the tuples, as a stream for each of its stream ids.

        ``out = stream.bolt("line", ShellBolt("python split.py"), {"default": "word string", "long": "word string"})``,
        then ``out["long"]``. In `each` and `flat_map` such a bolt stands as a function does.

        :param streams: stream id -> the fields of what is emitted there, with types.
        """
        return child_bolt.bolt(self, inputs, bolt, streams)

    def project(self, keep: FieldSpec) -> Self:
        """Keep these fields, in this order."""
        return each.project(self, keep)

    def peek(self, inputs: FieldSpec | Any, consumer: Any = None) -> Self:
        """Call `consumer` for every tuple, for its effect, and pass the tuple on: ``peek(Debug())``.

        It may be called several times for one tuple: attempts are repeated. Without `inputs` it gets all fields.
        """
        return each.peek(self, inputs, consumer)

    def apply_assembly(self, assembly: Callable[[Self], Self]) -> Self:
        """What `assembly` makes of this stream: a function, or an object with ``apply(stream)`` (Trident: Assembly)."""
        return each.assembled(self, assembly)

    # ---- whole DataFrames, on Spark ----------------------------------------------------------------------------

    def transform(
        self,
        function: Callable[..., Any],
        fields: FieldSpec,
        *,
        others: Mapping[str, Self] | None = None,
        rowwise: bool = False,
        version: str | int | None = None,
    ) -> Self:
        """What `function` makes of the batch as a Spark DataFrame: ``transform(to_daily, "day date, cents long")``.

        It is called once per attempt, on the driver, and gives a DataFrame: the plan of the work, in the same job. It
        must not act (`count`, `write`, `cache`); a parameter `context` gets a :class:`TransformContext`. Spark engine.

        :param fields: what comes out, with types. Columns are found by name, in any order, and widened where nothing
            can be lost; any other difference is an error of the attempt.
        :param others: more streams of the topology: each is a named argument of the function.
        :param rowwise: your word that each row comes of one row, whatever others are in the batch. If that is false,
            what is committed may be wrong.
        :param version: a name for what the code does: part of the topology's definition, as the code is not.
        :raises PlanError: the function does not fit, or the stream is one of the commit phase or of a query.
        """
        return transform.transform(self, function, fields, others, rowwise=rowwise, version=version)

    def sql(self, text: str, fields: FieldSpec, **others: Self) -> Self:
        """A query in Spark's SQL over the batch: ``sql("SELECT day, count(*) AS n FROM {orders} GROUP BY day", "day
        date, n long")``.

        The one name in braces that is no keyword is this stream's. ``:transaction_time`` is the time of the
        transaction. The text, without comments and spacing, is part of the topology's definition.

        :param fields: as for :meth:`transform`.
        :param others: more streams, by their names in the text.
        :raises PlanError: the text is no query, or does not name the streams.
        """
        return transform.sql(self, text, fields, others)

    # ---- repartitioning ----------------------------------------------------------------------------------------

    def partition_by(self, fields: FieldSpec) -> Self:
        """Bring tuples with equal values of `fields` into one partition."""
        return repartition.partition_by(self, fields)

    def shuffle(self) -> Self:
        """Spread tuples evenly over the partitions."""
        return repartition.repartition(self, "shuffle", Grouping.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Any distribution will do: tuples stay where they are."""
        return repartition.repartition(self, "local_or_shuffle", Grouping.LOCAL_OR_SHUFFLE)

    def global_(self) -> Self:
        """Bring all tuples into one partition (Trident: global)."""
        return repartition.repartition(self, "global", Grouping.GLOBAL)

    def batch_global(self) -> Self:
        """Bring all tuples of the batch into one partition."""
        return repartition.repartition(self, "batch_global", Grouping.BATCH_GLOBAL)

    def broadcast(self) -> Self:
        """Bring every tuple into every partition."""
        return repartition.repartition(self, "broadcast", Grouping.BROADCAST)

    def identity_partition(self) -> Self:
        """From partition i into partition i: nothing moves."""
        return repartition.repartition(self, "identity_partition", Grouping.IDENTITY)

    def partition(self, grouping: CustomGrouping) -> Self:
        """Bring tuples where `grouping` says."""
        return repartition.partition(self, grouping)

    def parallelism_hint(self, partitions: int) -> Self:
        """The number of partitions of this node, and of all nodes that no repartition divides from it; of several hints
        the largest (Trident: parallelismHint, which also gives the same stream back). A source has no more partitions
        than splits."""
        return repartition.parallelism_hint(self, partitions)

    def set_cpu_load(self, percent: float) -> Self:
        """How much of a core the node's work on one partition needs; see `Topology.spark_conf`."""
        return repartition.set_cpu_load(self, percent)

    def set_memory_load(self, megabytes: float) -> Self:
        """How much memory the node's work on one partition needs; see `Topology.spark_conf`."""
        return repartition.set_memory_load(self, megabytes)
