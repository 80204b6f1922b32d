"""Verbs that return a stream of the same class: on single tuples, on whole DataFrames in Spark, and repartitioning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from airflow_trident.operations.expr.tree import Expression
from airflow_trident.operations.grouping import CustomGrouping
from airflow_trident.plan.groupings import Grouping
from airflow_trident.topology.stream_base import StreamBase
from airflow_trident.topology.verbs import each, repartition, transform
from airflow_trident.types import FieldSpec, joined_specs


class TupleStream(StreamBase):
    """The verbs that come before an aggregation or a state."""

    def name(self, label: str) -> Self:
        """Put a label before the names of the following nodes, as plans, errors and Spark's UI show them."""
        return replace(self, label=label)

    # ---- tuple by tuple ----------------------------------------------------------------------------------------

    def each(self, inputs: FieldSpec | Expression, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Append the results of `function` to every tuple: no result drops the tuple, several repeat it.

        ``each("line", Split(), "word string")`` calls ``function(line)``, which returns an iterable of values (of
        tuples, if several fields are declared). ``each(split(col("line"), " "), "words")`` appends a column expression,
        which stays in the JVM on Spark; ``explode(...)`` gives one tuple per element. A function that is annotated to
        return a single value (``-> str``) returns the one output of the tuple.

        :param outputs: new fields with types; names are enough if the types are annotated or follow from the
            expression.
        :raises FieldError: an unknown or repeated field, or an unknown type.
        """
        return each.each(self, inputs, function, outputs)

    def filter(self, inputs: FieldSpec | Expression | Any, filter: Any = None) -> Self:
        """Keep the tuples for which `filter` is true.

        ``filter("word", NotEmpty())``, ``filter(NotEmpty())`` (all fields), ``filter(col("n") > 0)``. Null counts as
        false.
        """
        return each.filter(self, inputs, filter)

    def map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by ``function(*values)``: one value, or a tuple of values for several fields.

        :param outputs: the new fields; default: names and types stay as they are.
        """
        return each.map(self, "map", function, outputs)

    def flat_map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by each element of ``function(*values)``."""
        return each.map(self, "flat_map", function, outputs)

    def project(self, *fields: FieldSpec) -> Self:
        """Keep these fields, in this order: ``project("day", "sku")`` or ``project("day, sku")``."""
        return each.project(self, joined_specs(*fields))

    def peek(self, inputs: FieldSpec | Any, consumer: Any = None) -> Self:
        """Call `consumer` for every tuple and pass the tuple on unchanged: ``peek(Debug())``.

        A repeated attempt calls it again for the same tuple. Without `inputs` it gets all fields.
        """
        return each.peek(self, inputs, consumer)

    def apply_assembly(self, assembly: Callable[[Self], Self]) -> Self:
        """Apply a function, or an object with ``apply(stream)``, to this stream (Trident: Assembly)."""
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
        """Apply a function to the batch as a Spark DataFrame: ``transform(to_daily, "day date, cents long")``.

        The driver calls the function once per attempt. It returns a DataFrame, which becomes part of the same job. It
        must not run an action (`count`, `write`, `cache`). A parameter `context` gets a :class:`TransformContext`. Only
        for the Spark engine.

        :param fields: the output fields with types. Columns are matched by name, in any order, and widened where no
            value can be lost. Any other difference fails the attempt.
        :param others: more streams of the topology, each a named argument of the function.
        :param rowwise: your promise that each output row depends on one input row only. If that is not true, wrong
            results may be committed.
        :param version: a name for the behaviour of the code. It is part of the topology's definition; the code is not.
        :raises PlanError: the function does not fit, or the stream belongs to the commit phase or to a query.
        """
        return transform.transform(self, function, fields, others, rowwise=rowwise, version=version)

    def sql(self, text: str, fields: FieldSpec, **others: Self) -> Self:
        """A query in Spark's SQL over the batch: ``sql("SELECT day, count(*) AS n FROM {orders} GROUP BY day", "day
        date, n long")``.

        One name in braces is not among the keyword arguments: it is this stream. ``:transaction_time`` is the time of
        the transaction. The text, without comments and spacing, is part of the topology's definition.

        :param fields: as for :meth:`transform`.
        :param others: more streams, by their names in the text.
        :raises PlanError: the text is no query, or does not name all streams.
        """
        return transform.sql(self, text, fields, others)

    # ---- repartitioning ----------------------------------------------------------------------------------------

    def partition_by(self, *fields: FieldSpec) -> Self:
        """Bring tuples with equal values of `fields` into one partition."""
        return repartition.partition_by(self, joined_specs(*fields))

    def shuffle(self) -> Self:
        """Spread tuples evenly over the partitions."""
        return repartition.repartition(self, "shuffle", Grouping.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Any distribution is allowed: tuples stay where they are."""
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
        """Partition i stays partition i: nothing moves."""
        return repartition.repartition(self, "identity_partition", Grouping.IDENTITY)

    def partition(self, grouping: CustomGrouping) -> Self:
        """Let `grouping` choose the partition of each tuple."""
        return repartition.partition(self, grouping)

    def parallelism_hint(self, partitions: int) -> Self:
        """Set the number of partitions of this node and of all nodes that no repartition separates from it. The largest
        of several hints counts. Returns the same stream (Trident: parallelismHint). A source never has more partitions
        than splits."""
        return repartition.parallelism_hint(self, partitions)

    def set_cpu_load(self, percent: float) -> Self:
        """How much of a core the node's work on one partition needs; see `Topology.spark_conf`."""
        return repartition.set_cpu_load(self, percent)

    def set_memory_load(self, megabytes: float) -> Self:
        """How much memory the node's work on one partition needs; see `Topology.spark_conf`."""
        return repartition.set_memory_load(self, megabytes)
