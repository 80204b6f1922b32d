"""What users write: functions, filters and aggregators, after Storm Trident's operation interfaces.

All of them must be picklable: they travel to Spark executors. None is called while a DAG is parsed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from airflow_trident.types import FieldSpec

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
