"""Copy-on-write: which files need no reading; and, in the commit, whether what the processing phase read is still
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.errors import TableChangedError
from airflow_trident.states.tables.new_files import OldFile

if TYPE_CHECKING:
    import pyarrow as pa


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
    """
    try:
        yield
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
