"""Storm's multilang protocol (Storm: ShellBolt, ShellProcess; pystorm, streamparse, storm.py, storm.js).

JSON on stdin and stdout. An emit that asks for task ids always gets the same single id, because the plan decides where
tuples go.

Bolts in Storm's multilang protocol.

A spout in Storm's multilang protocol (Storm: ShellSpout; pystorm, streamparse, storm.py, storm.js).
"""

from __future__ import annotations

import keyword
import logging
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.paths import require_local_path
from airflow_trident.names import require_counts, require_flags
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES, Message
from airflow_trident.storm.components.process import Carrier, Channel, Program
from airflow_trident.storm.components.protocol import (
    DEFAULT_STREAM,
    BoltListener,
    BoltPlace,
    BoltTalk,
    ChildLimits,
    Talk,
    on_fail,
)
from airflow_trident.storm.components.running import ChildSpout, Given, SpoutTalk
from airflow_trident.types import Json

INPUT = "input"
"""The component id of a bolt's input."""
_TASK, _INPUT_TASK, _SYSTEM_TASK = 1, 2, -1
TASK_IDS = [_TASK]
_ERROR_LEVEL = 4
_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
BEAT_S = 1.0
_TICK, _BEAT = "tick", "beat"


class MultilangWords(Talk):
    """The part of the protocol that bolts and spouts share."""

    closes_input: ClassVar[bool] = True

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._ready = False
        self._folder = tempfile.mkdtemp(prefix="trident-child-")

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def greet(self, conf: Mapping[str, Any], outputs: Mapping[str, list[str]], **inputs: Any) -> None:
        """Send the handshake.

        :param outputs: stream id -> field names.
        :param inputs: the keys of the context that say what the component reads.
        """
        place = self._place
        defaults = {"topology.name": place.topology, "topology.debug": False, "topology.message.timeout.secs": 30}
        context = {
            "taskid": _TASK,
            "componentid": place.name,
            "task->component": {str(_TASK): place.name},
            "source->stream->fields": {},
            "source->stream->grouping": {},
            "streams": list(outputs),
            "stream->outputfields": outputs,
            "stream->target->grouping": {name: {} for name in outputs},
        }
        self._channel.send({"conf": {**defaults, **conf}, "pidDir": self._folder, "context": context | inputs})

    def note(self, message: Message) -> None:
        """Log a message of the kinds log, error and metrics."""
        command, text, level = message.get("command"), str(message.get("msg", "")), message.get("level")
        if command == "log":
            self._channel.log(_LEVELS.get(level, logging.INFO) if isinstance(level, int) else logging.INFO, text)
        elif command == "error":
            self._channel.log(logging.ERROR, text)
        elif command == "metrics" and message.get("name"):
            self._channel.log(logging.INFO, f"metric {message.get('name')!r}: {message.get('params')!r}")
        else:
            raise self.unknown(message)

    def ended_well(self, code: int) -> bool:
        """Every exit code is accepted: pystorm ends with 2 when its input ends. A signal (below 0) may have cut off its
        last emits."""
        return code >= 0


