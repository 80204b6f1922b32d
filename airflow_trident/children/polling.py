"""A spout in another program, asked for one tuple after another, in one thread: each question waits for its answer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_trident.children.channel import Channel
from airflow_trident.children.starting import Program
from airflow_trident.children.talk import BoltPlace, ChildLimits, Talk
from airflow_trident.errors import ChildProtocolError, TridentError
from airflow_trident.types import Json

_LOOK_S = 0.1
_REST_S = 0.01
"""Between two questions when the answer was: nothing."""


@dataclass(frozen=True, slots=True)
class Given:
    """One tuple. `values`: a list or an object; `turn`: the ``next`` it came with; `id`: if `has_id`, to ack it."""

    values: Any
    stream: str
    turn: int
    id: Json = None
    has_id: bool = False


class SpoutTalk(Talk):
    """It is asked for one tuple after another."""

    def __init__(self, channel: Channel, place: BoltPlace) -> None:
        super().__init__(channel, place)
        self.given: list[Given] = []
        self.waits = False
        """Is an answer due?"""
        self.turn = 0

    @abstractmethod
    def run(self) -> None:
        """It is going to be asked."""

    @abstractmethod
    def next(self) -> None:
        """Ask; an answer is due."""

    @abstractmethod
    def pause(self) -> None:
        """It is not asked for some time."""

    def taken(self) -> None:
        """What it gave last is in this process."""

    def spooled(self) -> None:
        """What it gave is durable."""

    def ack(self, name: Json) -> None:
        """What it gave under this id is committed."""


class ChildSpout(ABC):
    """A spout in another program, as a description: picklable, and nothing starts with it."""

    limits: ChildLimits
    acks_by_id: bool = False
    """Does it give ids, and forget what it gave when these are acknowledged, in whatever process?"""
    heartbeat_s: float | None = None
    note: str = ""
    """What its plan says of it; empty: nothing."""

    @abstractmethod
    def program(self, place: BoltPlace) -> Program:
        """What is started."""

    @abstractmethod
    def talk(self, channel: Channel, place: BoltPlace) -> SpoutTalk:
        """How it is talked to."""

    @abstractmethod
    def describe(self) -> str:
        """What it is, the same in every process."""

    def __str__(self) -> str:
        return self.describe()


class RunningSpout:
    """A child that was started and is ready to be asked.

    :raises ConfigurationError: its program is not there.
    :raises ChildError: it did not begin.
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
        """Ask until it has given `max_rows` tuples, or for `max_s` seconds, or until it had nothing for `idle_s`.

        :returns: what it gave, and what then went wrong with it, if anything did. A tuple may never come again: what
            was given counts, whatever became of the child.
        :raises TridentError: it went wrong before it gave anything.
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
        """These are committed. Naming one again, or to another process than gave it, is right."""
        for name in names:
            self._open_talk.ack(name)
            self._await("ack", self._limits.silence_s, "silence_s")

    def spooled(self) -> None:
        """What the last poll gave is durable."""
        self._open_talk.spooled()
        self._pump(0)

    def stop(self) -> None:
        """Let it end.

        :raises ChildError: it did not, or ended badly.
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
        finally:
            self.kill()

    def kill(self) -> None:
        """End it now. Doing it again is free."""
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
        """Until the answer is here; what it says besides is a sign of life."""
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
            for message in error.before:  # what it gave counts
                self._open_talk.hear(message)
            raise
        for message in messages:
            self._open_talk.hear(message)
        return len(messages)


@contextmanager
def running(spout: ChildSpout, place: BoltPlace) -> Iterator[RunningSpout]:
    """It is killed at the end, if it has not ended by then."""
    child = RunningSpout(spout, place)
    try:
        yield child
    finally:
        child.kill()
