"""Objects of S3 for Hadoop's file system S3A: as options of one reading of Spark, and as settings of an application.

Options of a reading are in the Hadoop configuration of that reading alone: neither Spark's configuration nor its page,
its log or its plans show them. Hadoop keeps one open file system for each scheme and bucket, whatever the options. So
each set of settings has a scheme of its own: nobody reads with the keys of another.

Names of objects as Hadoop's connectors for Azure and Google Cloud Storage know them.

Spark's readers pass over some names of files, without an error, even if a list names them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_services import GCS, S3
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.paths import AnyPath, is_hdfs_uri, is_object_uri, require_local_path, text_of_path

if TYPE_CHECKING:
    import pyarrow.fs as pafs

SCHEME = "s3a"
S3_SCHEMES = (*S3.schemes, SCHEME)
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
OTHER_SERVICE = "S3A reads S3 only, and no Azure or Google Cloud Storage"
_PROVIDERS = "org.apache.hadoop.fs.s3a."
_KEYS = {"access_key_id": "access.key", "secret_access_key": "secret.key", "session_token": "session.token"}
_DURATIONS = {"connect_timeout": "connection.establish.timeout", "read_timeout": "connection.timeout"}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)s?\Z")
_SALT = os.urandom(16)
"""So that a scheme, which logs show, tells nothing about keys."""
_PATTERN = re.compile(r"[*?\[\]{}\\]")
_UNTRUSTED = {"root_certificate", "allow_invalid_certificates"}


@dataclass(frozen=True)
class S3AFiles:
    """Objects that Spark can read. Names are ``bucket/key``.

    :param settings: as `ObjectAddress.settings`, with keys.
    :param client: as `ObjectAddress.client`.
    """

    settings: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str], client: Mapping[str, str]) -> S3AFiles | str:
        """Or why S3A cannot read with these settings. Keys may be in the environment of this process."""
        if _UNTRUSTED & client.keys():
            return "S3A trusts the certificates of the JVM only, and the connection names others"
        if "access_key_id" not in settings:
            environment_keys = {name: os.environ.get(f"AWS_{name.upper()}", "") for name in _KEYS}
            settings = {**settings, **{name: value for name, value in environment_keys.items() if value}}
        if not {"access_key_id", "secret_access_key"} <= settings.keys():
            return "neither a connection nor AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY give it keys"
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return cls(({"region": region} if region else {}) | dict(settings), client)

    @property
    def scheme(self) -> str:
        identity = json.dumps(
            [sorted(self.settings.items()), sorted(self.client.items()), S3.endpoint_of(self.settings)]
        )
        return f"s3a-{hashlib.blake2b(identity.encode(), digest_size=8, key=_SALT).hexdigest()}"

    def url(self, name: str) -> str:
        return f"{self.scheme}://{name}"

    def options(self, buckets: Iterable[str]) -> dict[str, str]:
        """Of Spark's reader. They hold keys."""
        ours = self._of_bucket()
        named = {
            f"fs.s3a.bucket.{bucket}.{name}": value for bucket in sorted(set(buckets)) for name, value in ours.items()
        }
        return {f"fs.{self.scheme}.impl": FILE_SYSTEM, **named}

    def _of_bucket(self) -> dict[str, str]:
        settings = self.settings
        temporary = "session_token" in settings
        provider = "TemporaryAWSCredentialsProvider" if temporary else "SimpleAWSCredentialsProvider"
        options = {name: settings[setting] for setting, name in _KEYS.items() if setting in settings}
        options["aws.credentials.provider"] = _PROVIDERS + provider
        options |= _server(settings)  # if its endpoint is empty, Amazon's, whatever the session says
        for setting, name in _DURATIONS.items():
            if number := _NUMBER.match(self.client.get(setting, "")):
                options[name] = f"{max(1, round(float(number[1]) * 1000))}ms"
        if (retries := self.client.get("max_retries", "")).isdigit():
            options["attempts.maximum"] = str(int(retries) + 1)
        return options

    def conceal(self, text: str) -> str:
        """A driver's message without the keys."""
        for name in _KEYS:
            text = text.replace(self.settings[name], "***") if self.settings.get(name) else text
        return text

    def arrow_files(self) -> pafs.FileSystem:
        """The same objects for pyarrow."""
        file_system: Any = S3.arrow_files(self.settings)
        return file_system


