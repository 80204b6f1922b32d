"""A bolt in another program, as part of a fused pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any

from airflow_trident.engine.fused.frames import Column, Frame
from airflow_trident.io.values import UnfitValueError, coerce_column
from airflow_trident.operations.api import OperationContext
from airflow_trident.operations.calls.user_code import Border
from airflow_trident.storm.components.bolt_node import BoltNode, BoltStream
from airflow_trident.storm.components.running import NO_ROW, Emit, run_bolt
from airflow_trident.storm.components.talk import BoltPlace


def child_bolt(
    node: BoltNode, keep: frozenset[str], context: OperationContext, frames: Iterator[Frame]
) -> Iterator[Frame]:
    """
    :param keep: the fields that a later node needs.
    :raises UserCodeError: the component failed a row, or emitted something undeclared.
    :raises ChildError: the child died, hung, or broke the protocol.
    :raises ConfigurationError: the program does not exist.
    """
    border = Border(node.name, node.bolt.describe(), node.reads, context.txid)
    place = BoltPlace(
        node=node.name,
        component=node.component,
        fields=node.reads,
        streams={stream.id: stream.outputs for stream in node.streams},
        matched=node.keeps_input,
        topology=context.topology,
        txid=context.txid,
        attempt=context.attempt,
        partition=context.partition_index,
        partitions=context.num_partitions,
    )
    given = _Given(node.reads, frames)
    made = _Made(node, keep, border, given)
    for some in run_bolt(node.bolt, given.rows(), place, border.error, given.look):
        for frame in made.appended(some.emits) if node.keeps_input else made.instead(some.emits):
            yield frame.only(keep)
        given.drop(some.upto)


class _Given:
    """The frames whose rows the child has, or whose emits are still pending."""

    def __init__(self, reads: tuple[str, ...], frames: Iterator[Frame]) -> None:
        self._reads = reads
        self._frames = frames
        self._kept: deque[tuple[int, Frame]] = deque()
        self._looks: Iterator[None] | None = None

    def rows(self) -> Iterator[tuple[Any, ...]]:
        start = 0
        for frame in self._frames:
            if self._looks is None and frame.guard is not None:
                self._looks = frame.guard(repeat(None))
            self._kept.append((start, frame))
            start += frame.rows
            yield from frame.tuples(self._reads)

    def look(self) -> None:
        """Raises if the attempt was cancelled."""
        if self._looks is not None:
            next(self._looks)

    def of(self, row: int) -> tuple[int, Frame]:
        """The frame that contains the row, and the number of its first row."""
        return next(one for one in self._kept if row < one[0] + one[1].rows)

    def drop(self, upto: int) -> None:
        """Rows below `upto` are no longer needed."""
        while self._kept and self._kept[0][0] + self._kept[0][1].rows <= upto:
            self._kept.popleft()

    def values(self, row: int) -> tuple[Any, ...]:
        if row == NO_ROW:
            return ()
        start, frame = self.of(row)
        return frame.row(self._reads, row - start)


@dataclass
class _Made:
    """Emits as frames of the node's schema."""

    _node: BoltNode
    _keep: frozenset[str]
    _border: Border
    _given: _Given

    def appended(self, emits: list[Emit]) -> Iterator[Frame]:
        """Appended to their rows."""
        import numpy as np

        (stream,) = self._node.streams
        for start, some in groupby(emits, lambda emit: self._given.of(emit.row)[0]):
            here = list(some)
            _, frame = self._given.of(here[0].row)
            kept = frame.take(np.asarray([emit.row - start for emit in here]), self._keep)
            yield kept.with_columns(self._columns(stream, here))

    def instead(self, emits: list[Emit]) -> Iterator[Frame]:
        """In place of the rows."""
        if not emits:
            return
        if not self._node.tag:
            (stream,) = self._node.streams
            yield Frame(len(emits), self._columns(stream, emits))
            return
        columns: dict[str, Column] = {
            name: [None] * len(emits) for stream in self._node.streams for name in stream.columns
        }
        tags: list[str] = [""] * len(emits)
        for number, stream in enumerate(self._node.streams):
            places = [place for place, emit in enumerate(emits) if emit.stream == number]
            for name, values in self._columns(stream, [emits[place] for place in places]).items():
                column = columns[name]
                for place, value in zip(places, values, strict=True):
                    column[place] = value
            for place in places:
                tags[place] = stream.id
        yield Frame(len(emits), {self._node.tag: tags, **columns})

    def _columns(self, stream: BoltStream, emits: list[Emit]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for place, (field, name) in enumerate(zip(stream.outputs, stream.columns, strict=True)):
            values = [emit.values[place] for emit in emits]
            try:
                columns[name] = list(coerce_column(values, field.type))
            except UnfitValueError as error:
                row = self._given.values(emits[error.position].row)
                raise self._border.error(row, f"gave {error}") from error
        return columns
