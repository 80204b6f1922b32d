"""The fused pass: runs a chain of plan nodes over Arrow batches at once.

Between two nodes there is neither Arrow nor another process, only Python lists of the columns that a later node reads.
The local engine and Spark's Python workers run it; it depends on neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import GeneratorType, NoneType
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.fused.aggregate import AggregateStep, aggregate
from airflow_trident.engine.fused.arrow_expressions import ArrowExpression
from airflow_trident.engine.fused.frames import BATCH_ROWS, Column, Frame, Guard
from airflow_trident.engine.fused.joins import join, multi_reduce
from airflow_trident.engine.fused.measuring import Gauges
from airflow_trident.engine.key_limit import NO_LIMIT, KeyLimit
from airflow_trident.engine.state_queries import state_query
from airflow_trident.errors import UnknownNodeError, is_raised
from airflow_trident.io.arrow import columns_of
from airflow_trident.io.values import UnfitValueError, coerce_column
from airflow_trident.operations import user_code
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.interfaces import Joiner, OperationContext, VectorFilter, VectorFunction
from airflow_trident.operations.user_code import Border, as_tuple, prepared
from airflow_trident.operations.user_functions import callable_of, function_name
from airflow_trident.plan.graph import Node, ProcessorNode, brings_pass
from airflow_trident.plan.nodes import (
    CheckNode,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    MapNode,
    MultiReduceStepNode,
    PartialAggregateNode,
    PartitionAggregateNode,
    PeekNode,
    ProjectNode,
    StateQueryNode,
)
from airflow_trident.process_settings import Watch
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa

_ITERABLES = frozenset({list, GeneratorType})


@dataclass(frozen=True)
class PassStep:
    """A node without its inputs (otherwise the whole graph above would be pickled with it), and the fields it reads."""

    node: Node
    before: Schema

    @classmethod
    def of(cls, node: Node) -> PassStep:
        return cls(replace(node, inputs=()), node.input.schema)


@dataclass(frozen=True)
class FusedPass:
    """Picklable. Call it with the batches of one partition; it gives batches of the last node's schema. `max_keys`: so
    many keys of a partition may be in memory at once."""

    steps: tuple[PassStep, ...]
    before: Schema
    max_keys: int = NO_LIMIT

    @classmethod
    def of(cls, nodes: Sequence[Node], before: Schema, max_keys: int = NO_LIMIT) -> FusedPass:
        """:param before: the schema of the input rows."""
        return cls(tuple(PassStep.of(node) for node in nodes), before, max_keys)

    def then(self, other: FusedPass) -> FusedPass:
        """Both passes, one after the other, in one."""
        return FusedPass((*self.steps, *other.steps), self.before, self.max_keys)

    @property
    def schema(self) -> Schema:
        return self.steps[-1].node.schema if self.steps else self.before

    @property
    def reads(self) -> frozenset[str]:
        """The input fields that are used at all."""
        return self._keeps()[0]

    def __call__(
        self,
        batches: Iterable[pa.RecordBatch],
        context: OperationContext,
        guard: Guard | None = None,
        gauges: Gauges | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        :param guard: wraps the tuples on their way to users' functions; its errors end the pass.
        :param gauges: what checks measure goes there, and is complete when the pass has ended; None: they measure
            nothing.
        :raises UserCodeError: a user's function raised, or returned something undeclared.
        :raises ConfigurationError: the partition has more keys than `max_keys` where Python holds them all.
        """
        keeps = self._keeps()
        frames: Iterator[Frame] = (Frame.of_batch(batch, keeps[0]) for batch in batches if batch.num_rows)
        for step, keep in zip(self.steps, keeps[1:], strict=True):
            at = _At(step.before, keep, context, self.max_keys, gauges)
            frames = _run(step.node, at, frames if guard is None else _guarded(frames, guard))
        for frame in frames:
            yield from frame.batches(self.schema)

    @property
    def checks(self) -> bool:
        """Does it measure rules?"""
        return any(isinstance(step.node, CheckNode) for step in self.steps)

    def _keeps(self) -> list[frozenset[str]]:
        """The fields needed before the first step and after each; no others are carried along."""
        keeps = [frozenset(names_of(self.schema))]
        for step in reversed(self.steps):
            keeps.append(step.node.needs(step.before, keeps[-1]))
        return keeps[::-1]


def _guarded(frames: Iterator[Frame], guard: Guard) -> Iterator[Frame]:
    for frame in guard(frames):
        frame.guard = guard
        yield frame


@dataclass(frozen=True)
class _At:
    """Where a node runs. `before`: schema of the input; `keep`: the fields that a later node needs."""

    before: Schema
    keep: frozenset[str]
    context: OperationContext
    max_keys: int
    gauges: Gauges | None = None


