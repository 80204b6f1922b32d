"""A bolt with its own effects at the end of a stream. It gets each batch in the commit phase, in txid order."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StagedBatch, State, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError, UserCodeError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.protocol import BoltPlace
from airflow_trident.storm.components.running import run_bolt
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa

TUPLE_TIMEOUT_S = 600.0
"""Of a bolt that has no ``tuple_timeout_s`` of its own: no attempt's time-out ends a commit, which all later ones wait
for."""


@dataclass(frozen=True)
class BoltSink(StateFactory):
    """Gives every batch to a bolt in another program, for ``Topology(name, exactly_once=False)``:
    ``stream.partition_persist(BoltSink(bolt), "word")``.

    A child process runs for each batch that has rows. A repeated commit gives it the batch again: at least once.
    TRIDENT_TXID in its environment is then the same, so the bolt can skip a repetition. What it emits is dropped. A
    bolt without a `tuple_timeout_s` has :data:`TUPLE_TIMEOUT_S`.

    :param bolt: a :class:`~airflow_trident.storm.components.multilang.ShellBolt` or
        :class:`~airflow_trident.storm.components.qtopology.NodeBolt`.
    """

    bolt: ChildBolt

    capabilities = Capabilities(durable=True, atomic=False, appends=True)

    def __post_init__(self) -> None:
        if not isinstance(self.bolt, ChildBolt):
            raise ConfigurationError(f"BoltSink of {self.bolt!r}", "Give it a ShellBolt or a NodeBolt.")

    def make_state(self, spec: StateSpec) -> OpenBoltSink:
        return OpenBoltSink(self.bolt, spec)

    def describe(self) -> str:
        return f"BoltSink({self.bolt.describe()})"


class OpenBoltSink(State):
    """See :class:`BoltSink`."""

    def __init__(self, bolt: ChildBolt, spec: StateSpec) -> None:
        self._spec = spec
        # Nobody reads what the bolt emits, on any stream.
        self._bolt = copy.copy(bolt)
        object.__setattr__(self._bolt, "strict_streams", False)
        if bolt.limits.tuple_timeout_s is None:
            object.__setattr__(self._bolt, "limits", replace(bolt.limits, tuple_timeout_s=TUPLE_TIMEOUT_S))

    def marker(self) -> Marker | None:
        """Always None: the state does not know what the bolt did."""
        return None

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        return self.apply_staged(ticket, StagedBatch.of(self._spec.staged, batch))

    def apply_staged(self, ticket: CommitTicket, batch: StagedBatch) -> Applied:
        """Piece by piece. Not atomic, and a repetition is not detected.

        :raises UserCodeError: the bolt failed a row. It may have processed others.
        :raises ChildError: the child died, hung or did not stop.
        """
        place = BoltPlace(
            node=self._spec.name,
            fields=names_of(self._spec.staged),
            streams={},
            matched=False,
            topology=self._spec.topology,
            txid=ticket.txid,
            attempt=ticket.attempt,
        )
        for _ in run_bolt(self._bolt, _rows(batch, list(place.fields)), place, self._error):
            pass
        return Applied.APPLIED

    def bar(self, ticket: CommitTicket) -> None:
        """Does nothing: the bolt may have a part of any batch, and nothing is promised about it."""

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: nobody knows what the bolt keeps."""
        raise self._not_asked()

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """:raises ConfigurationError: nobody knows what the bolt keeps."""
        raise self._not_asked()

    def _not_asked(self) -> ConfigurationError:
        return ConfigurationError(f"sink {self._spec.name!r} is a bolt, which cannot be asked", "Use a state.")

    def _error(self, row: tuple[Any, ...], problem: str) -> UserCodeError:
        fields = ", ".join(names_of(self._spec.staged))
        return UserCodeError(
            f"{self._bolt.describe()} of sink {self._spec.name!r} {problem}; fields ({fields}), row {row!r:.200}",
            "Mend the component: the commit is tried again, and gives it the whole batch again.",
            node=self._spec.name,
            fields=fields,
            row=repr(row)[:200],
        )


def _rows(batch: StagedBatch, fields: list[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    for piece in batch.pieces():
        yield from table_to_rows(pa.Table.from_batches([piece.select(fields)]))
