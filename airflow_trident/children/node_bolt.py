"""Bolts of qtopology: programs and modules."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from airflow_trident.children.bolt import ChildBolt, on_fail
from airflow_trident.children.channel import Channel
from airflow_trident.children.framing import MAX_MESSAGE_BYTES
from airflow_trident.children.qtopology import ModuleTalk, NodeTalk, ProgramTalk, SeedTalk, script
from airflow_trident.children.starting import Carrier, Program
from airflow_trident.children.talk import BoltListener, BoltPlace, ChildLimits
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_path


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


class NodeBolt(ChildBolt):
    """A bolt of qtopology, unmodified.

    Rows and emits are objects of their fields. A declared field that an emit lacks is null; other fields are dropped.
    Emits on an undeclared stream are dropped, too, and counted in the log.

    :param cmd: the module, class, method, standard node or program, depending on `type`.
    :param working_dir: its folder; a relative path begins where the topology runs.
    :param args: arguments of a program.
    :param init: what the bolt is initialized with.
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
        self.cmd = cmd
        self.working_dir = require_local_path("NodeBolt", working_dir)
        self.args = tuple(map(str, args))
        self.init = dict(init or {})
        self.type = _one_of(NodeType, "type", type)
        self.subtype = subtype
        self.protocol = _one_of(NodeProtocol, "protocol", protocol)
        self.allow_parallel = allow_parallel
        self.heartbeat_s = heartbeat_s
        self.node = node
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
        if self.args and self.type is not NodeType.SUBPROC:
            raise ConfigurationError(f"NodeBolt {cmd!r} of type {type!r} takes no args", 'Programs do: type="subproc".')

    @property
    def _is_program(self) -> bool:
        return self.type is NodeType.SUBPROC

    @property
    def matches(self) -> bool:
        return not self.why_unmatched

    @property
    def why_unmatched(self) -> str:
        if self._is_program and self.protocol is NodeProtocol.SEED:
            return 'in protocol "seed" no emit says of which row it is'
        if self._is_program and self.allow_parallel:
            return "with allow_parallel no emit says of which row it is"
        return ""

    def describe(self) -> str:
        kind = f"{self.type}, {self.protocol}" if self._is_program else str(self.type)
        words = " ".join((self.cmd, *self.args))
        return f"NodeBolt {words!r} ({kind})"

    def program(self, place: BoltPlace) -> Program:
        if self._is_program:
            argv = (self.node, "--require", script("preload.js"), self.cmd, *self.args)
        else:
            described = {"type": self.type, "working_dir": self.working_dir, "cmd": self.cmd, "subtype": self.subtype}
            told = {name: value for name, value in described.items() if value is not None}
            argv = (self.node, script("host.js"), "bolt", json.dumps({**told, "name": place.node, "init": self.init}))
        return Program(
            argv=argv,
            carrier=Carrier.NODE,
            cwd=os.path.abspath(self.working_dir) if self._is_program else None,
            env=place.environment,
            max_message_bytes=self.limits.max_message_bytes,
        )

    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> NodeTalk:
        window = self.limits.max_pending
        if not self._is_program:
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


def _one_of(kinds: type[StrEnum], name: str, value: str) -> Any:
    try:
        return kinds(value)
    except ValueError:
        raise ConfigurationError(
            f"{name} of a NodeBolt is {value!r}", f"Use one of {', '.join(map(repr, map(str, kinds)))}."
        ) from None