def _server(settings: Mapping[str, str]) -> dict[str, str]:
    """Which server it is, and how buckets are named there."""
    endpoint = S3.endpoint_of(settings)
    options = {
        "path.style.access": str(settings.get("virtual_hosted_style_request") != "true").lower(),
        "endpoint": endpoint,
        "connection.ssl.enabled": str(not endpoint.lower().startswith("http://")).lower(),
    }
    if endpoint or "region" in settings:
        options["endpoint.region"] = settings.get("region", "us-east-1")
    return options


def settings_without_keys(address: ObjectAddress) -> dict[str, str]:
    """Settings by which an application of Spark finds the server of a bucket, if it is not Amazon's, or its region is
    known. Its keys are its own: settings are on command lines, and others see them.

    :raises ConfigurationError: there is no such connection.
    """
    settings = dict(address.resolved().settings)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings = ({"region": region} if region else {}) | settings
    options = _server(settings) if S3.endpoint_of(settings) else {}
    if "region" in settings:
        options["endpoint.region"] = settings["region"]
    return {f"spark.hadoop.fs.s3a.bucket.{address.bucket}.{name}": value for name, value in options.items()}


def require_s3a_place(subject: str, path: AnyPath) -> str:
    """A folder for files that Spark itself writes: a path of a file system, or ``s3://[connection@]bucket/prefix``.

    :param subject: whose path it is, for the error.
    :raises ConfigurationError: it is neither.
    """
    text = text_of_path(path)
    if not isinstance(text, str) or not is_object_uri(text) or text.strip().lower().startswith("file:"):
        return require_local_path(subject, path)
    cure = "Give it a folder that the driver and its executors see under the same path, or s3://bucket/prefix."
    if is_hdfs_uri(text) or ObjectAddress.parse(subject, text).service is not S3:
        raise ConfigurationError(f"{subject} cannot use {text!r}: it takes file systems and S3 only", cure)
    if match := _PATTERN.search(text):
        raise ConfigurationError(f"{subject} cannot use {text!r}: Spark takes {match[0]!r} for a pattern", cure)
    return text.strip()


def root_in_hadoop(address: ObjectAddress) -> str:
    """A place of one of the two; empty: nobody says which account it is of, or that has an address of its own.

    :param address: resolved.
    """
    if address.scheme in S3.schemes:
        return ""
    if address.scheme in GCS.schemes:
        return f"{GCS.schemes[0]}://{address.key('')}"
    settings = dict(address.settings)
    account, endpoint = settings.get("account_name", ""), settings.get("endpoint", "").rstrip("/")
    host = address.account_host.replace(".blob.", ".dfs.", 1)
    if not host and account and endpoint in ("", f"https://{account}.blob.core.windows.net"):
        host = f"{account}.dfs.core.windows.net"
    return f"abfss://{address.bucket}@{host}/{address.prefix}" if host else ""


def uri_in_hadoop(uri: str, options: Mapping[str, str]) -> str:
    """As :func:`root_in_hadoop`, of a URI.

    :param options: of delta-rs; of the account, with or without ``AZURE_STORAGE_``.
    """
    try:
        address = ObjectAddress.parse("a table", uri)
    except ConfigurationError:
        return ""
    named_options = {
        name.lower().removeprefix("azure_").removeprefix("storage_"): value for name, value in options.items()
    }
    settings = tuple((name, named_options[name]) for name in ("account_name", "endpoint") if name in named_options)
    return root_in_hadoop(
        ObjectAddress(
            bucket=address.bucket,
            prefix=address.prefix,
            scheme=address.scheme,
            account_host=address.account_host,
            settings=settings,
        )
    )


_HIDDEN = re.compile(r"[_.].*|.*\._COPYING_", re.DOTALL)


def is_hidden(path: str) -> bool:
    """Does the last part of the path begin with ``_`` or a dot, or end as Hadoop names a file that it copies?"""
    return _HIDDEN.fullmatch(path.rpartition("/")[2]) is not None
