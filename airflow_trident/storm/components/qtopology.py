"""The three protocols of qtopology's bolts.

`SeedTalk`: the first protocol, without acknowledgements. `ProgramTalk`: 0.7, with acknowledgements, but emits do not
name their rows. `ModuleTalk`: modules of 2.x, which are no programs: `host.js` runs them and names each emit's row.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from airflow_trident.storm.components.channel import Channel
from airflow_trident.storm.components.framing import Message
from airflow_trident.storm.components.talk import DEFAULT_STREAM, BoltListener, BoltPlace, BoltTalk

BATCH_ROWS = 256
"""The most rows in one message to the host."""
_FIRST_BYTES = 64 << 10
"""A message of this size is sent without waiting for more rows."""
MISSING = "MODULE_NOT_FOUND"


@cache
def script(name: str) -> str:
    """The path of a script of this package; a copy, if the package is not a folder (a zip)."""
    here = Path(__file__).with_name(name)
    if here.exists():
        return str(here)
    folder = Path(tempfile.mkdtemp(prefix="trident-scripts-"))
    for one in ("preload.js", "host.js"):
        (folder / one).write_text(files(__package__).joinpath(one).read_text(encoding="utf-8"), encoding="utf-8")
    return str(folder / name)


def said(error: object) -> str:
    """The text of an error in JSON. Node writes an Error as `{}`, unless the program writes out its fields."""
    if isinstance(error, dict):
        text = error.get("stack") or error.get("message")
        return str(text) if text else "(its library sends no text of errors)"
    return str(error)


class NodeTalk(BoltTalk):
    """What all three have in common.

    :param window: how many rows the bolt may have at a time.
    """

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
    ) -> None:
        super().__init__(channel, listener, place)
        self._init = init
        self._opened = False
        self.beat_s = beat_s
        self.window = window
        self.whole = False
        """Is a row a stream id (or "") and the JSON text of an object?"""

    def _say(self, command: str, data: object = None) -> int:
        return self._channel.send({"cmd": command} if data is None else {"cmd": command, "data": data})

    def open(self) -> None:
        self._say("init", {**self._init, "name": self._place.name})

    def hear(self, message: Message) -> None:
        command, data = message.get("cmd"), message.get("data")
        if command == "init_completed" and not self._opened:
            self._opened = True
            self._listener.ready()
        elif command == "init_failed" and not self._opened:
            self._refused(data)
        elif not self._opened or not self._heard(command, data):
            raise self.unknown(message)

    def _refused(self, data: Any) -> None:
        error = data.get("err", data) if isinstance(data, dict) else data
        missing = isinstance(error, dict) and error.get("code") == MISSING and bool(data.get("making"))
        self._listener.refused(said(error), missing=missing)

    @abstractmethod
    def _heard(self, command: object, data: Any) -> bool:
        """Pass a message on to the listener; False: it is unknown."""

    def _data(self, values: tuple[Any, ...]) -> dict[str, Any] | msgspec.Raw:
        if self.whole:
            return msgspec.Raw(values[1].encode())
        return dict(zip(self._place.fields, values, strict=True))

    def _stream(self, values: tuple[Any, ...]) -> str | None:
        return (values[0] or None) if self.whole else None

    def beat(self) -> None:
        self._say("heartbeat")

    def last_call(self) -> None:
        """A heartbeat: some bolts then emit what they held back."""
        self._say("heartbeat")

    def bye(self) -> None:
        self._say("shutdown")


class SeedTalk(NodeTalk):
    """Emits do not name their rows. All emits until the bolt ends belong to its rows together."""

    acknowledges: ClassVar[bool] = False

    def open(self) -> None:
        self._say("init", self._init)

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        return self._say("data", self._data(values))

    def _heard(self, command: object, data: Any) -> bool:
        if command != "data":
            return False
        self._listener.emitted((), DEFAULT_STREAM, data)
        return True


class ProgramTalk(NodeTalk):
    """:param parallel: the bolt may have several rows at a time; the row of an emit is then unknown."""

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
        parallel: bool,
    ) -> None:
        super().__init__(channel, listener, place, init=init, beat_s=beat_s, window=window if parallel else 1)
        self._parallel = parallel
        self._open: int | None = None

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        self._open = row
        return self._say("data", {"data": self._data(values), "stream_id": self._stream(values), "ack_id": row})

    def _heard(self, command: object, data: Any) -> bool:
        if not isinstance(data, dict):
            return False
        if command == "data" and "data" in data:
            rows = () if self._parallel or self._open is None else (self._open,)
            self._listener.emitted(rows, data.get("stream_id") or DEFAULT_STREAM, data["data"])
            self._say("ack", {"id": data.get("id")})
        elif command == "ack" and type(data.get("ack_id")) is int:
            row = data["ack_id"]
            if row == self._open:
                self._open = None
            if data.get("err") is None:
                self._listener.done(row)
            else:
                self._listener.failed(row, said(data["err"]))
        else:
            return False
        return True


class ModuleTalk(NodeTalk):
    """Sends many rows in one message; each emit names its row."""

    def __init__(
        self,
        channel: Channel,
        listener: BoltListener,
        place: BoltPlace,
        *,
        init: dict[str, Any],
        beat_s: float | None,
        window: int,
    ) -> None:
        super().__init__(channel, listener, place, init=init, beat_s=beat_s, window=window)
        self._rows: list[msgspec.Raw] = []
        self._bytes = 0
        self._beats = 0

    def give(self, row: int, values: tuple[Any, ...]) -> int:
        data = msgspec.json.encode([row, self._data(values), self._stream(values)])
        self._rows.append(msgspec.Raw(data))
        self._bytes += len(data)
        if len(self._rows) >= BATCH_ROWS or self._bytes >= _FIRST_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._rows:
            self._say("batch", self._rows)
            self._rows, self._bytes = [], 0

    def beat(self) -> None:
        self._beats += 1
        super().beat()

    def last_call(self) -> None:
        self._beats += 1
        super().last_call()

    @property
    def called(self) -> bool:
        return self._beats == 0

    def _heard(self, command: object, data: Any) -> bool:
        if command == "batch" and isinstance(data, list):
            for one in data:
                self._one(one)
        elif command == "heartbeat_done" and self._beats:
            self._beats -= 1
            if isinstance(data, dict) and data.get("err"):
                self._listener.refused(f"its heartbeat raised: {said(data['err'])}")
        else:
            return False
        return True

    def _one(self, one: Any) -> None:
        if len(one) == 3:
            row, data, stream = one
            self._listener.emitted(() if row is None else (row,), stream or DEFAULT_STREAM, data)
        elif len(one) == 1:
            self._listener.done(one[0])
        else:
            self._listener.failed(one[0], said(one[1]))
