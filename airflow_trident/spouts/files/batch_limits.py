"""Limits for the size of a batch of files, and for the files that are left for later. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_trident.spouts.files.listing import FoundFile


class LateFiles(StrEnum):
    """What to do with a file if nobody can tell whether it was read."""

    ERROR = "error"
    TAKE = "take"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch has at least one file, and otherwise at most `max_files` and `max_bytes`. Files younger than `min_age_ns`
    wait, because somebody may still be writing them."""

    max_files: int
    max_bytes: int
    min_age_ns: int
    late_window_ns: int
    late_files: LateFiles


def is_old_enough(file: FoundFile, limits: BatchLimits, now_ns: int) -> bool:
    """By the earlier of both times: if only one of them is in the future, it does not matter."""
    return limits.min_age_ns == 0 or min(file.mtime_ns, file.ctime_ns) <= now_ns - limits.min_age_ns


def cut(files: Sequence[FoundFile], limits: BatchLimits, most: int) -> list[list[FoundFile]]:
    batches: list[list[FoundFile]] = []
    size = 0
    for file in files:
        size += file.size
        if not batches or len(batches[-1]) == limits.max_files or size > limits.max_bytes:
            if len(batches) == most:
                break
            batches.append([])
            size = file.size
        batches[-1].append(file)
    return batches
