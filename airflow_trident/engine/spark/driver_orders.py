"""Orders to the driver of a submitted application, and its answers: files in the staging folder, or objects.

An order is unpickled, and may hold logins. An order file is readable for its user only, and accepted only if nobody
else can have written it. An object store does not tell who wrote an object. So an object's name, which the driver gets
in its arguments, holds the digest of its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.paths import is_hdfs_uri, is_object_uri
from airflow_trident.io.place import Place, discard, make_folder
from airflow_trident.io.places import place_at
from airflow_trident.io.private_files import create_private, file_mode, read_own

_CODE = (".py", ".zip")
_MODE = 0o600


def place(folder: str, name: str, ending: str, content: bytes) -> str:
    """Write an order and return its address.

    :param folder: a path, or a URI.
    :raises OSError, StoreUnavailableError, ConfigurationError: it cannot be written.
    """
    if is_object_uri(folder):
        kind = HdfsAddress if is_hdfs_uri(folder) else ObjectAddress
        _lend(kind.parse("the staging folder", folder).conn_id)
        address = f"{folder}/{name}-{hashlib.sha256(content).hexdigest()}{ending}"
        orders, order_name = _split(address)
        orders.put(order_name, lambda file: file.write(content))
        return address
    make_folder(folder)
    path = os.path.join(folder, f"{name}{ending}")
    # mode 0600, whatever the folder's: the driver accepts it from this user only
    with open(path, "xb", opener=lambda target, flags: os.open(target, flags, _MODE)) as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:  # a full disk: what is there holds logins, and nobody would look for it
            remove(path)
            raise
    return path


def read_order(address: str, subject: str) -> bytes:
    """
    :param subject: "the order of a drain".
    :raises ConfigurationError: another user may have written it.
    :raises OSError: it cannot be read.
    """
    if not is_object_uri(address):
        return read_own(address, subject)
    orders, name = _split(address)
    content = orders.read(name)
    if hashlib.sha256(content).hexdigest() not in name:
        raise ConfigurationError(
            f"{subject} {address!r} is not the one that was placed there: somebody has changed it",
            "Let nobody else write into the staging folder, and run the task again.",
        )
    return content


def answer(address: str, reply: Mapping[str, Any]) -> None:
    """Writes atomically: the driver may be killed at any point."""
    content = json.dumps(reply).encode()
    if is_object_uri(address):
        orders, name = _split(address)
        orders.put(name, lambda file: file.write(content))
        return
    unfinished = f"{address}.unfinished"
    with create_private(unfinished) as file:
        file.write(content)
    os.replace(unfinished, address)


def collect(address: str) -> bytes | None:
    """The answer; None if there is none."""
    try:
        if is_object_uri(address):
            orders, name = _split(address)
            return orders.read(name)
        with open(address, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def remove(*addresses: str) -> None:
    """Best effort. Objects of one folder go in one request, where the store can do that."""
    objects: dict[str, list[str]] = {}
    for address in addresses:
        if is_object_uri(address):
            folder, _, name = address.rpartition("/")
            objects.setdefault(folder, []).append(name)
        else:
            with suppress(OSError):
                os.unlink(address)
    for folder, names in objects.items():
        with suppress(TridentError):
            discard(place_at(folder), names)


def sweep(folder: str) -> None:
    """Remove from a URI's folder what killed writers left there long ago, best effort."""
    if is_object_uri(folder):
        with suppress(TridentError):
            place_at(folder).sweep()


def place_code(order: str, application: str, package: str) -> tuple[str, str]:
    """Copy a driver's code beside its order, for a driver that reads the staging folder and has no other way to it.

    :param order: its address.
    :returns: where the application and the package are.
    :raises ConfigurationError: the order is in an object store, from where no driver starts; or others may write there.
    :raises OSError: it cannot be written.
    """
    if is_object_uri(order):
        raise ConfigurationError(
            "the code of the driver cannot be put where its pod finds it: the staging folder is no folder",
            "Say in spark_conf where Spark shall put it: spark.kubernetes.file.upload.path, such as s3a://bucket/path.",
        )
    if file_mode(os.path.dirname(order)) != _MODE:
        raise ConfigurationError(
            f"others may write into {os.path.dirname(order)!r}, so they could change the code of the driver",
            "Let nobody else write into the staging folder, or say in spark_conf where Spark shall put the code: "
            "spark.kubernetes.file.upload.path.",
        )
    places = f"{order}{_CODE[0]}", f"{order}{_CODE[1]}"
    for source, place in zip((application, package), places, strict=True):
        with open(source, "rb") as content, create_private(place) as file:
            shutil.copyfileobj(content, file)
    return places


def forget(address: str, *answers: str) -> None:
    """Remove the order, who took it, the driver's code, and these answers. Best effort."""
    remove(address)
    # after the order: a driver that takes it now looks again whether it is there
    remove(_taken(address), *answers)
    if not is_object_uri(address):
        for ending in _CODE:
            remove(f"{address}{ending}")


def take(address: str, who: bytes) -> bytes:
    """Take the order at this address; only one process can. Returns the identity of the owner: `who`, or another's.

    :param who: unique to this process.
    :raises StoreUnavailableError, ConfigurationError: the place cannot be written.
    """
    orders, name = _split(_taken(address))
    return who if orders.put_once(name, who) else orders.read(name)


def free(address: str) -> None:
    """Remove the record of who took the order. Best effort."""
    remove(_taken(address))


def _taken(address: str) -> str:
    return f"{address}.taken"


def _split(address: str) -> tuple[Place, str]:
    folder, _, name = address.rpartition("/")
    return place_at(folder), name


def _lend(conn_id: str) -> None:
    """For child processes: a driver in client mode cannot ask Airflow; in a cluster it can."""
    if conn_id:
        os.environ.setdefault(connections.variable(conn_id), connections.as_json(connections.resolve(conn_id)))
