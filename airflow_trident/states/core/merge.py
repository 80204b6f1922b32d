"""How a staged batch changes a stored map. Pure, so all stores that merge in this process merge alike.

A key is a tuple of key fields (the empty tuple if the state has none), a value a tuple of value fields.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError, UserCodeError, guarded
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.operations.equality import canonical_key as canonical_key  # noqa: PLC0414 - stores take it from here
from airflow_trident.operations.equality import stored_keys
from airflow_trident.operations.interfaces import OperationContext, TransactionAttempt
from airflow_trident.operations.user_code import Border, is_pending, prepared
from airflow_trident.operations.user_functions import function_name
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.types import REAL_TYPES, names_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Key: TypeAlias = tuple[Any, ...]
Value: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = "dict[Key, Value | None]"
"""What to write: the new value of a key, or None to remove it."""
Lookup: TypeAlias = Callable[[Sequence[Key]], "list[Value | None]"]
"""The stored values of keys. Asked for keys of the batch only, so the cost does not depend on the state (T6)."""

EXACT = decimal.Context(prec=100, traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow])
"""Default decimal arithmetic rounds to 28 digits; sums of decimal(38,s) must be exact."""


class OfAttempt(Protocol):
    """Names the attempt and transaction of a batch, as a CommitTicket does."""

    @property
    def txid(self) -> int: ...

    @property
    def attempt(self) -> int: ...


NOBODY: OfAttempt = TransactionAttempt(txid=0, attempt=NO_ATTEMPT)
"""For combining values outside of any transaction: to read them, or to store them in less space."""


def merge(spec: StateSpec, batch: pa.Table, lookup: Lookup, whose: OfAttempt) -> Changes:
    """The effect of a staged batch (schema `spec.staged`) on the stored map. Users' objects are copied, prepared for
    the attempt `whose`, and cleaned up (T10).

    :raises UserCodeError: the user's aggregator or updater raised, or its result does not fit the state's fields.
    """
    rows = table_to_rows(batch)
    with decimal.localcontext(EXACT), _prepared(spec, whose) as working_spec, user_code(spec):
        if working_spec.combiners:
            changes = _combine(working_spec, rows, lookup)
        elif working_spec.reducer is not None:
            changes = _reduce(working_spec, rows, lookup)
        else:
            changes = _update(working_spec, rows, lookup)
    return _fitting(spec, changes)


@contextmanager
def _prepared(spec: StateSpec, whose: OfAttempt) -> Iterator[StateSpec]:
    """The spec with copies of the user's objects."""
    context = OperationContext(partition_index=0, num_partitions=1, txid=whose.txid, attempt=whose.attempt)
    with ExitStack() as lives:

        def own(part: T) -> T:
            border = Border(spec.name, function_name(part), names_of(spec.staged), whose.txid)
            return lives.enter_context(prepared(part, context, border))

        combiners = tuple(own(combiner) for combiner in spec.combiners)
        yield replace(spec, combiners=combiners, reducer=own(spec.reducer), updater=own(spec.updater))


def merge_before(spec: StateSpec, batch: pa.Table, before: Changes, whose: OfAttempt) -> Changes:
    """The effect of a late batch on the values before the highest txid (T9), for keys that have one: taking the highest
    txid back must not take back the late batch too."""
    if not before:
        return {}
    changes = merge(spec, batch, lambda keys: [before.get(key) for key in keys], whose)
    return {key: value for key, value in changes.items() if key in before}


@contextmanager
def user_code(spec: StateSpec) -> Iterator[None]:
    """The border around user code: errors of this package pass through, all others become UserCodeError."""
    with guarded(
        f"{_who(spec)} of state {spec.name!r}",
        node=spec.name,
        fields=", ".join(names_of(spec.staged)),
        cure="Nothing was applied: mend the function and run the task again.",
    ):
        yield


def _who(spec: StateSpec) -> str:
    part: object = spec.updater
    if spec.combiners:
        part = spec.combiners[0]
    elif spec.reducer is not None:
        part = spec.reducer
    return str(getattr(part, "__qualname__", type(part).__qualname__))


