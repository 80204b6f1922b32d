"""Amazon S3 and servers with its API: ``s3://bucket/prefix``, connections of type ``aws``.

Azure Blob Storage and Data Lake Storage Gen2: ``abfs://container/prefix``, connections of type ``wasb``.

A place is written as in Airflow's ObjectStoragePath, with the id of a connection before the container, or as in Hadoop,
with the account after it: ``abfss://container@account.dfs.core.windows.net/prefix``. A container has no dot in its
name, so the two forms cannot be mixed up. All schemes mean the same, ``wasbs`` too: the Blob API is used, with TLS if
the account's URL says so.

Google Cloud Storage: ``gs://bucket/prefix``, connections of type ``google_cloud_platform``.

A connection is read as Airflow's GoogleBaseHook reads it. A key file is read where the connection is resolved, so that
drivers and executors need not have it. Without a key each machine uses its application default credentials.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_service import Address, ObjectService, certificates, mapping

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_S3_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
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
_S3_NOT_FOLLOWED = ("role_arn", "profile_name", "assume_role_method", "session_kwargs")
"""Extras that only boto3 supports."""
_REGION = "Name the bucket's region: extra region_name of the connection, or AWS_REGION."
_S3_CURES = {
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
_S3_DENIED = "AccessDenied"


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
        return Address(bucket=host, conn_id=user) if _S3_BUCKET.match(host) else None

    def settings_of(self, connection: Connection) -> dict[str, str]:
        self.require_type(connection)
        for name in _S3_NOT_FOLLOWED:
            if connection.extra.get(name):
                raise ConfigurationError(
                    f"the connection {connection.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Put keys into it, or name no connection and give the machines a role: their environment is asked.",
                )
        settings = {
            setting: str(connection.extra[name]) for name, setting in _EXTRAS.items() if connection.extra.get(name)
        }
        of_s3 = mapping(mapping(connection.extra, "service_config"), "s3")
        if of_s3.get("endpoint_url"):
            settings["endpoint"] = str(of_s3["endpoint_url"])
        if connection.login:
            settings |= {"access_key_id": connection.login, "secret_access_key": connection.password}
        if mapping(mapping(connection.extra, "config_kwargs"), "s3").get("addressing_style") == "virtual":
            settings["virtual_hosted_style_request"] = "true"
        return settings

    def client_of(self, connection: Connection) -> dict[str, str]:
        kwargs = mapping(connection.extra, "config_kwargs")
        client = {name: str(kwargs[name]) for name in ("connect_timeout", "read_timeout") if kwargs.get(name)}
        retries = mapping(kwargs, "retries")
        if isinstance(retries.get("max_attempts"), int):
            client["max_retries"] = str(retries["max_attempts"])
        if isinstance(retries.get("total_max_attempts"), int):
            client["max_retries"] = str(max(0, retries["total_max_attempts"] - 1))
        return client | certificates(connection.extra.get("verify"))

    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        return settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "") or os.environ.get("AWS_ENDPOINT", "")

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if not code and "region" in text and "redirect" in text.lower():
            return _REGION
        return self.refused(rights) if code == _S3_DENIED else _S3_CURES.get(code, "")

    def refused(self, rights: str) -> str:
        return f"Give this user the right to {rights} objects there."

    def store_class(self, module: Any) -> Any:
        return module.S3Store

    def arrow_files(self, settings: Mapping[str, str]) -> pafs.FileSystem:
        import pyarrow.fs as pafs

        arguments = {_OF_ARROW[name]: value for name, value in settings.items() if name in _OF_ARROW}
        endpoint = self.endpoint_of(settings)
        if endpoint:
            arguments["scheme"], _, arguments["endpoint_override"] = endpoint.rstrip("/").partition("://")
        virtual = settings.get("virtual_hosted_style_request") == "true"
        return pafs.S3FileSystem(**arguments, force_virtual_addressing=virtual)


S3 = _S3()


OTHERS_OF_AZURE = ("az", "azure", "adl")
"""Other schemes of it, and of its predecessor."""
KEYS_OF_THE_ENVIRONMENT = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*\Z")
_ACCOUNT_HOST = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.([a-z0-9-]+(?:\.[a-z0-9-]+)+)\Z")
_EMULATOR = {
    "account_name": "devstoreaccount1",
    "endpoint": "http://127.0.0.1:10000/devstoreaccount1",
    "credential_type": "access_key",
    "account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}
"""Of every emulator, and public: all of it is set, so that nothing of the environment is mixed in."""
_ACCOUNT_URL = "https://<account>.blob.core.windows.net"
_KEY = (
    "See the key of the connection (its password) or of AZURE_STORAGE_ACCOUNT_KEY, or the SAS token and how long it is "
    "valid, and the clock of this machine."
)
_SAS = (
    "Give the connection a SAS token that is valid now (extra sas_token), or set the clock of this machine, and run "
    "the task again."
)
_CLOCK = "Set the clock of this machine."
_AZURE_TOKEN = "See client id, secret and tenant of the connection, or the identity of this machine."
_NETWORK = (
    "Let the account's firewall take requests of this machine, or give this user the right to {rights} blobs there."
)
_REFUSED_TOKEN = re.compile(r"performing token request.*status code: 40[013]", re.DOTALL)
"""Microsoft Entra refuses the client or the identity, for instance because its secret has expired."""
_AZURE_CURES = {
    "ContainerNotFound": "Make the container, or name one that is there.",
    "ContainerBeingDeleted": "Name another container, or make it anew when it is gone.",
    "ContainerDisabled": "Name a container that is not disabled.",
    "InvalidResourceName": "Name a container that can be.",
    "AccountIsDisabled": "Name an account that is not disabled.",
    "AuthenticationFailed": _KEY,
    "InvalidAuthenticationInfo": _AZURE_TOKEN,
    "KeyBasedAuthenticationNotPermitted": "The account takes no keys: use a client secret or an identity.",
    "NoAuthenticationInformation": "Name a connection of type wasb, or set AZURE_STORAGE_ACCOUNT_KEY.",
    "PublicAccessNotPermitted": "Name a connection of type wasb, or set AZURE_STORAGE_ACCOUNT_KEY.",
    "BlobImmutableDueToPolicy": "Name a container without a policy that keeps blobs: what is old is deleted.",
    "BlobArchived": "Move the blob to an online tier (hot, cool or cold), and run the task again.",
    "BlobBeingRehydrated": "Wait until the blob is in an online tier, and run the task again.",
    "LeaseIdMissing": "Break the lease on the blob, or name another container: what is old is deleted.",
    "OutOfRangeInput": "Write a shorter prefix: a name has 1,024 characters at most.",
    "AuthorizationFailure": _NETWORK,
    "AuthorizationProtocolMismatch": "The SAS token allows https only: give the account's URL so.",
    "AuthorizationSourceIPMismatch": "The SAS token allows other addresses only: get one for those of the workers.",
}
"""Error code -> cure, where no retry helps."""
_RIGHTS = frozenset(
    {
        "AuthorizationPermissionMismatch",
        "AuthorizationResourceTypeMismatch",
        "AuthorizationServiceMismatch",
        "InsufficientAccountPermissions",
        "UnauthorizedBlobOverwrite",
    }
)
_DETAILS = {
    "Signature not valid in the specified time frame": _SAS,
    "Signature did not match": "See the SAS token of the connection (extra sas_token).",
    "Request date header too old": _CLOCK,
    "Request date header not specified": _CLOCK,
}
"""Detail of an AuthenticationFailed, which stands for all of these -> cure."""
_AZURE_NOT_FOLLOWED = ("proxies", "connection_cert", "account_host", "workload_identity_client_id")
_ENTRA = {"connection_timeout": "connect_timeout", "read_timeout": "read_timeout", "retry_total": "max_retries"}
"""Extra of a connection, as Azure's own client names it -> name here."""


