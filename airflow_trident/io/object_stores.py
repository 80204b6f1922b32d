"""Where objects are, how to reach them, and the meaning of a store's errors.

A place is written as in Airflow's ObjectStoragePath: ``s3://bucket/prefix``, or ``s3://connection@bucket/prefix`` with
the id of a connection of type ``aws``. Without a connection each machine uses its own environment: the variables
``AWS_*``, a web identity, or the metadata of its instance.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection
from airflow_trident.io.extras import require_extra
from airflow_trident.io.local_paths import is_template, require_local_path

if TYPE_CHECKING:
    import pyarrow.fs as pafs

EXTRA = "airflow-trident[s3]"
SCHEME = "s3"
_URI = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]+://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_HTTP = re.compile(r"https?://[^/\s]+")
_TYPES = frozenset({"aws", ""})
_EXTRAS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region_name": "region",
    "endpoint_url": "endpoint",
}
"""Extra of a connection -> setting of obstore."""
_OF_ARROW = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
}
"""Setting of obstore -> argument of pyarrow's S3FileSystem."""
_NOT_FOLLOWED = ("role_arn", "profile_name", "assume_role_method", "session_kwargs")
"""Extras that only boto3 supports."""
_CONNECT_TIMEOUT_S, _TIMEOUT_S, _RETRY_S = 5, 60, 60
_RETRIES = 8
"""For requests without an answer or with status 5xx: about 25 seconds of waiting in all."""
_CODE = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_REGION = "Name the bucket's region: extra region_name of the connection, or AWS_REGION."
_CURES = {
    "NoSuchBucket": "Make the bucket, or name one that is there.",
    "InvalidAccessKeyId": "See the access key of the connection or of AWS_ACCESS_KEY_ID.",
    "SignatureDoesNotMatch": "See the secret key of the connection or of AWS_SECRET_ACCESS_KEY.",
    "ExpiredToken": "Renew the session token, and run the task again.",
    "InvalidToken": "See the session token of the connection or of AWS_SESSION_TOKEN.",
    "TokenRefreshRequired": "Renew the session token, and run the task again.",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "RequestTimeTooSkewed": "Set the clock of this machine.",
    "InvalidBucketName": "Name a bucket that can be.",
    "MethodNotAllowed": "See that the endpoint speaks S3 and that the bucket is one of objects.",
}
"""Error code of S3 -> cure, where no retry helps."""
_DENIED, _RIGHTS = "AccessDenied", "list, read, write and delete"
_OF_INSTANCES = ("/latest/api/token", "/latest/meta-data/")
"""Asked for credentials if no other source has any."""
_LITTLE = 500


def is_object_uri(path: str | os.PathLike[str]) -> bool:
    """Is it a URI, not a path of a file system?"""
    return _URI.match(str(path)) is not None


def require_place(what: str, path: str | os.PathLike[str]) -> str:
    """A path of a file system or the URI of an object store, as a text.

    :param what: whose path it is, for the error.
    :raises ConfigurationError: it is neither.
    """
    text = str(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str) and is_object_uri(text) and not text.strip().lower().startswith("file:"):
        ObjectPlace.parse(what, text)
        return text.strip()
    return require_local_path(what, path)


def require_place_unless_template(what: str, path: str | os.PathLike[str] | None) -> None:
    """As :func:`require_place`, while a DAG is built: accepts None, and a text that Airflow has yet to render.

    :raises ConfigurationError: see there.
    """
    if path is not None and not is_template(path):
        require_place(what, path)


