"""Addresses, judged by their text: a path of a file system, or the URI of an object store or of an HDFS."""

from __future__ import annotations

import os
import re
from typing import Protocol

from airflow_trident.errors import ConfigurationError

HDFS_SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
_URI = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]+://")
# One slash is enough: pathlib makes s3:/bucket of s3://bucket. A single letter is no scheme.
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")
_TEMPLATE = "{{"
_OF_THIS_MACHINE = ("", "file", "local")


class StoragePath(Protocol):
    """A path of fsspec, such as Airflow's ObjectStoragePath: its text is a URI."""

    @property
    def protocol(self) -> str: ...

    @property
    def path(self) -> str: ...


AnyPath = str | os.PathLike[str] | StoragePath
"""What users give as an address: a text, a path of pathlib, or Airflow's ObjectStoragePath."""


def text_of_path(path: AnyPath) -> str:
    """A path as its text; what is no path stays what it is, for the error.

    Airflow is not imported for it: an ObjectStoragePath is known by its attributes.
    """
    if isinstance(path, str):
        return path
    if isinstance(path, os.PathLike):
        return str(path)
    protocol, name = getattr(path, "protocol", None), getattr(path, "path", None)
    if not isinstance(protocol, str) or not isinstance(name, str):
        return path  # type: ignore[return-value]  # refused by who asked
    return name if protocol in _OF_THIS_MACHINE else str(path)


def require_local_path(subject: str, path: AnyPath) -> str:
    """The path as a text, unchanged.

    POSIX reads ``s3://bucket/out`` as a folder ``s3:`` in the working directory. Data would be written where nobody
    looks and lost with the worker. ``file://`` is refused for the same reason.

    :param subject: whose path it is, for the error.
    :raises ConfigurationError: it has no text, or begins with a scheme.
    """
    text = text_of_path(path)
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{subject} without a path: it got {path!r}", "Name a file or a folder.")
    if "\0" in text:
        raise ConfigurationError(f"{subject} cannot use the path {text!r}", "No path has the character NUL.")
    scheme_match = _SCHEME.match(text)
    if scheme_match is None:
        return text
    scheme = scheme_match[1].lower()
    if scheme == "file":
        raise ConfigurationError(
            f"{subject} cannot use the path {text!r}: it takes paths, not URIs",
            f"Leave the scheme out: {re.sub('^/+', '/', text.strip()[5:])!r}.",
        )
    raise ConfigurationError(
        f"{subject} cannot use the path {text!r}: it works on mounted file systems only, and would make a folder "
        f"'{scheme_match[1]}:' in the working directory",
        "Give it a folder that every worker and executor sees under the same path. FileSpout, FileSink, DeltaState "
        "and others take URIs of object stores.",
    )


def require_file(who: str, path: str, what: str, instead: str) -> None:
    """:raises ConfigurationError: `path` is not that of a local file."""
    if require_local_path(who, path).startswith((":memory:", "file:")):
        raise ConfigurationError(f"{who} cannot keep {what} in {path!r}", f"Give it the path of a file; {instead}.")


def is_template(path: AnyPath) -> bool:
    """Is its text one that Airflow has yet to render?"""
    text = text_of_path(path)
    return isinstance(text, str) and _TEMPLATE in text


def is_object_uri(path: AnyPath) -> bool:
    """Is it a URI, not a path of a file system?"""
    return _URI.match(str(text_of_path(path))) is not None


def is_hdfs_uri(path: AnyPath) -> bool:
    return str(text_of_path(path)).strip().lower().startswith(tuple(f"{scheme}://" for scheme in HDFS_SCHEMES))


def stays_inside(path: str) -> bool:
    """Is `path`, from a record, below any folder that it is joined to? Judges by its text: links there belong to the
    owner."""
    return bool(path) and "\0" not in path and not os.path.isabs(path) and ".." not in path.split("/")
