"""The contents of windows as a state: an updater over any map store, so windows are exactly as safe as counts.

The store has everything that a window needs, beside the store's own marker and changed in the same step: the tuples of
panes that a later window still holds, how far the stream is, and the tuples of the windows that the highest transaction
completed (*fired*). So a repeated commit reads the same fired tuples, and a transaction that is there already is never
added to a window again. (Trident adds a replayed batch to its windows again, and its triggers belong to no batch.)

The stored map: ``(part, pane, chunk) -> body``. A chunk holds the tuples that one transaction brought into one pane. So
the cost is that of the batch, of the fired windows, and of the list of live panes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.contracts.updater import DescribedUpdater
from airflow_trident.errors import DefinitionChangedError
from airflow_trident.io.arrow import arrow_schema, rows_to_table, table_to_rows
from airflow_trident.operations.state_functions import Row
from airflow_trident.operations.windows import WindowConfig
from airflow_trident.types import Field, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.contracts.updater import MapState

KEYS = parse_declared("part string, pane long, chunk long")
VALUES = parse_declared("body binary")
COMMIT_TIME = "~time"
"""A staged field of every time window. The committer appends one tuple with only this field set: the time of the
transaction if windows use that, otherwise when the transaction was begun. No user's field can have this name."""
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_FIRST_MS, _LAST_MS = (
    (moment.replace(tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(milliseconds=1)
    for moment in (datetime.datetime.min, datetime.datetime.max)
)
"""The times that the bounds of a window can have."""
_BOOK, _FIRED = ("book", 0, 0), ("fired", 0, 0)
_Lookup: TypeAlias = Callable[[Sequence[tuple[Any, ...]]], "list[tuple[Any, ...] | None]"]
_Decode: TypeAlias = "Callable[[bytes, Schema], pa.Table]"


@dataclass(frozen=True, kw_only=True)
class WindowUpdater(DescribedUpdater):
    """Keeps the windows of one stream.

    :param state: the name of the windows' state, for errors.
    :param kept: the fields of the tuples in a window; the staged tuples have these and perhaps `time`.
    :param time: the field with the time of a tuple (timestamp, or long in ms), :data:`COMMIT_TIME` for the time of its
        transaction, empty for count windows.
    :param lag_ms: a tuple may be this much older than the latest one and still be in all its windows.
    :param max_ahead_ms: a tuple whose time is more than this after the beginning of its transaction does not count for
        how far the stream is; None: every tuple counts. Not part of the definition: it only changes when windows fire.
    :param reopen_ms: the first transaction with this value sets the stream back to at most this time, so windows that
        end later are open again. Not part of the definition, either.
    """

    state: str
    config: WindowConfig
    kept: Schema
    staged: tuple[str, ...]
    bounds: Schema
    time: str = ""
    lag_ms: int = 0
    max_ahead_ms: int | None = None
    reopen_ms: int | None = None

    def describe(self) -> str:
        """Part of the topology's definition: a stored window cannot become another kind."""
        by = {"": "", COMMIT_TIME: " by the time of transactions"}.get(self.time, f" by {self.time}")
        return f"{self.config}{by}{f', lag {self.lag_ms} ms' if self.lag_ms else ''}"

    @property
    def fired(self) -> Schema:
        """Fields of the tuples of fired windows: the beginning and end of the window, and the tuple."""
        return (*self.bounds, *self.kept)

    def __call__(self, state: MapState, tuples: Iterable[Row]) -> None:
        book = replace(_Book.load(state.multi_get).opened_from(self.reopen_ms), late_now=0, ahead_now=0, untimed_now=0)
        before = book.last_end(self.config)
        coming = self._take(book, list(tuples))
        mark = book.mark
        contents = _Contents(state, self._decoded, self.kept, book.panes, coming)
        fired: list[Row] = []
        if mark is not None:
            for end in self.config.ends(sorted({*book.panes, *coming}), before, mark):
                rows = contents.rows([pane for pane in contents.panes if pane in self.config.panes_of(end)])
                first, last = self._bound(end - self.config.length), self._bound(end)
                fired += [(first, last, *row) for row in rows]
                book.windows += 1
        contents.keep(self._needed(book))
        state.multi_put([_FIRED], [(_encode(self.fired, fired),)])
        book.save(state)

    def _take(self, book: _Book, tuples: list[Row]) -> dict[int, list[Row]]:
        """The new tuples by pane; moves the book's mark on."""
        needed = self._needed(book)
        places, mark = self._places(book, tuples)
        if mark is not None:
            book.mark = mark if book.mark is None else max(book.mark, mark)
        indices = [self.staged.index(name) for name in names_of(self.kept)]
        coming: dict[int, list[Row]] = {}
        for place, row in places:
            pane = self.config.pane_of(place)
            if needed is not None and pane < needed:
                book.late += 1
                book.late_now += 1
                continue
            coming.setdefault(pane, []).append(tuple(row[index] for index in indices))
        return coming

    def _places(self, book: _Book, tuples: list[Row]) -> tuple[list[tuple[int, Row]], int | None]:
        """Each tuple with its place; and the place below which everything has come."""
        if not self.time:
            begin = book.mark or 0
            return list(enumerate(tuples, begin)), begin + len(tuples)
        index = self.staged.index(self.time)
        *rows, tick = tuples
        commit_time = tick[self.staged.index(COMMIT_TIME)]
        if self.time == COMMIT_TIME:
            now = commit_time if book.mark is None else max(commit_time, book.mark)
            return [(now, row) for row in rows], now
        times = [(_milliseconds(row[index]), row) for row in rows]
        places = [(place, row) for place, row in times if place is not None and self._has_windows(place)]
        book.untimed_now = len(times) - len(places)
        # One wrong clock must not end every window too early: such a tuple waits for its time.
        last = None if self.max_ahead_ms is None or not commit_time else commit_time + self.max_ahead_ms
        trusted = [place for place, _ in places if last is None or place <= last]
        book.ahead_now = len(places) - len(trusted)
        return places, max(trusted) - self.lag_ms if trusted else None

    def _has_windows(self, place: int) -> bool:
        """Can the bounds of all windows with this time be written? One row (year 1, microseconds for milliseconds) must
        not stop the stream, as one that is late does not."""
        begin, end = self.config.spans(place)
        return begin >= _FIRST_MS and end <= _LAST_MS

    def _needed(self, book: _Book) -> int | None:
        """The first pane that a future window may hold."""
        end = book.last_end(self.config)
        return None if end is None else self.config.needed_from(end)

    def _bound(self, place: int) -> Any:
        if self.config.timed:
            return _EPOCH + datetime.timedelta(milliseconds=place)
        return max(place, 0)

    # ---- reading -----------------------------------------------------------------------------------------------

    def emitted(self, lookup: _Lookup) -> pa.Table:
        """The tuples of the windows that the highest applied transaction completed."""
        (stored,) = lookup([_FIRED])
        return rows_to_table(self.fired, []) if stored is None else self._decoded(stored[0], self.fired)

    def _decoded(self, body: bytes, schema: Schema) -> pa.Table:
        """:raises DefinitionChangedError: the tuples were kept with other fields or types: read as these, their values
        would mean something else.
        """
        table, expected = _decode(body), arrow_schema(schema)
        if not table.schema.equals(expected):
            was, now = (
                ", ".join(f"{arrow_field.name} {arrow_field.type}" for arrow_field in fields)
                for fields in (table.schema, expected)
            )
            raise DefinitionChangedError(
                f"the windows of state {self.state!r} hold tuples of ({was}), and the topology's are ({now})",
                "Give the fields their old types until these windows have fired, or give the windows another name=.",
            )
        return table

    def overlooked(self, lookup: _Lookup) -> Overlooked:
        """Which tuples of the highest applied transaction were not treated like the others."""
        book = _Book.load(lookup)
        return Overlooked(late=book.late_now, ahead=book.ahead_now, untimed=book.untimed_now, late_in_all=book.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlooked:
    """Numbers of tuples of one transaction. `late`: came after all their windows had fired, and are in none; `ahead`:
    so far in the future that they do not count for how far the stream is; `untimed`: have no time, or one whose windows
    would begin before year 1 or end after 9999, and are in none; `late_in_all`: late ones of all transactions."""

    late: int
    ahead: int
    untimed: int
    late_in_all: int


def bounds_of(config: WindowConfig) -> Schema:
    """The beginning and end of a window: times, or numbers of tuples (the first one is 0)."""
    kind = "timestamp" if config.timed else "long"
    return (Field("window_start", kind), Field("window_end", kind))


@dataclass
class _Book:
    """How far the stream is. `mark`: everything before it has come, None at first; `panes`: live pane -> number of its
    chunks; `late`: tuples too late for all their windows; `windows`: how many fired. `late_now`, `ahead_now`,
    `untimed_now`: of the highest transaction (see :class:`Overlooked`). `reopened`: the last time from which windows
    were opened again."""

    mark: int | None = None
    panes: dict[int, int] = field(default_factory=dict)
    late: int = 0
    windows: int = 0
    late_now: int = 0
    ahead_now: int = 0
    untimed_now: int = 0
    reopened: int | None = None

    @staticmethod
    def load(lookup: _Lookup) -> _Book:
        (stored,) = lookup([_BOOK])
        if stored is None:
            return _Book()
        record = json.loads(stored[0])
        panes = {int(pane): int(chunks) for pane, chunks in record["panes"]}
        return _Book(
            mark=record["mark"],
            panes=panes,
            late=record["late"],
            windows=record["windows"],
            late_now=record.get("late_now", 0),  # books of 0.1 lack this and the next two
            ahead_now=record.get("ahead_now", 0),
            untimed_now=record.get("untimed_now", 0),  # those of 0.2 lack it
            reopened=record.get("reopened"),
        )

    def opened_from(self, place: int | None) -> _Book:
        """Opens the windows that end after `place`. Only once for each place: later the stream may have gone
        further."""
        if place is None or place == self.reopened:
            return self
        return replace(self, reopened=place, mark=None if self.mark is None else min(self.mark, place))

    def last_end(self, config: WindowConfig) -> int | None:
        return None if self.mark is None else config.last_end(self.mark)

    def save(self, state: MapState) -> None:
        record = {
            "version": 1,
            "mark": self.mark,
            "panes": sorted(self.panes.items()),
            "late": self.late,
            "windows": self.windows,
            "late_now": self.late_now,
            "ahead_now": self.ahead_now,
            "untimed_now": self.untimed_now,
            "reopened": self.reopened,
        }
        state.multi_put([_BOOK], [(json.dumps(record).encode(),)])


class _Contents:
    """The tuples of panes: those in the store, read when first needed, followed by those that come now."""

    def __init__(
        self, state: MapState, decode: _Decode, kept: Schema, stored: dict[int, int], coming: dict[int, list[Row]]
    ) -> None:
        self._state = state
        self._decode = decode
        self._kept = kept
        self._stored = stored
        self._coming = coming
        self._read: dict[int, list[Row]] = {}
        self.panes = sorted({*stored, *coming})

    def rows(self, panes: list[int]) -> list[Row]:
        unread = [pane for pane in panes if pane in self._stored and pane not in self._read]
        keys = [key for pane in unread for key in self._chunks(pane)]
        bodies = iter(self._state.multi_get(keys))
        for pane in unread:
            tables = (self._decode(_body(next(bodies)), self._kept) for _ in range(self._stored[pane]))
            self._read[pane] = [row for table in tables for row in table_to_rows(table)]
        return [row for pane in panes for row in (*self._read.get(pane, ()), *self._coming.get(pane, ()))]

    def keep(self, needed_from: int | None) -> None:
        """Stores the new tuples, and removes the panes that no future window can hold."""
        for pane in self.panes:
            if needed_from is not None and pane < needed_from:
                self._state.multi_remove(self._chunks(pane))
                self._stored.pop(pane, None)
            elif pane in self._coming:
                chunk = self._stored.get(pane, 0)
                self._state.multi_put([("pane", pane, chunk)], [(_encode(self._kept, self._coming[pane]),)])
                self._stored[pane] = chunk + 1

    def _chunks(self, pane: int) -> list[tuple[Any, ...]]:
        return [("pane", pane, chunk) for chunk in range(self._stored.get(pane, 0))]


def _body(stored: tuple[Any, ...] | None) -> bytes:
    assert stored is not None, "a chunk of a live pane is gone"
    return bytes(stored[0])


def _milliseconds(time: datetime.datetime | int | None) -> int | None:
    if not isinstance(time, datetime.datetime):
        return time
    zoned = time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time
    return (zoned - _EPOCH) // datetime.timedelta(milliseconds=1)


def _encode(schema: Schema, rows: list[Row]) -> bytes:
    """Arrow's stream format: types survive, and other programs can read it."""
    import pyarrow as pa

    table = rows_to_table(schema, rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _decode(body: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()