# ---- combiners and reducers ------------------------------------------------------------------------------------


def _combine(spec: StateSpec, rows: list[tuple[Any, ...]], lookup: Lookup) -> Changes:
    keys, value_of = keys_of(spec, rows), _picker(spec, spec.value_names)
    new = _stored(lookup, keys)
    for key, staged in zip(keys, map(value_of, rows), strict=True):
        stored = new[key]
        if stored is None:
            new[key] = staged
        else:
            parts = zip(spec.combiners, stored, staged, strict=True)
            new[key] = tuple(combiner.combine(left, right) for combiner, left, right in parts)
    return new


def _reduce(spec: StateSpec, rows: list[tuple[Any, ...]], lookup: Lookup) -> Changes:
    reducer = spec.reducer
    assert reducer is not None
    keys, reads_of = keys_of(spec, rows), _picker(spec, spec.reads)
    new = _stored(lookup, keys)
    for key, row in zip(keys, rows, strict=True):
        stored = new[key]
        current = reducer.init() if stored is None else stored[0]
        new[key] = (reducer.reduce(current, *reads_of(row)),)
    return new


def _stored(lookup: Lookup, keys: Iterable[Key]) -> Changes:
    distinct = list(dict.fromkeys(keys))
    return dict(zip(distinct, lookup(distinct), strict=True))


def with_changes(lookup: Lookup, changes: Changes, keys: Sequence[Key]) -> list[Value | None]:
    """The values of keys after `changes`, which are not written yet."""
    unknown = [key for key in dict.fromkeys(keys) if key not in changes]
    stored = dict(zip(unknown, lookup(unknown), strict=True)) if unknown else {}
    return [changes[key] if key in changes else stored[key] for key in keys]


