"""Bolts of qtopology: programs and modules."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_path
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES
from airflow_trident.storm.components.qtopology import ModuleTalk, NodeTalk, ProgramTalk, SeedTalk, script
from airflow_trident.storm.components.starting import Carrier, Program
from airflow_trident.storm.components.talk import BoltListener, BoltPlace, ChildLimits, on_fail

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
            known = ", ".join(repr(str(kind)) for kind in kinds)
            raise ConfigurationError(
                f"{name} of a Node{cls.kind.title()} is {value!r}", f"Use one of {known}."
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
        self.allow_parallel = allow_parallel
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
