"""Several batches in one atomic step of a state (T12): as one batch if that gives the same, else one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import Applied, StateSpec, Verdict
from airflow_trident.errors import ConfigurationError, InseparableError, UserCodeError
from airflow_trident.io.arrow import arrow_schema, grouped, rows_to_table
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.merge import NOBODY, Changes, Lookup, OfAttempt, merge, with_changes
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, names_of

if TYPE_CHECKING:
    import pyarrow as pa

_ORDERED = (*WHOLE_TYPES, "date", "timestamp")
_BY_ARROW: dict[MergeKind | None, tuple[str, ...]] = {
    MergeKind.ADD: tuple(WHOLE_TYPES),
    MergeKind.MIN: _ORDERED,
    MergeKind.MAX: _ORDERED,
}
_VERBS = {MergeKind.ADD: "sum", MergeKind.MIN: "min", MergeKind.MAX: "max"}


@dataclass(frozen=True)
class Group:
    """The batches of one step.

    :param batches: one per ticket, or a single one if they are already merged by key.
    :raises ConfigurationError: these tickets cannot be one step of this state.
    """

    spec: StateSpec
    tickets: Sequence[CommitTicket]
    batches: Sequence[pa.Table]

    def __post_init__(self) -> None:
        if wrong := self._wrong():
            txids = ", ".join(str(ticket.txid) for ticket in self.tickets)
            raise ConfigurationError(
                f"the transactions {txids} cannot go into state {self.spec.name!r} in one step: {wrong}",
                "Apply them one by one, lowest first.",
            )

    def _wrong(self) -> str:
        tickets, txids = self.tickets, [ticket.txid for ticket in self.tickets]
        if not self.spec.takes_groups:
            return "it takes none where a newer attempt may bring another batch"
        if not txids or sorted(set(txids)) != txids:
            return "their txids do not rise"
        if len({(ticket.topology, ticket.incarnation, ticket.fence) for ticket in tickets}) > 1:
            return "they are of several commits"
        if any(ticket.late or ticket.bars for ticket in tickets):
            return "one of them is late, or only bars"
        if len(self.batches) not in (1, len(tickets)):
            return f"there are {len(self.batches)} batches"
        if self.is_inseparable and not self.spec.merges_exactly:
            return "what was merged by key is not what they would give one after the other"
        return ""

    @property
    def is_inseparable(self) -> bool:
        return len(self.batches) < len(self.tickets)

    @cached_property
    def merged(self) -> pa.Table | None:
        """One batch with the same effect as all of them; None if there is none, or this is not certain."""
        return self.batches[0] if len(self.batches) == 1 else merged(self.spec, self.batches)

    def as_one(self, verdicts: Sequence[Verdict]) -> pa.Table | None:
        """The one batch to apply, if all are missing and can be merged; else None, see :meth:`missing`."""
        return self.merged if Verdict.SKIP not in verdicts else None

    def changes(self, verdicts: Sequence[Verdict], lookup: Lookup) -> Changes:
        """What to write.

        :raises InseparableError: as :meth:`missing`. :raises UserCodeError: as :func:`merge`.
        """
        whole = self.as_one(verdicts)
        parts = self._counting(verdicts) if whole is None else [(self.tickets[-1], whole)]
        return merge_in_order(self.spec, parts, lookup)

    def _counting(self, verdicts: Sequence[Verdict]) -> list[tuple[CommitTicket, pa.Table]]:
        """The missing batches; of several that replace a partition, the rows of the last one (T13)."""
        parts, partition = self.missing(verdicts), self.spec.partition
        if partition is None:
            return parts
        replaced = [self.spec.replaced_by(ticket) for ticket, _ in parts]
        last = {value: place for place, values in enumerate(replaced) for value in values}
        counting = []
        for place, (values, (ticket, batch)) in enumerate(zip(replaced, parts, strict=True)):
            own = [value for value in values if last[value] == place]
            if own:
                rows = batch if len(own) == len(values) else _rows_with(batch, partition.column, own)
                counting.append((ticket, rows))
        return counting

    def missing(self, verdicts: Sequence[Verdict]) -> list[tuple[CommitTicket, pa.Table]]:
        """The batches to apply one after the other, if the state holds some already or they cannot be merged.

        :raises InseparableError: the batches are staged as one, and the state holds a part of them.
        """
        if self.is_inseparable:
            held_txids = [
                ticket.txid for ticket, verdict in zip(self.tickets, verdicts, strict=True) if verdict is Verdict.SKIP
            ]
            raise InseparableError(
                f"the transactions {self.tickets[0].txid} to {self.tickets[-1].txid} were staged as one, and state "
                f"{self.spec.name!r} holds {', '.join(map(str, held_txids))} already",
                "Nothing was applied; their committer emits them again, one by one.",
            )
        parts = zip(self.tickets, self.batches, verdicts, strict=True)
        return [(ticket, batch) for ticket, batch, verdict in parts if verdict is not Verdict.SKIP]


def _rows_with(batch: pa.Table, column: str, values: Sequence[date | str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = batch.column(column)
    return batch.filter(pc.is_in(cells, pa.array(values, cells.type)))


def answers(verdicts: Sequence[Verdict]) -> tuple[Applied, ...]:
    """What a step did for each ticket."""
    return tuple(Applied.ALREADY if verdict is Verdict.SKIP else Applied.APPLIED for verdict in verdicts)


def applied_by(tickets: Sequence[CommitTicket], verdicts: Sequence[Verdict]) -> list[CommitTicket]:
    """The tickets whose batches a step applies."""
    return [ticket for ticket, verdict in zip(tickets, verdicts, strict=True) if verdict is not Verdict.SKIP]


def merge_in_order(spec: StateSpec, parts: Sequence[tuple[OfAttempt, pa.Table]], lookup: Lookup) -> Changes:
    """The effect of batches on the stored map, one after the other; each sees those before it.

    :raises UserCodeError: as :func:`merge`.
    """
    changes: Changes = {}
    for whose, batch in parts:
        changes.update(merge(spec, batch, partial(with_changes, lookup, changes), whose))
    return changes


def merged(spec: StateSpec, batches: Sequence[pa.Table]) -> pa.Table | None:
    """One batch with the same effect as these in a row. None: combining is not exact, or the sum of the batches might
    overflow where the new value would fit."""
    import pyarrow as pa

    if not spec.merges_exactly:
        return None
    rows, staged = (*spec.keys, *spec.values), list(names_of(spec.staged))
    schema = arrow_schema(rows)
    table = pa.concat_tables([batch.select(list(names_of(rows))).cast(schema) for batch in batches])
    if _fits_arrow(spec, table):
        return _by_arrow(spec, table).cast(schema).select(staged)
    try:
        changes = merge(spec, table.select(staged), lambda keys: [None] * len(keys), NOBODY)
    except UserCodeError:
        return None
    return rows_to_table(rows, [(*key, *value) for key, value in changes.items() if value is not None]).select(staged)


def _fits_arrow(spec: StateSpec, table: pa.Table) -> bool:
    """Does Arrow give the same as `merge`? It wraps sums that overflow, and has several zeros and NaNs as keys."""
    import pyarrow.compute as pc

    if not spec.keys or any(column.type in REAL_TYPES for column in spec.keys):
        return False
    for combiner, column in zip(spec.combiners, spec.values, strict=True):
        if column.type not in _BY_ARROW.get(combiner.merge_kind, ()):
            return False
        if combiner.merge_kind is MergeKind.ADD:
            extremes = pc.min_max(table.column(column.name)).as_py().values()
            largest = max((abs(value) for value in extremes if value is not None), default=0)
            if largest * table.num_rows >= WHOLE_TYPES[column.type]:
                return False
    return True


def _by_arrow(spec: StateSpec, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    kinds = [combiner.merge_kind for combiner in spec.combiners]
    verbs = [(name, _VERBS[kind]) for name, kind in zip(spec.value_names, kinds, strict=True) if kind is not None]
    columns = grouped(table, spec.key_names, verbs)
    return pa.Table.from_arrays(columns, names=[*spec.key_names, *spec.value_names])
