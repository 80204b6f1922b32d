"""A child process that is a spout, as the source of a spool."""

from __future__ import annotations

import copy
import json
import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from airflow_trident.errors import ConfigurationError, DamagedInputError, TridentError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.spouts.spool.sources import Polled, SpoolSource
from airflow_trident.storm.components.json_values import Reader, reader_of
from airflow_trident.storm.components.polling import ChildSpout, Given, RunningSpout
from airflow_trident.storm.components.talk import DEFAULT_STREAM, BoltPlace
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
        self.spout = spout
        self.schema = parse_declared(fields)
        self._max_s, self._idle_s = max_s, idle_s
        self._stream_field = stream_field
        if max_s <= 0 or idle_s < 0:
            raise ConfigurationError(f"{spout} with max_s={max_s}, idle_s={idle_s}", "Give times above 0.")
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
            given, error = self._started().poll(max_rows, max_s=self._max_s, idle_s=self._idle_s)
        except BaseException:
            self._drop()
            raise
        if error is not None:
            self._drop()
        polled, misfit = self._polled(given)
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
        given, error = child.stop()
        if given and self.spout.acks_last:
            _log.info("%s: %d tuples came after the last poll, unacknowledged: not taken", self.spout, len(given))
            given = []
        polled, misfit = self._polled(given)
        for one in (error, misfit):
            if one is not None:
                _log.warning("%s", one)
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

    def _polled(self, given: Sequence[Given]) -> tuple[Polled | None, TridentError | None]:
        rows, kept, misfit = self._rows(given)
        if not rows:
            return None, misfit
        if not self.spout.acks_by_id:
            return Polled(rows=rows), misfit
        return Polled(rows=rows, token=[one.id for one in kept if one.has_id], ids=_ids(kept)), misfit

    # ---- rows --------------------------------------------------------------------------------------------------

    def _rows(self, given: Sequence[Given]) -> tuple[list[tuple[Any, ...]], list[Given], TridentError | None]:
        """The rows, the tuples that they were made of, and an error about the first tuple that does not fit."""
        read = _text_of if self._whole else reader_of(self._given_fields)
        rows: list[tuple[Any, ...]] = []
        kept: list[Given] = []
        misfit: TridentError | None = None
        for one in given:
            try:
                rows.append(self._row(one, read))
                kept.append(one)
            except ValueError as error:
                misfit = misfit or self._misfit(one, str(error))
        if rows and (why := self._unfit(rows)):
            fits = [self._unfit([row]) for row in rows]
            wrong = next((index for index, text in enumerate(fits) if text), None)
            misfit = misfit or self._misfit(kept[wrong or 0], why)
            rows = [row for row, text in zip(rows, fits, strict=True) if not text]
            kept = [one for one, text in zip(kept, fits, strict=True) if not text]
        return rows, kept, misfit

    def _row(self, one: Given, read: Reader) -> tuple[Any, ...]:
        values = read(one.values)
        if self._stream_field is not None:
            at = names_of(self.schema).index(self._stream_field)
            return (*values[:at], one.stream, *values[at:])
        if one.stream != DEFAULT_STREAM:
            raise ValueError(f"it came on stream {one.stream!r}: name a field for that, stream_field=")
        return values

    def _unfit(self, rows: list[tuple[Any, ...]]) -> str:
        """Why the rows do not fit the fields; "" if they do."""
        import pyarrow as pa

        try:
            rows_to_table(self.schema, rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return str(error) or type(error).__name__
        return ""

    def _misfit(self, one: Given, why: str) -> DamagedInputError:
        fields = ", ".join(map(str, self.schema))
        return DamagedInputError(
            f"{self.spout} gave {json.dumps(one.values)[:200]}, which does not fit its fields ({fields}): {why}",
            "Declare the fields as they come. That tuple is not spooled; the others of its batch are.",
        )


def _text_of(values: Any) -> tuple[Any, ...]:
    return (json.dumps(values, ensure_ascii=False, separators=(",", ":")),)


def _ids(given: Sequence[Given]) -> list[str]:
    """One id for each row. One ``next`` may give several tuples with the same id, which are numbered. The same id in
    another ``next`` means the same tuple. A tuple without an id gets a random one."""
    seen = Counter[tuple[int, str]]()
    ids = []
    for one in given:
        if not one.has_id:
            ids.append(uuid.uuid4().hex)
            continue
        name = json.dumps(one.id, sort_keys=True)
        number = seen[one.turn, name]
        seen[one.turn, name] += 1
        ids.append(f"{name}#{number}" if number else name)
    return ids
