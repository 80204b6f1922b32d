"""Where files are that Spark may read itself, and how it is told of them: on this machine, or in buckets of S3 where
the session has Hadoop's S3A."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.io.s3 import S3
from airflow_trident.io.s3a import FILE_SYSTEM, OTHER_SERVICE, S3AFiles
from airflow_trident.spouts.files.parquet_in_spark import is_plain_path

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8
_log = logging.getLogger(__name__)


class FilesForSpark(ABC):
    """Files by their paths."""

    @abstractmethod
    def url(self, path: str) -> str:
        """As Spark is told it."""

    @abstractmethod
    def is_plain(self, path: str) -> bool:
        """Does Spark take the path as it is?"""

    @abstractmethod
    def open(self, path: str) -> Any:
        """A binary file, to be closed.

        :raises OSError: it cannot be opened.
        """

    @abstractmethod
    def identity(self, path: str) -> tuple[int, int]:
        """Size and time of change.

        :raises OSError: there is no such file, or nobody answers.
        """

    def options(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Of Spark's reader, for these files."""
        return {}

    def each(self, function: Callable[[T], R], given: Sequence[T]) -> Iterator[R]:
        """Asks the same of each file, as far as the answers are wanted."""
        return map(function, given)

    def is_open_error(self, error: Exception) -> bool:
        """Is it about the way to the files, which Python's readers may go all the same?"""
        return False


class FilesHere(FilesForSpark):
    """On file systems of this machine."""

    def url(self, path: str) -> str:
        return f"file://{path}"

    def is_plain(self, path: str) -> bool:
        return is_plain_path(path)

    def open(self, path: str) -> Any:
        return open(path, "rb")

    def identity(self, path: str) -> tuple[int, int]:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns


HERE = FilesHere()


class FilesInBuckets(FilesForSpark):
    """Objects of S3. Their paths are ``bucket/key``."""

    def __init__(self, found: S3AFiles, where: str) -> None:
        self._s3a = found
        self._where = where

    def __reduce__(self) -> tuple[type[FilesInBuckets], tuple[S3AFiles, str]]:
        return FilesInBuckets, (self._s3a, self._where)

    @cached_property
    def _files(self) -> Any:
        return self._s3a.arrow_files()

    def url(self, path: str) -> str:
        return self._s3a.url(path)

    def is_plain(self, path: str) -> bool:
        return is_plain_path(f"/{path}") and not {"", ".", ".."}.intersection(path.split("/"))

    def open(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def identity(self, path: str) -> tuple[int, int]:
        found = self._files.get_file_info(path)
        if not found.is_file:
            raise FileNotFoundError(path)
        return found.size, found.mtime_ns

    def options(self, paths: Sequence[str]) -> Mapping[str, str]:
        return self._s3a.options(path.partition("/")[0] for path in paths)

    def each(self, function: Callable[[T], R], given: Sequence[T]) -> Iterator[R]:
        pool = ThreadPoolExecutor(max_workers=_THREADS)
        try:
            yield from pool.map(function, given)
        finally:
            pool.shutdown(cancel_futures=True)

    def is_open_error(self, error: Exception) -> bool:
        """Any: Hadoop's errors have no common class, and Python's readers name the fault."""
        first = self._s3a.conceal((str(error).splitlines() or [""])[0])
        say_python_reads(self._where, f"its S3A cannot open them ({type(error).__name__}: {first[:200]})")
        return True


def in_place(session: Any, place: ObjectPlace) -> FilesInBuckets | None:
    """The objects of a store; None: this session cannot read them, which the log says."""
    if place.scheme not in S3.schemes:
        say_python_reads(place.where, OTHER_SERVICE)
        return None
    place = place.resolved()
    return in_buckets(session, place.where, dict(place.settings), dict(place.client))


def in_buckets(
    session: Any, where: str, settings: Mapping[str, str], client: Mapping[str, str]
) -> FilesInBuckets | None:
    """Objects of S3, as :func:`in_place`.

    :param settings: as those of an `ObjectPlace`.
    """
    found: S3AFiles | str = f"the session has no {FILE_SYSTEM} (hadoop-aws, of Hadoop's version in Spark's jars)"
    if _has_s3a(session):
        found = S3AFiles.of(settings, client)
    if isinstance(found, str):
        say_python_reads(where, found)
        return None
    return FilesInBuckets(found, where)


def _has_s3a(session: Any) -> bool:
    try:
        return session.sparkContext._jsc.hadoopConfiguration().getClassByNameOrNull(FILE_SYSTEM) is not None
    except Exception:  # noqa: BLE001 - Py4J's, for a class that is there without Amazon's SDK
        return False


def say_python_reads(where: str, why: str) -> None:
    """One line in the log."""
    _log.info("%s: Python reads these files, and not Spark: %s", where, why)