class _Azure(ObjectService):
    schemes = ("abfs", "abfss", "wasb", "wasbs")
    written = "abfs://[connection@]container[/prefix] or abfss://container@account.dfs.core.windows.net[/prefix]"
    conn_type = "wasb"
    verify = "connection_verify"
    login = "account as login, key as password"
    extra = "airflow-trident[azure]"
    environment = "AZURE_*"
    write_endpoint = f"Write {_ACCOUNT_URL} as host of the connection, or into AZURE_STORAGE_ENDPOINT."
    missing_bucket = frozenset({"ContainerNotFound", "ContainerBeingDeleted"})
    conditions = "Use a store with conditional writes (Azure Blob Storage has them), or a folder."
    deletes_at_once = 256
    copies_later = True
    lists_by_folder = True
    not_in_names = "\\"
    no_credentials = (
        ("/metadata/identity/oauth2/token",),
        "neither a connection with a key, a SAS token or a client secret, nor AZURE_STORAGE_ACCOUNT_KEY",
        "Write abfs://connection@container/prefix with a connection of type wasb, set AZURE_STORAGE_ACCOUNT_NAME and "
        "AZURE_STORAGE_ACCOUNT_KEY, or give this machine an identity.",
    )

    def address(self, user: str, host: str) -> Address | None:
        if "." not in host:
            return Address(bucket=host, conn_id=user) if _CONTAINER.match(host) else None
        match = _ACCOUNT_HOST.match(host)
        if match is None or not _CONTAINER.match(user):
            return None
        settings = (("account_name", match[1]), ("endpoint", f"https://{match[1]}.blob.{match[2]}"))
        return Address(bucket=user, account_host=host, settings=settings)

    def settings_of(self, connection: Connection) -> dict[str, str]:
        self.require_type(connection)
        for name in _AZURE_NOT_FOLLOWED:
            if connection.extra.get(name):
                raise ConfigurationError(
                    f"the connection {connection.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Leave it out, or name no connection: the environment of the machines is asked.",
                )
        written = _option(connection, "connection_string")
        if written:
            return _of_connection_string(connection, written)
        settings = _credentials(connection)
        url = _account_url(connection, settings.pop("endpoint", ""))
        login = "" if "client_id" in settings else connection.login
        account = _option(connection, "account_name") or _account_of(url, login)
        return {"account_name": account, "endpoint": url, **settings}

    def client_of(self, connection: Connection) -> dict[str, str]:
        client = {
            setting: str(connection.extra[name])
            for name, setting in _ENTRA.items()
            if connection.extra.get(name) is not None
        }
        return client | certificates(connection.extra.get("connection_verify"))

    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        variables = os.environ.get("AZURE_STORAGE_ENDPOINT", "") or os.environ.get("AZURE_ENDPOINT", "")
        return settings.get("endpoint") or variables

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if _REFUSED_TOKEN.search(text):
            return _AZURE_TOKEN
        if code == "AuthenticationFailed" or "failed to authenticate" in text:  # azurite has another code for it
            return next((cure for part, cure in _DETAILS.items() if part in text), _KEY)
        return self.refused(rights) if code in _RIGHTS else _AZURE_CURES.get(code, "").format(rights=rights)

    def refused(self, rights: str) -> str:
        return f"Give this user the right to {rights} blobs there (role Storage Blob Data Contributor)."

    def store_class(self, module: Any) -> Any:
        return module.AzureStore


