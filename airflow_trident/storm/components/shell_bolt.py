"""Bolts in Storm's multilang protocol."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_path
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES
from airflow_trident.storm.components.multilang import MultilangTalk, multilang_program
from airflow_trident.storm.components.starting import Program
from airflow_trident.storm.components.talk import BoltListener, BoltPlace, ChildLimits, on_fail


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