@dataclass(frozen=True, kw_only=True)
class ObjectPlace:
    """A bucket and a prefix of its names. `settings`: from the resolved connection, if any; may hold secrets."""

    bucket: str
    prefix: str = ""
    conn_id: str = ""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, what: str, uri: str) -> ObjectPlace:
        """:raises ConfigurationError: another scheme, no bucket, or an unexpected part such as a password."""
        try:
            parts = urlsplit(uri.strip())
            bucket, conn_id, secret = parts.netloc.rpartition("@")[2], parts.username or "", parts.password
        except ValueError:
            parts, bucket, conn_id, secret = urlsplit(""), "", "", None
        if bucket and parts.scheme.lower() != SCHEME:
            raise ConfigurationError(
                f"{what} cannot use {uri!r}: it takes folders on mounted file systems and s3:// only",
                "Give it a folder that every worker and executor sees under the same path, or s3://bucket/prefix.",
            )
        prefix = parts.path.removeprefix("/").removesuffix("/")
        if secret is not None:
            raise ConfigurationError(
                f"{what} has keys in its URI (bucket {bucket!r}), which logs and records would show",
                "Put them into a connection of type aws and write s3://connection@bucket/prefix.",
            )
        names = prefix.split("/") if prefix else []
        if not _BUCKET.match(bucket) or parts.query or parts.fragment or {"", ".", ".."} & set(names):
            raise ConfigurationError(
                f"{what} cannot use {uri!r}: it is no s3://bucket/prefix", "Write s3://[connection@]bucket[/prefix]."
            )
        return cls(bucket=bucket, prefix=prefix, conn_id=conn_id)

    @property
    def where(self) -> str:
        """The place as written, without secrets."""
        user = f"{self.conn_id}@" if self.conn_id else ""
        return f"{SCHEME}://{user}{self.bucket}{f'/{self.prefix}' if self.prefix else ''}"

    def resolved(self, *, required: bool = True) -> ObjectPlace:
        """With the connection's settings, for processes that cannot resolve connections.

        :raises ConfigurationError: `required`, and there is no such connection; or it has settings that only boto3
            supports.
        """
        if not self.conn_id or self.settings:
            return self
        found = connections.resolve_if(self.conn_id, required=required)
        if found is None:
            return self
        settings, client = settings_of(found), client_of(found)
        return replace(self, settings=tuple(sorted(settings.items())), client=tuple(sorted(client.items())))

    def store(self) -> Any:
        """The open store (`obstore.store.S3Store`), one per process; names are relative to the prefix.

        :raises MissingExtraError: obstore is not installed.
        :raises ConfigurationError: as :meth:`resolved`, or obstore refuses the settings.
        """
        return _open(self.resolved(), os.getpid())

    def arrow_files(self) -> pafs.FileSystem:
        """The whole store for pyarrow, with the same settings; names begin with the bucket.

        :raises ConfigurationError: as :meth:`resolved`.
        """
        import pyarrow.fs as pafs

        settings = dict(self.resolved().settings)
        given = {_OF_ARROW[name]: value for name, value in settings.items() if name in _OF_ARROW}
        endpoint = endpoint_of(settings)
        if endpoint:
            given["scheme"], _, given["endpoint_override"] = endpoint.rstrip("/").partition("://")
        virtual = settings.get("virtual_hosted_style_request") == "true"
        return pafs.S3FileSystem(**given, force_virtual_addressing=virtual)

    def key(self, name: str) -> str:
        """What is `name` below the prefix, as :meth:`arrow_files` calls it."""
        return "/".join(part for part in (self.bucket, self.prefix, name) if part)

    @contextmanager
    def errors(self, doing: str, rights: str = _RIGHTS) -> Iterator[None]:
        """Translates the store's errors. A missing object stays a FileNotFoundError.

        :param doing: "read 'a/b'".
        :param rights: the permissions that the work needs.
        :raises ConfigurationError: no retry helps.
        :raises StoreUnavailableError: no answer, or a temporary error.
        """
        exceptions: Any = require_extra("obstore.exceptions", EXTRA)
        try:
            yield
        except TridentError:
            raise
        except (exceptions.BaseError, OSError) as error:
            code, why = said(str(error))
            if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
                raise
            cure = cure_of(code, rights)  # obstore reports AccessDenied of a listing as a GenericError
            message = f"cannot {doing} in {self.where!r} ({code + ': ' if code else ''}{why})"
            refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
            if refused and not cure:
                cure = cure_of(_DENIED, rights)
            raise self._error(exceptions, error, message, cure) from None

    def _error(self, exceptions: Any, error: Exception, message: str, cure: str) -> TridentError:
        why = said(str(error))[1]
        if any(path in str(error) for path in _OF_INSTANCES):
            return ConfigurationError(
                f"there are no credentials for {self.where!r}: neither a connection nor AWS_ACCESS_KEY_ID, and the "
                "metadata of this machine do not answer",
                "Write s3://connection@bucket/prefix with a connection of type aws, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY.",
            )
        if "region" in why and "redirect" in why.lower():
            return ConfigurationError(message, _REGION)
        if cure:
            return ConfigurationError(message, cure)
        if isinstance(error, exceptions.InvalidPathError):
            return ConfigurationError(message, "Give the object a name without '//' and without '.' and '..' as parts.")
        if isinstance(error, exceptions.NotSupportedError | exceptions.UnknownConfigurationKeyError):
            return ConfigurationError(message, "See the connection, or AWS_* of the environment.")
        return StoreUnavailableError(message, "See that the object store answers, and run the task again.")


