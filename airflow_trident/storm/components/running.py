"""Runs a bolt in another program over the rows of one partition. Its emits come out in the order of the rows.

Each partition of an attempt has one child, which starts with the first row. The last emits are only given out after the
child ended well; a bad end fails the partition. Success needs an acknowledgement of each row, not just the exit code.

Polls a spout in another program for one tuple after another, in one thread. Each request waits for its answer.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_trident.errors import ChildError, ChildProtocolError, ConfigurationError, TridentError, UserCodeError
from airflow_trident.storm.components.process import Channel, Program
from airflow_trident.storm.components.protocol import (
    STRING,
    BoltPlace,
    BoltTalk,
    ChildComponent,
    ChildLimits,
    OnFail,
    PendingRow,
    Reader,
    Talk,
    reader_of,
)
from airflow_trident.storm.components.telemetry import TELEMETRY, Telemetry
from airflow_trident.types import Json

_log = logging.getLogger(__name__)

OUT_ROWS = 8192
"""How many emits are given out together."""
OPEN_BYTES = 8 << 20
"""The child gets no more rows while it holds so many bytes of them."""
_GIVE_ROWS = 64
_LOOK_S = 0.1
NO_ROW = -1

MOST_ROWS = 65_536
"""After so many rows an `Emits` comes out, even an empty one."""


class Emit(NamedTuple):
    """One output. `row`: the number of its row, or `NO_ROW`; `stream`: its index in `BoltPlace.streams`.

    (A tuple, because each emit makes one, and a frozen dataclass costs four times as much.)
    """

    row: int
    stream: int
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Emits:
    """Some emits. `end`: all emits of the rows below this number are here or came before."""

    emits: list[Emit]
    end: int


def run_bolt(
    bolt: ChildComponent,
    rows: Iterable[tuple[Any, ...]],
    place: BoltPlace,
    error_of: Callable[[tuple[Any, ...], str], UserCodeError],
    look: Callable[[], None] | None = None,
) -> Iterator[Emits]:
    """
    :param rows: of one partition.
    :param error_of: makes the error from the values of a row and what happened to it.
    :param look: called ten times a second during a wait for the child; an exception from it ends the partition (a
        cancel).
    :raises UserCodeError: the component failed a row, emitted undeclared values, or did not begin.
    :raises ChildError: the child died, hung, or did not stop.
    :raises ChildProtocolError: the child sent a message that the protocol does not allow.
    :raises ConfigurationError: its program is missing.
    """
    source = iter(rows)
    first = next(source, None)
    if first is None:
        return
    with Channel(bolt.program(place), f"{bolt!s} in {place.node}") as channel:
        yield from _Run(bolt, place, channel, error_of, look).run(first, source)


class _Run:
    """Listens to one child and checks the time-outs."""

    def __init__(
        self,
        bolt: ChildComponent,
        place: BoltPlace,
        channel: Channel,
        error_of: Callable[[tuple[Any, ...], str], UserCodeError],
        look: Callable[[], None] | None,
    ) -> None:
        self._bolt = bolt
        self._limits: ChildLimits = bolt.limits
        self._place = place
        self._channel = channel
        self._error_of = error_of
        self._look = look
        self._talk: BoltTalk = bolt.talk(channel, self, place)
        self._streams: dict[str, tuple[int, Reader]] = {
            name: (number, reader_of(schema)) for number, (name, schema) in enumerate(place.streams.items())
        }
        self._telemetry = Telemetry(place.name) if TELEMETRY in place.streams else None
        self._ready = False
        self._rows: deque[PendingRow] = deque()
        self._first = 0
        self._given = 0
        self._open = 0
        self._open_bytes = 0
        self._out: list[Emit] = []
        self._taken_at = 0
        self._heard = False
        self._silent_s = self._stuck_s = self._unbeaten_s = 0.0
        self._dropped_rows = 0
        self._dropped_emits: dict[str, int] = {}

    # ---- one partition -----------------------------------------------------------------------------------------

    def run(self, first: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterator[Emits]:
        try:
            self._start()
            waiting: Emits | None = None
            row: tuple[Any, ...] | None = first
            while row is not None:
                while not self._room:
                    self._turn(last=False)
                self._give(row)
                if len(self._out) >= OUT_ROWS or self._given - self._taken_at >= MOST_ROWS:
                    if waiting is not None:
                        yield waiting
                    waiting = self._taken()
                row = next(rows, None)
            self._talk.flush()
            while self._open:
                self._turn(last=True)
            self._end()
            self._measured()
            yield from (some for some in (waiting, self._taken()) if some is not None)
            self._tell()
        finally:
            self._talk.close()

    def _start(self) -> None:
        self._talk.open()
        end_s = time.monotonic() + self._limits.start_timeout_s
        while not self._ready:
            if time.monotonic() > end_s:
                self._channel.kill()
                raise self._channel.error(
                    f"did not begin within {self._limits.start_timeout_s:g} s", "Raise start_timeout_s, or mend it."
                )
            self._pump(_LOOK_S)
            if self._channel.eof and not self._ready:
                raise self._channel.lost("before it began")

    @property
    def _room(self) -> bool:
        return (
            len(self._rows) < self._talk.window
            and self._open_bytes < OPEN_BYTES
            and self._channel.backlog_bytes < OPEN_BYTES
        )

    def _give(self, values: tuple[Any, ...]) -> None:
        number = self._given
        self._given += 1
        if self._talk.acknowledges:
            row = PendingRow(values, 0)
            if self._telemetry is not None:
                row.given_s = time.monotonic()
            self._rows.append(row)
            self._open += 1
            row.size_bytes = self._talk.give(number, values)
            self._open_bytes += row.size_bytes
        else:
            self._talk.give(number, values)
        if number % _GIVE_ROWS == 0 or not self._room:
            self._pump(0)
            self._require_alive()

    def _taken(self) -> Emits:
        out, self._out = self._out, []
        self._taken_at = self._given
        return Emits(out, self._first if self._talk.acknowledges else self._given)

    # ---- waiting -----------------------------------------------------------------------------------------------

    def _turn(self, *, last: bool) -> None:
        """Wait for messages. Only this time counts for time-outs, not the time that the engine uses between rows."""
        talk, limits = self._talk, self._limits
        talk.flush()
        talk.still(last=last)
        began_s, backlog_bytes = time.monotonic(), self._channel.backlog_bytes
        self._pump(_LOOK_S)
        self._require_alive()
        spent_s = time.monotonic() - began_s
        if not talk.acknowledges and self._channel.backlog_bytes < backlog_bytes:
            self._stuck_s = 0.0
        if not self._heard:
            self._silent_s += spent_s
        self._stuck_s += spent_s
        self._unbeaten_s += spent_s
        if talk.beat_s is not None and self._unbeaten_s >= talk.beat_s:
            self._unbeaten_s = 0.0
            talk.beat()
        if talk.proves_life and self._silent_s > limits.silence_s:
            raise self._hung(f"was silent for {limits.silence_s:g} s", "silence_s")
        if limits.tuple_timeout_s is not None and self._stuck_s > limits.tuple_timeout_s:
            did = "acknowledged" if talk.acknowledges else "took"
            raise self._hung(f"{did} nothing for {limits.tuple_timeout_s:g} s", "tuple_timeout_s")

    def _hung(self, problem: str, option: str) -> ChildError:
        self._channel.kill()
        return self._channel.error(
            f"{problem} with {self._open} rows given, and was killed",
            f"If it is only slow, raise {option}.",
        )

    def _pump(self, wait_s: float) -> None:
        if self._look is not None:
            self._look()
        messages = self._channel.pump(wait_s)
        self._heard = bool(messages)
        if messages:
            self._silent_s = 0.0
        for message in messages:
            self._talk.hear(message)

    def _require_alive(self) -> None:
        if self._channel.eof:
            progress = f"acknowledged {self._open} rows" if self._talk.acknowledges else "had all rows"
            raise self._channel.lost(f"before it {progress}")

    # ---- the end -----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Heartbeat, shutdown, end of file, exit."""
        talk, channel = self._talk, self._channel
        talk.last_call()
        self._await_called()
        talk.bye()
        if talk.closes_input:
            channel.close_input()
        code = channel.ended(self._limits.stop_timeout_s, talk.hear, self._look)
        if not talk.ended_well(code):
            raise channel.error("ended badly after it had acknowledged all rows", "Mend its shutdown.")
        if channel.cut_off and not talk.acknowledges:
            raise channel.error("ended before it had taken all rows", "Let it end at shutdown only.")

    def _await_called(self) -> None:
        """Wait for the answer to the last heartbeat, and until what was sent is taken.

        One that proves life may work on, within tuple_timeout_s, as long as it says something. One that never answered
        a heartbeat is waited for as long; then its input ends, for it may not know heartbeats.
        """
        talk, channel, limits = self._talk, self._channel, self._limits
        option = "silence_s" if talk.proves_life else "stop_timeout_s"
        patience_s: float = getattr(limits, option)
        began_s = heard_s = time.monotonic()
        while not talk.called or (talk.closes_input and channel.backlog_bytes):
            if channel.eof and not talk.called:
                raise channel.lost("at the last heartbeat")
            if channel.eof:
                break
            now_s = time.monotonic()
            if talk.proves_life and limits.tuple_timeout_s is not None and now_s - began_s > limits.tuple_timeout_s:
                option, patience_s, heard_s = "tuple_timeout_s", limits.tuple_timeout_s, began_s
            if now_s - heard_s > patience_s:
                if talk.deaf and not channel.backlog_bytes:
                    _log.warning("%s: answered no heartbeat; its input is closed after %g s", channel.what, patience_s)
                    return
                channel.kill()
                raise channel.error(
                    f"did not answer the last heartbeat within {patience_s:g} s", f"Raise {option}, or mend it."
                )
            self._pump(_LOOK_S)
            if self._heard and talk.proves_life:
                heard_s = time.monotonic()

    def _measured(self) -> None:
        """Emit the figures of this partition as one tuple, if their stream is declared."""
        if self._telemetry is not None:
            message, schema = self._telemetry.message(), self._place.streams[TELEMETRY]
            is_text = [column.type for column in schema] == [STRING]
            self.emitted((), TELEMETRY, [json.dumps(message)] if is_text else message)

    def _tell(self) -> None:
        for stream, count in self._dropped_emits.items():
            _log.warning("%s: %d emits on stream %r, which nobody declared", self._channel.what, count, stream)
        if self._dropped_rows:
            _log.warning("%s: %d rows that it gave up were dropped", self._channel.what, self._dropped_rows)

    # ---- what it says ------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self._ready = True

    def refused(self, text: str, *, missing: bool = False) -> None:
        self._channel.kill()
        if missing:
            raise ConfigurationError(
                f"{self._channel.what}: {text}", "Install it on every machine where the topology runs."
            )
        raise self._error_of((), f"did not begin: {text}" if not self._ready else text)

    def emitted(self, rows: tuple[int, ...], stream: str, values: Any) -> None:
        declared = self._streams.get(stream)
        if declared is None:
            if self._bolt.strict_streams:
                raise ChildProtocolError(
                    f"{self._channel.what} emitted on stream {stream!r}, and declared are {', '.join(self._streams)}",
                    'Declare it: bolt(stream, fields, bolt, {"default": ..., "' + stream + '": ...}).',
                )
            self._dropped_emits[stream] = self._dropped_emits.get(stream, 0) + 1
            return
        number, read = declared
        if self._place.matched and len(rows) != 1:
            raise ChildProtocolError(
                f"{self._channel.what} emitted {_of(rows)}, and each() needs to know of which one",
                "Use flat_map() or bolt(), which replace the tuple.",
            )
        pending_row: PendingRow | None = None  # of several rows, the last
        for row in rows if len(rows) < 2 else sorted(rows):
            pending_row = self._row(row)
        try:
            whole = read(values)
        except ValueError as error:
            raise self._error_of(() if pending_row is None else pending_row.values, f"gave {error}") from error
        if pending_row is None:
            self._out.append(Emit(NO_ROW, number, whole))
        else:
            pending_row.emits.append((number, whole))

    def done(self, row: int) -> None:
        self._close(row)

    def failed(self, row: int, text: str) -> None:
        values = self._row(row).values
        if self._bolt.fail is not OnFail.DROP:
            raise self._error_of(values, f"gave the row up: {text}")
        self._dropped_rows += 1
        self._row(row).emits.clear()
        self._close(row)

    def _row(self, number: int) -> PendingRow:
        place = number - self._first
        if type(number) is not int or not 0 <= place < len(self._rows) or self._rows[place].done:
            raise ChildProtocolError(
                f"{self._channel.what} spoke of row {number}, which it does not have: it never got it, or acknowledged "
                "it before",
                "Mend the component: each row is acknowledged once, after its last emit.",
            )
        return self._rows[place]

    def _close(self, number: int) -> None:
        row = self._row(number)
        row.done = True
        self._open -= 1
        if self._telemetry is not None:
            self._telemetry.add(time.monotonic() - row.given_s)
        self._open_bytes -= row.size_bytes
        self._stuck_s = 0.0
        rows, out = self._rows, self._out
        while rows and rows[0].done:
            out += [Emit(self._first, stream, values) for stream, values in rows.popleft().emits]
            self._first += 1


