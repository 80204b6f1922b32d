"""Spouts over folders: a partition is a file that only grows, one JSON row per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_trident.arrow import rows_to_table
from airflow_trident.errors import SourceChangedError
from airflow_trident.protocol.batches import BatchSpout
from airflow_trident.protocol.partitioned import OpaquePartitionedSpout, PartitionedSpout
from airflow_trident.spouts.spool_sources import CallableSource, Polled
from airflow_trident.types import Json, Schema, parse_declared

FIELDS = "id long, name string"


def append(folder: Path, partition: str, rows: list[tuple[Any, ...]]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / partition).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True)
class FolderSpout(PartitionedSpout):
    """Reads at most `at_once` rows of each file per batch; leaves a file in `told` for each success."""

    folder: Path
    at_once: int = 3
    max_rows: int | None = None
    max_partitions: int | None = None
    max_splits: int = 2
    told: Path | None = None

    @property
    def schema(self) -> Schema:
        return parse_declared(FIELDS)

    def describe(self) -> str:
        return f"{type(self).__name__}(rows of {self.folder.name})"

    def partitions(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def next_part(self, partition: str, last: Json) -> Json:
        begin = last["to"] if isinstance(last, dict) else 0
        assert isinstance(begin, int)
        end = min(begin + self.at_once, len(self._lines(partition)))
        return {"from": begin, "to": end} if end > begin else None

    def rows_of(self, part: Json) -> int:
        assert isinstance(part, dict)
        return int(part["to"]) - int(part["from"])  # type: ignore[arg-type]

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, dict)
        begin, end = part["from"], part["to"]
        assert isinstance(begin, int)
        assert isinstance(end, int)
        lines = self._lines(partition)
        if len(lines) < end:
            raise SourceChangedError(f"{partition} has {len(lines)} rows and the batch goes to {end}", "Put it back.")
        rows = [tuple(json.loads(line)) for line in lines[begin:end]]
        yield from rows_to_table(self.schema, rows).to_batches()

    def success(self, txid: int, parts: Mapping[str, Json]) -> None:
        if self.told is not None:
            self.told.mkdir(exist_ok=True)
            (self.told / str(txid)).write_text(json.dumps(dict(parts)))

    def _lines(self, partition: str) -> list[str]:
        return (self.folder / partition).read_text().splitlines()


class OpaqueFolderSpout(FolderSpout, OpaquePartitionedSpout):
    """The same, decided anew for each attempt."""

    kind = OpaquePartitionedSpout.kind


@dataclass(frozen=True)
class ForgetfulSpout(BatchSpout):
    """Hands out each row of a file once, whoever asks."""

    folder: Path

    @property
    def schema(self) -> Schema:
        return parse_declared(FIELDS)

    def describe(self) -> str:
        return f"ForgetfulSpout(rows of {self.folder.name})"

    def has_more(self) -> bool:
        return any(self.folder.iterdir())

    def emit_batch(self, batch: int) -> Iterator[pa.RecordBatch]:
        for path in sorted(self.folder.iterdir())[:1]:
            rows = [tuple(json.loads(line)) for line in path.read_text().splitlines()]
            path.unlink()
            yield from rows_to_table(self.schema, rows).to_batches()


@dataclass(frozen=True)
class FileQueue:
    """A queue: one file per item. It gives every item again that is not acknowledged, beginning at the first."""

    folder: Path
    lagging: bool = False
    """Give what was spooled already, too; else what nobody has taken comes first."""

    def put(self, rows: list[tuple[Any, ...]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "taken").mkdir(exist_ok=True)
        for row in rows:
            (self.folder / f"{row[0]:05d}.item").write_text(json.dumps(row))

    def source(self) -> CallableSource:
        return CallableSource(self.poll, FIELDS, ack=self.ack)

    def poll(self, max_rows: int) -> Polled:
        """Items in flight come last, and only when nothing else is left."""
        items = sorted(
            self.folder.glob("*.item"), key=lambda path: ((self.folder / "taken" / path.name).exists(), path)
        )
        items = sorted(self.folder.glob("*.item")) if self.lagging else items
        names = [path.name for path in items[:max_rows]]
        for name in names:
            (self.folder / "taken" / name).touch()
        rows = [tuple(json.loads((self.folder / name).read_text())) for name in names]
        return Polled(rows=rows, token=list(names), ids=names)

    def ack(self, token: Any) -> None:
        for name in token:
            (self.folder / name).unlink(missing_ok=True)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.item"))
