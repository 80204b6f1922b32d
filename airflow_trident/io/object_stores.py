"""Where objects are, how to reach them, and the meaning of a store's errors.

An address is written as in Airflow's ObjectStoragePath, or is one: ``s3://bucket/prefix``, or
``s3://connection@bucket/prefix`` with the id of a connection of type ``aws``; ``abfs://`` and ``wasb`` for Azure,
``gs://`` and ``google_cloud_platform`` for Google. Without a connection each machine uses its own environment:
variables, a web identity, or the metadata of its instance.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

from airflow_trident.errors import (
    ConfigurationError,
    StoreUnavailableError,
    TridentError,
    error_text,
    is_of_driver,
)
from airflow_trident.io import connections
from airflow_trident.io.connections import require_extra
from airflow_trident.io.database_limits import OBJECT_STORES
from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.object_service import ObjectService, code_and_message
from airflow_trident.io.object_services import AZURE, GCS, OTHERS_OF_AZURE, S3
from airflow_trident.io.paths import (
    AnyPath,
    is_hdfs_uri,
    is_object_uri,
    is_template,
    require_local_path,
    text_of_path,
)

_SERVICES: dict[str, ObjectService] = {scheme: service for service in (S3, AZURE, GCS) for scheme in service.schemes}
_HTTP = re.compile(r"https?://[^/\s]+", re.IGNORECASE)
_RETRIES = 8
"""For requests without an answer or with status 5xx: about 25 seconds of waiting in all."""
_MOST = 1_000_000
"""More is no number of seconds or retries that anybody means."""
RIGHTS = "list, read, write and delete"


def require_place(subject: str, path: AnyPath) -> str:
    """A path of a file system or the URI of an object store or of an HDFS, as a text. An ObjectStoragePath is its text.

    :param subject: whose path it is, for the error.
    :raises ConfigurationError: it is none of these.
    """
    text = text_of_path(path)
    if isinstance(text, str) and is_hdfs_uri(text):
        HdfsAddress.parse(subject, text)
        return text.strip()
    if isinstance(text, str) and is_object_uri(text) and not text.strip().lower().startswith("file:"):
        ObjectAddress.parse(subject, text)
        return text.strip()
    return require_local_path(subject, path)


def require_place_unless_template(subject: str, path: AnyPath) -> str:
    """As :func:`require_place`, while a DAG is built: accepts a text that Airflow has yet to render.

    :raises ConfigurationError: see there.
    """
    return text_of_path(path) if is_template(path) else require_place(subject, path)


@dataclass(frozen=True, kw_only=True)
class ObjectAddress:
    """A bucket and a prefix of its names. `settings`: from the resolved connection, if any; may hold secrets."""

    bucket: str
    prefix: str = ""
    conn_id: str = ""
    scheme: str = S3.schemes[0]
    account_host: str = ""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, subject: str, uri: str) -> ObjectAddress:
        """:raises ConfigurationError: another scheme, no bucket, or an unexpected part such as a password."""
        try:
            parts = urlsplit(uri.strip())
            user, secret = parts.username or "", parts.password
        except ValueError:
            parts, user, secret = urlsplit(""), "", None
        scheme, host = parts.scheme.lower(), parts.netloc.rpartition("@")[2]
        service = _SERVICES.get(scheme)
        if service is None:
            raise _unknown_scheme(subject, uri, scheme)
        if secret is not None:
            raise ConfigurationError(
                f"{subject} has keys in its URI (bucket {host!r}), which logs and records would show",
                f"Put them into a connection of type {service.conn_type} and write {service.written}.",
            )
        prefix = parts.path.removeprefix("/").removesuffix("/")
        names = prefix.split("/") if prefix else []
        address = service.address(user, host)
        if address is None or parts.query or parts.fragment or not service.takes(uri.strip(), names):
            raise ConfigurationError(
                f"{subject} cannot use {_shown(uri)!r}: it is no {service.written}",
                "Write it so, without anything else.",
            )
        return cls(
            bucket=address.bucket,
            prefix=prefix,
            conn_id=address.conn_id,
            scheme=scheme,
            account_host=address.account_host,
            settings=address.settings,
        )

    @property
    def service(self) -> ObjectService:
        return _SERVICES[self.scheme]

    @property
    def root(self) -> str:
        """The bucket, without the connection."""
        account = f"@{self.account_host}" if self.account_host else ""
        return f"{self.scheme}://{self.bucket}{account}"

    @property
    def home(self) -> tuple[str, ...]:
        """The bucket, and the server that has it. Two addresses with one home are in one store."""
        server = self.account_host or self.service.endpoint_of(dict(self.settings)).rstrip("/")
        return self.service.conn_type, self.bucket, server

    @property
    def where(self) -> str:
        """The address as written, without secrets."""
        root = self.root.replace("://", f"://{self.conn_id}@", 1) if self.conn_id else self.root
        return f"{root}/{self.prefix}" if self.prefix else root

    def resolved(self, *, required: bool = True) -> ObjectAddress:
        """With the connection's settings, for processes that cannot resolve connections.

        :raises ConfigurationError: `required`, and there is no such connection; or it has settings that are not
            supported here.
        """
        if not self.conn_id or self.settings:
            return self
        connection = connections.resolve_if(self.conn_id, required=required)
        if connection is None:
            return self
        settings, client = self.service.settings_of(connection), self.service.client_of(connection)
        return replace(self, settings=tuple(sorted(settings.items())), client=tuple(sorted(client.items())))

    def store(self) -> Any:
        """The open store (a class of `obstore.store`), one per process; names are relative to the prefix.

        :raises MissingExtraError: obstore is not installed.
        :raises ConfigurationError: as :meth:`resolved`, or obstore refuses the settings, or the process was forked from
            one that has used a store.
        """
        return _open(self.resolved(), os.getpid())

    def obstore(self) -> Any:
        """:raises MissingExtraError: it is not installed."""
        return require_extra("obstore", self.service.extra)

    def in_bucket(self, name: str) -> str:
        """The name in the bucket of `name` below the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def key(self, name: str) -> str:
        """What is `name` below the prefix, as pyarrow calls it."""
        return "/".join(part for part in (self.bucket, self.prefix, name) if part)

    @contextmanager
    def errors(self, doing: str, rights: str = RIGHTS) -> Iterator[None]:
        """Translates the store's errors. A missing object stays a FileNotFoundError.

        :param doing: "read 'a/b'".
        :param rights: the permissions that the work needs.
        :raises ConfigurationError: no retry helps.
        :raises StoreUnavailableError: no answer, or a temporary error.
        """
        try:
            yield
        except BaseException as error:
            if not is_of_driver(error) or self._is_missing_object(error):
                raise
            raise self._translated(error, doing, rights) from None

    def require_bucket(self, error: FileNotFoundError, doing: str) -> None:
        """Call this where a missing object is an answer: without its bucket, it is none.

        :raises ConfigurationError: the bucket is missing.
        """
        if not self._is_missing_object(error):
            raise self._translated(error, doing, RIGHTS) from None

    def require_store(self, doing: str) -> None:
        """Call this where an empty listing is an answer: the page of a proxy, for a login or of maintenance, is read as
        one.

        :raises StoreUnavailableError: there is an object of a random name.
        """
        try:
            self.obstore().head(self.store(), f".trident-absent-{secrets.token_hex(8)}")
        except BaseException as error:
            if not is_of_driver(error):
                raise
            return
        raise StoreUnavailableError(
            f"cannot {doing} in {self.where!r}: the answers are those of a page, for a login or of maintenance",
            "See that the store answers at the endpoint of the connection, and run the task again.",
        )

    def _is_missing_object(self, error: BaseException) -> bool:
        return (
            isinstance(error, FileNotFoundError) and code_and_message(str(error))[0] not in self.service.missing_bucket
        )

    def _translated(self, error: BaseException, doing: str, rights: str) -> TridentError:
        exceptions = self.obstore().exceptions
        text = str(error) if isinstance(error, exceptions.BaseError | OSError) else error_text(error)
        code, why = code_and_message(text)
        cure = self.service.cure(text, rights)
        refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if refused and not cure:
            cure = self.service.refused(rights)
        return self._error(error, f"cannot {doing} in {self.where!r} ({code + ': ' if code else ''}{why})", cure)

    def _error(self, error: BaseException, message: str, cure: str) -> TridentError:
        exceptions = self.obstore().exceptions
        metadata_paths, missing, instead = self.service.no_credentials
        if any(path in str(error) for path in metadata_paths):
            return ConfigurationError(
                f"there are no credentials for {self.where!r}: {missing}, and the metadata of this machine do not "
                "answer",
                instead,
            )
        if cure:
            return ConfigurationError(message, cure)
        if isinstance(error, exceptions.InvalidPathError):
            return ConfigurationError(message, "Give the object a name without '//' and without '.' and '..' as parts.")
        if isinstance(error, exceptions.NotSupportedError | exceptions.UnknownConfigurationKeyError):
            return ConfigurationError(message, _see(self.service))
        return StoreUnavailableError(message, "See that the object store answers, and run the task again.")


