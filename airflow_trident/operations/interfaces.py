"""What users write: functions, filters and aggregators, after Storm Trident's operation interfaces.

All of them must be picklable: they travel to Spark executors. None is called while a DAG is parsed.

Groupings that users write, after Storm's CustomStreamGrouping.

What a DataFrame function may know about its transaction.

Reducers over several streams at once, and the joining reducer (Trident: MultiReducer, JoinerMultiReducer).

Functions of whole columns: vectorised forms of Function and Filter, for work that Arrow or NumPy does at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_trident.types import FieldSpec, Json, joined_specs, parse_names

if TYPE_CHECKING:
    import pyarrow as pa

A = TypeVar("A")
S = TypeVar("S", bound=Any)


@dataclass(frozen=True, slots=True)
class OperationContext:
    """Where an operation runs (Trident: TridentOperationContext)."""

    partition_index: int
    num_partitions: int
    txid: int
    attempt: int
    topology: str = ""


@dataclass(frozen=True, slots=True)
class TransactionAttempt:
    """The identity of a batch (Storm: TransactionAttempt)."""

    txid: int
    attempt: int


class Operation:
    """Base class: `prepare` runs once per partition and attempt before the first tuple, `cleanup` after the last.

    `output_types` may declare the types of the emitted fields (``"string, long"``); by default the return annotation of
    the method says them.
    """

    output_types: FieldSpec = ()

    def prepare(self, context: OperationContext) -> None:
        """Open what is needed."""

    def cleanup(self) -> None:
        """Close it."""


class MakesNode(ABC):
    """An object in the place of a function, which makes a node of its own kind."""

    @abstractmethod
    def each_of(self, stream: S, reads: tuple[str, ...], outputs: FieldSpec) -> S:
        """For the verb `each`: the stream with the outputs appended to its tuples."""

    @abstractmethod
    def map_of(self, stream: S, verb: str, outputs: FieldSpec | None) -> S:
        """For the verbs `map` and `flat_map`: the outputs in place of the tuples."""


class Function(Operation, ABC):
    """Zero, one or many outputs per tuple; they are appended to it (Trident: Function in `each`)."""

    @abstractmethod
    def execute(self, *values: Any) -> Iterable[Any]:
        """Yield outputs for one tuple: a bare value if one field is declared, else a tuple of values."""


class Filter(Operation, ABC):
    """Keeps or drops a tuple."""

    @abstractmethod
    def is_keep(self, *values: Any) -> bool: ...


class MergeKind(StrEnum):
    """How two partial values of a built-in combiner become one: engines and stores do these natively."""

    ADD = "add"
    MIN = "min"
    MAX = "max"


class OfFields:
    """An aggregator that may name the fields that it reads: ``aggregate(total=Sum("price"))``."""

    inputs: tuple[str, ...] = ()

    def __init__(self, *inputs: FieldSpec) -> None:
        if inputs:
            self.inputs = parse_names(joined_specs(*inputs))


class CombinerAggregator(Operation, ABC, Generic[A]):
    """Aggregates by combining partial values: `combine` must be associative and commutative, `zero` its identity.

    Engines combine partial values before every shuffle. `persistent_aggregate` combines the result with the stored
    value at commit.
    """

    merge_kind: MergeKind | None = None
    """Set by built-ins only. A subclass that overrides how values combine loses it: engines would not call the
    override."""
    commutes: bool = True
    """May a late (backfilled) batch be combined out of order?"""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        said_by = next(place for place, parent in enumerate(cls.__mro__) if "merge_kind" in vars(parent))
        if any(
            name in vars(parent) for parent in cls.__mro__[:said_by] for name in ("init", "combine", "zero", "_pick")
        ):
            cls.merge_kind = None

    @abstractmethod
    def init(self, *values: Any) -> A:
        """The value of one tuple."""

    @abstractmethod
    def combine(self, left: A, right: A) -> A: ...

    @abstractmethod
    def zero(self) -> A:
        """The value of no tuples."""

    def result_type(self, input_types: tuple[str, ...]) -> str | None:
        """DDL type of the result, or None to take `output_types` or the annotation of `combine`."""
        return None


class ReducerAggregator(Operation, ABC, Generic[A]):
    """Aggregates by folding tuples one at a time into a value; order within a batch is not defined."""

    commutes: bool = False

    @abstractmethod
    def init(self) -> A: ...

    @abstractmethod
    def reduce(self, current: A, *values: Any) -> A: ...


class Collector(Protocol):
    """Where an aggregator or a multi-reducer emits (Trident: TridentCollector)."""

    def emit(self, *values: Any) -> None:
        """One output: a value for each declared field."""


class Aggregator(Operation, ABC, Generic[A]):
    """Aggregates in any way, with any number of outputs at any time (Trident: Aggregator).

    All tuples of a group must first come to one place, so a combiner is cheaper. Order within a batch is not defined.
    """

    @abstractmethod
    def init(self, batch: TransactionAttempt, collector: Collector) -> A:
        """The state of a group without tuples. It must be mutable: `aggregate` changes it."""

    @abstractmethod
    def aggregate(self, state: A, collector: Collector, *values: Any) -> None:
        """Process one tuple."""

    @abstractmethod
    def complete(self, state: A, collector: Collector) -> None:
        """Called after the last tuple."""

    def result_type(self, input_types: tuple[str, ...]) -> str | None:
        """DDL types of the emitted fields; None: `output_types` says them."""
        return None


class CustomGrouping(Operation, ABC):
    """Chooses the partitions of a tuple: one, several, or none, which drops the tuple."""

    @abstractmethod
    def choose_partitions(self, num_partitions: int, *values: Any) -> Iterable[int]:
        """Partition numbers from 0 to ``num_partitions - 1`` for a tuple with these values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """Given to a transform that has a parameter `context`.

    `time_ms`: of the transaction, in milliseconds since 1970: when its run was due, or when it began. Every attempt has
    the same, unlike `current_timestamp()`. `metadata`: stream -> what its spout recorded, for streams with data in this
    batch.
    """

    topology: str
    txid: int
    attempt: int
    time_ms: int
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """`time_ms` in UTC, for a literal column."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)


class MultiReducer(Operation, ABC, Generic[S]):
    """Takes the tuples of several streams, partition by partition. There is no order between streams or tuples."""

    @abstractmethod
    def init(self, collector: Collector) -> S:
        """The state of a partition without tuples. It must be mutable: `execute` changes it."""

    @abstractmethod
    def execute(self, state: S, stream_index: int, collector: Collector, *values: Any) -> None:
        """Process one tuple of the stream at `stream_index`."""

    @abstractmethod
    def complete(self, state: S, collector: Collector) -> None:
        """Called after the last tuple."""


class GroupedMultiReducer(Operation, ABC, Generic[S]):
    """Takes the tuples of several streams, group by group; `group` holds the values of the group fields."""

    @abstractmethod
    def init(self, group: tuple[Any, ...], collector: Collector) -> S: ...

    @abstractmethod
    def execute(
        self, state: S, stream_index: int, group: tuple[Any, ...], collector: Collector, *values: Any
    ) -> None: ...

    @abstractmethod
    def complete(self, state: S, group: tuple[Any, ...], collector: Collector) -> None: ...


class JoinType(StrEnum):
    """What a join asks of a side. INNER: it must have a tuple. OUTER: the tuple may be missing; its fields are then
    null.

    Trident's convention: a left outer join is ``[JoinType.INNER, JoinType.OUTER]``.
    """

    INNER = "inner"
    OUTER = "outer"


class JoinOutFieldsMode(StrEnum):
    """COMPACT: the join fields once, then the others of every stream. PRESERVE: all fields of every stream."""

    COMPACT = "compact"
    PRESERVE = "preserve"


@dataclass(frozen=True)
class Joiner(GroupedMultiReducer[tuple[list[tuple[Any, ...]], ...]]):
    """Joins the tuples of one group. `values`: the fields of a side without the join fields.

    `layout`, for PRESERVE: the fields of each side in order, as ``(is a join field, place among those or the others)``.
    """

    types: tuple[JoinType, ...]
    widths: tuple[int, ...]
    mode: JoinOutFieldsMode
    layout: tuple[tuple[tuple[bool, int], ...], ...]

    def describe(self) -> str:
        return f"{' '.join(self.types)} {self.mode}"

    def init(self, group: tuple[Any, ...], collector: Collector) -> tuple[list[tuple[Any, ...]], ...]:
        return tuple([] for _ in self.types)

    def execute(
        self,
        state: tuple[list[tuple[Any, ...]], ...],
        stream_index: int,
        group: tuple[Any, ...],
        collector: Collector,
        *values: Any,
    ) -> None:
        state[stream_index].append(values)

    def complete(self, state: tuple[list[tuple[Any, ...]], ...], group: tuple[Any, ...], collector: Collector) -> None:
        if any(not rows and kind is JoinType.INNER for rows, kind in zip(state, self.types, strict=True)):
            return
        nothing: list[tuple[Any, ...] | None] = [None]
        for rows in product(*(side or nothing for side in state)):
            collector.emit(*self._joined(group, rows))

    def _joined(self, group: tuple[Any, ...], rows: tuple[tuple[Any, ...] | None, ...]) -> tuple[Any, ...]:
        joined: list[Any] = []
        if self.mode is JoinOutFieldsMode.COMPACT:
            joined.extend(group)
            for width, row in zip(self.widths, rows, strict=True):
                joined.extend((None,) * width if row is None else row)
            return tuple(joined)
        for places, row in zip(self.layout, rows, strict=True):
            for is_key, place in places:
                joined.append(None if row is None else (group if is_key else row)[place])
        return tuple(joined)


class VectorFunction(Operation, ABC):
    """Like a Function with one output per tuple, for `each` and `map`, but for many tuples at a time.

    The output for a tuple must not depend on the other tuples: how many come at a time is not defined.
    """

    @abstractmethod
    def execute(self, *columns: pa.Array) -> Any:
        """A pyarrow or NumPy array with a value for every tuple; a tuple of arrays if several fields are declared."""


class VectorFilter(Operation, ABC):
    """Like a Filter, for many tuples at a time."""

    @abstractmethod
    def is_keep(self, *columns: pa.Array) -> Any:
        """A boolean for every tuple; null drops it."""