def _picker(spec: StateSpec, names: Sequence[str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    staged = names_of(spec.staged)
    places = [staged.index(name) for name in names]
    if len(places) < 2:  # itemgetter makes no tuple of a single field
        return lambda row: tuple([row[place] for place in places])
    return itemgetter(*places)


def keys_of(spec: StateSpec, rows: list[tuple[Any, ...]]) -> list[Key]:
    """The key of each row of a staged batch."""
    keys = map(_picker(spec, spec.key_names), rows)
    has_reals = any(field.type in REAL_TYPES for field in spec.keys)
    return list(map(canonical_key, keys) if has_reals else keys)


# ---- updaters --------------------------------------------------------------------------------------------------


def _update(spec: StateSpec, rows: list[tuple[Any, ...]], lookup: Lookup) -> Changes:
    if spec.updater is None:
        raise ConfigurationError(
            f"state {spec.name!r} has neither combiners, nor a reducer, nor an updater", "Give it one."
        )
    view = BufferedMap(spec, lookup)
    updater: Any = spec.updater  # a user's object need not be a StateUpdater to have its methods
    if is_pending(getattr(updater, "update_state", updater)(view, iter(rows))):
        raise UserCodeError(
            f"{_who(spec)} of state {spec.name!r} yields or awaits, so its body never runs",
            "Let it be a plain function that calls the state's methods.",
            node=spec.name,
        )
    if spec.told:
        _require_own_keys(spec, rows, view.changes)
    _require_small(spec, view.changes)
    return view.changes


def _require_small(spec: StateSpec, changes: Changes) -> None:
    """Refuses a value that the store would refuse, often in words that name neither key nor cure."""
    places = [place for place, field in enumerate(spec.values) if field.type == "binary"]
    limit = spec.factory.max_value_bytes
    if limit is None or not places:
        return
    for key, value in changes.items():
        size_bytes = max((len(value[place] or b"") for place in places), default=0) if value is not None else 0
        if size_bytes > limit:
            named = ", ".join(f"{name}={part!r:.60}" for name, part in zip(spec.key_names, key, strict=True))
            raise ConfigurationError(
                f"{_who(spec)} of state {spec.name!r} gave the key ({named}) a value of {size_bytes:,} bytes, and "
                f"{spec.factory.describe()} takes {limit:,}",
                "Nothing was applied to it. A window holds less with fewer fields, after an aggregation, with a larger "
                "slide, or with smaller batches (max_rows, max_files, max_bytes of the spout); or keep it in a "
                "DeltaState, which takes 2 GiB. The transaction goes on with a changed window under another name=, "
                "after `airflow trident ledger accept`; or take its commit back with `airflow trident take-back`.",
            )


def _require_own_keys(spec: StateSpec, rows: list[tuple[Any, ...]], changes: Changes) -> None:
    others = changes.keys() - set(keys_of(spec, rows))
    if others:
        named = ", ".join(
            f"{name}={value!r:.60}" for name, value in zip(spec.key_names, min(others, key=repr), strict=True)
        )
        raise UserCodeError(
            f"{_who(spec)} changed the key ({named}) of state {spec.name!r}, which no tuple of the batch has, and a "
            "stream of its new values would not be told",
            "Nothing was applied: keep such keys in a state of their own, or make tuples of them before.",
            node=spec.name,
            fields=", ".join(spec.key_names),
            row=named,
        )


class BufferedMap:
    """The MapState of an updater: buffers puts until the whole batch is done; reads see them."""

    def __init__(self, spec: StateSpec, lookup: Lookup) -> None:
        self.changes: Changes = {}
        self._lookup = lookup
        self._key_fields = spec.keys
        self._value_width = len(spec.values)

    def multi_get(self, keys: Sequence[Key]) -> list[Value | None]:
        return with_changes(self._lookup, self.changes, self._stored(keys))

    def multi_put(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        for key, value in zip(self._stored(keys), values, strict=True):
            if not isinstance(value, (tuple, list)) or len(value) != self._value_width:
                raise ValueError(f"a value is a tuple of {self._value_width} fields, got {value!r}")
            self.changes[key] = tuple(value)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        for key in self._stored(keys):
            self.changes[key] = None

    def _stored(self, keys: Iterable[Key]) -> list[Key]:
        keys = list(keys)  # users give generators, too
        for key in keys:
            if not isinstance(key, (tuple, list)) or len(key) != len(self._key_fields):
                raise ValueError(f"a key is a tuple of {len(self._key_fields)} fields, got {key!r}")
        return stored_keys(self._key_fields, keys)


# ---- what user code gave must fit the fields -------------------------------------------------------------------


def _fitting(spec: StateSpec, changes: Changes) -> Changes:
    """The changes with every value converted to its field's type (an int in a double field becomes a float)."""
    import pyarrow as pa

    schema = (*spec.keys, *spec.values)
    width = len(spec.keys)
    removed: Changes = {key: None for key, value in changes.items() if value is None}
    rows = [(*key, *value) for key, value in changes.items() if value is not None]
    try:
        fitted = table_to_rows(rows_to_table(schema, rows)) if rows else []
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise does_not_fit(spec, _unfit(spec, rows) or str(error)) from error
    return {**{canonical_key(row[:width]): tuple(row[width:]) for row in fitted}, **removed}


def does_not_fit(spec: StateSpec, problem: str) -> UserCodeError:
    """The error for a value that a state's field cannot hold, such as a sum that overflows."""
    return UserCodeError(
        f"a new value of state {spec.name!r} does not fit its field: {problem}",
        "Nothing was applied: declare a wider type (a sum of decimal(38,0) or double), or mend the aggregator.",
        node=spec.name,
        fields=", ".join(spec.value_names),
    )


def _unfit(spec: StateSpec, rows: list[tuple[Any, ...]]) -> str:
    """Describes the first value that does not fit."""
    import pyarrow as pa

    schema = (*spec.keys, *spec.values)
    for row in rows:
        for field, value in zip(schema, row, strict=True):
            try:
                rows_to_table((field,), [(value,)])
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return f"{field.name} {field.type} cannot hold {value!r} (key {row[: len(spec.keys)]!r})"
    return ""
