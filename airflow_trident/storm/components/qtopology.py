"""The three protocols of qtopology's bolts.

`SeedTalk`: the first protocol, without acknowledgements. `ProgramTalk`: 0.7, with acknowledgements, but emits do not
name their rows. `ModuleTalk`: modules of 2.x, which are no programs: `host.js` runs them and names each emit's row.

Bolts of qtopology: programs and modules.

Spouts of qtopology: programs of the first protocol and of 0.7, and modules of 2.x in the host of this package.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from airflow_trident.errors import ConfigurationError, SourceUnavailableError
from airflow_trident.io.paths import require_local_path
from airflow_trident.names import require_durations, require_flags, without_none
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES, Message
from airflow_trident.storm.components.process import Carrier, Channel, Program
from airflow_trident.storm.components.protocol import (
    DEFAULT_STREAM,
    BoltListener,
    BoltPlace,
    BoltTalk,
    ChildLimits,
    on_fail,
)
from airflow_trident.storm.components.running import ChildSpout, Given, SpoutTalk

BATCH_ROWS = 256
"""The most rows in one message to the host."""
_FIRST_BYTES = 64 << 10
"""A message of this size is sent without waiting for more rows."""
MISSING = "MODULE_NOT_FOUND"


@cache
def script(name: str) -> str:
    """The path of a script of this package; a copy, if the package is not a folder (a zip)."""
    here = Path(__file__).with_name(name)
    if here.exists():
        return str(here)
    folder = Path(tempfile.mkdtemp(prefix="trident-scripts-"))
    for file_name in ("preload.js", "host.js"):
        (folder / file_name).write_text(
            files(__package__).joinpath(file_name).read_text(encoding="utf-8"), encoding="utf-8"
        )
    return str(folder / name)


def error_message(error: object) -> str:
    """The text of an error in JSON. Node writes an Error as `{}`, unless the program writes out its fields."""
    if isinstance(error, dict):
        text = error.get("stack") or error.get("message")
        return str(text) if text else "(its library sends no text of errors)"
    return str(error)


class NodeTalk(BoltTalk):
    """What all three have in common.

    :param window: how many rows the bolt may have at a time.
    """

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
    ) -> None:
        super().__init__(channel, listener, place)
        self._init = init
        self._opened = False
        self.beat_s = beat_s
        self.window = window
        self.whole = False
        """Is a row a stream id (or "") and the JSON text of an object?"""

    def _say(self, command: str, data: object = None) -> int:
        return self._channel.send({"cmd": command} if data is None else {"cmd": command, "data": data})

    def open(self) -> None:
        self._say("init", {**self._init, "name": self._place.name})

    def hear(self, message: Message) -> None:
        command, data = message.get("cmd"), message.get("data")
        if command == "init_completed" and not self._opened:
            self._opened = True
            self._listener.ready()
        elif command == "init_failed" and not self._opened:
            self._refused(data)
        elif not self._opened or not self._heard(command, data):
            raise self.unknown(message)

    def _refused(self, data: Any) -> None:
        error = data.get("err", data) if isinstance(data, dict) else data
        missing = isinstance(error, dict) and error.get("code") == MISSING and bool(data.get("making"))
        self._listener.refused(error_message(error), missing=missing)

    @abstractmethod
    def _heard(self, command: object, data: Any) -> bool:
        """Pass a message on to the listener; False: it is unknown."""

    def _data(self, values: tuple[Any, ...]) -> dict[str, Any] | msgspec.Raw:
        if self.whole:
            return msgspec.Raw(values[1].encode())
        return dict(zip(self._place.fields, values, strict=True))

    def _stream(self, values: tuple[Any, ...]) -> str | None:
        return (values[0] or None) if self.whole else None

    def beat(self) -> None:
        self._say("heartbeat")

    def last_call(self) -> None:
        """A heartbeat: some bolts then emit what they held back."""
        self._say("heartbeat")

    def bye(self) -> None:
        self._say("shutdown")


class SeedTalk(NodeTalk):
    """Emits do not name their rows. All emits until the bolt ends belong to its rows together."""

    acknowledges: ClassVar[bool] = False

    def open(self) -> None:
        self._say("init", self._init)

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        return self._say("data", self._data(values))

    def _heard(self, command: object, data: Any) -> bool:
        if command != "data":
            return False
        self._listener.emitted((), DEFAULT_STREAM, data)
        return True


class ProgramTalk(NodeTalk):
    """:param parallel: the bolt may have several rows at a time; the row of an emit is then unknown."""

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
        parallel: bool,
    ) -> None:
        super().__init__(channel, listener, place, init=init, beat_s=beat_s, window=window if parallel else 1)
        self._parallel = parallel
        self._open: int | None = None

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        self._open = row
        return self._say("data", {"data": self._data(values), "stream_id": self._stream(values), "ack_id": row})

    def _heard(self, command: object, data: Any) -> bool:
        if not isinstance(data, dict):
            return False
        if command == "data" and "data" in data:
            rows = () if self._parallel or self._open is None else (self._open,)
            self._listener.emitted(rows, data.get("stream_id") or DEFAULT_STREAM, data["data"])
            self._say("ack", {"id": data.get("id")})
        elif command == "ack" and type(data.get("ack_id")) is int:
            row = data["ack_id"]
            if row == self._open:
                self._open = None
            if data.get("err") is None:
                self._listener.done(row)
            else:
                self._listener.failed(row, error_message(data["err"]))
        else:
            return False
        return True


class ModuleTalk(NodeTalk):
    """Sends many rows in one message; each emit names its row."""

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
    ) -> None:
        super().__init__(channel, listener, place, init=init, beat_s=beat_s, window=window)
        self._rows: list[msgspec.Raw] = []
        self._bytes = 0
        self._beats = 0

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        data = msgspec.json.encode([row, self._data(values), self._stream(values)])
        self._rows.append(msgspec.Raw(data))
        self._bytes += len(data)
        if len(self._rows) >= BATCH_ROWS or self._bytes >= _FIRST_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._rows:
            self._say("batch", self._rows)
            self._rows, self._bytes = [], 0

    def beat(self) -> None:
        self._beats += 1
        super().beat()

    def last_call(self) -> None:
        self._beats += 1
        super().last_call()

    @property
    def called(self) -> bool:
        return self._beats == 0

    def _heard(self, command: object, data: Any) -> bool:
        if command == "batch" and isinstance(data, list):
            for reply in data:
                self._one(reply)
        elif command == "heartbeat_done" and self._beats:
            self._beats -= 1
            if isinstance(data, dict) and data.get("err"):
                self._listener.refused(f"its heartbeat raised: {error_message(data['err'])}")
        else:
            return False
        return True

    def _one(self, reply: Any) -> None:
        if len(reply) == 3:
            row, data, stream = reply
            self._listener.emitted(() if row is None else (row,), stream or DEFAULT_STREAM, data)
        elif len(reply) == 1:
            self._listener.done(reply[0])
        else:
            self._listener.failed(reply[0], error_message(reply[1]))


E = TypeVar("E", bound=StrEnum)


class NodeType(StrEnum):
    """How qtopology makes a node (its `type`)."""

    INPROC = "inproc"
    """``require(working_dir/cmd).create(subtype)``."""
    MODULE_CLASS = "module_class"
    """``new (require(working_dir)[cmd])(subtype)``."""
    MODULE_METHOD = "module_method"
    """``require(working_dir)[cmd](subtype)``."""
    SYS = "sys"
    """A standard node of qtopology, named by `cmd`."""
    SUBPROC = "subproc"
    """A separate program: ``node cmd args``, in `working_dir`."""


class NodeProtocol(StrEnum):
    """The protocol of programs."""

    SEED = "seed"
    """The first protocol: no acknowledgements."""
    V07 = "0.7"
    """With acknowledgements (qtopology 0.6 and 0.7)."""


class NodeComponent:
    """What bolts and spouts of qtopology have in common: the program that runs them.

    :raises ConfigurationError: `type` or `protocol` is unknown, or `args` are given to a module.
    """

    kind: ClassVar[str]
    """"bolt" or "spout"."""
    limits: ChildLimits

    def __init__(
        self,
        cmd: str,
        args: Sequence[str],
        *,
        working_dir: str,
        init: Mapping[str, Any] | None,
        type: str,
        subtype: str | None,
        protocol: str,
        node: str,
    ) -> None:
        self.cmd, self.args = cmd, tuple(map(str, args))
        self.working_dir = require_local_path(self._name, working_dir)
        self.init, self.subtype, self.node = dict(init or {}), subtype, node
        self.type = self.one_of(NodeType, "type", type)
        self.protocol = self.one_of(NodeProtocol, "protocol", protocol)
        if self.args and not self.is_program:
            raise ConfigurationError(
                f"{self._name} {cmd!r} of type {type!r} takes no args", 'Programs do: type="subproc".'
            )

    @property
    def _name(self) -> str:
        return f"Node{self.kind.title()}"

    @property
    def is_program(self) -> bool:
        return self.type is NodeType.SUBPROC

    def describe(self) -> str:
        kind = f"{self.type}, {self.protocol}" if self.is_program else str(self.type)
        return f"{self._name} {' '.join((self.cmd, *self.args))!r} ({kind})"

    def program(self, place: BoltPlace) -> Program:
        """The command line, which all users of the machine see, has nothing of `init`: that goes to the child as a
        message."""
        if self.is_program:
            argv = (self.node, "--require", script("preload.js"), self.cmd, *self.args)
        else:
            node = {"type": self.type, "working_dir": self.working_dir, "cmd": self.cmd, "subtype": self.subtype}
            node = {name: value for name, value in node.items() if value is not None}
            argv = (self.node, script("host.js"), self.kind, json.dumps(node))
        return Program(
            argv=argv,
            carrier=Carrier.NODE,
            cwd=os.path.abspath(self.working_dir) if self.is_program else None,
            env=place.environment,
            max_message_bytes=self.limits.max_message_bytes,
        )

    @classmethod
    def one_of(cls, kinds: type[E], name: str, value: str) -> E:
        try:
            return kinds(value)
        except ValueError:
            choices = ", ".join(repr(str(kind)) for kind in kinds)
            raise ConfigurationError(
                f"{name} of a Node{cls.kind.title()} is {value!r}", f"Use one of {choices}."
            ) from None


class NodeBolt(NodeComponent, ChildBolt):
    """A bolt of qtopology, unmodified.

    Rows and emits are objects of their fields. A declared field that an emit lacks is null; other fields are dropped.
    Emits on an undeclared stream are dropped, too, and counted in the log.

    :param cmd: the module, class, method, standard node or program, depending on `type`.
    :param working_dir: its folder; a relative path begins where the topology runs.
    :param args: arguments of a program.
    :param init: what the bolt is initialized with; may hold secrets, unlike `args`, which all users of a machine see.
    :param type: a `NodeType`. All but "subproc" are modules of qtopology 2.x, and run in a host of this package.
    :param protocol: of a program: "0.7" or "seed". "seed" has no acknowledgements: all emits until the end belong to
        its rows, and if the program ends by itself, missing rows are not noticed.
    :param allow_parallel: a 0.7 program may get several rows at a time; the row of an emit is then unknown.
    :param heartbeat_s: seconds between heartbeats while the bolt is waited for; None: one, after its last row.
    :param node: the Node executable.
    :param tuple_timeout_s: a bolt that acknowledges nothing for so long, while it is waited for, is killed. None: only
        the attempt's time-out ends it.
    :param fail: what happens to a row that it acknowledges with an error: "attempt" or "drop".
    """

    kind = "bolt"
    strict_streams = False

    def __init__(
        self,
        cmd: str,
        *,
        working_dir: str = ".",
        args: Sequence[str] = (),
        init: Mapping[str, Any] | None = None,
        type: str = "inproc",
        subtype: str | None = None,
        protocol: str = "0.7",
        allow_parallel: bool = False,
        heartbeat_s: float | None = None,
        node: str = "node",
        max_pending: int = 512,
        start_timeout_s: float = 60.0,
        tuple_timeout_s: float | None = None,
        stop_timeout_s: float = 10.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        fail: str = "attempt",
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
        require_flags("NodeBolt", allow_parallel=allow_parallel)
        self.allow_parallel = allow_parallel
        require_durations("NodeBolt", **without_none(heartbeat_s=heartbeat_s))
        self.heartbeat_s = heartbeat_s
        self.fail = on_fail(fail)
        self.limits = ChildLimits(
            max_pending=max_pending,
            start_timeout_s=start_timeout_s,
            tuple_timeout_s=tuple_timeout_s,
            stop_timeout_s=stop_timeout_s,
            max_message_bytes=max_message_bytes,
        )
        if self.type is NodeType.SYS and cmd == "process":
            raise ConfigurationError(
                "the standard bolt 'process' of qtopology acknowledges a row before its program has answered, and ends "
                "the program at shutdown: what that says later is lost",
                "Run the program as a ShellBolt, or as a NodeBolt of type 'subproc'.",
            )

    @property
    def matches(self) -> bool:
        return not self.why_unmatched

    @property
    def why_unmatched(self) -> str:
        if self.is_program and self.protocol is NodeProtocol.SEED:
            return 'in protocol "seed" no emit says of which row it is'
        if self.is_program and self.allow_parallel:
            return "with allow_parallel no emit says of which row it is"
        return ""

    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> NodeTalk:
        window = self.limits.max_pending
        if not self.is_program:
            return ModuleTalk(channel, listener, place, init=self.init, beat_s=self.heartbeat_s, window=window)
        if self.protocol is NodeProtocol.SEED:
            return SeedTalk(channel, listener, place, init=self.init, beat_s=self.heartbeat_s, window=window)
        return ProgramTalk(
            channel,
            listener,
            place,
            init=self.init,
            beat_s=self.heartbeat_s,
            window=window,
            parallel=self.allow_parallel,
        )


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
                    f"{self._channel.what}: {error_message(error)}",
                    "Install it on every machine where coordinators run.",
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

    def _failed(self, problem: str, data: Any) -> SourceUnavailableError:
        error = data.get("err", data) if isinstance(data, dict) else data
        return SourceUnavailableError(
            f"{self._channel.what} {problem}: {error_message(error)}",
            "Mend the component; the next try starts it anew.",
        )


class NodeProgram(NodeComponent, ChildSpout):
    """A spout of qtopology; see :class:`airflow_trident.storm.components.spouts.NodeSpout`."""

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
        require_durations("NodeSpout", **without_none(heartbeat_s=heartbeat_s))
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
