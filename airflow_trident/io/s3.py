"""Amazon S3 and servers with its API: ``s3://bucket/prefix``, connections of type ``aws``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_service import Address, ObjectService, certificates, mapping

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
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
"""Error code -> cure, where no retry helps."""
_DENIED = "AccessDenied"


class _S3(ObjectService):
    schemes = ("s3",)
    written = "s3://[connection@]bucket[/prefix]"
    conn_type = "aws"
    verify = "verify"
    login = "access key as login, secret key as password"
    extra = "airflow-trident[s3]"
    environment = "AWS_*"
    write_endpoint = (
        "Write https://host[:port] into the extra endpoint_url of the connection, or into AWS_ENDPOINT_URL."
    )
    missing_bucket = frozenset({"NoSuchBucket"})
    conditions = "Use a store with conditional writes (Amazon S3 has them), or a folder."
    deletes_at_once = 1000
    copies_later = False
    no_credentials = (
        ("/latest/api/token", "/latest/meta-data/"),
        "neither a connection nor AWS_ACCESS_KEY_ID",
        "Write s3://connection@bucket/prefix with a connection of type aws, or set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY.",
    )

    def address(self, user: str, host: str) -> Address | None:
        return Address(bucket=host, conn_id=user) if _BUCKET.match(host) else None

    def settings_of(self, found: Connection) -> dict[str, str]:
        self.require_type(found)
        for name in _NOT_FOLLOWED:
            if found.extra.get(name):
                raise ConfigurationError(
                    f"the connection {found.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Put keys into it, or name no connection and give the machines a role: their environment is asked.",
                )
        settings = {own: str(found.extra[name]) for name, own in _EXTRAS.items() if found.extra.get(name)}
        of_s3 = mapping(mapping(found.extra, "service_config"), "s3")
        if of_s3.get("endpoint_url"):
            settings["endpoint"] = str(of_s3["endpoint_url"])
        if found.login:
            settings |= {"access_key_id": found.login, "secret_access_key": found.password}
        if mapping(mapping(found.extra, "config_kwargs"), "s3").get("addressing_style") == "virtual":
            settings["virtual_hosted_style_request"] = "true"
        return settings

    def client_of(self, found: Connection) -> dict[str, str]:
        kwargs = mapping(found.extra, "config_kwargs")
        client = {name: str(kwargs[name]) for name in ("connect_timeout", "read_timeout") if kwargs.get(name)}
        retries = mapping(kwargs, "retries")
        if isinstance(retries.get("max_attempts"), int):
            client["max_retries"] = str(retries["max_attempts"])
        if isinstance(retries.get("total_max_attempts"), int):
            client["max_retries"] = str(max(0, retries["total_max_attempts"] - 1))
        return client | certificates(found.extra.get("verify"))

    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        return settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "") or os.environ.get("AWS_ENDPOINT", "")

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if not code and "region" in text and "redirect" in text.lower():
            return _REGION
        return self.refused(rights) if code == _DENIED else _CURES.get(code, "")

    def refused(self, rights: str) -> str:
        return f"Give this user the right to {rights} objects there."

    def store_class(self, module: Any) -> Any:
        return module.S3Store

    def arrow_files(self, settings: Mapping[str, str]) -> pafs.FileSystem:
        import pyarrow.fs as pafs

        given = {_OF_ARROW[name]: value for name, value in settings.items() if name in _OF_ARROW}
        endpoint = self.endpoint_of(settings)
        if endpoint:
            given["scheme"], _, given["endpoint_override"] = endpoint.rstrip("/").partition("://")
        virtual = settings.get("virtual_hosted_style_request") == "true"
        return pafs.S3FileSystem(**given, force_virtual_addressing=virtual)


S3 = _S3()
