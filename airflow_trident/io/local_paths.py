"""Paths of local folders and files, where only a POSIX file system will do."""

from __future__ import annotations

import os
import re

from airflow_trident.errors import ConfigurationError

# One slash is enough: pathlib makes s3:/bucket of s3://bucket. A single letter is no scheme.
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")
_TEMPLATE = "{{"


def require_local_path(what: str, path: str | os.PathLike[str]) -> str:
    """The path as a text, unchanged.

    POSIX reads ``s3://bucket/out`` as a folder ``s3:`` in the working directory. Data would be written where nobody
    looks and lost with the worker. ``file://`` is refused for the same reason.

    :param what: whose path it is, for the error.
    :raises ConfigurationError: it has no text, or begins with a scheme.
    """
    text = str(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{what} without a path: it got {path!r}", "Name a file or a folder.")
    found = _SCHEME.match(text)
    if found is None:
        return text
    scheme = found[1].lower()
    if scheme == "file":
        raise ConfigurationError(
            f"{what} cannot use the path {text!r}: it takes paths, not URIs",
            f"Leave the scheme out: {re.sub('^/+', '/', text.strip()[5:])!r}.",
        )
    raise ConfigurationError(
        f"{what} cannot use the path {text!r}: it works on mounted file systems only, and would make a folder "
        f"'{found[1]}:' in the working directory",
        "Give it a folder that every worker and executor sees under the same path. FileSpout, FileSink, DeltaState "
        "and others take URIs of object stores.",
    )


def is_template(path: str | os.PathLike[str]) -> bool:
    """Is it a text that Airflow has yet to render?"""
    return isinstance(path, str) and _TEMPLATE in path
