"""What the user says: a named topology of streams and states (Trident: TridentTopology)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.protocol.placement import PlacementHints
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.topology.state import StaticState
from airflow_trident.topology.stream import GroupedStream, Stream
from airflow_trident.topology.verbs import combine, query
from airflow_trident.topology.verbs.transform import read_by_spark
from airflow_trident.types import FieldSpec

if TYPE_CHECKING:
    from airflow_trident.operations.multireduce import (
        GroupedMultiReducer,
        JoinOutFieldsMode,
        JoinType,
        MultiReducer,
    )


class Topology(NodeGraph):
    """Streams that begin at spouts and end in states, under one name that owns a ledger.

    Making one opens nothing, so that it can stand in a DAG file. Every mistake in fields and types is raised on the
    line that makes it.

    :param name: letters, digits, ``_ . -``, beginning with a letter; unique among all topologies of one ledger root.
    :param exactly_once: refuse spouts and states that are not exactly once together. False: allow them; plan, log and
        page then say so.
    :param asset: name of an asset of Airflow: each committed transaction becomes one event of it, a partition of its
        own, whoever committed it. It may be set later: ``topology.asset = "orders"``.
    """

    placement_hints = PlacementHints()
    """For `airflow trident deploy`; those of a topology file of qtopology."""

    def new_stream(self, name: str, spout: Spout) -> Stream:
        """Begin a stream at a spout (Trident: newStream(txId, spout)).

        :param name: unique in the topology; the ledger keeps the spout's metadata under it.
        :raises PlanError: the name is taken, `spout` is no spout, or one that a state cannot take exactly once.
        """
        stream = Stream(self, self.add_source(name, spout))
        read = spout.spark_read
        return stream if read is None else read_by_spark(stream, name, read)

    def new_drpc_stream(self, name: str, args: FieldSpec = "args string") -> Stream:
        """Begin a query stream (Trident: newDRPCStream): ``new_drpc_stream("count_of", "word string")``. What is made
        of it last is the answer; :func:`airflow_trident.query` asks.

        :param args: the query's arguments, fields with types; default: one text, as Trident's.
        """
        return Stream(self, self.queries.add(name, args))

    def new_static_state(
        self, state: StateFactory, name: str, *, keys: FieldSpec, values: FieldSpec, topology: str | None = None
    ) -> StaticState:
        """A state that streams ask and never change (Trident: newStaticState): what another topology keeps, or a
        factory of your own.

        :param name: of the state in its store.
        :param keys: its key fields with types, as the topology that keeps it has them.
        :param values: its value fields with types.
        :param topology: whose state it is; default: this one's name.
        :raises ConfigurationError: the store cannot have such fields.
        """
        return StaticState(query.static(topology or self.name, state, name, keys, values))

    @classmethod
    def from_qtopology(
        cls,
        file: str,
        *,
        name: str | None = None,
        overrides: Mapping[str, str] | None = None,
        fields: Mapping[str, FieldSpec] | None = None,
        spool_dir: str,
        states: Mapping[str, Callable[[Stream], Any]] | None = None,
        working_dir: str | None = None,
        protocol: str = "0.7",
    ) -> Topology:
        """The topology of a file of qtopology, with its spouts and bolts as they are.

        ``Topology.from_qtopology("topology.json", spool_dir="/shared/spool", fields={"split": "word string"},
        states={"split": lambda words: words.group_by("word").persistent_aggregate(state, Count(), "n")})``

        :param name: default: that of the file's ``general``, or the file's.
        :param overrides: values of variables that count instead of the file's.
        :param fields: node -> the fields of what it emits; default: one, ``data string``, the JSON text of the object.
        :param spool_dir: a folder for the spools of the spouts, durable and shared.
        :param states: node -> what ends its default stream in a state. A bolt that nobody reads and that is not here is
            a sink: it gets its rows in the commit phase, and the topology is not exactly once.
        :param working_dir: what the nodes' folders begin at; default: the file's folder.
        :param protocol: what programs (`type` subproc) speak, "0.7" or "seed".
        :raises ConfigurationError: the file cannot be meant, or not be kept; names file, node and cure.
        """
        # By name: spouts and states stand above topologies.
        importing = import_module("airflow_trident.runtime.qtopology_import")
        made: Topology = importing.import_file(
            file,
            name=name,
            overrides=overrides,
            fields=fields,
            spool_dir=spool_dir,
            states=states,
            working_dir=working_dir,
            protocol=protocol,
        )
        return made

    # ---- several streams ---------------------------------------------------------------------------------------

    def merge(self, streams: Sequence[Stream], out_fields: FieldSpec | None = None) -> Stream:
        """All tuples of several streams (Trident: merge). Fields correspond by position, not by name.

        :param out_fields: names; default: those of the first stream.
        :raises FieldError: number or types of the fields differ.
        """
        return combine.merge(self, streams, out_fields)

    def multi_reduce(
        self,
        input_fields: Sequence[FieldSpec],
        streams: Sequence[Stream] | Sequence[GroupedStream],
        reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
        out_fields: FieldSpec,
    ) -> Stream:
        """What a reducer makes of the tuples of several streams, partition by partition or, of grouped streams, group
        by group (Trident: multiReduce).

        :param input_fields: for each stream the fields that the reducer gets.
        :param out_fields: all fields that come out, with types unless `reducer.output_types` has them.
        """
        return combine.multi_reduce(self, input_fields, streams, reducer, out_fields)

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

        :param join_fields: those of each stream, in corresponding order.
        :param out_fields: names of what comes out: with mode "compact" the join fields once and then the other fields
            of every stream, with "preserve" all fields of every stream.
        :param join_type: for all streams, or a list with one for each: "outer", that stream may be missing, and its
            fields are null then; "inner", it must be there. A left outer join is ``["inner", "outer"]``.
        :raises FieldError: an unknown field, join fields of different types, or a wrong number of names.
        """
        return combine.join(self, streams, join_fields, out_fields, join_type, mode)
