"""Where a Delta table is and how to reach it. Shared by states and spouts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_trident.errors import (
    ConfigurationError,
    StoreUnavailableError,
    TridentError,
    error_text,
    is_of_driver,
)
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection, require_extra
from airflow_trident.io.hadoop import OTHER_SERVICE, S3_SCHEMES
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_service import ObjectService, code_and_message
from airflow_trident.io.object_services import AZURE, GCS, KEYS_OF_THE_ENVIRONMENT, OTHERS_OF_AZURE, S3
from airflow_trident.io.object_stores import RIGHTS, ObjectAddress
from airflow_trident.io.paths import AnyPath, require_local_path, text_of_path
from airflow_trident.io.place import PlacedFile
from airflow_trident.names import require_conn_id

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_SERVICES: dict[str, ObjectService] = {service.conn_type: service for service in (S3, AZURE, GCS)}
EXTRA = "airflow-trident[delta]"
_SETTINGS_OF_S3 = {
    **{name: name for name in ("access_key_id", "secret_access_key", "session_token", "region", "endpoint")},
    "token": "session_token",
    "endpoint_url": "endpoint",
    "virtual_hosted_style_request": "virtual_hosted_style_request",
}
"""Storage option, without ``AWS_`` and in small letters -> setting of obstore."""
_NOT_OF_READING = {
    "allow_http",
    "timeout",
    "connect_timeout",
    "max_retries",
    "conditional_put",
    "s3_allow_unsafe_rename",
}
_MARKS = re.compile(r"\x1b\[\d+m|↳")
_NOT_READ = re.compile(
    r"Kernel error: (?:Unsupported|Invalid protocol action|Schema error|Max catalog version|Failed to parse value)",
    re.ASCII,
)
"""How deltalake begins to say that it cannot read a table that is there."""
_SECRETS = 5
"""Longest option value, in characters, that is no secret."""


@dataclass(frozen=True, kw_only=True)
class DeltaPlace:
    """A folder or URI. `options` are storage options of delta-rs and may hold secrets."""

    uri: str
    conn_id: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            require_conn_id("a Delta table", self.conn_id)
        if not isinstance(self.uri, str) or not self.uri:
            raise ConfigurationError("a Delta table without a place", "Give it a folder or a URI.")
        if urlsplit(self.uri).username is not None and not self._names_an_account():
            raise ConfigurationError(
                f"a Delta table with a user in its URI (…@{self.uri.partition('@')[2]})",
                "Name the connection by conn_id=..., and leave keys to it.",
            )
        if "://" not in self.uri:  # a folder, not a URI that pathlib has shortened to one slash
            require_local_path("a Delta table", self.uri)

    @classmethod
    def of(cls, path: AnyPath, conn_id: str | None, options: Mapping[str, str] | None) -> DeltaPlace:
        """The place that a user named. Airflow's ObjectStoragePath has its connection before the bucket.

        :raises ConfigurationError: it is none, or names another connection than `conn_id`.
        """
        uri, of_path = text_of_path(path), getattr(path, "conn_id", None)
        if of_path and not isinstance(path, str):
            if conn_id not in (None, of_path):
                raise ConfigurationError(
                    f"a Delta table with conn_id={conn_id!r}, and its path names the connection {of_path!r}",
                    "Leave out one of the two.",
                )
            uri, conn_id = uri.replace(f"://{of_path}@", "://", 1), of_path
        return cls(uri=uri, conn_id=conn_id, options=options or {})

    def _names_an_account(self) -> bool:
        """``abfss://container@account.dfs.core.windows.net/...``"""
        parts = urlsplit(self.uri)
        host = parts.netloc.rpartition("@")[2]
        address = AZURE.address(parts.username or "", host) if parts.scheme in AZURE.schemes else None
        return address is not None and address.account_host != "" and parts.password is None

    @property
    def service(self) -> ObjectService:
        """The one that its errors are of."""
        scheme = urlsplit(self.uri).scheme
        if scheme in GCS.schemes:
            return GCS
        return AZURE if scheme in (*AZURE.schemes, *OTHERS_OF_AZURE) else S3

    @property
    def where(self) -> str:
        """An absolute path, if it is a folder; a URI as delta-rs knows it."""
        if "://" not in self.uri:
            return os.path.abspath(os.path.expanduser(self.uri))
        scheme, _, rest = self.uri.partition("://")
        return f"{GCS.schemes[0]}://{rest}" if scheme in GCS.schemes else self.uri

    def below(self, name: str) -> DeltaPlace:
        return replace(self, uri=f"{self.uri.rstrip('/')}/{name}")

    def resolved(self, *, required: bool = True) -> DeltaPlace:
        """With the connection's settings as storage options. Without one, delta-rs asks the environment, but a server
        without TLS, which others here take from it, needs to be allowed.

        :raises ConfigurationError: `required`, and there is no such connection.
        """
        connection = connections.resolve_if(self.conn_id, required=required)
        if connection is None:
            plain = self.service is S3 and "://" in self.uri and S3.endpoint_of({}).lower().startswith("http://")
            return replace(self, options={"AWS_ALLOW_HTTP": "true", **self.options}) if plain else self
        service = _SERVICES.get(connection.conn_type)
        options = connection.options if service is None else _of_service(connection, service)
        return replace(self, conn_id=None, options={**options, **self.options})

    def s3_settings(self) -> dict[str, str] | str:
        """The storage options as settings of an `ObjectAddress`; or why they are none."""
        if urlsplit(self.uri).scheme not in S3_SCHEMES:
            return OTHER_SERVICE
        storage_options = {name.lower().removeprefix("aws_"): value for name, value in self.options.items()}
        odd = sorted(storage_options.keys() - _SETTINGS_OF_S3.keys() - _NOT_OF_READING)
        if odd:
            return f"S3A is not told of the storage option {odd[0]!r}"
        return {_SETTINGS_OF_S3[name]: value for name, value in storage_options.items() if name in _SETTINGS_OF_S3}

    def target(self, name: str) -> str | PlacedFile | None:
        """The path of a file of the table; or the object that it is; None: in which store that is cannot be told."""
        if "://" not in self.where:
            return os.path.join(self.where, name)
        settings = self.resolved().s3_settings()
        if isinstance(settings, str):
            return None
        parts = urlsplit(self.where)
        settings_items = tuple(sorted(settings.items()))
        address = ObjectAddress(bucket=parts.netloc, prefix=parts.path.strip("/"), settings=settings_items)
        return PlacedFile(ObstorePlace(address), name)

    # Only these two methods use the driver.

    def table(self, version: int | None = None) -> Any:
        """The open table (`deltalake.DeltaTable`), as it is now or was at `version`."""
        module: Any = require_extra("deltalake", EXTRA)
        return module.DeltaTable(self.where, version=version, storage_options=dict(self.resolved().options) or None)

    def make_folder(self, below: str = "") -> None:
        """Make the folder, so that an unwritable folder is distinct from a missing one. Object stores have no
        folders."""
        if "://" not in self.where:
            os.makedirs(os.path.join(self.where, below), exist_ok=True)

    def files(self) -> pafs.FileSystem:
        """The files below the place; names are relative to it."""
        import pyarrow.fs as pafs

        module: Any = require_extra("deltalake.fs", EXTRA)
        from airflow_trident.io.object_arrow import WritesBytes

        handler = module.DeltaStorageHandler(self.where, options=dict(self.resolved().options) or None)
        # Its public method opens a `pyarrow.PythonFile`, which already passes buffers on.
        return pafs.PyFileSystem(WritesBytes(handler, lambda path: handler._handler.open_output_stream(path, None)))

    @contextmanager
    def errors(
        self, unavailable: type[TridentError] = StoreUnavailableError, *, may_miss: bool = False
    ) -> Iterator[None]:
        """
        :param unavailable: raised if the storage does not answer.
        :param may_miss: a missing file stays a FileNotFoundError.
        :raises ConfigurationError: this user has no permission, or there is no bucket.
        """
        exceptions: Any = require_extra("deltalake.exceptions", EXTRA)
        try:
            yield
        except exceptions.CommitFailedError:
            raise
        except BaseException as error:
            if not is_of_driver(error) or (may_miss and self._is_missing_file(error)):
                raise
            raise self.refusal(error) or unavailable(
                f"the Delta table {self.where!r} cannot be read or written ({self.text_of(error)})",
                "See that its storage answers, and run the task again.",
            ) from None

    def _is_missing_file(self, error: BaseException) -> bool:
        return (
            isinstance(error, FileNotFoundError) and code_and_message(str(error))[0] not in self.service.missing_bucket
        )

    def refusal(self, error: BaseException) -> ConfigurationError | None:
        """The error of a cause that no retry cures; None: a retry may help."""
        whole, text = _MARKS.sub("", str(error)), self.text_of(error)
        cure = self.service.cure(whole, RIGHTS)
        if cure:
            return ConfigurationError(f"the Delta table {self.where!r} cannot be read or written ({text})", cure)
        if "ermission denied" in whole or "Forbidden" in text:
            return ConfigurationError(
                f"the Delta table {self.where!r} may not be used by this user ({text})", "Give it the right."
            )
        if _NOT_READ.match(text):
            return ConfigurationError(
                f"the Delta table {self.where!r} has something that deltalake does not read ({text})",
                "Mend that in the program that wrote it, or use another table.",
            )
        return None

    def text_of(self, error: BaseException) -> str:
        """A driver's message in one line, without secrets."""
        exceptions: Any = require_extra("deltalake.exceptions", EXTRA)
        has_words = isinstance(error, OSError | exceptions.DeltaError)
        return self.conceal(_plain(str(error) if has_words else error_text(error)))

    def conceal(self, text: str) -> str:
        """A driver's message without the values of the options."""
        for value in self.resolved(required=False).options.values():
            text = text.replace(value, "***") if len(value) > _SECRETS else text
        return text


