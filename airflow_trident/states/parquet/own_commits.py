"""What a committer wrote for a commit to a Parquet table, and whether the table has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_trident.staging.parquet_versions import ParquetVersions
from airflow_trident.staging.verbs import Storage
from airflow_trident.states.tables.appending import Tried
from airflow_trident.states.tables.new_files import NewFile


@dataclass(frozen=True, slots=True)
class MadeLists:
    """Removes the lists `made` for a commit."""

    storage: Storage
    made: list[str]

    def __call__(self) -> None:
        self.storage.remove(self.made)


def has_any(versions: ParquetVersions, app: str, tried: Tried, new: Sequence[NewFile]) -> bool:
    """Does a version that counts hold one of these commits, or name what was written for them? The version of the
    commit itself may have been removed meanwhile."""
    written = {one.path for one in new}
    for undo in tried.values():
        if isinstance(undo, MadeLists):
            written.update(undo.made)
    kept = list(versions.present(reversed(versions.kept())))
    found = (version.states.get(app) for version in kept)
    if any(one is not None and one.commit in tried for one in found):
        return True
    return not written.isdisjoint(versions.named(kept))