@cache
def _first_user() -> int:
    """The process that opened the first store; its forks know the number, too."""
    return os.getpid()


@lru_cache(maxsize=16)
def _open(address: ObjectAddress, _process: int) -> Any:
    """:param _process: a fork is another process, in which obstore would wait for ever for threads that it lacks."""
    from datetime import timedelta

    if _first_user() != os.getpid():
        raise ConfigurationError(
            f"process {os.getpid()} was forked from process {_first_user()}, which had used an object store: it cannot "
            f"use {address.where!r}, as no client of object stores survives a fork",
            "Start processes anew (spawn or forkserver of multiprocessing), or fork before any store is used.",
        )
    service, exceptions = address.service, address.obstore().exceptions
    client, settings = dict(address.client), dict(address.settings)
    service.require_alone(settings)
    endpoint = service.endpoint_of(settings)
    if endpoint and not _HTTP.match(endpoint):
        raise ConfigurationError(
            f"the endpoint {endpoint!r} of {address.where!r} is no URL",
            service.write_endpoint,
        )
    options: dict[str, Any] = {
        "allow_http": endpoint.lower().startswith("http://"),
        "connect_timeout": timedelta(seconds=_number(address, client, "connect_timeout", OBJECT_STORES.connect_s)),
        "timeout": timedelta(seconds=_number(address, client, "read_timeout", OBJECT_STORES.answer_s)),
    }
    if "allow_invalid_certificates" in client:
        options["allow_invalid_certificates"] = True
    if "root_certificate" in client:
        options["root_certificate"] = _certificates_in(address.conn_id, client["root_certificate"])
    retries = int(_number(address, client, "max_retries", _RETRIES))
    retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=OBJECT_STORES.retry_s)}
    try:
        return service.store_class(require_extra("obstore.store", service.extra))(
            address.bucket, prefix=address.prefix or None, config=settings, client_options=options, retry_config=retry
        )
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{address.where!r} cannot be opened ({code_and_message(str(error))[1]})", _see(service)
        ) from None


