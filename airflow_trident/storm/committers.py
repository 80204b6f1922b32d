"""Committer bolts as states of a topology: they write to their own databases.

The commit phase calls a state for a transaction, in order, until that is COMMITTED. So a committer runs at least once
for each batch, always with the same one (or, after an opaque spout, with that of a later attempt). Nothing here can
make its effects atomic. The bolt can, if it keeps the txid in its database, in the step that changes the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.io.values import UnfitValueError, coercer
from airflow_trident.operations.api import OperationContext, TransactionAttempt
from airflow_trident.operations.calls.function_names import function_name
from airflow_trident.operations.calls.user_code import Border, copied
from airflow_trident.operations.equality import canonical_key
from airflow_trident.process_settings import Watch
from airflow_trident.storm.bolt_calls import CommitterBolt, CommitterGrouping
from airflow_trident.storm.bolts import BaseBatchBolt, BatchOutputCollector

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.protocol.records import CommitTicket


@dataclass(frozen=True)
class OwnDatabase(StateFactory):
    """The database of a committer, which only the committer knows.

    :param opaque: it also keeps the value before the last transaction.
    """

    opaque: bool = False
    capabilities: Capabilities = field(init=False, compare=False)

    def __post_init__(self) -> None:
        capabilities = Capabilities(durable=True, atomic=True, opaque=self.opaque, own=True)
        object.__setattr__(self, "capabilities", capabilities)

    def make_state(self, spec: StateSpec) -> OpenCommitter:
        assert isinstance(spec.committer, CommitterBolt), "a database of its own without a committer"
        return OpenCommitter(spec, spec.committer)

    def describe(self) -> str:
        return "a database of its own"


class OpenCommitter(State):
    """A committer as long as its process commits: it holds what was emitted last."""

    def __init__(self, spec: StateSpec, committer: CommitterBolt) -> None:
        self._spec = spec
        self._committer = committer
        self._emitted: dict[int, list[tuple[Any, ...]]] = {}

    def marker(self) -> Marker | None:
        """Always None: only the bolt's own database knows what is applied."""
        return None

    def bar(self, ticket: CommitTicket) -> None:
        """Does nothing: a committer never gets a batch that it must not take."""

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        """Runs the bolt over the batch, with one new object for each task.

        :raises UserCodeError: the bolt raised, or emitted something undeclared.
        """
        given: list[list[tuple[int, tuple[Any, ...]]]] = [[] for _ in range(self._committer.tasks)]
        for number, (place, values) in enumerate(self._committer.inputs(table_to_rows(batch))):
            for task in _targets(self._committer.groupings[place], values, number, len(given)):
                given[task].append((place, values))
        emitted: list[tuple[Any, ...]] = []
        for index, tuples in enumerate(given):
            emitted += self._run(index, tuples, TransactionAttempt(ticket.txid, ticket.attempt))
        self._emitted = {ticket.txid: emitted}
        return Applied.APPLIED

    def _run(
        self, index: int, tuples: list[tuple[int, tuple[Any, ...]]], attempt: TransactionAttempt
    ) -> list[tuple[Any, ...]]:
        of = self._committer.bolt
        names = tuple(dict.fromkeys(name for one in of.inputs for name in one.fields[1:]))
        border = Border(of.id, function_name(of.bolt), names, attempt.txid)
        context = OperationContext(index, self._committer.tasks, attempt.txid, attempt.attempt)
        rows: list[tuple[Any, ...]] = []
        bolt = copied(of.bolt, border)
        assert isinstance(bolt, BaseBatchBolt)
        collector = BatchOutputCollector(of.outputs, attempt, lambda *row: rows.append(row))
        with border.watched(Watch()):
            with _calling(border, "prepare"):
                bolt.prepare(of.conf, of.context(context), collector, attempt)
            for place, values in tuples:
                with _calling(border, "execute", values):
                    bolt.execute(of.tuple_of(attempt, values, place))
            with _calling(border, "finish_batch"):
                bolt.finish_batch()
        fits = [coercer(one.type) for one in of.outputs.schema]
        try:
            return [tuple(fit(value) for fit, value in zip(fits, row, strict=True)) for row in rows]
        except UnfitValueError as error:
            raise border.error((), f"emitted {error}") from error

    def emitted(self, ticket: CommitTicket) -> pa.Table:
        return rows_to_table(self._spec.emits, self._emitted[ticket.txid])

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        raise self._nothing()

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        raise self._nothing()

    def _nothing(self) -> ConfigurationError:
        return ConfigurationError(
            f"the committer {self._spec.name!r} keeps what it does in a database of its own",
            "Ask that database.",
        )

    def close(self) -> None:
        self._emitted = {}


@contextmanager
def _calling(border: Border, method: str, values: tuple[Any, ...] = ()) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        border.translate(values, error, method)
        raise


def _targets(how: CommitterGrouping, values: tuple[Any, ...], number: int, tasks: int) -> Sequence[int]:
    if how.all:
        return range(tasks)
    if how.keys:
        key = canonical_key([values[place] for place in how.keys])
        return (crc32(repr(key).encode()) % tasks,)
    return (0 if how.one else number % tasks,)
