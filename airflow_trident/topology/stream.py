"""Streams: handles on nodes of the plan, with Trident's verbs in Python spelling.

Every verb returns a new stream and does not change the old one. Fields are named by text (``"a, b"``) or a list.
Functions, filters and updaters are objects of the classes in `airflow_trident.operations` or plain functions. The
verbs are implemented in :mod:`airflow_trident.topology.verbs`, one module for each family.

Verbs that return a stream of the same class: on single tuples, on whole DataFrames in Spark, and repartitioning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from airflow_trident.contracts.state import StateFactory
from airflow_trident.operations.aggregators import Comparator
from airflow_trident.operations.expressions import Expression
from airflow_trident.operations.interfaces import CustomGrouping
from airflow_trident.operations.state_functions import MakesStateful, QueryFunction, StatefulFunction
from airflow_trident.plan.graph import Grouping
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.topology.stream_base import GroupedBase, StateHandle, StaticState, StreamBase
from airflow_trident.topology.verbs import aggregate, rows, states
from airflow_trident.topology.verbs.aggregate import Chain, Scope
from airflow_trident.types import FieldSpec, joined_specs

if TYPE_CHECKING:
    from airflow_trident.contracts.updater import Updater
    from airflow_trident.operations.rules import BatchCheck, Expectation
    from airflow_trident.operations.windows import WindowConfig
    from airflow_trident.topology.verbs.window import WindowOptions


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
        return rows.each(self, inputs, function, outputs)

    def filter(self, inputs: FieldSpec | Expression | Any, filter: Any = None) -> Self:
        """Keep the tuples for which `filter` is true.

        ``filter("word", NotEmpty())``, ``filter(NotEmpty())`` (all fields), ``filter(col("n") > 0)``. Null counts as
        false.
        """
        return rows.filter(self, inputs, filter)

    def map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by ``function(*values)``: one value, or a tuple of values for several fields.

        :param outputs: the new fields; default: names and types stay as they are.
        """
        return rows.map(self, "map", function, outputs)

    def flat_map(self, function: Any, outputs: FieldSpec | None = None) -> Self:
        """Replace every tuple by each element of ``function(*values)``."""
        return rows.map(self, "flat_map", function, outputs)

    def project(self, *fields: FieldSpec) -> Self:
        """Keep these fields, in this order: ``project("day", "sku")`` or ``project("day, sku")``."""
        return rows.project(self, joined_specs(*fields))

    def peek(self, inputs: FieldSpec | Any, consumer: Any = None) -> Self:
        """Call `consumer` for every tuple and pass the tuple on unchanged: ``peek(Debug())``.

        A repeated attempt calls it again for the same tuple. Without `inputs` it gets all fields.
        """
        return rows.peek(self, inputs, consumer)

    def expect(self, *rules: Expectation | BatchCheck) -> Self:
        """Gate each batch by rules about the tuples here, which pass on unchanged: ``expect(expect("paid", col("cents")
        > 0), check("volume", "row_count", geq_to=1))``, with `expect` and `check` of `airflow_trident.functions`.

        The rules are measured in the pass that processes the batch. If one of severity ``error`` does not hold, the
        transaction is FAILED (GateFailedError) before anything of it is published.

        :raises PlanError: two rules have one name, or the stream belongs to the commit phase or to a query.
        :raises FieldError: a field is unknown, or of a type that the rule cannot take.
        """
        from airflow_trident.topology.verbs import expectations

        return expectations.expect(self, rules)

    def apply_assembly(self, assembly: Callable[[Self], Self]) -> Self:
        """Apply a function, or an object with ``apply(stream)``, to this stream (Trident: Assembly)."""
        return rows.assembled(self, assembly)

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
        from airflow_trident.topology.verbs import transform

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
        from airflow_trident.topology.verbs import transform

        return transform.sql(self, text, fields, others)

    # ---- repartitioning ----------------------------------------------------------------------------------------

    def partition_by(self, *fields: FieldSpec) -> Self:
        """Bring tuples with equal values of `fields` into one partition."""
        return rows.partition_by(self, joined_specs(*fields))

    def shuffle(self) -> Self:
        """Spread tuples evenly over the partitions."""
        return rows.repartition(self, "shuffle", Grouping.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Any distribution is allowed: tuples stay where they are."""
        return rows.repartition(self, "local_or_shuffle", Grouping.LOCAL_OR_SHUFFLE)

    def global_(self) -> Self:
        """Bring all tuples into one partition (Trident: global)."""
        return rows.repartition(self, "global", Grouping.GLOBAL)

    def batch_global(self) -> Self:
        """Bring all tuples of the batch into one partition."""
        return rows.repartition(self, "batch_global", Grouping.BATCH_GLOBAL)

    def broadcast(self) -> Self:
        """Bring every tuple into every partition."""
        return rows.repartition(self, "broadcast", Grouping.BROADCAST)

    def identity_partition(self) -> Self:
        """Partition i stays partition i: nothing moves."""
        return rows.repartition(self, "identity_partition", Grouping.IDENTITY)

    def partition(self, grouping: CustomGrouping) -> Self:
        """Let `grouping` choose the partition of each tuple."""
        return rows.partition(self, grouping)

    def parallelism_hint(self, partitions: int) -> Self:
        """Set the number of partitions of this node and of all nodes that no repartition separates from it. The largest
        of several hints counts. Returns the same stream (Trident: parallelismHint). A source never has more partitions
        than splits."""
        return rows.parallelism_hint(self, partitions)

    def set_cpu_load(self, percent: float) -> Self:
        """How much of a core the node's work on one partition needs; see `Topology.spark_conf`."""
        return rows.set_cpu_load(self, percent)

    def set_memory_load(self, megabytes: float) -> Self:
        """How much memory the node's work on one partition needs; see `Topology.spark_conf`."""
        return rows.set_memory_load(self, megabytes)


Extent: TypeAlias = int | timedelta
"""The length or slide of a window: a number of tuples, or a duration."""


class Stream(TupleStream):
    """A stream of batches of tuples (Trident: Stream)."""

    # ---- aggregations ------------------------------------------------------------------------------------------
    # One aggregation is ``aggregator, output`` or ``inputs, aggregator, output``. Several in one pass are tuples:
    # ``aggregate((Count(), "n"), ("price", Sum(), "total"))``. By name: ``aggregate(n=Count(), total=Sum("price"))``.

    def group_by(self, *fields: FieldSpec) -> GroupedStream:
        """Group by `fields`: ``group_by("day", "sku")`` or ``group_by("day, sku")``. Tuples only move when an
        aggregation follows (Trident: GroupedStream)."""
        return GroupedStream(self, aggregate.group_by(self, joined_specs(*fields)))

    def aggregate(self, *aggregation: Any, **by_output: Any) -> Stream:
        """Aggregate the whole batch, even an empty one: ``aggregate(n=Count(), total=Sum("price"))``, or, as Trident
        writes it, ``aggregate("price", Sum(), "total")``. Combiners and reducers give one tuple."""
        return aggregate.aggregate(self, Scope.ALL, (), aggregation, by_output)

    def partition_aggregate(self, *aggregation: Any, **by_output: Any) -> Stream:
        """Aggregate each partition separately, even an empty one."""
        return aggregate.aggregate(self, Scope.PARTITION, (), aggregation, by_output)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Several aggregators in one pass, as Trident writes it:
        ``chained_agg().aggregate(Count(), "n").aggregate("price", Sum(), "total").chain_end()``."""
        return ChainedAggregatorDeclarer(Chain(self))

    def min_by(self, field: FieldSpec, comparator: Comparator | None = None) -> Stream:
        """The tuple of each partition with the smallest value of a field. An empty partition gives none.

        Nulls are ignored. The later of equal tuples wins. For the smallest of the whole batch, use `global_()` before.
        """
        return aggregate.extreme(self, "min_by", field, comparator, sign=-1)

    def max_by(self, field: FieldSpec, comparator: Comparator | None = None) -> Stream:
        """As `min_by`, with the largest value."""
        return aggregate.extreme(self, "max_by", field, comparator, sign=1)

    def min(self, comparator: Comparator) -> Stream:
        """The smallest tuple of each partition; `comparator` gets two tuples of all fields."""
        return aggregate.extreme(self, "min", (), comparator, sign=-1)

    def max(self, comparator: Comparator) -> Stream:
        """The largest tuple of each partition; `comparator` gets two tuples of all fields."""
        return aggregate.extreme(self, "max", (), comparator, sign=1)

    # ---- states ------------------------------------------------------------------------------------------------

    def persistent_aggregate(
        self, state: StateFactory, *aggregation: Any, name: str | None = None, **by_output: Any
    ) -> TridentState:
        """Aggregate all batches into one stored row: ``persistent_aggregate(state, n=Count())``.

        :param name: the state's name, part of the topology's definition; default: the name of the output field.
        """
        return TridentState(self, states.persistent_aggregate(self, (), state, aggregation, name, by_output))

    def partition_persist(
        self,
        state: StateFactory,
        inputs: FieldSpec,
        updater: Updater | None = None,
        *,
        keys: FieldSpec | None = None,
        values: FieldSpec | None = None,
        order_by: FieldSpec | None = None,
        name: str | None = None,
    ) -> TridentState:
        """Give every batch's tuples to an updater of the state, in the commit phase (Trident: partitionPersist).

        ``partition_persist(state, "id, city, changed_at", keys="id", order_by="changed_at")`` keeps the newest city of
        each id.

        :param inputs: the fields that the updater gets.
        :param updater: a function ``updater(map_state, tuples)``, or a :class:`StateUpdater`. Default: :class:`MapPut`,
            which replaces the stored values of a key by those of its tuple. Two tuples of one batch with the same key
            and different values are then an error (UserCodeError), unless `order_by` says which one is newer.
        :param keys: the fields of `inputs` that are the key of the stored map. Sinks (FileSink, TableSink) append the
            tuples as they are: they take no keys, values or updater.
        :param values: the stored value fields with types; default: the rest of `inputs`. Without an updater they must
            be fields of `inputs`.
        :param order_by: only without an updater: fields of the stream, the most important first. The tuple of a key
            with the highest values is the newest of its batch; null is the lowest value. Across batches, the later
            transaction is newer.
        :raises PlanError: the arguments contradict each other, or the value fields could never be stored.
        """
        sink = states.partition_persist(self, state, inputs, updater, keys, values, order_by, name)
        return TridentState(self, sink)

    def persist_table(
        self,
        table: StateFactory,
        *,
        mode: str | None = None,
        keys: FieldSpec | None = None,
        order_by: FieldSpec | None = None,
        deleted: str | None = None,
        name: str | None = None,
    ) -> TridentState:
        """Append all fields of every tuple to a table that other programs may write, too:
        ``persist_table(DeltaTable(...))``.

        :param mode: ``append`` is the default. ``overwrite``: a batch replaces the content of the partitions that its
            tuples are in. ``rewrite``: a tuple replaces the row of its key. The processing phase writes the files
            anew in which the rows of the batch's keys are, one transaction at a time. A null in a key, or two different
            tuples of a key in a batch, fail in the processing phase (UserCodeError).
            In a topology that is bound to partitions a batch always replaces its partition: leave it out.
        :param keys: rewrite: the key fields.
        :param order_by: rewrite: fields that say which of several tuples of a key in one batch counts, as in
            `partition_persist`.
        :param deleted: rewrite: a boolean field. Where it is true, the key is deleted.
        :param name: of the state; default: ``rows``.
        :raises PlanError: `table` is no table, the mode is unknown, or an argument does not fit the mode.
        """
        usual = "append" if self.topology.replaced is None else "overwrite"
        how = states.TableMode(mode=mode or usual, keys=keys, order_by=order_by, deleted=deleted)
        return TridentState(self, states.persist_table(self, table, how, name))

    def stateful(
        self,
        inputs: FieldSpec,
        function: StatefulFunction[Any, Any] | MakesStateful,
        *,
        provider: StateFactory,
        keys: FieldSpec = (),
        outputs: FieldSpec = (),
        partitions: int = 1,
        name: str | None = None,
    ) -> TridentState:
        """Run a function with its own key-value state over every batch, in the commit phase: exactly once, in the
        order of transactions (Storm: IStatefulBolt).

        ``stateful("word", CountWords(), provider=KeyValueStates("sqlite", {"path": "counts.db"}))``

        :param inputs: the fields that `execute` gets.
        :param keys: the fields of `inputs` that decide a tuple's partition.
        :param outputs: the fields, with types, that `execute` yields. `new_values_stream()` continues with these tuples
            exactly once, because they are stored with the checkpoint. A BaseStatefulBolt declares the fields itself.
        :param partitions: how many states the function has; part of the topology's definition.
        :param name: of the state; default: the name of the function's class.
        """
        return TridentState(self, states.stateful(self, inputs, function, provider, keys, outputs, partitions, name))

    def state_query(
        self,
        state: TridentState | StaticState,
        inputs: FieldSpec,
        function: QueryFunction,
        outputs: FieldSpec,
        *,
        after_commit: bool = False,
    ) -> Stream:
        """Append to every tuple what a state answers: ``state_query(counts, "word", MapGet(), "n")``.

        In the processing phase the query reads what is committed at that moment: another attempt may read something
        else. In the commit phase (downstream of new values or a window) it reads after the batch was applied to the
        state, and a repeated commit reads the same.

        :param inputs: the fields that the query gets; for MapGet, the key.
        :param outputs: the new fields; types may be left out where the state determines them.
        :param after_commit: put this query, and everything downstream, into the commit phase.
        :raises PlanError: `state` is no state, `function` no query, a broadcast comes before, or `after_commit` is set
            for a state that this topology does not update.
        """
        from airflow_trident.topology.verbs.query import state_query

        return state_query(self, state, inputs, function, outputs, after_commit=after_commit)

    # ---- windows -----------------------------------------------------------------------------------------------

    def tumbling_window(
        self, length: Extent, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """Aggregate every `length` tuples, or every period of that duration: see :meth:`window`."""
        from airflow_trident.operations.windows import tumbling

        return self.window(tumbling(length), state, *aggregation, **options)

    def sliding_window(
        self, length: Extent, slide: Extent, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """After every `slide`, aggregate the last `length`: numbers of tuples, or durations. See :meth:`window`.

        :raises PlanError: one is a number and the other a duration, or `slide` is longer than `length`.
        """
        from airflow_trident.operations.windows import sliding

        return self.window(sliding(length, slide), state, *aggregation, **options)

    def window(
        self, config: WindowConfig, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """Aggregate windows of the stream, which span batches: ``window(TumblingCountWindow(100), state, "price",
        Sum(), "total")``.

        The commit phase stores the tuples in the state, so each is in its windows exactly once. The output is the
        windows that the batch completed; it belongs to the commit phase. An empty window does not fire.

        :param aggregation: as for :meth:`aggregate`.
        :param time: for durations, the field with the time of a tuple: a timestamp, or a long in milliseconds. A window
            fires when a tuple arrives that is later than the window's end by `lag`. A tuple that is too late for all
            its windows, or has no time, is dropped, and counted in the log and in the ledger. Without `time`, the
            transaction's time counts: when its run was due, or when it began.
        :param lag: default: zero.
        :param max_ahead: with `time`: a tuple whose time is later than the beginning of its transaction by more than
            this (default: 5 minutes) fires no window, since its clock may be wrong. It is still kept in the window of
            its time. None: every time is trusted.
        :param reopen: with a duration: windows that end after this time are opened again, if a wrong clock had closed
            them. The first transaction that runs with this value does it, once.
        :param bounds: put the fields ``window_start`` and ``window_end`` before the outputs: times (the end is
            exclusive), or numbers of tuples.
        :param name: of the state; default: the name of the first output and ``_window``.
        :raises PlanError: the state cannot keep a window.
        """
        from airflow_trident.topology.verbs import window

        return window.window(self, (), config, state, aggregation, **options)


class GroupedStream(GroupedBase[Stream]):
    """A stream with group fields (Trident: GroupedStream)."""

    def aggregate(self, *aggregation: Any, **by_output: Any) -> Stream:
        """One tuple per group of the batch: ``group_by("word").aggregate(n=Count())``."""
        return aggregate.aggregate(self.stream, Scope.ALL, self.keys, aggregation, by_output)

    def partition_aggregate(self, *aggregation: Any, **by_output: Any) -> Stream:
        """Aggregate the groups of each partition separately."""
        return aggregate.aggregate(self.stream, Scope.PARTITION, self.keys, aggregation, by_output)

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Several aggregators of each group in one pass; see `Stream.chained_agg`."""
        return ChainedAggregatorDeclarer(Chain(self.stream, self.keys))

    def persistent_aggregate(
        self, state: StateFactory, *aggregation: Any, name: str | None = None, **by_output: Any
    ) -> TridentState:
        """Aggregate all batches into one stored row per group."""
        sink = states.persistent_aggregate(self.stream, self.keys, state, aggregation, name, by_output)
        return TridentState(self.stream, sink)

    def state_query(
        self,
        state: TridentState | StaticState,
        inputs: FieldSpec,
        function: QueryFunction,
        outputs: FieldSpec,
        *,
        after_commit: bool = False,
    ) -> Stream:
        """As `Stream.state_query`. The tuples of a group are in one partition, so only one place asks for a key."""
        together = self.stream.partition_by(list(self.keys))
        return together.state_query(state, inputs, function, outputs, after_commit=after_commit)

    def tumbling_window(
        self, length: Extent, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """As `Stream.tumbling_window`, aggregated by group. The windows are those of the whole stream."""
        from airflow_trident.operations.windows import tumbling

        return self.window(tumbling(length), state, *aggregation, **options)

    def sliding_window(
        self, length: Extent, slide: Extent, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """As `Stream.sliding_window`, aggregated by group. The windows are those of the whole stream."""
        from airflow_trident.operations.windows import sliding

        return self.window(sliding(length, slide), state, *aggregation, **options)

    def window(
        self, config: WindowConfig, state: StateFactory, *aggregation: Any, **options: Unpack[WindowOptions]
    ) -> Stream:
        """As `Stream.window`, aggregated by group. The windows are those of the whole stream."""
        from airflow_trident.topology.verbs import window

        return window.window(self.stream, self.keys, config, state, aggregation, **options)


class ChainedAggregatorDeclarer:
    """Collects aggregators until `chain_end`. The result is the cross product of their outputs: empty if one of them
    emits nothing."""

    def __init__(self, chain: Chain[Stream]) -> None:
        self._chain = chain

    def aggregate(self, *aggregation: Any) -> ChainedAggregatorDeclarer:
        """One more aggregator of the whole batch or group."""
        return ChainedAggregatorDeclarer(aggregate.chained(self._chain, Scope.ALL, aggregation))

    def partition_aggregate(self, *aggregation: Any) -> ChainedAggregatorDeclarer:
        """One more aggregator of each partition."""
        return ChainedAggregatorDeclarer(aggregate.chained(self._chain, Scope.PARTITION, aggregation))

    def chain_end(self) -> Stream:
        """The stream of the results.

        :raises PlanError: the chain has no aggregator.
        """
        return aggregate.chain_end(self._chain)


class TridentState(StateHandle):
    """A handle on a state of the topology (Trident: TridentState)."""

    def __init__(self, stream: Stream, sink: PersistNode) -> None:
        super().__init__(sink.state, stream.topology)
        self._stream = stream
        self._sink = sink

    @property
    def topology(self) -> NodeGraph:
        return self._stream.topology

    def __repr__(self) -> str:
        return f"TridentState({self.name}: {self.spec.describe()})"

    def parallelism_hint(self, partitions: int) -> TridentState:
        """As `Stream.parallelism_hint`, for the last step before the state, such as the aggregation."""
        rows.parallelism_hint(self._last(), partitions)
        return self

    def set_cpu_load(self, percent: float) -> TridentState:
        """As `Stream.set_cpu_load`, for the last step before the state."""
        rows.set_cpu_load(self._last(), percent)
        return self

    def set_memory_load(self, megabytes: float) -> TridentState:
        """As `Stream.set_memory_load`, for the last step before the state."""
        rows.set_memory_load(self._last(), megabytes)
        return self

    def _last(self) -> Stream:
        return replace(self._stream, node=self._sink.input)

    def new_values_stream(self) -> Stream:
        """What each batch changed in the state: keys with their new values (Trident: newValuesStream). Keys that the
        batch removed are left out. For a stateful function: what it emitted.

        Everything downstream runs in the commit phase, and the states there are updated exactly once as well.

        :raises PlanError: the state belongs to a stateful function without outputs.
        """
        return states.new_values(self._stream, self._sink)