AZURE = _Azure()


def _option(connection: Connection, name: str) -> str:
    """Also with the prefix that older connections have before the name."""
    return str(connection.extra.get(name) or connection.extra.get(f"extra__{AZURE.conn_type}__{name}") or "")


def _credentials(connection: Connection) -> dict[str, str]:
    """In the order of Airflow's WasbHook. One kind only, named by `credential_type`: obstore would mix it with the
    environment's. None at all: the identity of each machine."""
    tenant = _option(connection, "tenant_id")
    if tenant:
        secret = {
            "credential_type": "client_secret",
            "client_id": connection.login,
            "client_secret": connection.password,
        }
        authority = mapping(connection.extra, "client_secret_auth_config").get("authority")
        return {
            **secret,
            "tenant_id": tenant,
            **({"authority_host": _with_scheme(str(authority))} if authority else {}),
        }
    sas = _option(connection, "sas_token")
    key = _option(connection, "shared_access_key") or (
        "" if sas else connection.password or _option(connection, "account_key")
    )
    if key:
        return {"credential_type": "access_key", "account_key": key}
    if sas:
        endpoint, _, token = sas.partition("?") if sas.startswith("http") else ("", "", sas.removeprefix("?"))
        return {"credential_type": "sas_token", "sas_key": token, **({"endpoint": endpoint} if endpoint else {})}
    identity = _option(connection, "managed_identity_client_id")
    tenant = _option(connection, "workload_identity_tenant_id")
    return {name: value for name, value in (("client_id", identity), ("tenant_id", tenant)) if value}


def _account_url(connection: Connection, of_sas: str) -> str:
    """As the hook reads host and login: a URL, a DNS name, or the account at Azure's own address."""
    host = of_sas or connection.host
    if host and ("." in host or "://" in host):
        port = f":{connection.port}" if connection.port and "://" not in host else ""
        return _of_blobs(_with_scheme(f"{host.rstrip('/')}{port}"))
    account = _option(connection, "account_name")
    if _option(connection, "tenant_id") and not account:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has a tenant_id, so that its login is a client; it names no "
            "account",
            f"Write the account's URL as its host: {_ACCOUNT_URL}.",
        )
    account = account or connection.login
    if not account:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} names no account",
            f"Write the account as its login, or its URL as its host: {_ACCOUNT_URL}.",
        )
    return f"https://{account}.blob.core.windows.net"


