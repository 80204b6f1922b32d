"""Streams with group fields."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateFactory
from airflow_trident.operations.windows import DEFAULT_MAX_AHEAD, WindowConfig, sliding, tumbling
from airflow_trident.topology.chained import ChainedAggregatorDeclarer
from airflow_trident.topology.state import TridentState
from airflow_trident.types import FieldSpec

if TYPE_CHECKING:
    from airflow_trident.operations.queries import QueryFunction
    from airflow_trident.topology.querying import StaticState
    from airflow_trident.topology.stream import Stream


class GroupedStream:
    """A stream with group fields (Trident: GroupedStream)."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def keys(self) -> tuple[str, ...]:
        """The group fields."""
        return self._keys

    def aggregate(self, *what: Any) -> Stream:
        """One tuple per group of the batch: ``group_by("word").aggregate(Count(), "n")``."""
        return self._stream._aggregate(self._keys, what)

    def partition_aggregate(self, *what: Any) -> Stream:
        """Aggregate the groups of each partition for itself."""
        return self._stream._partition_aggregate(self._keys, what)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Several aggregators of each group in one pass; see `Stream.chained_agg`."""
        return ChainedAggregatorDeclarer(self._stream, self._keys)

    def persistent_aggregate(self, state: StateFactory, *what: Any, name: str | None = None) -> TridentState:
        """Aggregate all batches into one stored row per group."""
        return self._stream._persistent_aggregate(self._keys, state, what, name)

    def state_query(
        self,
        state: TridentState | StaticState,
        inputs: FieldSpec,
        function: QueryFunction,
        outputs: FieldSpec,
        *,
        after_commit: bool = False,
    ) -> Stream:
        """As `Stream.state_query`, with the tuples of a group in one partition: each key is asked for in one place."""
        together = self._stream.partition_by(list(self._keys))
        return together.state_query(state, inputs, function, outputs, after_commit=after_commit)

    def __repr__(self) -> str:
        return f"GroupedStream({', '.join(self._keys)} of {self._stream!r})"

    # ---- windows -----------------------------------------------------------------------------------------------

    def tumbling_window(self, length: int | timedelta, state: StateFactory, *what: Any, **options: Any) -> Stream:
        """As `Stream.tumbling_window`, aggregated by group: the window is one of the whole stream."""
        return self.window(tumbling(length), state, *what, **options)

    def sliding_window(
        self, length: int | timedelta, slide: int | timedelta, state: StateFactory, *what: Any, **options: Any
    ) -> Stream:
        """As `Stream.sliding_window`, aggregated by group: the window is one of the whole stream."""
        return self.window(sliding(length, slide), state, *what, **options)

    def window(
        self,
        config: WindowConfig,
        state: StateFactory,
        *what: Any,
        time: str | None = None,
        lag: timedelta = timedelta(0),
        max_ahead: timedelta | None = DEFAULT_MAX_AHEAD,
        bounds: bool = False,
        name: str | None = None,
    ) -> Stream:
        """As `Stream.window`, aggregated by group: the window is one of the whole stream."""
        return self._stream._window(
            self._keys, config, state, what, time=time, lag=lag, max_ahead=max_ahead, bounds=bounds, name=name
        )
