"""What a person is asked about late files, of which nobody can tell whether they were read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.files.batch_limits import BatchLimits, LateFiles
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.old_files import moment_of


def require_no_question(
    late: Sequence[FoundFile], limits: BatchLimits, *, window_ns: int, now_ns: int, apart_ns: int, base: str
) -> None:
    """
    :param window_ns: the window's begin.
    :param apart_ns: as much as the clocks of this machine and of the file system may differ.
    :raises ConfigurationError: `late_files` is "error"; or it is "ignore", and the files would be known as new if the
        window did not begin in the future, where a read file's time had moved it: all that comes would be ignored.
    """
    if limits.late_files is LateFiles.TAKE:
        return
    if window_ns > now_ns + apart_ns and (recent := [one for one in late if one.mtime_ns >= _begin(limits, now_ns)]):
        until = moment_of(window_ns)
        raise ConfigurationError(
            f"{_named(recent, base)} cannot be told from those that were read, because one of these has a time in the "
            f"future: whatever comes before {until} looks as if it came late",
            'Set late_files="take" until then, and before that move away those that were read; or, if the clock of '
            "this machine is behind, set it right.",
        )
    if late and limits.late_files is LateFiles.ERROR:
        raise ConfigurationError(
            f"{_named(late, base)} is older than what has been read, and came late or was touched: nobody can tell "
            "whether it was read",
            'Set late_files="take" if it is new, late_files="ignore" if it was read, or give it the present time '
            "(`touch`) if it is new.",
        )


def _begin(limits: BatchLimits, now_ns: int) -> int:
    """Of the window, if the newest read file were of this moment."""
    return now_ns - limits.late_window_ns


def _named(files: Sequence[FoundFile], base: str) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"the file {files[0].path!r}{more} in {base!r}"
