"""Spouts in other programs, unmodified. As with every :class:`~airflow_trident.spouts.spool.spout.SpooledSpout`, a
batch is a durable file before it gets its txid. Attempts read the file and never ask the child again.

A child process that is a spout, as the source of a spool.
"""

from __future__ import annotations

import copy
import json
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_trident.errors import ConfigurationError, DamagedInputError, TridentError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.paths import AnyPath
from airflow_trident.names import require_durations, require_flags
from airflow_trident.spouts.spool.sources import Polled, SpoolSource
from airflow_trident.spouts.spool.spout import SpooledSpout
from airflow_trident.storm.components.framing import MAX_MESSAGE_BYTES
from airflow_trident.storm.components.multilang import ShellProgram
from airflow_trident.storm.components.protocol import DEFAULT_STREAM, BoltPlace, ChildLimits, Reader, reader_of
from airflow_trident.storm.components.qtopology import NodeProgram
from airflow_trident.storm.components.running import ChildSpout, Given, RunningSpout
from airflow_trident.types import FieldSpec, Json, Schema, names_of, parse_declared

_log = logging.getLogger(__name__)


class ChildSource(SpoolSource):
    """Starts the child with the first call, and ends it with `close`.

    Tuples that the child gave are kept even if it then fails, because they may never come again. The next poll raises
    the error.

    :param whole: the one field gets the text of the whole JSON object.
    :param stream_field: the field that gets the stream id of a tuple; None: all tuples must be on the default stream.
    """

    schema: Schema = ()

    def __init__(
        self,
        spout: ChildSpout,
        fields: FieldSpec,
        *,
        max_s: float,
        idle_s: float,
        whole: bool = False,
        stream_field: str | None = None,
    ) -> None:
        require_flags(str(spout), whole=whole)
        require_durations(str(spout), max_s=max_s)
        require_durations(str(spout), zero=True, idle_s=idle_s)
        self.spout = spout
        self.schema = parse_declared(fields)
        self._max_s, self._idle_s = max_s, idle_s
        self._stream_field = stream_field
        if stream_field is not None and stream_field not in names_of(self.schema):
            raise ConfigurationError(
                f"{spout} has no field {stream_field!r} for the stream id", f"Add it: {stream_field} string."
            )
        self._given_fields = tuple(field for field in self.schema if field.name != stream_field)
        if whole and [field.type for field in self._given_fields] != ["string"]:
            raise ConfigurationError(f"{spout} with the fields {fields!r}", "A whole tuple is one string field.")
        self._whole = whole
        self._topology, self._stream = "", "spout"
        self._child: RunningSpout | None = None
        self._broken: TridentError | None = None

    def placed(self, topology: str, stream: str) -> ChildSource:
        made = copy.copy(self)  # without a child, as after pickling
        made._topology, made._stream = topology, stream
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_child": None, "_broken": None}

    def poll(self, max_rows: int) -> Polled | None:
        """
        :raises ConfigurationError: the program does not exist.
        :raises ChildError: the child ended, hung or broke its protocol, in this poll or after the tuples of the last.
        :raises DamagedInputError: the child gave a tuple that does not fit the fields. All others are spooled by then.
        """
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        try:
            spout_tuples, error = self._started().poll(max_rows, max_s=self._max_s, idle_s=self._idle_s)
        except BaseException:
            self._drop()
            raise
        if error is not None:
            self._drop()
        polled, misfit = self._polled(spout_tuples)
        self._broken = error or misfit
        if polled is None and self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        return polled

    def rest(self) -> Polled | None:
        """Ends the child. An error at its end is only logged. What it gave at its end, and cannot be acknowledged any
        more, is left to the next child: spooled, it would come twice."""
        child, self._child = self._child, None
        if child is None:
            return None
        spout_tuples, error = child.stop()
        if spout_tuples and self.spout.acks_last:
            _log.info(
                "%s: %d tuples came after the last poll, unacknowledged: not taken", self.spout, len(spout_tuples)
            )
            spout_tuples = []
        polled, misfit = self._polled(spout_tuples)
        for problem in (error, misfit):
            if problem is not None:
                _log.warning("%s", problem)
        return polled

    def spooled(self) -> None:
        if self._child is not None:
            try:
                self._child.spooled()
            except TridentError as error:  # not raised: the batch is durable already
                self._drop()
                self._broken = self._broken or error

    def ack(self, token: Json) -> None:
        """Acknowledges, if needed through a child that it starts for this."""
        if not self.spout.acks_by_id or not isinstance(token, list):
            return
        try:
            self._started().ack(token)
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Ends the child, if `rest` has not."""
        if (polled := self.rest()) is not None:
            _log.warning("%s: %d tuples came after the last poll, and are lost", self.spout, len(polled.rows))

    def describe(self) -> str:
        return self.spout.describe()

    def _started(self) -> RunningSpout:
        if self._child is None:
            place = BoltPlace(
                node=self._stream,
                topology=self._topology,
                fields=names_of(self._given_fields),
                streams={DEFAULT_STREAM: self._given_fields},
                matched=False,
            )
            self._child = RunningSpout(self.spout, place)
        return self._child

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _polled(self, spout_tuples: Sequence[Given]) -> tuple[Polled | None, TridentError | None]:
        rows, kept, misfit = self._rows(spout_tuples)
        if not rows:
            return None, misfit
        if not self.spout.acks_by_id:
            return Polled(rows=rows), misfit
        return Polled(
            rows=rows, token=[spout_tuple.id for spout_tuple in kept if spout_tuple.has_id], ids=_ids(kept)
        ), misfit

    # ---- rows --------------------------------------------------------------------------------------------------

    def _rows(self, spout_tuples: Sequence[Given]) -> tuple[list[tuple[Any, ...]], list[Given], TridentError | None]:
        """The rows, the tuples that they were made of, and an error about the first tuple that does not fit."""
        read = _text_of if self._whole else reader_of(self._given_fields)
        rows: list[tuple[Any, ...]] = []
        kept: list[Given] = []
        misfit: TridentError | None = None
        for spout_tuple in spout_tuples:
            try:
                rows.append(self._row(spout_tuple, read))
                kept.append(spout_tuple)
            except ValueError as error:
                misfit = misfit or self._misfit(spout_tuple, str(error))
        if rows and (why := self._unfit(rows)):
            fits = [self._unfit([row]) for row in rows]
            wrong = next((index for index, text in enumerate(fits) if text), None)
            misfit = misfit or self._misfit(kept[wrong or 0], why)
            rows = [row for row, text in zip(rows, fits, strict=True) if not text]
            kept = [spout_tuple for spout_tuple, text in zip(kept, fits, strict=True) if not text]
        return rows, kept, misfit

    def _row(self, spout_tuple: Given, read: Reader) -> tuple[Any, ...]:
        values = read(spout_tuple.values)
        if self._stream_field is not None:
            at = names_of(self.schema).index(self._stream_field)
            return (*values[:at], spout_tuple.stream, *values[at:])
        if spout_tuple.stream != DEFAULT_STREAM:
            raise ValueError(f"it came on stream {spout_tuple.stream!r}: name a field for that, stream_field=")
        return values

    def _unfit(self, rows: list[tuple[Any, ...]]) -> str:
        """Why the rows do not fit the fields; "" if they do."""
        import pyarrow as pa

        try:
            rows_to_table(self.schema, rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return str(error) or type(error).__name__
        return ""

    def _misfit(self, spout_tuple: Given, why: str) -> DamagedInputError:
        fields = ", ".join(map(str, self.schema))
        return DamagedInputError(
            f"{self.spout} gave {json.dumps(spout_tuple.values)[:200]}, which does not fit its fields ({fields}): "
            f"{why}",
            "Declare the fields as they come. That tuple is not spooled; the others of its batch are.",
        )


def _text_of(values: Any) -> tuple[Any, ...]:
    return (json.dumps(values, ensure_ascii=False, separators=(",", ":")),)


def _ids(spout_tuples: Sequence[Given]) -> list[str]:
    """One id for each row. One ``next`` may give several tuples with the same id, which are numbered. The same id in
    another ``next`` means the same tuple. A tuple without an id gets a random one."""
    seen = Counter[tuple[int, str]]()
    ids = []
    for spout_tuple in spout_tuples:
        if not spout_tuple.has_id:
            ids.append(uuid.uuid4().hex)
            continue
        name = json.dumps(spout_tuple.id, sort_keys=True)
        number = seen[spout_tuple.turn, name]
        seen[spout_tuple.turn, name] += 1
        ids.append(f"{name}#{number}" if number else name)
    return ids


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
    :param cwd, env, conf: as for a :class:`~airflow_trident.storm.components.multilang.ShellBolt`.
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
        :class:`~airflow_trident.storm.components.qtopology.NodeBolt`.
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
