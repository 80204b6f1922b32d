"""Google Cloud Storage: ``gs://bucket/prefix``, connections of type ``google_cloud_platform``.

A connection is read as Airflow's GoogleBaseHook reads it. A key file is read where the connection is resolved, so that
drivers and executors need not have it. Without a key each machine uses its application default credentials.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_service import Address, ObjectService

_BUCKET = re.compile(r"(?=.{3,222}\Z)[a-z0-9]+(?:[._-]+[a-z0-9]+)*\Z")
_PREFIX = "extra__google_cloud_platform__"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""Of every token that obstore and delta-rs ask for."""
_NOT_FOLLOWED = (
    "key_secret_name",
    "credential_config_file",
    "impersonation_chain",
    "idp_issuer_url",
    "gcs.oauth2.token",
    "gcs.requester-pays",
    "quota_project_id",
)
_OF_A_KEY = ("client_email", "private_key", "private_key_id")
"""What a token is made of; nothing else of a key is sent to drivers and executors."""
_BEFORE_A_KEY = (
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "SERVICE_ACCOUNT",
)
"""Variables that obstore and delta-rs take instead of the connection's key, or refuse beside it."""
_ENDPOINT = "gcs.endpoint"
_CLIENT = {"num_retries": "max_retries", "connect_timeout": "connect_timeout", "read_timeout": "read_timeout"}
"""Extra of a connection -> name here. Airflow knows the first one."""
_WRITE_KEY = "Paste the whole JSON key of a service account into the extra keyfile_dict."
_TOKEN = (
    "See that the key of the connection is one that the service account still has, that a token of the environment has "
    "not expired, and the clock of this machine; then run the task again."
)
_BILLING = "See the billing account of the bucket's project; buckets whose requester pays are not supported."
_KEPT = "Name a bucket without retention policy and holds: what is old is deleted."
_REFUSED_TOKEN = re.compile(r"performing token request.*status code: 40[013]", re.DOTALL)
_WHOLE = "non-partial response"
"""What obstore says of an object that is given whole, because Google decompresses it on its way."""
_COMPRESSED = "Put the object without Content-Encoding gzip, or with Cache-Control no-transform."
_UNAUTHENTICATED = "status code: 401"
_CURES = {
    "NoSuchBucket": "Make the bucket, or name one that is there.",
    "InvalidBucketName": "Name a bucket that can be.",
    "AuthenticationRequired": _TOKEN,
    "ExpiredToken": _TOKEN,
    "InvalidSecurity": _TOKEN,
    "RequestTimeTooSkewed": "Set the clock of this machine.",
    "AccountProblem": _BILLING,
    "UserProjectAccountProblem": _BILLING,
    "UserProjectMissing": _BILLING,
    "ObjectUnderActiveHold": _KEPT,
    "RetentionPolicyNotMet": _KEPT,
    "KeyTooLong": "Write a shorter prefix: a name has 1,024 bytes at most.",
}
"""Error code -> cure, where no retry helps."""
_DENIED = frozenset({"AccessDenied", "InsufficientPermission", "Forbidden"})


