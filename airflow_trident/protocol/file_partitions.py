"""``FileSpout(replaces="file")``: each file is a partition of a topology that is bound to nothing else.

A transaction has the files of its batch, and replaces their rows in every state (T13 of `contracts.state`). Their names
are in its metadata, so tickets need no record of their own. Pure; DAGs load it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_trident.types import Field, Json

REPLACES = "replaces"
"""Key in the metadata of a stream whose files replace their former rows."""
FILE = "_file"
"""The field with a file's name: its path below the first folder with a wildcard, as the ledger has it."""


@dataclass(frozen=True)
class FilePartitions:
    """A file is a partition, and its name is the key. The members are those of
    :class:`airflow_trident.protocol.partitions.Partitions` that states and verbs need."""

    step = "file"
    noun = "file"
    binding = "a topology whose files replace their rows"
    column = FILE
    field = Field(FILE, "string")

    def value_of(self, key: str) -> str:
        return key


def replaced_files(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    """The names of the files whose former rows a batch replaces, by the metadata of its streams."""
    return tuple(
        str(file[0])
        for stream in metadata.values()
        if isinstance(stream, dict) and stream.get(REPLACES) == FilePartitions.step
        for file in _listed(stream.get("files"))
    )


def without_files(metadata: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    """The metadata of a batch without these files, whose rows are not needed."""
    return {
        stream: {**part, "files": [file for file in _listed(part["files"]) if file[0] not in names]}
        if isinstance(part, dict) and part.get(REPLACES) == FilePartitions.step
        else part
        for stream, part in metadata.items()
    }


def _listed(files: Json) -> list[list[Json]]:
    return [file for file in files if isinstance(file, list) and file] if isinstance(files, list) else []
