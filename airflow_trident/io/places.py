"""The place of an address: a folder, a place in an object store, or one in an HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.hdfs_place import WebHdfsPlace
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.paths import is_hdfs_uri, is_object_uri
from airflow_trident.io.place import STAGING, Place, PosixPlace, clear


def place_at(root: str, subject: str = STAGING, *, private: bool = True) -> Place:
    """The place of a folder, or of a place in an object store or in an HDFS; opens nothing.

    :param subject: what the folder is, as errors name it.
    :param private: see :class:`PosixPlace`.
    :raises ConfigurationError: `root` is none of these.
    """
    if is_hdfs_uri(root):
        return WebHdfsPlace(HdfsAddress.parse(subject, root))
    if is_object_uri(root) and not root.strip().lower().startswith("file:"):
        return ObstorePlace(ObjectAddress.parse(subject, root))
    return PosixPlace(root, subject, private)


def absolute_root(root: str) -> str:
    """A folder as its absolute path; a URI unchanged.

    :raises ConfigurationError: `root` is neither.
    """
    place = place_at(root)
    return place.where if place.is_local else root.strip()


@contextmanager
def temporary_root(root: str, name: str) -> Iterator[str]:
    """A new root below `root`, visible to all who see `root`; removed at the end of the block."""
    place, folder = place_at(root), f"{name}{uuid.uuid4().hex}"
    try:
        yield f"{absolute_root(root).rstrip('/')}/{folder}"
    finally:
        clear(place, folder)
