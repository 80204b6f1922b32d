"""What the user says: a named topology of streams and states (Trident: TridentTopology)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.topology.stream import GroupedStream, Stream
from airflow_trident.topology.stream_base import StaticState
from airflow_trident.topology.verbs import aggregate
from airflow_trident.types import FieldSpec

if TYPE_CHECKING:
    from airflow_trident.operations.interfaces import (
        GroupedMultiReducer,
        JoinOutFieldsMode,
        JoinType,
        MultiReducer,
    )


class Topology(NodeGraph):
    """Streams that begin at spouts and end in states, under one name that owns a ledger.

    Building one opens no connection, so it can stand in a DAG file. A mistake in fields or types is raised on the line
    that makes it.

    :param name: letters, digits, ``_ . -``, beginning with a letter; unique among all topologies of one ledger root.
    :param exactly_once: refuse spouts and states that are not exactly once together. False: allow them; plan, log and
        page then say so.
    :param asset: name of an Airflow asset. Each committed transaction becomes one event of it, with its own partition,
        no matter which task committed it. It may be set later: ``topology.asset = "orders"``.
    :param partitions: bind the topology to days, hours, weeks or months: each transaction reads all of one partition,
        and replaces it in every state.
    """

    def new_stream(self, name: str, spout: Spout) -> Stream:
        """Begin a stream at a spout (Trident: newStream(txId, spout)).

        :param name: unique in the topology; the ledger keeps the spout's metadata under it.
        :raises PlanError: the name is taken, `spout` is no spout, or a state cannot take it exactly once.
        """
        source = self.add_source(name, spout)
        stream = Stream(self, source)
        read = source.spout.spark_read
        if read is None:
            return stream
        from airflow_trident.topology.verbs.transform import read_by_spark

        return read_by_spark(stream, name, read)

    def new_drpc_stream(self, name: str, args: FieldSpec = "args string") -> Stream:
        """Begin a query stream (Trident: newDRPCStream): ``new_drpc_stream("count_of", "word string")``. The last
        stream made from it is the answer; :func:`airflow_trident.query` runs the query.

        :param args: the query's arguments, fields with types; default: one text, as Trident's.
        """
        return Stream(self, self.queries.add(name, args))

    def new_static_state(
        self, state: StateFactory, name: str, *, keys: FieldSpec, values: FieldSpec, topology: str | None = None
    ) -> StaticState:
        """A state that streams only query (Trident: newStaticState): one that another topology updates, or one of your
        own factory.

        :param name: of the state in its store.
        :param keys: its key fields with types, as in the topology that updates it.
        :param values: its value fields with types.
        :param topology: the name of the topology that updates it; default: this one.
        :raises ConfigurationError: the store cannot have such fields.
        """
        from airflow_trident.topology.verbs.query import static

        return StaticState(static(topology or self.name, state, name, keys, values))

    # ---- several streams ---------------------------------------------------------------------------------------

    def merge(self, streams: Sequence[Stream], out_fields: FieldSpec | None = None) -> Stream:
        """All tuples of several streams (Trident: merge). Fields correspond by position, not by name.

        :param out_fields: new names; default: those of the first stream.
        :raises FieldError: number or types of the fields differ.
        """
        return aggregate.merge(self, streams, out_fields)

    def multi_reduce(
        self,
        input_fields: Sequence[FieldSpec],
        streams: Sequence[Stream] | Sequence[GroupedStream],
        reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
        out_fields: FieldSpec,
    ) -> Stream:
        """Reduce the tuples of several streams together, partition by partition, or group by group for grouped streams
        (Trident: multiReduce).

        :param input_fields: for each stream, the fields that the reducer gets.
        :param out_fields: all output fields, with types unless `reducer.output_types` has them.
        """
        return aggregate.multi_reduce(self, input_fields, streams, reducer, out_fields)

    def join(
        self,
        streams: Sequence[Stream],
        join_fields: Sequence[FieldSpec],
        out_fields: FieldSpec,
        join_type: JoinType | str | Sequence[JoinType | str] = "inner",
        mode: JoinOutFieldsMode | str = "compact",
    ) -> Stream:
        """The tuples of several streams with equal join fields, within a batch (Trident: join). Null equals null.

        ``join([orders, users], ["user_id", "id"], "user_id, amount, name")``

        :param join_fields: for each stream, its join fields, in corresponding order.
        :param out_fields: names of the output fields: with mode "compact" the join fields once and then the other
            fields of every stream, with "preserve" all fields of every stream.
        :param join_type: one for all streams, or a list with one for each. "inner": the stream must have a tuple.
            "outer": it may have none, and its fields are then null. A left outer join is ``["inner", "outer"]``.
        :raises FieldError: an unknown field, join fields of different types, or a wrong number of names.
        """
        return aggregate.join(self, streams, join_fields, out_fields, join_type, mode)
