"""Verbs that move no tuple to another partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.operations.vectors import VectorFunction
from airflow_trident.plan.nodes import EachNode, FilterNode, MapNode, PeekNode, ProjectNode
from airflow_trident.topology.base import StreamBase
from airflow_trident.topology.signatures import declared_outputs, require_callable
from airflow_trident.types import FieldSpec, parse_declared, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream


class PartitionLocal(StreamBase):
    """Trident's partition-local operations."""

    def each(self, inputs: FieldSpec | Expression, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Append what `function` gives to every tuple: none drops the tuple, several repeat it.

        ``each("line", Split(), "word string")`` calls ``function(line)`` for an iterable of values (tuples, if more
        than one field is declared). ``each(split(col("line"), " "), "words")`` appends a column expression, which
        stays in the JVM on Spark; ``explode(...)`` gives one tuple per element.

        :param outputs: new fields with types; names alone where types are annotated or follow from the expression.
        :raises FieldError: unknown or doubled field, or a type that is not known.
        """
        if isinstance(inputs, Expression):
            return self._each_expression(inputs, function)
        if outputs is None:
            raise PlanError(
                "each() needs the fields that the function appends",
                'As in each("line", Split(), "word string").',
            )
        reads = self._select("each", inputs)
        if isinstance(function, Expression):
            return self._each_expression(function, outputs)
        require_callable("each", function, "execute")
        new = declared_outputs(function, "execute", outputs, many=True)
        return self._append(EachNode, "each", reads=reads, outputs=new, function=function)

    def _each_expression(self, expression: Expression, outputs: FieldSpec) -> Stream:
        self._select("each", list(expression.reads))
        new = parse_declared(outputs, [expression.dtype(self.schema)])
        if len(new) != 1:
            raise FieldError(f"the expression {expression} gives one field and {len(new)} are named", "Name one.")
        return self._append(EachNode, "each", reads=expression.reads, outputs=new, expression=expression)

    def filter(self, inputs: FieldSpec | Expression | Any, filter: Any = None) -> Stream:
        """Keep the tuples for which `filter` is true.

        ``filter("word", NotEmpty())``, ``filter(NotEmpty())`` (all fields), ``filter(col("n") > 0)``; null drops.
        """
        if isinstance(inputs, Expression):
            return self._filter_expression(inputs)
        if filter is None:
            inputs, filter = list(self.fields), inputs
        if isinstance(filter, Expression):
            return self._filter_expression(filter)
        require_callable("filter", filter, "is_keep")
        reads = self._select("filter", inputs)
        return self._then(FilterNode, "filter", self.schema, reads=reads, function=filter)

    def _filter_expression(self, expression: Expression) -> Stream:
        self._select("filter", list(expression.reads))
        given = expression.dtype(self.schema)
        if given != "boolean" or expression.is_explode:
            raise FieldError(f"filter needs a boolean and {expression} is {given}", "Compare it with something.")
        return self._then(FilterNode, "filter", self.schema, reads=expression.reads, expression=expression)

    def map(self, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Replace every tuple by ``function(*values)``: one value, or a tuple of values if there are several fields.

        :param outputs: the new fields; without them names and types stay.
        """
        return self._map("map", function, outputs, flat=False)

    def flat_map(self, function: Any, outputs: FieldSpec | None = None) -> Stream:
        """Replace every tuple by each element of ``function(*values)``."""
        return self._map("flat_map", function, outputs, flat=True)

    def _map(self, verb: str, function: Any, outputs: FieldSpec | None, *, flat: bool) -> Stream:
        require_callable(verb, function, "execute")
        if flat and isinstance(function, VectorFunction):
            raise PlanError(
                f"flat_map got the vectorised {type(function).__name__}, which gives one output per tuple",
                "Use map(), or let it give an array and go on with each(explode(...)).",
            )
        new = self.schema if outputs is None else declared_outputs(function, "execute", outputs, many=flat)
        return self._then(MapNode, verb, new, function=function, flat=flat)

    def project(self, keep: FieldSpec) -> Stream:
        """Keep these fields, in this order."""
        names = self._some("project", keep, "Name one at least: a tuple without fields cannot be moved.")
        require_distinct(names)
        return self._then(ProjectNode, "project", select(self.schema, names, "project"))

    def peek(self, inputs: FieldSpec | Any, consumer: Any = None) -> Stream:
        """Call `consumer` for every tuple, for its effect, and pass the tuple on: ``peek(Debug())``.

        It may be called several times for one tuple: attempts are repeated. Without `inputs` it gets all fields.
        """
        if consumer is None:
            inputs, consumer = list(self.fields), inputs
        require_callable("peek", consumer, "accept")
        return self._then(PeekNode, "peek", self.schema, reads=self._select("peek", inputs), function=consumer)

    def apply_assembly(self, assembly: Callable[[Stream], Stream]) -> Stream:
        """What `assembly` makes of this stream: a function, or an object with ``apply(stream)`` (Trident: Assembly)."""
        apply = getattr(assembly, "apply", assembly)
        if isinstance(assembly, type) or not callable(apply):
            raise PlanError(f"apply_assembly got {assembly!r}", "Give an object with apply(stream), or a function.")
        made = apply(self._on(self._node))
        if not isinstance(made, StreamBase):
            raise PlanError(f"the assembly {assembly!r} gave {made!r}", "It must return the stream that it made.")
        return made  # type: ignore[return-value]

    def _keeping(self, names: tuple[str, ...]) -> Stream:
        return self._on(self._node) if names == self.fields else self.project(list(names))