def cure_of(code: str, rights: str = _RIGHTS) -> str:
    """The cure for an S3 error; empty if a retry may help.

    :param rights: the permissions that the work needs.
    """
    return f"Give this user the right to {rights} objects there." if code == _DENIED else _CURES.get(code, "")


def said(text: str) -> tuple[str, str]:
    """Code and message of S3's answer, or the first line of the client's message."""
    found = _CODE.search(text)
    if found is None:
        return "", text.split("\n", 1)[0][:_LITTLE]
    return found[1], found[2] or "it says no more"


def settings_of(found: Connection) -> dict[str, str]:
    """The connection's keys, region and endpoint, as settings of obstore.

    :raises ConfigurationError: it is of another type, or has settings that only boto3 supports.
    """
    if found.conn_type not in _TYPES:
        raise ConfigurationError(
            f"the connection {found.conn_id!r} is of type {found.conn_type!r}, and s3:// needs one of type 'aws'",
            "Make a connection of type aws: access key as login, secret key as password.",
        )
    for name in _NOT_FOLLOWED:
        if found.extra.get(name):
            raise ConfigurationError(
                f"the connection {found.conn_id!r} has the extra {name!r}, which is not followed here",
                "Put keys into it, or name no connection and give the machines a role: their environment is asked.",
            )
    settings = {own: str(found.extra[name]) for name, own in _EXTRAS.items() if found.extra.get(name)}
    of_s3 = _mapping(_mapping(found.extra, "service_config"), "s3")
    if of_s3.get("endpoint_url"):
        settings["endpoint"] = str(of_s3["endpoint_url"])
    if found.login:
        settings |= {"access_key_id": found.login, "secret_access_key": found.password}
    if _mapping(_mapping(found.extra, "config_kwargs"), "s3").get("addressing_style") == "virtual":
        settings["virtual_hosted_style_request"] = "true"
    return settings


def endpoint_of(settings: Mapping[str, str]) -> str:
    """Empty: Amazon's own."""
    return settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "") or os.environ.get("AWS_ENDPOINT", "")


def client_of(found: Connection) -> dict[str, str]:
    """The connection's time-outs (seconds), retries and certificates."""
    kwargs = _mapping(found.extra, "config_kwargs")
    client = {name: str(kwargs[name]) for name in ("connect_timeout", "read_timeout") if kwargs.get(name)}
    retries = _mapping(kwargs, "retries")
    if isinstance(retries.get("max_attempts"), int):
        client["max_retries"] = str(retries["max_attempts"])
    if isinstance(retries.get("total_max_attempts"), int):
        client["max_retries"] = str(max(0, retries["total_max_attempts"] - 1))
    verify = found.extra.get("verify")
    if verify in (False, "false", "False"):
        client["allow_invalid_certificates"] = "true"
    elif isinstance(verify, str) and verify not in ("", "true", "True"):
        client["root_certificate"] = verify
    return client


def _mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    if isinstance(found, str):
        found = connections.parse_extra(found)
    return found if isinstance(found, Mapping) else {}


@lru_cache(maxsize=16)
def _open(place: ObjectPlace, _process: int) -> Any:
    """:param _process: one client per process: it does not survive a fork."""
    from datetime import timedelta

    module: Any = require_extra("obstore.store", EXTRA)
    exceptions: Any = require_extra("obstore.exceptions", EXTRA)
    client, settings = dict(place.client), dict(place.settings)
    endpoint = endpoint_of(settings)
    if endpoint and not _HTTP.match(endpoint):
        raise ConfigurationError(
            f"the endpoint {endpoint!r} of {place.where!r} is no URL",
            "Write https://host[:port] into the extra endpoint_url of the connection, or into AWS_ENDPOINT_URL.",
        )
    options: dict[str, Any] = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=float(client.get("connect_timeout", _CONNECT_TIMEOUT_S))),
        "timeout": timedelta(seconds=float(client.get("read_timeout", _TIMEOUT_S))),
    }
    if "allow_invalid_certificates" in client:
        options["allow_invalid_certificates"] = True
    if "root_certificate" in client:
        with open(client["root_certificate"], "rb") as file:
            options["root_certificate"] = file.read()
    retry = {"max_retries": int(client.get("max_retries", _RETRIES)), "retry_timeout": timedelta(seconds=_RETRY_S)}
    try:
        return module.S3Store(
            place.bucket, prefix=place.prefix or None, config=settings, client_options=options, retry_config=retry
        )
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{place.where!r} cannot be opened ({said(str(error))[1]})",
            "See the connection, or AWS_* of the environment.",
        ) from None