def _of(rows: tuple[int, ...]) -> str:
    return f"something of {len(rows)} rows" if rows else "something of no row"


_REST_S = 0.01
"""The pause after a request that gave no tuple."""


@dataclass(frozen=True, slots=True)
class Given:
    """One tuple. `values`: a list or an object; `turn`: number of its ``next``; `id`: to ack it, if `has_id`."""

    values: Any
    stream: str
    turn: int
    id: Json = None
    has_id: bool = False


class SpoutTalk(Talk):
    """The conversation with a spout, which is asked for one tuple after another."""

    def __init__(self, channel: Channel, place: BoltPlace) -> None:
        super().__init__(channel, place)
        self.given: list[Given] = []
        self.waits = False
        """Is an answer due?"""
        self.turn = 0

    @abstractmethod
    def run(self) -> None:
        """Tell the spout that requests follow."""

    @abstractmethod
    def next(self) -> None:
        """Ask for a tuple; an answer is due."""

    @abstractmethod
    def pause(self) -> None:
        """Tell the spout that no request follows for some time."""

    def taken(self) -> None:
        """This process has its last tuple."""

    def spooled(self) -> None:
        """Its tuples are durable."""

    def ack(self, name: Json) -> None:
        """The tuple with this id is committed."""


class ChildSpout(ABC):
    """A spout in another program. It is a picklable description: making one starts no process."""

    limits: ChildLimits
    acks_by_id: bool = False
    """Do its tuples have ids, which may be acknowledged by another process, too?"""
    acks_last: bool = False
    """Is its last tuple acknowledged while the child runs? If it is not, the next child may give it again."""
    heartbeat_s: float | None = None
    note: str = ""
    """A note for the plan; empty: none."""

    @abstractmethod
    def program(self, place: BoltPlace) -> Program:
        """The program to start."""

    @abstractmethod
    def talk(self, channel: Channel, place: BoltPlace) -> SpoutTalk:
        """The conversation with a started child."""

    @abstractmethod
    def describe(self) -> str:
        """The spout as text, the same in every process."""

    def __str__(self) -> str:
        return self.describe()


