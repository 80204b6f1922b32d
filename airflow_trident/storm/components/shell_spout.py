"""A spout in Storm's multilang protocol (Storm: ShellSpout; pystorm, streamparse, storm.py, storm.js)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_path
from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.framing import Message
from airflow_trident.storm.components.multilang import TASK_IDS, MultilangWords, multilang_program
from airflow_trident.storm.components.polling import ChildSpout, Given, SpoutTalk
from airflow_trident.storm.components.starting import Program
from airflow_trident.storm.components.talk import DEFAULT_STREAM, BoltPlace, ChildLimits
from airflow_trident.types import Json


class ShellTalk(MultilangWords, SpoutTalk):
    """The spout answers each command by its emits, then ``sync``."""

    def __init__(self, channel: Channel, place: BoltPlace, conf: Mapping[str, Any]) -> None:
        super().__init__(channel, place)
        self._conf = conf

    def open(self) -> None:
        self.greet(self._conf, {DEFAULT_STREAM: list(self._place.fields)})
        self.waits = True

    def _say(self, command: str, name: Json = "") -> None:
        self._channel.send({"command": command, "id": name})
        self.waits = True

    def run(self) -> None:
        self._say("activate")

    def next(self) -> None:
        self._say("next")

    def pause(self) -> None:
        self._say("deactivate")

    def ack(self, name: Json) -> None:
        self._say("ack", name)

    def hear(self, message: Message) -> None:
        command = message.get("command")
        if not self._ready and command is None and "pid" in message:
            self._ready, self.waits = True, False
        elif command == "sync" and self._ready and self.waits:
            self.waits = False
        elif command == "emit" and self._ready:
            self._emit(message)
        else:
            self.note(message)

    def _emit(self, message: Message) -> None:
        values, name = message.get("tuple"), message.get("id")
        if not isinstance(values, list):
            raise self.error(f"emitted {str(values)[:80]}, which is no list of values")
        if not message.get("task") and message.get("need_task_ids", True):
            self._channel.send(TASK_IDS)
        stream = message.get("stream") or DEFAULT_STREAM
        self.given.append(Given(values, stream, self.turn, name, has_id=name is not None))


class ShellProgram(ChildSpout):
    """A command that speaks multilang; see :class:`airflow_trident.storm.components.child_spouts.ShellSpout`."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        conf: Mapping[str, Any] | None,
        ids: bool,
        limits: ChildLimits,
    ) -> None:
        self.command = tuple(shlex.split(command) if isinstance(command, str) else map(str, command))
        if not self.command:
            raise ConfigurationError("a ShellSpout needs a command", 'As in ShellSpout("python feed.py", ...).')
        self.cwd = None if cwd is None else require_local_path("ShellSpout", cwd)
        self.env, self.conf = dict(env or {}), dict(conf or {})
        self.acks_by_id, self.limits = ids, limits
        if not ids:
            self.note = "what its child gave is lost if it is killed before that is spooled (ids=False)"

    def program(self, place: BoltPlace) -> Program:
        return multilang_program(self.command, self.cwd, self.env, self.limits, place)

    def talk(self, channel: Channel, place: BoltPlace) -> ShellTalk:
        return ShellTalk(channel, place, self.conf)

    def describe(self) -> str:
        return f"ShellSpout {shlex.join(self.command)!r}"
