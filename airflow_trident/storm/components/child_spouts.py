"""Spouts in other programs, unmodified. As with every :class:`~airflow_trident.spouts.spool.spout.SpooledSpout`, a
batch is a durable file before it gets its txid. Attempts read the file and never ask the child again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_trident.io.local_paths import AnyPath
from airflow_trident.spouts.spool.spout import SpooledSpout
from airflow_trident.storm.components.child_source import ChildSource
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES
from airflow_trident.storm.components.node_spout import NodeProgram
from airflow_trident.storm.components.polling import ChildSpout
from airflow_trident.storm.components.shell_spout import ShellProgram
from airflow_trident.storm.components.talk import ChildLimits
from airflow_trident.types import FieldSpec


class _ChildSpooledSpout(SpooledSpout):
    """A spout that spools the tuples of a child."""

    def __init__(self, child: ChildSpout, source: ChildSource, folder: AnyPath, *, max_rows: int, keep: int) -> None:
        super().__init__(source, folder, max_rows=max_rows, keep=keep)
        self._child = child

    @property
    def notes(self) -> tuple[str, ...]:
        return (self._child.note,) if self._child.note else ()

    def describe(self) -> str:
        return f"{self._child.describe()} through {self._spool.folder.where}"


class ShellSpout(_ChildSpooledSpout):
    """A spout in any language that speaks Storm's multilang protocol (Storm: ShellSpout).

    :param command: ``"python feed.py"``, or the program and its arguments.
    :param fields: of the child's tuples, with types: ``"id long, name string"``.
    :param folder: of the spool: for this stream alone, durable, the same for coordinators, workers and executors; or a
        place in an object store, as for a :class:`SpooledSpout`.
    :param max_rows: tuples of a batch.
    :param max_s: the longest time that the child is asked for one batch.
    :param idle_s: a batch is complete when the child has had nothing for this time.
    :param ids: the child's tuples have ids with a meaning outside of its memory, and it emits again what was not
        acknowledged. It is acknowledged after the commit, perhaps in another process. False: ids are not used.
    :param keep: the last committed batch and this number before it are kept, to know their ids.
    :param cwd, env, conf: as for a :class:`~airflow_trident.storm.components.shell_bolt.ShellBolt`.
    :param silence_s: a child that does not answer for this time is dead.
    :param stream_field: the field that gets the stream id; None: tuples on streams other than ``default`` are errors.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        fields: FieldSpec,
        folder: AnyPath,
        *,
        max_rows: int = 10_000,
        max_s: float = 30.0,
        idle_s: float = 0.5,
        ids: bool = True,
        keep: int = 20,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        conf: Mapping[str, Any] | None = None,
        stream_field: str | None = None,
        start_timeout_s: float = 60.0,
        silence_s: float = 30.0,
        stop_timeout_s: float = 10.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        strict: bool = False,
    ) -> None:
        limits = ChildLimits(
            start_timeout_s=start_timeout_s,
            silence_s=silence_s,
            stop_timeout_s=stop_timeout_s,
            max_message_bytes=max_message_bytes,
            strict=strict,
        )
        child = ShellProgram(command, cwd=cwd, env=env, conf=conf, ids=ids, limits=limits)
        source = ChildSource(child, fields, max_s=max_s, idle_s=idle_s, stream_field=stream_field)
        super().__init__(child, source, folder, max_rows=max_rows, keep=keep)


class NodeSpout(_ChildSpooledSpout):
    """A spout of qtopology, unmodified: a module of 2.x, or a program (`type`).

    :param cmd, working_dir, args, init, type, subtype, protocol, node: as for a
        :class:`~airflow_trident.storm.components.node_bolt.NodeBolt`.
    :param fields: of the child's tuples, which are objects; a field that an object lacks is null.
    :param folder, max_rows, max_s, idle_s, keep, silence_s, stream_field: as for a :class:`ShellSpout`.
    :param ack: when a program of version 0.7 gets ``spout_ack``, which has no id. "spooled": when its batch is durable;
        a batch is then as large as what the spout gives without an answer. "given": at once, so tuples that are not
        yet spooled are lost if the process dies. Other programs get no ``spout_ack``.
    :param heartbeat_s: the child gets a heartbeat before it is asked, and at this interval while it is asked; None: no
        heartbeats.
    :param whole: the one string field gets the JSON text of the whole object.
    """

    def __init__(
        self,
        cmd: str,
        fields: FieldSpec,
        folder: AnyPath,
        *,
        working_dir: str = ".",
        args: Sequence[str] = (),
        init: Mapping[str, Any] | None = None,
        type: str = "inproc",
        subtype: str | None = None,
        protocol: str = "0.7",
        ack: str = "spooled",
        heartbeat_s: float | None = None,
        node: str = "node",
        max_rows: int = 10_000,
        max_s: float = 30.0,
        idle_s: float = 0.5,
        keep: int = 20,
        whole: bool = False,
        stream_field: str | None = None,
        start_timeout_s: float = 60.0,
        silence_s: float = 30.0,
        stop_timeout_s: float = 10.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        limits = ChildLimits(
            start_timeout_s=start_timeout_s,
            silence_s=silence_s,
            stop_timeout_s=stop_timeout_s,
            max_message_bytes=max_message_bytes,
        )
        child = NodeProgram(
            cmd,
            working_dir=working_dir,
            args=args,
            init=init,
            type=type,
            subtype=subtype,
            protocol=protocol,
            ack=ack,
            heartbeat_s=heartbeat_s,
            node=node,
            limits=limits,
        )
        source = ChildSource(child, fields, max_s=max_s, idle_s=idle_s, whole=whole, stream_field=stream_field)
        super().__init__(child, source, folder, max_rows=max_rows, keep=keep)
