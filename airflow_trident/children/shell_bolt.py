"""Components that speak Storm's multilang protocol as bolts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_trident.children.bolt import ChildBolt, on_fail
from airflow_trident.children.channel import Channel
from airflow_trident.children.framing import MAX_MESSAGE_BYTES
from airflow_trident.children.multilang import MultilangTalk, multilang_program
from airflow_trident.children.starting import Program
from airflow_trident.children.talk import BoltListener, BoltPlace, ChildLimits
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_path


class ShellBolt(ChildBolt):
    """A bolt in any language, unmodified, in the multilang protocol (Storm: ShellBolt).

    A child runs for each partition of an attempt. What it gives is exactly once, as everything that is staged; what it
    does besides (writing somewhere, sending something) happens once per attempt at least.

    :param command: ``"python split.py"``, or the program and its arguments.
    :param cwd: the folder that it runs in.
    :param env: in addition to the environment; TRIDENT_TOPOLOGY, TRIDENT_NODE, TRIDENT_TXID, TRIDENT_ATTEMPT and
        TRIDENT_PARTITION are there besides.
    :param conf: what the handshake says beside topology.name, topology.debug and topology.message.timeout.secs.
    :param max_pending: how many rows it may have at a time.
    :param silence_s: if it says nothing for so long while it is waited for, it is dead. It gets a heartbeat a second,
        which one that is busy with a row cannot answer: raise it for slow ones.
    :param tuple_timeout_s: the same if it acknowledges nothing; None: only the attempt's time-out ends it.
    :param ticks: so many tick tuples, at most, are sent to one that holds rows back (pystorm: BatchingBolt). 0 for one
        that acknowledges later and does not know tick tuples.
    :param task_ids_ahead: so many answers with task ids are sent before they are asked for, and one for each that is
        used: a component that waits for them at each emit (Storm's own storm.py) then waits for nothing. Only for those
        that keep answers which come early, as storm.py and pystorm do, and storm.js does not.
    :param max_message_bytes: no message of the child may be longer.
    :param strict: what it prints on stdout beside its messages is an error; else it is logged.
    :param fail: what becomes of a row that it fails: "attempt", "drop".
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
        if task_ids_ahead < 0:
            raise ConfigurationError(f"task_ids_ahead is {task_ids_ahead!r}", "It must be 0 or more.")
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
