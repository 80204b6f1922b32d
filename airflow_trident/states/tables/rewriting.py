"""Copy-on-write: whose rows a table has, which of its files need no reading, and, in the commit, whether what the
processing phase read is still there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import DamagedInputError, TableChangedError
from airflow_trident.io.values import UnfitValueError
from airflow_trident.states.tables.new_files import OldFile

if TYPE_CHECKING:
    import pyarrow as pa


_KEPT = "rows"
"""The word of the note for a table whose rows are replaced by their keys."""


def note_of(spec: StateSpec) -> str | None:
    """The note in a table that has one row of each key, for its readers, and to refuse other topologies."""
    if not spec.rewrites:
        return None
    note = {"topology": spec.topology, "state": spec.name, "kept": _KEPT, "keys": list(spec.key_names)}
    return json.dumps({**note, **({"deleted": spec.deleted} if spec.deleted else {})})


def why_not_owned(note: str | None, spec: StateSpec) -> tuple[str, str] | None:
    """The error and its cure, if the note in a table is not that of `spec`."""
    owner, wanted = _parsed(note), _parsed(note_of(spec))
    if owner == wanted:
        return None
    if owner is None:
        return (
            "it was not made for rows by key",
            f"Let the topology make a table; or set this one's note to {note_of(spec)}, if its rows have these keys.",
        )
    whose = f"state {owner.get('state')!r} of topology {owner.get('topology')!r}"
    if wanted is None or (owner.get("topology"), owner.get("state")) != (spec.topology, spec.name):
        return f"it has the rows of {whose}, by the keys {owner.get('keys')}", "Write to another table."
    return (
        f"it has rows by the keys {owner.get('keys')}, deleted where {owner.get('deleted')}, and not by "
        f"{list(spec.key_names)}, deleted where {spec.deleted}",
        "Give the state another table.",
    )


def _parsed(note: str | None) -> dict[str, Any] | None:
    try:
        content = json.loads(note or "null")
    except ValueError:
        return None  # a description written by a person
    is_ours = isinstance(content, dict) and content.get("kept") == _KEPT and content.get("keys")
    return content if is_ours else None


def may_have(fragment: Any, schema: pa.Schema, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """See `CommittedTable.may_have`.

    :param fragment: a Parquet file as `pyarrow.dataset.ParquetFileFragment`.
    :param schema: of the table.
    """
    import pyarrow.dataset as ds

    wanted = ds.scalar(True)
    for name in bounds.keys() & set(fragment.physical_schema.names):
        low, high = (one.cast(schema.field(name).type) for one in bounds[name])
        wanted = wanted & (ds.field(name) >= low) & (ds.field(name) <= high)
    return bool(fragment.split_by_row_group(filter=wanted, schema=schema))


@contextmanager
def file_there(file: str) -> Iterator[None]:
    """
    :param file: which file of which version is read, for the error.
    :raises TableChangedError: others have deleted it.
    :raises DamagedInputError: it cannot be read, or has a value that would become another one.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, UnfitValueError) as error:
        raise DamagedInputError(
            f"{file}, which has to be written anew, cannot be read: {error}",
            "Restore the file, or write it anew by the program that made it.",
        ) from error
    except FileNotFoundError as error:
        raise TableChangedError(f"{file} is gone", "The next attempt reads a newer version.") from error


def number_of(version: str, table_id: object) -> int | None:
    """The number in ``id/number``, the version of a table; None: it is of another table than this one."""
    found, _, number = version.rpartition("/")
    return int(number) if found == str(table_id) else None


def require_as_read(
    what: str,
    now: Sequence[OldFile],
    version: str,
    read: ReplacedFiles,
    paths_then: Callable[[str], AbstractSet[str] | None],
) -> list[OldFile]:
    """The files that a batch replaces, in the version of now. Another version is as good as the one that was read if it
    has no other files, which may have rows of the batch's keys, and still has these.

    :param what: the table, as an error names it.
    :param now: the files of `version`, which the table is at.
    :param paths_then: the files of another version; None: they are not known any more.
    :raises TableChangedError: the batch must be processed again.
    """
    files = {one.path: one for one in now}
    then = files.keys() if version == read.version else paths_then(read.version)
    if then is None or not files.keys() <= then or not files.keys() >= set(read.gone):
        raise TableChangedError(
            f"others have written to {what} since the batch was processed against its version {read.version}",
            "The batch is processed again. If that never ends, let them write at other times.",
        )
    return [files[path] for path in read.gone]
