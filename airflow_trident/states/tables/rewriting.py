"""Copy-on-write in the commit: is what the processing phase read still there?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.errors import TableChangedError
from airflow_trident.states.tables.new_files import OldFile


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
