"""Where files are that Spark may read itself, and how it is told of them.

They are on this machine; or in buckets of S3, with the keys of the connection, where the session has Hadoop's S3A; or
in Azure and Google Cloud Storage, where the session has a file system for these, with the keys of its own settings.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from airflow_trident.errors import TridentError
from airflow_trident.io.hadoop import FILE_SYSTEM, S3AFiles, root_in_hadoop
from airflow_trident.io.object_services import S3
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.spouts.files.parquet_in_spark import is_plain_path

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8
_NO_ACCOUNT = "nothing says of which account of Azure they are, or it has an address of its own"
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

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Asks the same of each file, as far as the answers are wanted."""
        return map(function, items)

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

    def __init__(self, s3a: S3AFiles, location: str) -> None:
        self._s3a = s3a
        self._where = location

    def __reduce__(self) -> tuple[type[FilesInBuckets], tuple[S3AFiles, str]]:
        return FilesInBuckets, (self._s3a, self._where)

    @cached_property
    def _files(self) -> Any:
        return self._s3a.arrow_files()

    def url(self, path: str) -> str:
        return self._s3a.url(path)

    def is_plain(self, path: str) -> bool:
        return is_plain_object(path)

    def open(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def identity(self, path: str) -> tuple[int, int]:
        info = self._files.get_file_info(path)
        if not info.is_file:
            raise FileNotFoundError(path)
        return info.size, info.mtime_ns

    def options(self, paths: Sequence[str]) -> Mapping[str, str]:
        return self._s3a.options(path.partition("/")[0] for path in paths)

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return _at_once(function, items)

    def is_open_error(self, error: Exception) -> bool:
        """Any: Hadoop's errors have no common class, and Python's readers name the fault."""
        first = self._s3a.conceal((str(error).splitlines() or [""])[0])
        say_python_reads(self._where, f"its S3A cannot open them ({type(error).__name__}: {first[:200]})")
        return True


class FilesOfSession(FilesForSpark):
    """Objects that Spark reaches by the session's own settings, and Python by the connection's. Their paths are below
    one place.

    A session whose settings lead to another store has no such objects: their names are made once. Then Python reads.

    :param root: the place, as Spark knows it.
    :param open_file: opens a file by its path, for pyarrow.
    """

    def __init__(self, root: str, open_file: Callable[[str], Any], location: str) -> None:
        self._root = root.rstrip("/")
        self._open_file = open_file
        self._where = location

    def url(self, path: str) -> str:
        return f"{self._root}/{path}"

    def is_plain(self, path: str) -> bool:
        return is_plain_object(self.url(path).partition("://")[2])

    def open(self, path: str) -> Any:
        try:
            return self._open_file(path)
        except TridentError as error:
            raise OSError(error.message) from error

    def identity(self, path: str) -> tuple[int, int]:
        with self.open(path) as file:
            return int(file.seek(0, os.SEEK_END) or file.tell()), 0

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return _at_once(function, items)

    def is_open_error(self, error: Exception) -> bool:
        """Any, as in buckets. What it says is left out: it may show what the session's settings hide."""
        say_python_reads(self._where, f"the session's file system cannot open them ({type(error).__name__})")
        return True


def is_plain_object(path: str) -> bool:
    """Does Spark take the name of an object as it is?"""
    return is_plain_path(f"/{path}") and not {"", ".", ".."}.intersection(path.split("/"))


def _at_once(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    pool = ThreadPoolExecutor(max_workers=_THREADS)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def in_place(session: Any, address: ObjectAddress) -> tuple[FilesForSpark | None, Callable[[str], str]]:
    """The objects of a place, and what their names below it are there; None: this session cannot read them, which the
    log says."""
    address = address.resolved()
    if address.scheme in S3.schemes:
        return in_buckets(session, address.where, dict(address.settings), dict(address.client)), address.key
    return by_session(session, root_in_hadoop(address), address.where, partial(_opened, address)), str


def by_session(session: Any, root: str, location: str, open_file: Callable[[str], Any]) -> FilesOfSession | None:
    """As :func:`in_place`, by the session's own settings.

    :param root: the place, as Spark knows it; empty: it does not.
    """
    scheme = urlsplit(root).scheme
    if not root or not _has_file_system(session, scheme):
        why = f"the session has no file system for {scheme}://" if root else _NO_ACCOUNT
        say_python_reads(location, why)
        return None
    return FilesOfSession(root, open_file, location)


def _opened(address: ObjectAddress, name: str) -> Any:
    from airflow_trident.io.object_arrow import open_object

    return open_object(address, name)


def _has_file_system(session: Any, scheme: str) -> bool:
    try:
        settings = session._jsparkSession.sessionState().newHadoopConf()
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
    except Exception:  # noqa: BLE001 - Py4J's, if there is none, or a library of it is missing
        return False
    return True


def in_buckets(
    session: Any, location: str, settings: Mapping[str, str], client: Mapping[str, str]
) -> FilesInBuckets | None:
    """Objects of S3, as :func:`in_place`.

    :param settings: as those of an `ObjectAddress`.
    """
    s3a: S3AFiles | str = f"the session has no {FILE_SYSTEM} (hadoop-aws, of Hadoop's version in Spark's jars)"
    if _has_s3a(session):
        s3a = S3AFiles.of(settings, client)
    if isinstance(s3a, str):
        say_python_reads(location, s3a)
        return None
    return FilesInBuckets(s3a, location)


def _has_s3a(session: Any) -> bool:
    try:
        return session.sparkContext._jsc.hadoopConfiguration().getClassByNameOrNull(FILE_SYSTEM) is not None
    except Exception:  # noqa: BLE001 - Py4J's, for a class that is there without Amazon's SDK
        return False


def say_python_reads(location: str, why: str) -> None:
    """One line in the log."""
    _log.info("%s: Python reads these files, and not Spark: %s", location, why)
