"""The promises of spouts and states as checks for any implementation: S1 to S5 of
:mod:`airflow_trident.contracts.spout`, and T1 to T5 and T8 of :mod:`airflow_trident.contracts.state`."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import Applied, Capabilities, Marker, State, StateFactory, StateSpec
from airflow_trident.errors import (
    DamagedInputError,
    FencedError,
    LedgerBehindStateError,
    SourceChangedError,
    SourceUnavailableError,
    StateBehindLedgerError,
    StoreUnavailableError,
    TridentError,
    UserCodeError,
)
from airflow_trident.io.arrow import arrow_schema, rows_to_table, table_to_rows
from airflow_trident.operations.aggregators import Count
from airflow_trident.operations.interfaces import CombinerAggregator, ReducerAggregator
from airflow_trident.operations.state_functions import Row
from airflow_trident.protocol.records import CommitTicket, StagedRef
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def require(holds: bool, broken: str) -> None:
    """:raises AssertionError: with the text `broken`, also under ``python -O``."""
    if not holds:
        raise AssertionError(broken)


def sent(made: T) -> T:
    """As another process gets it."""
    arrived: T = pickle.loads(pickle.dumps(made))  # noqa: S301 - its own
    return arrived


# ---- spouts ----------------------------------------------------------------------------------------------------

LAG_UNITS = frozenset({"files", "bytes", "records", "rows"})


@dataclass(frozen=True)
class SpoutCase:
    """A spout with a source that fills several batches.

    :param rows: all rows of the source, in any order.
    :param take_away: changes or removes what transactions recorded, and returns a spout that reads what remains.
    """

    spout: Spout
    rows: Sequence[Row]
    take_away: Callable[[], Spout]


def metadata_of_all(spout: Spout) -> list[Json]:
    """The metadata of transactions until there is nothing new: each by a coordinator of its own, as tasks do."""
    all_metadata: list[Json] = []
    previous: Json = None
    while sent(spout).coordinator().is_ready(previous):
        with spout.coordinator() as coordinator:
            previous = coordinator.initialize_transaction(len(all_metadata) + 1, previous)
        require(previous is not None, "S1: a source that is ready has a batch, and the metadata was None")
        require(json.loads(json.dumps(previous)) == previous, f"S1: JSON changes the metadata {previous!r:.200}")
        all_metadata.append(previous)
    with spout.coordinator() as coordinator:
        further = coordinator.initialize_transaction(len(all_metadata) + 1, previous)
    require(further is None, f"S1: a source that is not ready gave the metadata {further!r:.200}, not None")
    return all_metadata


def batch_rows(spout: Spout, metadata: Json) -> list[Row]:
    """The rows of a batch, read split by split by emitters that were pickled."""
    import pyarrow as pa

    rows: list[Row] = []
    emitter = spout.emitter()
    splits = sent(emitter).splits(json.loads(json.dumps(metadata)))
    indexes = [split.index for split in splits]
    require(indexes == list(range(len(splits))), f"S2: the splits have the indexes {indexes}, not 0, 1, 2, ...")
    for split in sent(splits):
        for batch in sent(emitter).read(split):
            expected = arrow_schema(spout.schema)
            require(batch.schema == expected, f"S5: a batch has the fields {batch.schema}, not {expected}")
            batch.validate(full=True)
            rows.extend(table_to_rows(pa.Table.from_batches([batch])))
    return rows


def check_replay(case: SpoutCase) -> None:
    """S2: the batch of a txid is the same, whenever it is read."""
    every = metadata_of_all(case.spout)
    first = [batch_rows(case.spout, metadata) for metadata in every]
    again = [batch_rows(case.spout, metadata) for metadata in reversed(every)][::-1]
    require(again == first, "S2: a batch that was read twice had other rows the second time")


def check_coverage(case: SpoutCase) -> None:
    """S3: every row is in exactly one transaction."""
    every = metadata_of_all(case.spout)
    require(len(every) > 1, "the source of a SpoutCase fills one batch: give it more rows, or the spout a lower limit")
    rows = [row for metadata in every for row in batch_rows(case.spout, metadata)]
    require(sorted(map(repr, rows)) == sorted(map(repr, case.rows)), f"S3: the batches have {rows}, not {case.rows}")


def check_changed_source(case: SpoutCase) -> None:
    """S4: data that are not there any more are an error, never fewer rows."""
    every = metadata_of_all(case.spout)
    changed = case.take_away()
    opaque = case.spout.kind is SpoutKind.OPAQUE
    expected = (SourceUnavailableError,) if opaque else (SourceChangedError, DamagedInputError)
    try:
        for metadata in every:
            batch_rows(changed, metadata)
    except expected as error:
        require(bool(error.cure), f"S4: the error {error} names no cure")
    else:
        names = " or ".join(kind.__name__ for kind in expected)
        require(False, f"S4: after take_away all batches can be read, without {names}")


def check_lag(case: SpoutCase) -> None:
    """A lag falls with each transaction, and is 0 in the end; asking for it changes nothing."""
    every: list[Json] = [None, *metadata_of_all(case.spout)]
    lags = [case.spout.coordinator().lag(metadata) for metadata in every]
    measured = [lag for lag in lags if lag is not None]
    require(
        all(set(lag) <= LAG_UNITS for lag in measured), f"a lag has units other than {sorted(LAG_UNITS)}: {measured}"
    )
    for before, after in pairwise(measured):
        is_less = after != before and all(after[unit] <= before[unit] for unit in before)
        require(is_less, f"the lag did not fall with a transaction: {before}, then {after}")
    require(not measured or not any(measured[-1].values()), f"the lag after the last transaction is {measured[-1:]}")
    check_coverage(case)


SPOUT_CHECKS: tuple[Callable[[SpoutCase], None], ...] = (check_replay, check_coverage, check_changed_source, check_lag)


def spout_suite(make: Callable[[], SpoutCase]) -> None:
    """Runs all checks.

    :param make: called for each check; gives a source that no check has read or changed.
    :raises AssertionError: the spout breaks a promise; the text begins with its name.
    """
    for check in SPOUT_CHECKS:
        check(make())


# ---- states: a broken store, a broken combiner, and short words ------------------------------------------------


@dataclass(frozen=True)
class Forgetful(StateFactory):
    """A broken store: the first apply of each txid or group is done, but its answer is lost."""

    inner: StateFactory

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self.inner.capabilities

    def validate(self, spec: StateSpec) -> None:
        self.inner.validate(spec)

    def make_state(self, spec: StateSpec) -> State:
        return ForgetfulState(self.inner.make_state(spec))

    def describe(self) -> str:
        return f"Forgetful({self.inner.describe()})"


class ForgetfulState(State):
    """See :class:`Forgetful`."""

    def __init__(self, inner: State) -> None:
        self.inner = inner

    def marker(self) -> Marker | None:
        return self.inner.marker()

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        answer = self.inner.apply(ticket, batch)
        if answer is Applied.APPLIED:
            raise StoreUnavailableError("the answer was lost", "Run it again.")
        return answer

    def apply_group(self, tickets: Sequence[CommitTicket], batches: Sequence[pa.Table]) -> tuple[Applied, ...]:
        answers = self.inner.apply_group(tickets, batches)
        if Applied.APPLIED in answers:
            raise StoreUnavailableError("the answer was lost", "Run it again.")
        return answers

    def bar(self, ticket: CommitTicket) -> None:
        self.inner.bar(ticket)

    def get_many(self, keys: Sequence[Row]) -> list[Row | None]:
        return self.inner.get_many(keys)

    def items(self) -> Iterator[tuple[Row, Row]]:
        return self.inner.items()

    def close(self) -> None:
        self.inner.close()


class Added(CombinerAggregator[int]):
    """A sum that no store computes itself."""

    def init(self, *values: Any) -> int:
        return int(values[0])

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


class Refusing(Added):
    """Raises when two values meet."""

    def combine(self, left: int, right: int) -> int:
        raise ZeroDivisionError("the combiner of the check refuses")


class Collected(ReducerAggregator[list[int]]):
    """Appends to the list that it gets, and raises behind it for a negative number."""

    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], *values: Any) -> list[int]:
        current.append(values[0])
        if values[0] < 0:
            raise ZeroDivisionError("the reducer of the check refuses")
        return current


def counted_words(
    factory: StateFactory,
    combiner: CombinerAggregator[Any] | None = None,
    *,
    name: str = "counts",
    topology: str = "words",
) -> StateSpec:
    """A state (word) -> (n)."""
    keys, values = parse_declared("word string"), parse_declared("n long")
    return StateSpec(
        topology=topology,
        name=name,
        keys=keys,
        values=values,
        staged=(*keys, *values),
        factory=factory,
        combiners=(combiner or Count(),),
    )


def ticket_of(txid: int, *, fence: int = 0, needs: Sequence[int] = (), late: bool = False, **more: Any) -> CommitTicket:
    """A ticket as the ledger gives it; `fence` is 10 * txid unless given."""
    needed = dict.fromkeys(("counts", "added"), Txids.of(*needs)) if needs else {}
    changed = {"incarnation": "i1", "attempt": 0, "position": {"lines": {"to": txid}}, **more}
    staged = StagedRef(manifest="m", rows_read=0, rows={}, bytes=0)
    return CommitTicket(
        topology="words", txid=txid, fence=fence or 10 * txid, staged=staged, late=late, needed=needed, **changed
    )


def batch_of(spec: StateSpec, *rows: Row) -> pa.Table:
    return rows_to_table(spec.staged, list(rows))


def apply(state: State, ticket: CommitTicket, batch: pa.Table) -> Applied:
    """Applies as a committer does: after a lost answer it applies again, which then gives ALREADY."""
    try:
        return state.apply(ticket, batch)
    except StoreUnavailableError:
        again = state.apply(ticket, batch)
        require(again is Applied.ALREADY, f"T2: apply of txid {ticket.txid} after a lost answer gave {again}")
        return Applied.APPLIED


def require_content(state: State, expected: dict[Row, Row], promise: str) -> None:
    pairs = list(state.items())
    content = dict(pairs)
    require(len(content) == len(pairs), f"items() gives a key twice: {pairs}")
    require(content == expected, f"{promise}: the state holds {content}, not {expected}")


def require_refused(
    state: State, error: type[TridentError], promise: str, ticket: CommitTicket, batch: pa.Table
) -> None:
    """Applying raises the error and changes neither data nor marker."""
    before = state.marker(), copy.deepcopy(dict(state.items()))
    try:
        state.apply(ticket, batch)
    except error:
        pass
    else:
        require(False, f"{promise}: no {error.__name__} was raised")
    require((state.marker(), dict(state.items())) == before, f"{promise}: a refused batch changed the state")


def marker_of(state: State) -> Marker:
    marker = state.marker()
    if marker is None:
        raise AssertionError("T1: a state to which a batch was applied has no marker")
    return marker


def counted_in_both_ways(factory: StateFactory) -> list[StateSpec]:
    """One that a store may add up by itself, and one that only Python can."""
    return [counted_words(factory), counted_words(factory, Added(), name="added")]


# ---- the promises of states ------------------------------------------------------------------------------------


def check_merging(factory: StateFactory) -> None:
    """A new state is empty; batches are merged into what is stored, for who opens the state next, too."""
    for spec in counted_in_both_ways(factory):
        with factory.make_state(spec) as state:
            require(state.marker() is None, "a new state has a marker")
            require_content(state, {}, "a new state is empty")
            answer = apply(state, ticket_of(1), batch_of(spec, ("a", 1), ("b", 2), (None, 3)))
            require(answer is Applied.APPLIED, f"T2: the first apply gave {answer}")
        with factory.make_state(spec) as state:
            apply(state, ticket_of(2), batch_of(spec, ("b", 10), ("c", 4), (None, 5)))
            apply(state, ticket_of(3), batch_of(spec))
            expected = {("a",): (1,), ("b",): (12,), ("c",): (4,), (None,): (8,)}
            require_content(state, expected, "T1: batches are merged")
            marker = Marker(incarnation="i1", high=3, fence=30, position={"lines": {"to": 3}})
            require(state.marker() == marker, f"T1: the marker is {state.marker()}, not {marker}")


def check_names(factory: StateFactory) -> None:
    """States of other names, or of other topologies, do not mix."""
    specs = [
        counted_words(factory, name="one"),
        counted_words(factory, name="two"),
        counted_words(factory, name="one", topology="other"),
    ]
    with factory.make_state(specs[0]) as first, factory.make_state(specs[1]) as second:
        apply(first, ticket_of(1), batch_of(specs[0], ("a", 1)))
        apply(second, ticket_of(4, incarnation="i9"), batch_of(specs[1], ("a", 5)))
        require_content(first, {("a",): (1,)}, "states do not mix")
        require_content(second, {("a",): (5,)}, "states do not mix")
    with factory.make_state(specs[2]) as third:
        require_content(third, {}, "states of two topologies do not mix")
        require(third.marker() is None, "states of two topologies share a marker")


def check_t1_atomic(factory: StateFactory) -> None:
    """T1: a combiner, or a reducer that changes a stored list in place, raises and leaves nothing of its batch."""
    spec = counted_words(factory, Refusing())
    with factory.make_state(spec) as state:
        apply(state, ticket_of(1), batch_of(spec, ("b", 2)))
        rows = batch_of(spec, ("a", 1), ("b", 3), ("c", 1))
        require_refused(state, UserCodeError, "T1", ticket_of(2), rows)
    staged, lists = parse_declared("word string, n long"), parse_declared("ns array<long>")
    collecting = replace(
        spec, name="lists", values=lists, staged=staged, combiners=(), reducer=Collected(), reads=("n",)
    )
    try:
        factory.validate(collecting)
    except TridentError:  # it keeps no lists
        return
    with factory.make_state(collecting) as state:
        apply(state, ticket_of(1), batch_of(collecting, ("a", 1)))
        require_refused(state, UserCodeError, "T1", ticket_of(2), batch_of(collecting, ("a", 2), ("a", -1)))
        require_content(state, {("a",): ([1],)}, "T1: a refused batch changed a stored list")


def check_t2_again(factory: StateFactory) -> None:
    """T2: an applied txid is ALREADY there, and changes nothing."""
    for spec in counted_in_both_ways(factory):
        rows = batch_of(spec, ("a", 2), ("b", 3))
        with factory.make_state(spec) as state:
            apply(state, ticket_of(1), rows)
            for _ in range(3):
                answer = state.apply(ticket_of(1), rows)
                require(answer is Applied.ALREADY, f"T2: a second apply gave {answer}, not {Applied.ALREADY!r}")
            require_content(state, {("a",): (2,), ("b",): (3,)}, "T2: a second apply changes nothing")


def check_t3_fences(factory: StateFactory) -> None:
    """T3: a lower fence is refused; a higher one is recorded, even if the txid is applied."""
    for spec in counted_in_both_ways(factory):
        rows = batch_of(spec, ("a", 2))
        with factory.make_state(spec) as state:
            apply(state, ticket_of(1, fence=7), rows)
            for txid in (1, 2):
                older = ticket_of(txid, fence=6)
                require_refused(state, FencedError, "T3", older, rows)
            apply(state, ticket_of(1, fence=9), rows)
            fence = marker_of(state).fence
            require(fence == 9, f"T3: the marker has the fence {fence} after a ticket with 9")
            require_refused(state, FencedError, "T3", ticket_of(2, fence=8), rows)


def check_t4_identity(factory: StateFactory) -> None:
    """T4: another incarnation, another batch of the txid, and a gap are refused."""
    for spec in counted_in_both_ways(factory):
        rows = batch_of(spec, ("a", 2))
        with factory.make_state(spec) as state:
            require_refused(state, StateBehindLedgerError, "T4", ticket_of(4, needs=(1, 2)), rows)
            apply(state, ticket_of(1), rows)
            for txid in (1, 2):
                other = ticket_of(txid, fence=10**6, incarnation="i2")
                require_refused(state, LedgerBehindStateError, "T4", other, rows)
            moved = ticket_of(1, fence=99, position={"lines": {"to": 77}})
            require_refused(state, LedgerBehindStateError, "T4", moved, rows)
            lacking = ticket_of(4, fence=90, needs=(1, 3))
            require_refused(state, StateBehindLedgerError, "T4", lacking, rows)


def check_t5_late(factory: StateFactory) -> None:
    """T5: a txid that was left out is applied late, once."""
    for spec in counted_in_both_ways(factory):
        rows = batch_of(spec, ("a", 2))
        with factory.make_state(spec) as state:
            apply(state, ticket_of(1), rows)
            apply(state, ticket_of(4), rows)
            for fence, expected in ((41, Applied.APPLIED), (42, Applied.ALREADY)):
                answer = apply(state, ticket_of(3, fence=fence, late=True), rows)
                require(answer is expected, f"T5: a late txid gave {answer}, not {expected!r}")
            holes = marker_of(state).holes
            require(holes == ((2, 2),), f"T5: the marker has the holes {holes}, not ((2, 2),)")
            require_content(state, {("a",): (6,)}, "T5: a late txid is applied once")


def check_t8_queries(factory: StateFactory) -> None:
    """T8: `get_many` gives the values in the order of the keys."""
    for spec in counted_in_both_ways(factory):
        with factory.make_state(spec) as state:
            require(state.get_many([("a",)]) == [None], "T8: an absent key has a value")
            apply(state, ticket_of(1), batch_of(spec, ("a", 1), ("b", 2), (None, 7)))
            values = state.get_many([("b",), ("absent",), (None,), ("a",), ("b",)])
            require(values == [(2,), None, (7,), (1,), (2,)], f"T8: get_many gave {values}")
            require(state.get_many([]) == [], "T8: get_many of no keys gives values")


STATE_CHECKS: tuple[Callable[[StateFactory], None], ...] = (
    check_merging,
    check_names,
    check_t1_atomic,
    check_t2_again,
    check_t3_fences,
    check_t4_identity,
    check_t5_late,
    check_t8_queries,
)


def state_suite(make: Callable[[], StateFactory]) -> None:
    """Runs all checks, then again with a store that applies and loses the answer.

    :param make: called for each check; gives a factory over an empty store.
    :raises AssertionError: the state breaks a promise; the text begins with its name.
    """
    for check in STATE_CHECKS:
        check(make())
    for check in STATE_CHECKS:
        check(Forgetful(make()))