class MultilangTalk(MultilangWords, BoltTalk):
    """:param ticks: the most tick tuples sent while a bolt holds back all rows of its window. A bolt that works in
        batches then releases them (pystorm: BatchingBolt).
    :param task_ids_ahead: how many answers with task ids are sent before they are asked for."""

    proves_life: ClassVar[bool] = True
    beat_s = BEAT_S

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        window: int,
        conf: dict[str, Any],
        ticks: int,
        task_ids_ahead: int = 0,
    ) -> None:
        super().__init__(channel, listener, place)
        self.window = window
        self._conf = conf
        self._ticks_left = self._ticks = ticks
        self._task_ids_ahead = task_ids_ahead
        self._said = ""
        self._beats = self._syncs = self._tick = 0
        self._open_ticks: set[str] = set()
        self._probed = False

    def open(self) -> None:
        place = self._place
        fields = list(place.fields)
        inputs = {
            "task->component": {str(_TASK): place.name, str(_INPUT_TASK): INPUT},
            "source->stream->fields": {INPUT: {DEFAULT_STREAM: fields}} if all(map(_may_name, fields)) else {},
            "source->stream->grouping": {INPUT: {DEFAULT_STREAM: {"type": "SHUFFLE"}}},
        }
        outputs = {name: [column.name for column in schema] for name, schema in place.streams.items()}
        self.greet(self._conf, outputs, **inputs)
        for _ in range(self._task_ids_ahead):  # all answers are equal, so they may be sent early
            self._channel.send(TASK_IDS)

    # ---- to it -------------------------------------------------------------------------------------------------

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        self._ticks_left, self._probed = self._ticks, False
        return self._channel.send(
            {"id": str(row), "comp": INPUT, "stream": DEFAULT_STREAM, "task": _INPUT_TASK, "tuple": values}
        )

    def beat(self) -> None:
        self._beats += 1
        self._probed = True
        self._system("__heartbeat", None, f"{_BEAT}{self._beats}", [])

    def last_call(self) -> None:
        """A heartbeat: a bolt that acknowledges before it emits answers it after its last emits."""
        self.beat()

    @property
    def called(self) -> bool:
        return self._syncs >= self._beats

    @property
    def deaf(self) -> bool:
        return self._syncs == 0

    def still(self, *, last: bool) -> None:
        """After an answered heartbeat the bolt has read everything. It holds back rows that it has not acknowledged; a
        tick may release them."""
        if not self.called:
            return
        if self._probed and self._ticks_left:
            self._ticks_left -= 1
            self._tick += 1
            name = f"{_TICK}{self._tick}"
            self._open_ticks.add(name)
            self._system("__tick", "__system", name, [1])
            self.beat()
        elif last and not self._probed:
            self.beat()

    def _system(self, stream: str, component: str | None, name: str, values: list[int]) -> None:
        self._channel.send({"id": name, "comp": component, "stream": stream, "task": _SYSTEM_TASK, "tuple": values})

    # ---- from it -----------------------------------------------------------------------------------------------

    def hear(self, message: Message) -> None:
        command = message.get("command")
        if command == "emit":
            self._emit(message)
        elif command == "ack":
            self._end_of(message)
        elif command == "fail":
            self._end_of(message, failed=True)
        elif command == "sync":
            self._syncs = min(self._syncs + 1, self._beats)
        elif command is None and "pid" in message and not self._ready:
            self._ready = True
            self._listener.ready()
        else:
            self.note(message)
            if command == "error" or (command == "log" and message.get("level") == _ERROR_LEVEL):
                self._said = str(message.get("msg", ""))

    def _emit(self, message: Message) -> None:
        values = message.get("tuple")
        if not isinstance(values, list):
            raise self.error(f"emitted {values!r}, which is no list of values")
        anchors = message.get("anchors") or ()
        rows = tuple(map(self._row, (anchors,) if isinstance(anchors, str) else anchors))
        if not message.get("task") and message.get("need_task_ids", True):
            self._channel.send(TASK_IDS)
        self._listener.emitted(rows, message.get("stream") or DEFAULT_STREAM, values)

    def _end_of(self, message: Message, *, failed: bool = False) -> None:
        name = str(message.get("id"))
        if name in self._open_ticks:
            self._open_ticks.discard(name)
            return
        self._probed = False
        if failed:
            self._listener.failed(self._row(name), self._said or "(it gave no reason)")
        else:
            self._listener.done(self._row(name))

    def _row(self, name: object) -> int:
        try:
            return int(str(name))
        except ValueError:
            raise self.error(f"named the tuple {name!r}, which it never got") from None


def _may_name(name: str) -> bool:
    """Can it name a field of a namedtuple, which pystorm makes?"""
    return not name.startswith("_") and not keyword.iskeyword(name)


def multilang_program(
    command: Sequence[str], cwd: str | None, env: Mapping[str, str], limits: ChildLimits, place: BoltPlace
) -> Program:
    """The program of a spout or bolt of this protocol."""
    return Program(
        argv=tuple(command),
        carrier=Carrier.MULTILANG,
        cwd=cwd,
        env={**env, **place.environment},
        max_message_bytes=limits.max_message_bytes,
        strict=limits.strict,
    )