def _of_blobs(url: str) -> str:
    """An account's URL at Azure, also of one that was copied with ``.dfs.`` in it or with the path of a container."""
    parts = urlsplit(url)
    match = _ACCOUNT_HOST.match(parts.netloc.lower())
    return f"{parts.scheme}://{match[1]}.blob.{match[2]}" if match else url


def _account_of(url: str, login: str = "") -> str:
    """First part of a host at Azure; for a server of several accounts the path: ``http://127.0.0.1:10000/one``."""
    parts = urlsplit(url)
    at_azure = _ACCOUNT_HOST.match(parts.netloc)
    return at_azure[1] if at_azure else parts.path.strip("/") or login or parts.netloc.split(".", 1)[0]


def _of_connection_string(connection: Connection, written: str) -> dict[str, str]:
    """``AccountName=...;AccountKey=...;EndpointSuffix=core.windows.net``."""
    parts = {
        name.strip().lower(): value.strip()
        for name, _, value in (pair.partition("=") for pair in written.split(";"))
        if name
    }
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return dict(_EMULATOR)
    account, url = parts.get("accountname", ""), _of_blobs(parts.get("blobendpoint", "").rstrip("/"))
    if not account and not url:
        raise ConfigurationError(
            f"the connection string of the connection {connection.conn_id!r} names no account",
            "Copy it whole from the account's access keys: AccountName=...;AccountKey=...",
        )
    scheme, suffix = parts.get("defaultendpointsprotocol", "https"), parts.get("endpointsuffix", "core.windows.net")
    url = url or f"{scheme}://{account}.blob.{suffix}"
    settings = {"account_name": account or _account_of(url), "endpoint": url}
    if parts.get("accountkey"):
        return {**settings, "credential_type": "access_key", "account_key": parts["accountkey"]}
    if parts.get("sharedaccesssignature"):
        token = parts["sharedaccesssignature"].removeprefix("?")
        return {**settings, "credential_type": "sas_token", "sas_key": token}
    return settings


def _with_scheme(host: str) -> str:
    return host if "://" in host else f"https://{host}"