def _number(address: ObjectAddress, client: Mapping[str, str], name: str, instead: float) -> float:
    written = client.get(name, instead)
    try:
        number = float(written)
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST:
        raise ConfigurationError(
            f"the connection {address.conn_id!r} has {written!r} as {name}, which is no number",
            "Write a number, of seconds if it is a time, into its extras.",
        )
    return number


def _certificates_in(conn_id: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:  # a FileNotFoundError would stand for a missing object
        raise ConfigurationError(
            f"the connection {conn_id!r} names certificates in {path!r}, which cannot be read ({error.strerror})",
            "Put the file on each machine that reads or writes there, or leave it out.",
        ) from None


def _see(service: ObjectService) -> str:
    return f"See the connection, or {service.environment} of the environment."


def _shown(uri: str) -> str:
    """Without what may be a secret: a password, and a query, which may be a SAS token."""
    uri = re.sub(r"[?#].*", "?...", uri, count=1, flags=re.DOTALL)
    return re.sub(r"://([^/@]*?):.*@", r"://\1:...@", uri, count=1)


def _unknown_scheme(subject: str, uri: str, scheme: str) -> ConfigurationError:
    return ConfigurationError(
        f"{subject} cannot use {_shown(uri)!r}: it takes folders on mounted file systems, s3://, abfs:// and gs:// "
        "only",
        f"Write {AZURE.written}."
        if scheme in OTHERS_OF_AZURE
        else "Give it a folder that every worker and executor sees under the same path, s3://bucket/prefix, "
        "abfs://container/prefix or gs://bucket/prefix.",
    )
