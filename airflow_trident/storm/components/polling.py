"""Polls a spout in another program for one tuple after another, in one thread. Each request waits for its answer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_trident.errors import ChildProtocolError, TridentError
from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.starting import Program
from airflow_trident.storm.components.talk import BoltPlace, ChildLimits, Talk
from airflow_trident.types import Json

_LOOK_S = 0.1
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
        given, talk.given = talk.given, []
        return given

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

    def _await(self, what: str, timeout_s: float, option: str) -> None:
        """Wait for the answer. Any other message restarts the time-out."""
        talk, channel = self._open_talk, self._channel
        end_s = time.monotonic() + timeout_s
        self._pump(0)
        while talk.waits:
            if channel.eof:
                raise channel.lost(f"and did not answer {what!r}")
            if self._pump(_LOOK_S):
                end_s = time.monotonic() + timeout_s
            elif time.monotonic() > end_s:
                channel.kill()
                raise channel.error(
                    f"said nothing for {timeout_s:g} s when it was asked for {what!r}, and was killed",
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
