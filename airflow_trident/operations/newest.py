"""The newest tuple of each key, for upserts of a stream that may have several tuples of a key in one batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from airflow_trident.errors import UserCodeError
from airflow_trident.operations.api import Aggregator, Collector, TransactionAttempt
from airflow_trident.operations.equality import same


@dataclass(slots=True)
class Candidates:
    """The newest tuples of one key in a batch so far, without duplicates. `order`: their order values."""

    txid: int
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    order: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Newest(Aggregator[Candidates]):
    """The tuple of a group with the greatest values of the order fields, compared one after the other: null is the
    lowest value, NaN the greatest number. Without order fields all tuples of a group must be equal.

    Runs in every partition before the shuffle, where several equally new tuples may be left, and once more after it.

    :param fields: of the tuples that it reads: first `keys` key fields, which name the group and are not emitted.
    :param order: the positions of the order fields in `fields`, the most important first.
    :param state: the upserted state, for the error.
    :param last: no step follows, so equally new tuples that differ are an error.
    :param not_null: a null in a key is an error.
    """

    fields: tuple[str, ...]
    keys: int
    order: tuple[int, ...]
    state: str
    last: bool = True
    not_null: bool = False

    def before(self) -> Newest:
        """The step before the shuffle; this one follows it."""
        return replace(self, last=False)

    def describe(self) -> str:
        order = ", ".join(self.fields[place] for place in self.order)
        return f"newest by {order}" if order else "the only one"

    def init(self, batch: TransactionAttempt, collector: Collector) -> Candidates:
        return Candidates(batch.txid)

    def aggregate(self, state: Candidates, collector: Collector, *values: Any) -> None:
        if self.not_null and None in values[: self.keys]:
            raise self._null_key(state.txid, values)
        order = tuple([_rank(values[place]) for place in self.order])
        if not state.rows or order > state.order:
            state.rows, state.order = [values], order
        elif order == state.order and not any(same(values, row) for row in state.rows):
            state.rows.append(values)

    def _null_key(self, txid: int, values: tuple[Any, ...]) -> UserCodeError:
        keys = self.fields[: self.keys]
        return null_key(self.state, txid, dict(zip(keys, values, strict=False)))

    def complete(self, state: Candidates, collector: Collector) -> None:
        """:raises UserCodeError: several tuples are equally new and differ."""
        if self.last and len(state.rows) > 1:
            first, second = sorted(state.rows, key=repr)[:2]
            raise two_values(
                self.state,
                dict(zip(self.fields[: self.keys], first, strict=False)),
                dict(zip(self.fields[self.keys :], first[self.keys :], strict=True)),
                dict(zip(self.fields[self.keys :], second[self.keys :], strict=True)),
                f"in transaction {state.txid} and "
                + (f"are equally new ({self.describe()})" if self.order else "nothing says which one counts"),
                "Name one more field in order_by, one that tells them apart."
                if self.order
                else 'Name the fields that say which is newer, as in order_by="updated_at", or aggregate by the key '
                "first.",
            )
        for row in state.rows:
            collector.emit(*row[self.keys :])


def two_values(
    state: str, key: dict[str, Any], first: dict[str, Any], second: dict[str, Any], why: str, cure: str
) -> UserCodeError:
    """The error of an upsert that would have to guess which of two tuples of a batch counts."""
    named = _shown(key) or "without key fields"
    return UserCodeError(
        f"two tuples of one batch have the same key of state {state!r} ({named}) {why}: ({_shown(first)}) and "
        f"({_shown(second)})",
        cure,
        node=state,
        fields=", ".join((*key, *first)),
        row=named,
    )


def null_key(state: str, txid: int, key: dict[str, Any]) -> UserCodeError:
    """The error of a tuple for a table by keys that lacks one."""
    name = next(name for name, value in key.items() if value is None)
    shown = _shown(key)
    return UserCodeError(
        f"a tuple of transaction {txid} has no {name!r}, a key of the table of state {state!r} ({shown})",
        f'Leave such tuples out, as in filter(col("{name}").is_not_null()), or give them a key before.',
        node=state,
        fields=", ".join(key),
        row=shown,
        txid=txid,
    )


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.60}" for name, value in values.items())


def _rank(value: Any) -> tuple[Any, ...]:
    """A sort key that never compares values of different types."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)
