"""Spouts of qtopology: programs of the first protocol and of 0.7, and modules of 2.x in the host of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from airflow_trident.errors import ConfigurationError, SourceUnavailableError
from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.framing import Message
from airflow_trident.storm.components.node_bolt import NodeComponent, NodeProtocol
from airflow_trident.storm.components.polling import ChildSpout, Given, SpoutTalk
from airflow_trident.storm.components.qtopology import MISSING, said
from airflow_trident.storm.components.talk import DEFAULT_STREAM, BoltPlace, ChildLimits


def is_truthy(value: object) -> bool:
    """Whether JavaScript takes a JSON value for true: an empty object or list is true there, unlike in Python."""
    return isinstance(value, dict | list) or bool(value)


class SpoutAck(StrEnum):
    """When a 0.7 program gets ``spout_ack``, which has no id."""

    SPOOLED = "spooled"
    """As soon as its tuples are durable."""
    GIVEN = "given"
    """At once. The spout gives more at a time, and it is lost if this process is killed before it is spooled."""
    NEVER = "never"


class NodeSpoutTalk(SpoutTalk):
    """The spout answers each ``next`` by one ``data`` or by ``empty``.

    A heartbeat may make a program say ``data``, too (qtopology: docs/Protocol.md), and nothing tells it from an answer.
    So with heartbeats an answer may come when none is due any more: its tuple counts all the same.

    :param beats: does a program get heartbeats?
    :param whole: is the data of a message the tuple itself (seed)? If not, it has ``data`` and ``stream_id``.
    """

    def __init__(
        self, channel: Channel, place: BoltPlace, *, init: Mapping[str, Any], whole: bool, ack: SpoutAck, beats: bool
    ) -> None:
        super().__init__(channel, place)
        self._init, self._whole, self._ack, self._beats = init, whole, ack, beats
        self._opened = False
        self._unacknowledged = False

    def _say(self, command: str, data: object = None) -> None:
        self._channel.send({"cmd": command} if data is None else {"cmd": command, "data": data})

    def open(self) -> None:
        self._say("init", dict(self._init) if self._whole else {**self._init, "name": self._place.name})
        self.waits = True

    def run(self) -> None:
        self._say("run")

    def next(self) -> None:
        self._say("next")
        self.waits = True

    def pause(self) -> None:
        self._say("pause")

    def beat(self) -> None:
        self._say("heartbeat")

    def taken(self) -> None:
        if self._ack is SpoutAck.GIVEN:
            self._acknowledge()

    def spooled(self) -> None:
        if self._ack is SpoutAck.SPOOLED:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Only once for a tuple: the acknowledgement has no id and means the last tuple."""
        if self._unacknowledged:
            self._unacknowledged = False
            self._say("spout_ack")

    def bye(self) -> None:
        self._say("shutdown")

    def hear(self, message: Message) -> None:
        command, data = message.get("cmd"), message.get("data")
        if not self._opened:
            self._begins(command, data)
        elif command == "data" and (self.waits or self._beats):
            self._take(data)
        elif command == "empty" and (self.waits or self._beats):
            self.waits = False
            if isinstance(data, dict) and "err" in data:
                raise self._failed("failed", data)
        elif command == "heartbeat_done":
            if isinstance(data, dict) and "err" in data:
                raise self._failed("failed at a heartbeat", data)
        else:
            raise self.error(f"said {str(message)[:200]}, which nobody asked for")

    def _begins(self, command: object, data: Any) -> None:
        if command == "init_completed":
            self._opened, self.waits = True, False
        elif command == "init_failed":
            self._channel.kill()
            error = data.get("err", data) if isinstance(data, dict) else data
            if isinstance(error, dict) and error.get("code") == MISSING and data.get("making"):
                raise ConfigurationError(
                    f"{self._channel.what}: {said(error)}", "Install it on every machine where coordinators run."
                )
            raise self._failed("did not begin", data)
        else:
            raise self.error(f"said {command!r} before it had begun")

    def _take(self, data: Any) -> None:
        self.waits = False
        values, stream = data, None
        if not self._whole:
            if not isinstance(data, dict) or "data" not in data:
                raise self.error(f"gave {str(data)[:80]}, which has no data in it")
            values, stream = data["data"], data.get("stream_id")
        if not is_truthy(values):
            return  # as empty (qtopology: falsy data)
        self._unacknowledged = True
        self.given.append(Given(values, DEFAULT_STREAM if stream is None else str(stream), self.turn))

    def _failed(self, what: str, data: Any) -> SourceUnavailableError:
        error = data.get("err", data) if isinstance(data, dict) else data
        return SourceUnavailableError(
            f"{self._channel.what} {what}: {said(error)}", "Mend the component; the next try starts it anew."
        )


class NodeProgram(NodeComponent, ChildSpout):
    """A spout of qtopology; see :class:`airflow_trident.storm.components.child_spouts.NodeSpout`."""

    kind = "spout"

    def __init__(
        self,
        cmd: str,
        *,
        working_dir: str,
        args: Sequence[str],
        init: Mapping[str, Any] | None,
        type: str,
        subtype: str | None,
        protocol: str,
        ack: str,
        heartbeat_s: float | None,
        node: str,
        limits: ChildLimits,
    ) -> None:
        super().__init__(
            cmd,
            args,
            working_dir=working_dir,
            init=init,
            type=type,
            subtype=subtype,
            protocol=protocol,
            node=node,
        )
        self.heartbeat_s, self.limits = heartbeat_s, limits
        acks = self.is_program and self.protocol is NodeProtocol.V07
        self.ack = self.one_of(SpoutAck, "ack", ack) if acks else SpoutAck.NEVER
        self.acks_last = self.ack is not SpoutAck.NEVER
        if self.ack is not SpoutAck.SPOOLED:
            self.note = "what its child gave is lost if it is killed before that is spooled: at most once until then"

    def talk(self, channel: Channel, place: BoltPlace) -> NodeSpoutTalk:
        whole = self.is_program and self.protocol is NodeProtocol.SEED
        beats = self.heartbeat_s is not None and self.is_program
        return NodeSpoutTalk(channel, place, init=self.init, whole=whole, ack=self.ack, beats=beats)
