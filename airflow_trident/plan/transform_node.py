"""The node kind for what a user's function, or a query, makes from whole DataFrames in Spark."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from tokenize import TokenError
from typing import Any

from airflow_trident.errors import PlanError
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.operations.sql_query import SqlQuery
from airflow_trident.plan.graph import BeginNode, Node, ordered
from airflow_trident.plan.groupings import Grouping
from airflow_trident.plan.nodes import MultiReduceNode, MultiReduceStepNode, PartitionNode, PersistNode

_LONG = 300
"""The most characters of a text in the topology's definition."""
_DIGITS = 16
_PACKAGE = "airflow_trident."
"""The hex digits of a digest of code."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformNode(BeginNode):
    """Its output is what `function` makes from the DataFrames of its inputs. Nobody knows what the function reads, so
    all fields of all inputs are needed, and no filter passes it.

    :param names: of the inputs after the first, which are keyword arguments of the function.
    :param rowwise: the user says that every row comes from one row of the input, whatever other rows are there.
    :param version: the user's name for what the code does; part of the topology's definition.
    """

    batch_as = "one DataFrame"
    cure = (
        "Run the topology on Spark: engine='spark', which starts one in the task's process if no connection is named."
    )
    function: Any
    names: tuple[str, ...] = ()
    rowwise: bool = False
    version: str | None = None

    @property
    def said(self) -> str:
        """A description without its inputs."""
        if isinstance(self.function, SqlQuery):
            return self.function.shown
        return f"{function_name(self.function)}" + (f", version {self.version}" if self.version is not None else "")

    @property
    def what(self) -> str:
        first, *others = self.inputs or (None,)
        given = [first.name] if isinstance(first, Node) else []
        given += [f"{name}={one.name}" for name, one in zip(self.names, others, strict=False) if one is not None]
        return f"{self.said} of DataFrames {', '.join(given)}{', row by row' if self.rowwise else ''}"

    @property
    def recorded(self) -> str | None:
        """Its text in the topology's definition: a query's text, or a function's version. None: no text, so a changed
        function makes no new topology."""
        if not isinstance(self.function, SqlQuery) and self.version is None:
            return None
        if len(self.said) <= _LONG:
            return self.said
        return f"{self.said[:_LONG]}... sha256 {hashlib.sha256(self.said.encode()).hexdigest()}"


def code_of(sinks: Iterable[Node]) -> dict[str, str]:
    """Node -> a digest of the source text, in this process, of the users' code that it runs while a batch is processed:
    it tells people that other code made a batch. Not part of the definition: a changed function makes no new topology.
    Code without source is left out, and so is that of this package."""
    found = {}
    for node in ordered(sinks):
        written = [getattr(code, "user_function", code) for code in _users_code(node)]
        kinds: list[Any] = [code if hasattr(code, "__code__") else type(code) for code in written]
        own = [kind for kind in kinds if not str(getattr(kind, "__module__", "")).startswith(_PACKAGE)]
        digests = [_source_digest(kind) for kind in own]
        if digests and all(digests):
            found[node.name] = digests[0] if len(digests) == 1 else _digest("".join(digests))
    return found


def _users_code(node: Node) -> Iterator[object]:
    function = getattr(node, "function", None)
    if function is not None and not isinstance(function, SqlQuery):
        yield function
    if isinstance(node, MultiReduceNode | MultiReduceStepNode):
        yield node.reducer
    for aggregation in getattr(node, "aggregations", ()):
        yield aggregation.aggregator
    if isinstance(node, PersistNode):
        yield from node.state.combiners


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@lru_cache(maxsize=256)
def _source_digest(kind: Any) -> str:
    """The digest; "" if there is no source, or the file was changed since, and there is something else at the
    function's lines. Cached, because finding the source parses the file, and a drain asks for each transaction."""
    with suppress(OSError, TypeError, SyntaxError, TokenError):
        return _digest(inspect.getsource(kind))
    return ""


def changed_code(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The nodes whose code is different, as far as both digests are known."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def recorded_transforms(sink: Node) -> tuple[str, ...]:
    """What the definition of a state says about the transforms that its rows come from."""
    found = (one.recorded for one in ordered([sink]) if isinstance(one, TransformNode))
    return tuple(sorted({text for text in found if text is not None}))


def require_partitions_known(sinks: Iterable[Node]) -> None:
    """Spark decides anew each time how many partitions come out of a transform, and which rows are together.

    :raises PlanError: a node that works on whole partitions follows a transform without a repartition in between.
    """
    for node in ordered(sinks):
        identity = isinstance(node, PartitionNode) and node.grouping is Grouping.IDENTITY
        if not (node.whole_partitions or identity):
            continue
        transform = _straight_above(node)
        if transform is not None:
            raise PlanError(
                f"{node.name} works on whole partitions, and what comes out of {transform.name} has none that mean "
                "anything: Spark cuts it as it likes",
                f"Put shuffle(), partition_by() or global_() behind {transform.name}, or aggregate by group.",
            )


def _straight_above(node: Node) -> TransformNode | None:
    waiting = list(node.inputs)
    while waiting:
        one = waiting.pop()
        if isinstance(one, TransformNode):
            return one
        stays = isinstance(one, PartitionNode) and one.grouping.stays
        if not one.moves or stays:
            waiting += one.inputs
    return None
