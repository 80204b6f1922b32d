"""Stateful functions as a state of a topology: `stream.stateful(...)` stages tuples, the commit phase runs the
function.

A stateful function depends on all earlier batches, so it runs after its predecessor has committed: in the commit phase,
over the staged tuples. The whole run is one `State.apply`. Its atomic step is the journal's write of COMMITTING (see
`checkpoints`): before it nothing of the batch is visible, after it all is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec, Verdict
from airflow_trident.errors import ConfigurationError, StoreUnavailableError, UserCodeError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.state_functions import KeyValues, Stateful, StatefulFunction
from airflow_trident.operations.user_code import Border
from airflow_trident.protocol.checkpoint import Marks, require_fence
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import key_of
from airflow_trident.states.core.marker import admit
from airflow_trident.states.core.merge import canonical_key
from airflow_trident.states.keyvalue.base import (
    Forms,
    KeyValueState,
    ProviderConfig,
    StateProvider,
    make_provider,
    namespace_of,
    split_config,
)
from airflow_trident.states.keyvalue.checkpoint import (
    Checkpoints,
    Journal,
    Saved,
    decode_emitted,
    encode_emitted,
    shows_prepared,
)
from airflow_trident.states.keyvalue.stateful_partition import Part
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa

JOURNAL = "$checkpoint"
_READ_TRIES = 10


@dataclass(frozen=True)
class KeyValueStates(StateFactory):
    """Where stateful functions keep their states: ``KeyValueStates("sqlite", {"path": "visits.db"})``.

    :param provider: "memory", "sqlite", the name of another package's provider, or ``package.module:Class`` (Storm:
        topology.state.provider).
    :param config: its arguments (Storm: topology.state.provider.config). Every provider also accepts ``key_class``,
        ``value_class``, ``key_serializer``, ``value_serializer``: names of classes, for keys and values beyond plain
        JSON.
    :raises ConfigurationError: no such provider, or wrong configuration; raised on the user's line.
    """

    provider: str = "memory"
    config: ProviderConfig = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        forms, _ = split_config(self.config)
        Forms.of(forms)
        made = self._provider()
        capabilities = Capabilities(durable=made.capabilities.durable, atomic=made.capabilities.atomic, keyvalue=True)
        object.__setattr__(self, "capabilities", capabilities)

    def make_state(self, spec: StateSpec) -> OpenStateful:
        if spec.stateful is None:
            raise ConfigurationError(
                f"{self.describe()} keeps the states of stateful functions, and state {spec.name!r} has none",
                "Use stream.stateful(), or another state such as SqliteState.",
            )
        provider = self._provider()
        component = key_of(spec)
        with ExitStack() as opened:
            journal = opened.enter_context(provider.new_state(namespace_of(component, JOURNAL)))
            states = [
                opened.enter_context(provider.new_state(namespace_of(component, index)))
                for index in range(spec.stateful.partitions)
            ]
            return OpenStateful(spec, spec.stateful, Journal(journal), states, opened.pop_all(), Forms.of(self.config))

    def _provider(self) -> StateProvider:
        return make_provider(self.provider, split_config(self.config)[1])

    def describe(self) -> str:
        forms, _ = split_config(self.config)
        listing = "".join(f", {name} {forms[name]}" for name in sorted(forms))
        return f"KeyValueStates({self._provider().describe()}{listing})"


@dataclass(eq=False)
class OpenStateful(State):
    """See :class:`KeyValueStates`. `items` yields ``((key,), (value,))`` of all partitions' states, as JSON."""

    _spec: StateSpec
    _stateful: Stateful
    _journal: Journal
    _states: Sequence[KeyValueState[Any, Any]]
    _opened: ExitStack
    _forms: Forms

    # ---- applying ----------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        return self.saved().marker

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        admit(self.marker(), ticket, state=self._spec.name, commutes=False)  # a refusal changes nothing
        with ExitStack() as living:
            parts = [self._part(index, ticket) for index in range(len(self._states))]
            for part in parts:
                living.callback(part.cleanup)
                part.prepare()
            checkpoints = Checkpoints(self._journal, parts)
            saved = checkpoints.recover(ticket.fence)
            marker, verdict = admit(saved.marker, ticket, state=self._spec.name, commutes=False)
            if verdict is Verdict.SKIP:
                if marker != saved.marker:
                    checkpoints.note(saved, marker, ticket.fence)
                return Applied.ALREADY
            emitted = self._execute(parts, batch, ticket)
            kept = encode_emitted(ticket.txid, self._spec.emits, emitted) if self._spec.emits else None
            checkpoints.run(saved, ticket.txid, marker, ticket.fence, kept)
        return Applied.APPLIED

    def bar(self, ticket: CommitTicket) -> None:
        """Finish or undo an open checkpoint without the function's hooks, because they may be the cause of failure."""
        ticket = replace(ticket, bars=True)
        admit(self.marker(), ticket, state=self._spec.name, commutes=False)
        checkpoints = Checkpoints(
            self._journal, [self._part(index, ticket, _Nobody()) for index in range(len(self._states))]
        )
        saved = checkpoints.recover(ticket.fence)
        marker, _ = admit(saved.marker, ticket, state=self._spec.name, commutes=False)
        checkpoints.note(saved, marker, ticket.fence)

    def emitted(self, ticket: CommitTicket) -> pa.Table:
        """The tuples kept with the checkpoint; the function does not run again.

        :raises FencedError: a later transaction was applied meanwhile.
        """
        return decode_emitted(self._journal.emitted(), ticket.txid, self._journal.state.namespace)

    def _execute(self, parts: Sequence[Part], batch: pa.Table, ticket: CommitTicket) -> list[tuple[Any, ...]]:
        emitted: list[tuple[Any, ...]] = []
        try:
            for part, rows in zip(parts, self._partitioned(batch), strict=True):
                emitted += part.execute(rows)
            return emitted
        except UserCodeError:
            # If a newer committer took over, the state changed during the run, so the function's error means nothing.
            journal = self._journal.state
            require_fence(journal.marks(), ticket.fence, journal.namespace, f"apply {ticket.txid}")
            raise

    def _part(self, index: int, ticket: CommitTicket, function: StatefulFunction[Any, Any] | None = None) -> Part:
        function = function or self._stateful.function
        context = OperationContext(
            partition_index=index, num_partitions=len(self._states), txid=ticket.txid, attempt=ticket.attempt
        )
        names = names_of(self._spec.staged)
        border = Border(f"state {self._spec.name}", self._stateful.name, names, ticket.txid, self._spec.emits)
        return Part(function, self._states[index], context, border, self._forms)

    def _partitioned(self, batch: pa.Table) -> list[list[tuple[Any, ...]]]:
        """The tuples of each partition, in staged order."""
        places = [names_of(self._spec.staged).index(name) for name in self._spec.key_names]
        by_partition: list[list[tuple[Any, ...]]] = [[] for _ in self._states]
        for row in table_to_rows(batch):
            by_partition[partition_of([row[place] for place in places], len(by_partition))].append(row)
        return by_partition

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """Values by the function's own keys, each a tuple of one. Reads everything: only the function knows a key's
        partition."""
        values_by_key = dict(self.items())
        return [values_by_key.get(tuple(key)) for key in keys]

    def saved(self) -> Saved:
        """Progress of the checkpoint, and what is applied."""
        return self._journal.read()

    def marks(self) -> dict[str, Marks]:
        """The marks of each partition's namespace."""
        return {state.namespace: state.marks() for state in self._states}

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """From one transaction, although partitions commit one after the other: reads again if one ended meanwhile."""
        for _ in range(_READ_TRIES):
            before = self.saved().record
            prepared_too = shows_prepared(before)
            pairs = [
                ((key,), (value,))
                for state in self._states
                for key, value in (state.iterator() if prepared_too else state.committed_items())
            ]
            if self.saved().record == before:
                return iter(pairs)
        raise StoreUnavailableError(
            f"state {self._spec.name!r} changes faster than it can be read", "Read it when fewer batches commit."
        )

    def close(self) -> None:
        self._opened.close()


class _Nobody(StatefulFunction[Any, Any]):
    """Replaces the user's function if only the steps are wanted, not its hooks."""

    def init_state(self, state: KeyValues[Any, Any]) -> None:
        """Keeps nothing."""

    def execute(self, *values: Any) -> None:
        """Never called."""


def partition_of(key: Sequence[Any], partitions: int) -> int:
    """The partition of a tuple, by its key fields. Must never change: the state of a key is found by it."""
    text = json.dumps(canonical_key(key), separators=(",", ":"), default=_text)
    return zlib.crc32(text.encode()) % partitions


def _text(value: Any) -> str:
    """Text of values that JSON does not have: bytes, decimals, dates."""
    return value.hex() if isinstance(value, bytes) else str(value)
