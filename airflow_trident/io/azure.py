"""Azure Blob Storage and Data Lake Storage Gen2: ``abfs://container/prefix``, connections of type ``wasb``.

A place is written as in Airflow's ObjectStoragePath, with the id of a connection before the container, or as in Hadoop,
with the account after it: ``abfss://container@account.dfs.core.windows.net/prefix``. A container has no dot in its
name, so the two forms cannot be mixed up. All schemes mean the same, ``wasbs`` too: the Blob API is used, with TLS if
the account's URL says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.object_service import Address, ObjectService, certificates, mapping

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
_TOKEN = "See client id, secret and tenant of the connection, or the identity of this machine."
_NETWORK = (
    "Let the account's firewall take requests of this machine, or give this user the right to {rights} blobs there."
)
_REFUSED_TOKEN = re.compile(r"performing token request.*status code: 40[013]", re.DOTALL)
"""Microsoft Entra refuses the client or the identity, for instance because its secret has expired."""
_CURES = {
    "ContainerNotFound": "Make the container, or name one that is there.",
    "ContainerBeingDeleted": "Name another container, or make it anew when it is gone.",
    "ContainerDisabled": "Name a container that is not disabled.",
    "InvalidResourceName": "Name a container that can be.",
    "AccountIsDisabled": "Name an account that is not disabled.",
    "AuthenticationFailed": _KEY,
    "InvalidAuthenticationInfo": _TOKEN,
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
_NOT_FOLLOWED = ("proxies", "connection_cert", "account_host", "workload_identity_client_id")
_CLIENT = {"connection_timeout": "connect_timeout", "read_timeout": "read_timeout", "retry_total": "max_retries"}
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
        found = _ACCOUNT_HOST.match(host)
        if found is None or not _CONTAINER.match(user):
            return None
        settings = (("account_name", found[1]), ("endpoint", f"https://{found[1]}.blob.{found[2]}"))
        return Address(bucket=user, account_host=host, settings=settings)

    def settings_of(self, found: Connection) -> dict[str, str]:
        self.require_type(found)
        for name in _NOT_FOLLOWED:
            if found.extra.get(name):
                raise ConfigurationError(
                    f"the connection {found.conn_id!r} has the extra {name!r}, which is not followed here",
                    "Leave it out, or name no connection: the environment of the machines is asked.",
                )
        written = _extra(found, "connection_string")
        if written:
            return _of_connection_string(found, written)
        settings = _credentials(found)
        url = _account_url(found, settings.pop("endpoint", ""))
        login = "" if "client_id" in settings else found.login
        account = _extra(found, "account_name") or _account_of(url, login)
        return {"account_name": account, "endpoint": url, **settings}

    def client_of(self, found: Connection) -> dict[str, str]:
        client = {own: str(found.extra[name]) for name, own in _CLIENT.items() if found.extra.get(name) is not None}
        return client | certificates(found.extra.get("connection_verify"))

    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        variables = os.environ.get("AZURE_STORAGE_ENDPOINT", "") or os.environ.get("AZURE_ENDPOINT", "")
        return settings.get("endpoint") or variables

    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        if _REFUSED_TOKEN.search(text):
            return _TOKEN
        if code == "AuthenticationFailed" or "failed to authenticate" in text:  # azurite has another code for it
            return next((cure for part, cure in _DETAILS.items() if part in text), _KEY)
        return self.refused(rights) if code in _RIGHTS else _CURES.get(code, "").format(rights=rights)

    def refused(self, rights: str) -> str:
        return f"Give this user the right to {rights} blobs there (role Storage Blob Data Contributor)."

    def store_class(self, module: Any) -> Any:
        return module.AzureStore


AZURE = _Azure()


def _extra(found: Connection, name: str) -> str:
    """Also with the prefix that older connections have before the name."""
    return str(found.extra.get(name) or found.extra.get(f"extra__{AZURE.conn_type}__{name}") or "")


def _credentials(found: Connection) -> dict[str, str]:
    """In the order of Airflow's WasbHook. One kind only, named by `credential_type`: obstore would mix it with the
    environment's. None at all: the identity of each machine."""
    tenant = _extra(found, "tenant_id")
    if tenant:
        secret = {"credential_type": "client_secret", "client_id": found.login, "client_secret": found.password}
        authority = mapping(found.extra, "client_secret_auth_config").get("authority")
        return {
            **secret,
            "tenant_id": tenant,
            **({"authority_host": _with_scheme(str(authority))} if authority else {}),
        }
    sas = _extra(found, "sas_token")
    key = _extra(found, "shared_access_key") or ("" if sas else found.password or _extra(found, "account_key"))
    if key:
        return {"credential_type": "access_key", "account_key": key}
    if sas:
        where, _, token = sas.partition("?") if sas.startswith("http") else ("", "", sas.removeprefix("?"))
        return {"credential_type": "sas_token", "sas_key": token, **({"endpoint": where} if where else {})}
    identity, tenant = _extra(found, "managed_identity_client_id"), _extra(found, "workload_identity_tenant_id")
    return {name: value for name, value in (("client_id", identity), ("tenant_id", tenant)) if value}


def _account_url(found: Connection, of_sas: str) -> str:
    """As the hook reads host and login: a URL, a DNS name, or the account at Azure's own address."""
    host = of_sas or found.host
    if host and ("." in host or "://" in host):
        port = f":{found.port}" if found.port and "://" not in host else ""
        return _of_blobs(_with_scheme(f"{host.rstrip('/')}{port}"))
    account = _extra(found, "account_name")
    if _extra(found, "tenant_id") and not account:
        raise ConfigurationError(
            f"the connection {found.conn_id!r} has a tenant_id, so that its login is a client; it names no account",
            f"Write the account's URL as its host: {_ACCOUNT_URL}.",
        )
    account = account or found.login
    if not account:
        raise ConfigurationError(
            f"the connection {found.conn_id!r} names no account",
            f"Write the account as its login, or its URL as its host: {_ACCOUNT_URL}.",
        )
    return f"https://{account}.blob.core.windows.net"


def _of_blobs(url: str) -> str:
    """An account's URL at Azure, also of one that was copied with ``.dfs.`` in it or with the path of a container."""
    parts = urlsplit(url)
    found = _ACCOUNT_HOST.match(parts.netloc.lower())
    return f"{parts.scheme}://{found[1]}.blob.{found[2]}" if found else url


def _account_of(url: str, login: str = "") -> str:
    """First part of a host at Azure; for a server of several accounts the path: ``http://127.0.0.1:10000/one``."""
    parts = urlsplit(url)
    at_azure = _ACCOUNT_HOST.match(parts.netloc)
    return at_azure[1] if at_azure else parts.path.strip("/") or login or parts.netloc.split(".", 1)[0]


def _of_connection_string(found: Connection, written: str) -> dict[str, str]:
    """``AccountName=...;AccountKey=...;EndpointSuffix=core.windows.net``."""
    parts = {
        name.strip().lower(): value.strip()
        for name, _, value in (one.partition("=") for one in written.split(";"))
        if name
    }
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return dict(_EMULATOR)
    account, url = parts.get("accountname", ""), _of_blobs(parts.get("blobendpoint", "").rstrip("/"))
    if not account and not url:
        raise ConfigurationError(
            f"the connection string of the connection {found.conn_id!r} names no account",
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