class RunningSpout:
    """A started child that is ready for requests.

    :raises ConfigurationError: its program is missing.
    :raises ChildError: the child did not begin.
    """

    def __init__(self, spout: ChildSpout, place: BoltPlace) -> None:
        self._limits = spout.limits
        self._beat_s, self._beat_due_s = spout.heartbeat_s, 0.0
        self._channel = Channel(spout.program(place), str(spout))
        self._paused = True
        self._talk: SpoutTalk | None = None
        try:
            talk = self._talk = spout.talk(self._channel, place)
            talk.open()
            self._await("the beginning", self._limits.start_timeout_s, "start_timeout_s")
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._channel.pid

    def poll(self, max_rows: int, *, max_s: float, idle_s: float) -> tuple[list[Given], TridentError | None]:
        """Ask until the spout gave `max_rows` tuples, for at most `max_s` seconds, or until it gave nothing for
        `idle_s` seconds.

        :returns: the tuples, and the error that ended the poll, if any. The tuples count even then, because the spout
            may not give them again.
        :raises TridentError: an error came before any tuple.
        """
        talk = self._open_talk
        end_s = time.monotonic() + max_s
        idle_until_s = time.monotonic() + idle_s
        try:
            self._set_paused(False)
            while len(talk.given) < max_rows and time.monotonic() < end_s:
                self._beat()
                before = len(talk.given)
                talk.turn += 1
                talk.next()
                self._await("next", self._limits.silence_s, "silence_s")
                if len(talk.given) > before:
                    talk.taken()
                    idle_until_s = time.monotonic() + idle_s
                elif time.monotonic() >= idle_until_s:
                    break
                else:
                    self._pump(_REST_S)
            self._set_paused(True)
        except TridentError as error:
            self.kill()
            if not talk.given:
                raise
            return self._taken(), error
        return self._taken(), None

    def ack(self, names: list[Json]) -> None:
        """Acknowledge committed tuples. It is safe to repeat an id, or to tell another process than the one that gave
        the tuple."""
        for name in names:
            self._open_talk.ack(name)
            self._await("ack", self._limits.silence_s, "silence_s")

    def spooled(self) -> None:
        """The tuples of the last poll are durable."""
        self._open_talk.spooled()
        self._pump(0)

    def stop(self) -> tuple[list[Given], TridentError | None]:
        """Ask the child to end, and wait.

        :returns: the tuples that came after the last poll, and the error: it did not end, or ended badly.
        """
        talk, channel = self._open_talk, self._channel
        try:
            if not channel.eof:
                talk.bye()
                while talk.closes_input and channel.backlog_bytes and not channel.eof:
                    self._pump(_LOOK_S)
                if talk.closes_input:
                    channel.close_input()
            code = channel.ended(self._limits.stop_timeout_s, talk.hear)
            if not talk.ended_well(code):
                raise channel.error("ended badly", "Mend its shutdown.")
        except TridentError as error:
            return self._taken(), error
        finally:
            self.kill()
        return self._taken(), None

    def kill(self) -> None:
        """Kill the child. A second call does nothing."""
        self._channel.close()
        if self._talk is not None:
            self._talk.close()

    # ---- asking ------------------------------------------------------------------------------------------------

    @property
    def _open_talk(self) -> SpoutTalk:
        assert self._talk is not None
        return self._talk

    def _taken(self) -> list[Given]:
        talk = self._open_talk
        spout_tuples, talk.given = talk.given, []
        return spout_tuples

    def _set_paused(self, paused: bool) -> None:
        if paused == self._paused:
            return
        talk = self._open_talk
        if paused:
            talk.pause()
        else:
            talk.run()
        self._paused = paused
        self._await("pause" if paused else "run", self._limits.silence_s, "silence_s")

    def _beat(self) -> None:
        if self._beat_s is not None and time.monotonic() >= self._beat_due_s:
            self._beat_due_s = time.monotonic() + self._beat_s
            self._open_talk.beat()

    def _await(self, method: str, timeout_s: float, option: str) -> None:
        """Wait for the answer. Any other message restarts the time-out."""
        talk, channel = self._open_talk, self._channel
        end_s = time.monotonic() + timeout_s
        self._pump(0)
        while talk.waits:
            if channel.eof:
                raise channel.lost(f"and did not answer {method!r}")
            if self._pump(_LOOK_S):
                end_s = time.monotonic() + timeout_s
            elif time.monotonic() > end_s:
                channel.kill()
                raise channel.error(
                    f"said nothing for {timeout_s:g} s when it was asked for {method!r}, and was killed",
                    f"If it is only slow, raise {option}.",
                )

    def _pump(self, wait_s: float) -> int:
        try:
            messages = self._channel.pump(wait_s)
        except ChildProtocolError as error:
            for message in error.before:  # these tuples count
                self._open_talk.hear(message)
            raise
        for message in messages:
            self._open_talk.hear(message)
        return len(messages)


@contextmanager
def running(spout: ChildSpout, place: BoltPlace) -> Iterator[RunningSpout]:
    """A running spout, which is killed at the end if it has not ended by then."""
    child = RunningSpout(spout, place)
    try:
        yield child
    finally:
        child.kill()