class _Gcs(ObjectService):
    schemes = ("gs", "gcs")
    written = "gs://[connection@]bucket[/prefix]"
    conn_type = "google_cloud_platform"
    verify = ""
    login = "the JSON key of a service account as extra keyfile_dict, or its path as extra key_path"
    extra = "airflow-trident[gcs]"
    environment = "GOOGLE_*"
    write_endpoint = f"Write https://host[:port] into the extra {_ENDPOINT} of the connection, or into GOOGLE_BASE_URL."
    missing_bucket = frozenset({"NoSuchBucket"})
    conditions = "Use a store with conditional writes (Google Cloud Storage has them), or a folder."
    deletes_at_once = 1000
    deletes_one_by_one = True
    copies_later = False
    always_versions = True
    no_credentials = (
        ("/computeMetadata/v1/",),
        "neither a connection with a key nor application default credentials",
        "Write gs://connection@bucket/prefix with a connection of type google_cloud_platform, set "
        "GOOGLE_APPLICATION_CREDENTIALS, or give this machine a service account.",
    )

    def address(self, user: str, host: str) -> Address | None:
        return Address(bucket=host, conn_id=user) if _BUCKET.match(host) else None

    def settings_of(self, found: Connection) -> dict[str, str]:
        self.require_type(found)
        endpoint = str(_extra(found, _ENDPOINT) or "").rstrip("/")
        place = {"base_url": endpoint} if endpoint else {}
        if str(_extra(found, "is_anonymous")).lower() in ("true", "1"):
            # An empty token, because obstore asks for one where it writes.
            return {**place, "skip_signature": "true", "bearer_token": ""}
        for name in _NOT_FOLLOWED:
            if _extra(found, name) not in (None, "", False, "false", "False"):
                raise ConfigurationError(
                    f"the connection {found.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Give it a key (keyfile_dict or key_path), or leave the extra out: then the application default "
                    "credentials of the machines are used.",
                )
        _require_usual_scope(found)
        key = _key_of(found)
        return {**place, "service_account_key": key, "skip_signature": "false"} if key else place

    def client_of(self, found: Connection) -> dict[str, str]:
        given = {own: _extra(found, name) for name, own in _CLIENT.items()}
        return {own: str(value) for own, value in given.items() if value not in (None, "")}

    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        return settings.get("base_url") or os.environ.get("GOOGLE_BASE_URL", "")

    def require_alone(self, settings: Mapping[str, str]) -> None:
        if "service_account_key" not in settings:
            return
        for name in _BEFORE_A_KEY:
            if os.environ.get(name):
                raise ConfigurationError(
                    f"a connection of type {self.conn_type} has a key, and {name} is set, which would be taken instead",
                    f"Take {name} out of the environment, or name no connection.",
                )

    def portable(self, found: Connection) -> Connection:
        """With the content of its key file, for processes on other machines."""
        if found.conn_type != self.conn_type or not _extra(found, "key_path"):
            return found
        extra = {name: value for name, value in found.extra.items() if name.removeprefix(_PREFIX) != "key_path"}
        return replace(found, extra={**extra, "keyfile_dict": _key_of(found)})

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if code in _CURES:
            return _CURES[code]
        if code in _DENIED:
            return self.refused(rights)
        if _WHOLE in text:
            return _COMPRESSED
        return _TOKEN if _REFUSED_TOKEN.search(text) or _UNAUTHENTICATED in text else ""

    def refused(self, rights: str) -> str:
        return f"Give this account the right to {rights} objects there (role Storage Object User)."

    def store_class(self, module: Any) -> Any:
        return module.GCSStore


GCS = _Gcs()


def _extra(found: Connection, name: str) -> Any:
    """Also with the prefix that older connections have before the name."""
    value = found.extra.get(name)
    return found.extra.get(f"{_PREFIX}{name}") if value is None else value


def _require_usual_scope(found: Connection) -> None:
    scopes = [one.strip() for one in str(_extra(found, "scope") or _SCOPE).split(",")]
    if _SCOPE not in scopes:
        raise ConfigurationError(
            f"the connection {found.conn_id!r} has the extra 'scope', which is not followed here: tokens are for "
            "cloud-platform",
            "Leave it out of a connection for this package: what the account may do is said by its roles.",
        )


def _key_of(found: Connection) -> str:
    """The key as JSON; "" if the connection has none.

    :raises ConfigurationError: it has two, or what it has is no key of a service account. Nothing of it is shown.
    """
    path, written = _extra(found, "key_path"), _extra(found, "keyfile_dict")
    if path and written:
        raise ConfigurationError(
            f"the connection {found.conn_id!r} has both key_path and keyfile_dict", "Leave one of them out."
        )
    if not path and not written:
        return ""
    where = f"the extra keyfile_dict of the connection {found.conn_id!r}"
    if path:
        where, written = f"the key file {path!r} of the connection {found.conn_id!r}", _content_of(found, str(path))
    try:
        content = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        raise ConfigurationError(f"{where} is no JSON", _WRITE_KEY) from None
    if not isinstance(content, Mapping) or content.get("type", "service_account") != "service_account":
        raise ConfigurationError(f"{where} is no key of a service account", _WRITE_KEY)
    missing = [name for name in _OF_A_KEY if not isinstance(content.get(name), str) or not content[name]]
    if missing:
        raise ConfigurationError(f"{where} has no {' and no '.join(missing)}", _WRITE_KEY)
    # Keys that were pasted into forms have two characters for the end of a line.
    return json.dumps({name: content[name].replace("\\n", "\n") for name in _OF_A_KEY})


def _content_of(found: Connection, path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:  # a FileNotFoundError would stand for a missing object
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(
            f"the connection {found.conn_id!r} names the key file {path!r}, which cannot be read here ({why})",
            "Put the file on each machine that runs tasks, or its content into the extra keyfile_dict.",
        ) from None
