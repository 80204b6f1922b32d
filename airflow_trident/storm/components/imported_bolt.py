"""A bolt of a topology file. Its inputs and outputs are whole objects as JSON texts, with their streams."""

from __future__ import annotations

import json
from typing import Any

from airflow_trident.storm.components.process import Channel
from airflow_trident.storm.components.protocol import BoltListener, BoltPlace
from airflow_trident.storm.components.qtopology import NodeBolt, NodeTalk
from airflow_trident.types import Field


class ImportedBolt(NodeBolt):
    """A row is a stream id (empty: the default stream) and the JSON text of an object. An output stream with only the
    field `data string` gets such a text; other streams get the fields of the object."""

    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> NodeTalk:
        whole = frozenset(name for name, schema in place.streams.items() if schema == WHOLE)
        talk = super().talk(channel, _WholeListener(listener, whole), place)
        talk.whole = True
        return talk


WHOLE = (Field("data", "string"),)
"""The fields of a stream whose tuples are whole objects."""


def text_of(data: Any) -> str:
    """An object as JSON text."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


class _WholeListener:
    """Passes everything on; emits on `streams` as JSON texts."""

    def __init__(self, listener: BoltListener, streams: frozenset[str]) -> None:
        self._listener, self._streams = listener, streams

    def ready(self) -> None:
        self._listener.ready()

    def refused(self, text: str, *, missing: bool = False) -> None:
        self._listener.refused(text, missing=missing)

    def emitted(self, rows: tuple[int, ...], stream: str, values: Any) -> None:
        self._listener.emitted(rows, stream, [text_of(values)] if stream in self._streams else values)

    def done(self, row: int) -> None:
        self._listener.done(row)

    def failed(self, row: int, text: str) -> None:
        self._listener.failed(row, text)