class ShellBolt(ChildBolt):
    """A bolt in any language, unmodified, in the multilang protocol (Storm: ShellBolt).

    Each partition of an attempt has its own child. Its emits are exactly once, as all staged data. Other effects of the
    child (writing somewhere, sending something) happen at least once per attempt.

    :param command: ``"python split.py"``, or the program and its arguments.
    :param cwd: the folder that it runs in.
    :param env: variables added to the environment. TRIDENT_TOPOLOGY, TRIDENT_NODE, TRIDENT_TXID, TRIDENT_ATTEMPT and
        TRIDENT_PARTITION are set, too.
    :param conf: added to the handshake's topology.name, topology.debug and topology.message.timeout.secs.
    :param max_pending: how many rows the child may have at a time.
    :param silence_s: a child that sends nothing for so long, while it is waited for, is killed. It gets a heartbeat
        every second, which it cannot answer while it works on a row: use a higher value for slow components.
    :param tuple_timeout_s: the same for a child that acknowledges nothing; None: only the attempt's time-out ends it.
    :param ticks: the most tick tuples that are sent to a child that holds rows back (pystorm: BatchingBolt). Use 0 for
        a component that acknowledges later and does not know tick tuples.
    :param task_ids_ahead: how many answers with task ids are sent before they are asked for. A component that waits for
        them at each emit (Storm's own storm.py) then does not wait. Only for components that keep early answers:
        storm.py and pystorm do, storm.js does not.
    :param max_message_bytes: the longest message allowed from the child.
    :param strict: other output on stdout is an error; else it is logged.
    :param fail: what happens to a row that the component fails: "attempt" or "drop".
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        conf: Mapping[str, Any] | None = None,
        max_pending: int = 512,
        start_timeout_s: float = 60.0,
        silence_s: float = 30.0,
        tuple_timeout_s: float | None = None,
        stop_timeout_s: float = 10.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ticks: int = 10,
        task_ids_ahead: int = 0,
        strict: bool = False,
        fail: str = "attempt",
    ) -> None:
        self.command = tuple(shlex.split(command) if isinstance(command, str) else map(str, command))
        if not self.command:
            raise ConfigurationError("a ShellBolt needs a command", 'As in ShellBolt("python split.py").')
        self.cwd = None if cwd is None else require_local_path("ShellBolt", cwd)
        self.env = dict(env or {})
        self.conf = dict(conf or {})
        self.ticks = ticks
        require_counts("ShellBolt", least=0, ticks=ticks, task_ids_ahead=task_ids_ahead)
        self.task_ids_ahead = task_ids_ahead
        self.fail = on_fail(fail)
        self.limits = ChildLimits(
            max_pending=max_pending,
            start_timeout_s=start_timeout_s,
            silence_s=silence_s,
            tuple_timeout_s=tuple_timeout_s,
            stop_timeout_s=stop_timeout_s,
            max_message_bytes=max_message_bytes,
            strict=strict,
        )

    def describe(self) -> str:
        return f"ShellBolt {shlex.join(self.command)!r}"

    def program(self, place: BoltPlace) -> Program:
        return multilang_program(self.command, self.cwd, self.env, self.limits, place)

    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> MultilangTalk:
        return MultilangTalk(
            channel,
            listener,
            place,
            window=self.limits.max_pending,
            conf=self.conf,
            ticks=self.ticks,
            task_ids_ahead=self.task_ids_ahead,
        )


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
    """A command that speaks multilang; see :class:`airflow_trident.storm.components.spouts.ShellSpout`."""

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
        require_flags("ShellSpout", ids=ids)
        self.acks_by_id, self.limits = ids, limits
        if not ids:
            self.note = "what its child gave is lost if it is killed before that is spooled (ids=False)"

    def program(self, place: BoltPlace) -> Program:
        return multilang_program(self.command, self.cwd, self.env, self.limits, place)

    def talk(self, channel: Channel, place: BoltPlace) -> ShellTalk:
        return ShellTalk(channel, place, self.conf)

    def describe(self) -> str:
        return f"ShellSpout {shlex.join(self.command)!r}"