def _run(node: Node, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    """:raises UnknownNodeError: no pass can run such a node."""
    for kind, run in RUNS.items():
        if kind is type(node):
            return run(node, at, frames)
    if brings_pass(node):
        return node.run(at.keep, at.context, frames)
    raise UnknownNodeError(node.name, type(node).__name__, "a fused pass")


# ---- calling ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Caller:
    """Calls one user function, or an expression in its place, for the rows of frames."""

    border: Border
    call: Callable[..., Any]
    reads: tuple[str, ...]
    function: Any = None

    def each(self, frame: Frame) -> list[Any]:
        """The function's result for every row, unchanged."""
        call, results = self.call, list[Any]()
        with self._guard(frame, results):
            for values in frame.tuples(self.reads):
                results.append(call(*values))
        return results

    def settled(self, frame: Frame, usual: type, settle: Callable[[tuple[Any, ...], Any], Any]) -> list[Any]:
        """The function's result for every row; one that is not of the usual class as `settle(row, result)` has it."""
        call, results = self.call, list[Any]()
        with self._guard(frame, results):
            for values in frame.tuples(self.reads):
                outcome = call(*values)
                results.append(outcome if outcome.__class__ is usual else settle(values, outcome))
        return results

    def spread(self, frame: Frame) -> tuple[list[Any], list[int]]:
        """All outputs of all rows, and their running count after each row."""
        call, outputs, ends = self.call, list[Any](), list[int]()
        with self._guard(frame, ends):
            for values in frame.tuples(self.reads):
                outcome = call(*values)
                if outcome.__class__ not in _ITERABLES:
                    self.border.require_iterable(values, outcome)
                outputs.extend(outcome)
                ends.append(len(outputs))
        return outputs, ends

    def _guard(self, frame: Frame, done: Sequence[Any]) -> _Guard:
        return _Guard(self, frame, done)

    def columns(self, frame: Frame, outputs: list[Any], schema: Schema, ends: Sequence[int] = ()) -> dict[str, Column]:
        """Outputs as columns of the declared fields.

        :param ends: the running count of outputs per row, if it is not one each.
        """
        places = self._split(frame, outputs, len(schema), ends)
        columns: dict[str, Column] = {}
        for field, values in zip(schema, places, strict=True):
            try:
                columns[field.name] = list(coerce_column(values, field.type))
            except UnfitValueError as error:
                row = self._row(frame, error.position, ends)
                raise self.border.error(row, f"gave {error}") from error
        return columns

    def _split(self, frame: Frame, outputs: list[Any], arity: int, ends: Sequence[int]) -> list[list[Any]]:
        kinds = set(map(type, outputs))
        if arity == 1 and not any(issubclass(kind, tuple) for kind in kinds):
            return [outputs]
        if kinds <= {tuple} and set(map(len, outputs)) <= {arity}:
            return columns_of(outputs, arity)
        whole = []
        for position, output in enumerate(outputs):
            output_tuple = as_tuple(output, arity)
            if output_tuple is None:
                raise self.border.wrong_arity(self._row(frame, position, ends), output, arity)
            whole.append(output_tuple)
        return columns_of(whole, arity)

    def _row(self, frame: Frame, position: int, ends: Sequence[int]) -> tuple[Any, ...]:
        import numpy as np

        index = int(np.searchsorted(ends, position, side="right")) if len(ends) else position
        return frame.row(self.reads, index)


@dataclass(frozen=True)
class _Guard(AbstractContextManager[None]):
    """Turns an error of the user's code into a UserCodeError with its row. Wraps the whole loop: no cost per row."""

    caller: _Caller
    frame: Frame
    done: Sequence[Any]
    watch: Watch = dataclasses.field(default_factory=lambda: Watch(quick=True))

    def __enter__(self) -> None:
        self.watch.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.watch.__exit__(kind, error, trace)
        if error is None:
            self.caller.border.require_unchanged(self.watch)
        elif is_raised(error):
            row = self.frame.row(self.caller.reads, len(self.done))
            self.caller.border.translate(row, error)


@contextmanager
def _calling(node: EachNode | FilterNode | MapNode | PeekNode, at: _At, reads: tuple[str, ...]) -> Iterator[_Caller]:
    expression = node.expression if isinstance(node, EachNode | FilterNode) else None
    if expression is not None:
        border = Border(node.name, str(expression), expression.reads, at.context.txid)
        yield _Caller(border, bind(expression, at.before), expression.reads)
        return
    border = Border(node.name, function_name(node.function), reads, at.context.txid)
    with prepared(node.function, at.context, border) as function:
        yield _Caller(border, callable_of(function), reads, function)


def _by_arrow(node: EachNode | FilterNode, at: _At, wanted: str) -> ArrowExpression | None:
    return None if node.expression is None else ArrowExpression.of(node.expression, at.before, wanted)


def _arrays(at: _At, frame: Frame, names: Sequence[str]) -> list[pa.Array]:
    types = {field.name: field.type for field in at.before}
    return [frame.arrow(name, types[name]) for name in names]


def _vectors(
    at: _At, caller: _Caller, outputs: Schema, frames: Iterator[Frame]
) -> Iterator[tuple[Frame, dict[str, Column]]]:
    """Each frame with the results of a vectorised function, which is never called without tuples."""
    for frame in frames:
        if not frame.rows:
            continue
        arrays = _arrays(at, frame, caller.reads)
        columns = user_code.called(caller.function, caller.border, arrays, frame.rows, outputs)
        yield frame, dict(zip(names_of(outputs), columns, strict=True))


# ---- the nodes -------------------------------------------------------------------------------------------------


def _each(node: EachNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    import numpy as np

    one_each = node.expression is not None and not node.expression.is_explode
    by_arrow = _by_arrow(node, at, node.outputs[0].type) if one_each else None
    with _calling(node, at, node.reads) as caller:
        if isinstance(node.function, VectorFunction):
            for frame, vectors in _vectors(at, caller, node.outputs, frames):
                yield frame.with_columns(vectors).only(at.keep)
            return
        for frame in frames:
            if one_each:
                values = None if by_arrow is None else by_arrow.values(frame)
                columns = (
                    {node.outputs[0].name: values}
                    if values is not None
                    else caller.columns(frame, caller.each(frame), node.outputs)
                )
                yield frame.with_columns(columns).only(at.keep)
                continue
            outputs, ends = caller.spread(frame)
            columns = caller.columns(frame, outputs, node.outputs, ends)
            if len(outputs) == frame.rows and ends[-1:] == [frame.rows] and _is_ramp(ends):
                yield frame.with_columns(columns).only(at.keep)
                continue
            counts: Any = np.diff(np.asarray(ends, dtype=np.int64), prepend=0)
            kept = frame.take(np.repeat(np.arange(frame.rows), counts), at.keep)
            yield kept.with_columns(columns).only(at.keep)


def _is_ramp(ends: list[int]) -> bool:
    """One output per row?"""
    return ends == list(range(1, len(ends) + 1))


def _filter(node: FilterNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    import numpy as np

    by_arrow = _by_arrow(node, at, "boolean")
    with _calling(node, at, node.reads) as caller:
        for frame in frames:
            if not frame.rows:
                continue
            mask = None if by_arrow is None else by_arrow.values(frame)
            if isinstance(caller.function, VectorFilter):
                mask = user_code.kept(caller.function, caller.border, _arrays(at, frame, node.reads), frame.rows)
            if mask is not None:
                kept = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
            else:
                kept = np.flatnonzero(caller.settled(frame, bool, caller.border.truth))
            yield frame.only(at.keep) if len(kept) == frame.rows else frame.take(kept, at.keep)


def _map(node: MapNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    with _calling(node, at, names_of(at.before)) as caller:
        if isinstance(node.function, VectorFunction):
            for frame, vectors in _vectors(at, caller, node.schema, frames):
                yield Frame(frame.rows, vectors)
            return
        for frame in frames:
            outputs, ends = caller.spread(frame) if node.flat else (caller.each(frame), [])
            yield Frame(len(outputs), caller.columns(frame, outputs, node.schema, ends))


def _peek(node: PeekNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    with _calling(node, at, node.reads) as caller:
        for frame in frames:
            caller.settled(frame, NoneType, caller.border.require_done)
            yield frame.only(at.keep)


def _check(node: CheckNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    gauge = at.gauges.gauge(node, at.before, at.context.txid) if at.gauges is not None else None
    for frame in frames:
        if gauge is not None and frame.rows:
            gauge.add(frame)
        yield frame.only(at.keep)


def _project(_: ProjectNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    return (frame.only(at.keep) for frame in frames)


def _aggregate(node: AggregateStep, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    return aggregate(node, at.before, frames, at.context, at.max_keys)


def _state_query(node: StateQueryNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    names = names_of(at.before)
    chunks = (list(frame.tuples(names)) for frame in frames)
    for rows in state_query(node, names, chunks, at.context):
        yield Frame.of_rows(rows, names_of(node.schema))


def _multi_reduce(node: MultiReduceStepNode, at: _At, frames: Iterator[Frame]) -> Iterator[Frame]:
    if isinstance(node.reducer, Joiner):
        yield from join(node, node.reducer, at.before, frames, KeyLimit(node.name, at.max_keys, at.context))
        return
    names = names_of(at.before)
    rows = (row for frame in frames for row in frame.tuples(names))
    results = multi_reduce(node, at.before, rows, at.context, at.max_keys)
    while some := list(islice(results, BATCH_ROWS)):
        yield Frame.of_rows(some, names_of(node.schema))


RUNS: dict[type[ProcessorNode], Callable[[Any, _At, Iterator[Frame]], Iterator[Frame]]] = {
    EachNode: _each,
    FilterNode: _filter,
    MapNode: _map,
    PeekNode: _peek,
    CheckNode: _check,
    ProjectNode: _project,
    StateQueryNode: _state_query,
    MultiReduceStepNode: _multi_reduce,
    PartialAggregateNode: _aggregate,
    PartitionAggregateNode: _aggregate,
    FinalAggregateNode: _aggregate,
}
"""The function that runs each kind of node that brings no pass of its own."""
