"""Names of sources and stores in lineage: namespace and name, by OpenLineage's naming if it has one. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_trident.io.connections import Connection
from airflow_trident.io.object_services import AZURE, GCS

_PORTS = {"postgres": 5432, "mysql": 3306, "mssql": 1433}
_MAGIC = frozenset("*?[")
_WITHOUT_SCHEMA = frozenset({"mysql"})
_SCHEMAS = {"postgres": "public", "mssql": "dbo"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """`namespace`: kind and place of the store; `name`: its name there. No secrets."""

    namespace: str
    name: str


def file_dataset(path: str) -> Dataset:
    """A file or folder of a file system or an object store (``s3://connection@bucket/name``). For a pattern, the folder
    that contains all matches."""
    parts_of_path = path.split("/")
    magic = next((place for place, part in enumerate(parts_of_path) if _MAGIC & set(part)), None)
    path = path if magic is None else "/".join(parts_of_path[:magic]) or "/"
    if "://" not in path:
        return Dataset("file", os.path.abspath(os.path.expanduser(path)))
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Dataset("file", parts.path)
    user, _, host = parts.netloc.rpartition("@")
    azure = AZURE.address(user, host) if parts.scheme in AZURE.schemes else None
    place = parts.netloc if azure and azure.account_host else host  # before an account stands no connection
    scheme = GCS.schemes[0] if parts.scheme in GCS.schemes else parts.scheme
    return Dataset(f"{scheme}://{place}", parts.path.strip("/") or "/")


def table_dataset(connection: Connection, table: str, schema: str = "") -> Dataset:
    """A table of a database; `table` may have its schema before a dot."""
    before, _, table = table.rpartition(".")
    schema = before or schema
    if connection.conn_type == "sqlite":
        return sqlite_dataset(connection.host or connection.schema, table)
    port = connection.port or _PORTS.get(connection.conn_type)
    if connection.conn_type not in _WITHOUT_SCHEMA:
        schema = schema or _SCHEMAS.get(connection.conn_type, "")
    parts = (connection.schema, schema, table)
    place = f"{connection.host or 'localhost'}{f':{port}' if port else ''}"
    return Dataset(f"{connection.conn_type}://{place}", ".".join(part for part in parts if part))


def sqlite_dataset(path: str, table: str) -> Dataset:
    """A table of an SQLite file; OpenLineage has no naming for it."""
    return Dataset("sqlite", f"{os.path.abspath(os.path.expanduser(path))}/{table}")


def topic_dataset(bootstrap_servers: str, topic: str) -> Dataset:
    """A topic of Kafka; the first server names the cluster."""
    return Dataset(f"kafka://{bootstrap_servers.split(',')[0].strip()}", topic)


def redis_dataset(host: str, port: int, db: int, key: str) -> Dataset:
    """A key of Redis, or a prefix of keys; OpenLineage has no naming for it."""
    return Dataset(f"redis://{host}:{port}", f"{db}/{key}")


def iceberg_dataset(catalog: str, uri: str, table: str) -> Dataset:
    """A table of an Iceberg catalog, named by its host, or else by its own name."""
    return Dataset(f"iceberg://{urlsplit(uri).hostname or catalog}", table)
