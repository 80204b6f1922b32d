"""Runs one component by hand: takes its rows, shows its emits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from airflow_trident.errors import ChildError, ConfigurationError, TridentError, UserCodeError
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.process import Channel
from airflow_trident.storm.components.protocol import DEFAULT_STREAM, BoltPlace, BoltTalk, ChildLimits
from airflow_trident.storm.components.running import ChildSpout, Given, running
from airflow_trident.types import Json

Say = Callable[[dict[str, Any]], None]
"""Shows an event: an object for each emit, acknowledgement and end."""
_LOOK_S = 0.1
_TOPOLOGY = "tried"


class _Listener:
    """Shows what the child says. `open`: the row that it has not acknowledged."""

    def __init__(self, subject: str, say: Say) -> None:
        self._what, self._say = subject, say
        self.is_ready = False
        self.open: int | None = None
        self.failures = 0

    def ready(self) -> None:
        self.is_ready = True

    def refused(self, text: str, *, missing: bool = False) -> None:
        if missing:
            raise ConfigurationError(f"{self._what}: {text}", "Install it here.")
        raise UserCodeError(f"{self._what} did not begin: {text}")

    def emitted(self, rows: tuple[int, ...], stream: str, values: Any) -> None:
        self._say({"emit": values, "stream": stream, "row": rows[0] if len(rows) == 1 else list(rows)})

    def done(self, row: int) -> None:
        self._say({"ack": row})
        self._close(row)

    def failed(self, row: int, text: str) -> None:
        self.failures += 1
        self._say({"fail": row, "error": text})
        self._close(row)

    def _close(self, row: int) -> None:
        if row != self.open:
            raise UserCodeError(f"{self._what} spoke of row {row}, which it does not have")
        self.open = None


def try_bolt(bolt: ChildBolt, fields: tuple[str, ...], rows: Iterable[tuple[Any, ...]], say: Say) -> int:
    """Give the bolt one row after another; each waits until the one before is acknowledged.

    :returns: how many rows the bolt failed.
    :raises ChildError: the child ended, hung or did not stop.
    """
    place = BoltPlace(node=_TOPOLOGY, fields=fields, streams={}, matched=False, topology=_TOPOLOGY)
    with Channel(bolt.program(place), str(bolt)) as channel:
        heard = _Listener(str(bolt), say)
        talk = bolt.talk(channel, heard, place)
        try:
            talk.open()
            limits = bolt.limits
            _until(channel, talk, lambda: heard.is_ready, limits.start_timeout_s, "it began")
            for number, row in enumerate(rows):
                heard.open = number if talk.acknowledges else None
                talk.give(number, row)
                talk.flush()
                patience_s = limits.tuple_timeout_s or limits.silence_s
                _until(channel, talk, lambda: heard.open is None, patience_s, "it acknowledged the row", still=True)
            talk.last_call()
            _until_called(channel, talk, limits)
            talk.bye()
            if talk.closes_input:
                _until(channel, talk, lambda: not channel.backlog_bytes, limits.stop_timeout_s, "it had read all")
                channel.close_input()
            code = channel.ended(limits.stop_timeout_s, talk.hear)
            say({"end": code, "well": talk.ended_well(code)})
            if not talk.ended_well(code):
                raise channel.error("ended badly")
        finally:
            talk.close()
        return heard.failures


def _until_called(channel: Channel, talk: BoltTalk, limits: ChildLimits) -> None:
    """Wait for the answer to the last heartbeat; no longer than silence_s for a bolt that never answered one."""
    patience_s = limits.silence_s if talk.proves_life else limits.stop_timeout_s
    end_s = time.monotonic() + patience_s
    answered = lambda: talk.called or (talk.deaf and time.monotonic() >= end_s)  # noqa: E731
    _until(channel, talk, answered, patience_s, "its last heartbeat")


def try_spout(spout: ChildSpout, max_rows: int, say: Say, *, max_s: float, idle_s: float) -> None:
    """Ask the spout for up to `max_rows` tuples. None is acknowledged.

    :raises ChildError: the child ended, hung or did not stop.
    """
    place = BoltPlace(node=_TOPOLOGY, fields=(), streams={DEFAULT_STREAM: ()}, matched=False, topology=_TOPOLOGY)
    with running(spout, place) as child:
        _show(say, *child.poll(max_rows, max_s=max_s, idle_s=idle_s))
        _show(say, *child.stop())
        say({"end": 0, "well": True})


def _show(say: Say, spout_tuples: list[Given], error: TridentError | None) -> None:
    for spout_tuple in spout_tuples:
        named: dict[str, Json] = {"id": spout_tuple.id} if spout_tuple.has_id else {}
        say({"emit": spout_tuple.values, "stream": spout_tuple.stream, **named})
    if error is not None:
        raise error


def _until(
    channel: Channel,
    talk: BoltTalk,
    reached: Callable[[], bool],
    timeout_s: float,
    awaited: str,
    *,
    still: bool = False,
) -> None:
    """
    :param still: the bolt has all rows that it may have.
    """
    end_s = time.monotonic() + timeout_s
    while not reached():
        if channel.eof:
            raise channel.lost(f"before {awaited}")
        if still:
            talk.still(last=True)
        for message in channel.pump(_LOOK_S):
            talk.hear(message)
        if time.monotonic() > end_s and not reached():
            channel.kill()
            raise ChildError(f"{channel.what} was killed {timeout_s:g} s before {awaited}")