def _of_service(connection: Connection, service: ObjectService) -> dict[str, str]:
    """The connection as storage options.

    :raises ConfigurationError: it has settings that delta-rs does not support.
    """
    settings, prefix = service.settings_of(connection), "AWS_" if service is S3 else ""
    if service is AZURE and settings.pop("credential_type", "") != "access_key":
        _require_no_key_beside(connection)
    service.require_alone(settings)
    if (settings.get("endpoint") or settings.get("base_url", "")).lower().startswith("http://"):
        settings["allow_http"] = "true"
    options = {f"{prefix}{name.upper()}" if prefix else name: value for name, value in settings.items()}
    client = service.client_of(connection)
    seconds = {"connect_timeout": "connect_timeout", "read_timeout": "timeout"}
    options |= {option: f"{client[name]}s" for name, option in seconds.items() if name in client}
    if "root_certificate" in client:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has a certificate of its own ({service.verify}), which Delta "
            "tables do not follow",
            "Let the machine trust it, and leave it out.",
        )
    return options | {name: client[name] for name in ("max_retries", "allow_invalid_certificates") if name in client}


def _require_no_key_beside(connection: Connection) -> None:
    for name in KEYS_OF_THE_ENVIRONMENT:
        if os.environ.get(name):
            raise ConfigurationError(
                f"the connection {connection.conn_id!r} has no account key, and {name} is set, which delta-rs would "
                "take instead of what it has",
                f"Take {name} out of the environment, or give the connection a key.",
            )


def _plain(text: str) -> str:
    """First and last part of a driver's message, which has a line for each layer."""
    code, why = code_and_message(text)
    lines = [line for line in (_MARKS.sub("", line).strip() for line in text.split("\n")) if line]
    last = [f"{code}: {why}" if code else lines[-1]] if len(lines) > 1 else []
    return ": ".join([*lines[:1], *last])