_GCS_BUCKET = re.compile(r"(?=.{3,222}\Z)[a-z0-9]+(?:[._-]+[a-z0-9]+)*\Z")
_PREFIX = "extra__google_cloud_platform__"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""Of every token that obstore and delta-rs ask for."""
_GCS_NOT_FOLLOWED = (
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
_GCS_CLIENT = {"num_retries": "max_retries", "connect_timeout": "connect_timeout", "read_timeout": "read_timeout"}
"""Extra of a connection -> name here. Airflow knows the first one."""
_WRITE_KEY = "Paste the whole JSON key of a service account into the extra keyfile_dict."
_GCS_TOKEN = (
    "See that the key of the connection is one that the service account still has, that a token of the environment has "
    "not expired, and the clock of this machine; then run the task again."
)
_BILLING = "See the billing account of the bucket's project; buckets whose requester pays are not supported."
_KEPT = "Name a bucket without retention policy and holds: what is old is deleted."
_WHOLE = "non-partial response"
"""What obstore says of an object that is given whole, because Google decompresses it on its way."""
_COMPRESSED = "Put the object without Content-Encoding gzip, or with Cache-Control no-transform."
_UNAUTHENTICATED = "status code: 401"
_GCS_CURES = {
    "NoSuchBucket": "Make the bucket, or name one that is there.",
    "InvalidBucketName": "Name a bucket that can be.",
    "AuthenticationRequired": _GCS_TOKEN,
    "ExpiredToken": _GCS_TOKEN,
    "InvalidSecurity": _GCS_TOKEN,
    "RequestTimeTooSkewed": "Set the clock of this machine.",
    "AccountProblem": _BILLING,
    "UserProjectAccountProblem": _BILLING,
    "UserProjectMissing": _BILLING,
    "ObjectUnderActiveHold": _KEPT,
    "RetentionPolicyNotMet": _KEPT,
    "KeyTooLong": "Write a shorter prefix: a name has 1,024 bytes at most.",
}
"""Error code -> cure, where no retry helps."""
_GCS_DENIED = frozenset({"AccessDenied", "InsufficientPermission", "Forbidden"})


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
        return Address(bucket=host, conn_id=user) if _GCS_BUCKET.match(host) else None

    def settings_of(self, connection: Connection) -> dict[str, str]:
        self.require_type(connection)
        endpoint = str(_gcs_extra(connection, _ENDPOINT) or "").rstrip("/")
        place = {"base_url": endpoint} if endpoint else {}
        if str(_gcs_extra(connection, "is_anonymous")).lower() in ("true", "1"):
            # An empty token, because obstore asks for one where it writes.
            return {**place, "skip_signature": "true", "bearer_token": ""}
        for name in _GCS_NOT_FOLLOWED:
            if _gcs_extra(connection, name) not in (None, "", False, "false", "False"):
                raise ConfigurationError(
                    f"the connection {connection.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Give it a key (keyfile_dict or key_path), or leave the extra out: then the application default "
                    "credentials of the machines are used.",
                )
        _require_usual_scope(connection)
        key = _key_of(connection)
        return {**place, "service_account_key": key, "skip_signature": "false"} if key else place

    def client_of(self, connection: Connection) -> dict[str, str]:
        values = {setting: _gcs_extra(connection, name) for name, setting in _GCS_CLIENT.items()}
        return {setting: str(value) for setting, value in values.items() if value not in (None, "")}

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

    def portable(self, connection: Connection) -> Connection:
        """With the content of its key file, for processes on other machines."""
        if connection.conn_type != self.conn_type or not _gcs_extra(connection, "key_path"):
            return connection
        extra = {name: value for name, value in connection.extra.items() if name.removeprefix(_PREFIX) != "key_path"}
        return replace(connection, extra={**extra, "keyfile_dict": _key_of(connection)})

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if code in _GCS_CURES:
            return _GCS_CURES[code]
        if code in _GCS_DENIED:
            return self.refused(rights)
        if _WHOLE in text:
            return _COMPRESSED
        return _GCS_TOKEN if _REFUSED_TOKEN.search(text) or _UNAUTHENTICATED in text else ""

    def refused(self, rights: str) -> str:
        return f"Give this account the right to {rights} objects there (role Storage Object User)."

    def store_class(self, module: Any) -> Any:
        return module.GCSStore


GCS = _Gcs()


def _gcs_extra(connection: Connection, name: str) -> Any:
    """Also with the prefix that older connections have before the name."""
    value = connection.extra.get(name)
    return connection.extra.get(f"{_PREFIX}{name}") if value is None else value


def _require_usual_scope(connection: Connection) -> None:
    scopes = [scope.strip() for scope in str(_gcs_extra(connection, "scope") or _SCOPE).split(",")]
    if _SCOPE not in scopes:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has the extra 'scope', which is not followed here: tokens are for "
            "cloud-platform",
            "Leave it out of a connection for this package: what the account may do is said by its roles.",
        )


def _key_of(connection: Connection) -> str:
    """The key as JSON; "" if the connection has none.

    :raises ConfigurationError: it has two, or what it has is no key of a service account. Nothing of it is shown.
    """
    path, written = _gcs_extra(connection, "key_path"), _gcs_extra(connection, "keyfile_dict")
    if path and written:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has both key_path and keyfile_dict", "Leave one of them out."
        )
    if not path and not written:
        return ""
    key_source = f"the extra keyfile_dict of the connection {connection.conn_id!r}"
    if path:
        key_source = f"the key file {path!r} of the connection {connection.conn_id!r}"
        written = _content_of(connection, str(path))
    try:
        content = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        raise ConfigurationError(f"{key_source} is no JSON", _WRITE_KEY) from None
    if not isinstance(content, Mapping) or content.get("type", "service_account") != "service_account":
        raise ConfigurationError(f"{key_source} is no key of a service account", _WRITE_KEY)
    missing = [name for name in _OF_A_KEY if not isinstance(content.get(name), str) or not content[name]]
    if missing:
        raise ConfigurationError(f"{key_source} has no {' and no '.join(missing)}", _WRITE_KEY)
    # Keys that were pasted into forms have two characters for the end of a line.
    return json.dumps({name: content[name].replace("\\n", "\n") for name in _OF_A_KEY})


def _content_of(connection: Connection, path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:  # a FileNotFoundError would stand for a missing object
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} names the key file {path!r}, which cannot be read here ({why})",
            "Put the file on each machine that runs tasks, or its content into the extra keyfile_dict.",
        ) from None
