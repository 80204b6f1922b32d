"""Names of objects as Hadoop's connectors for Azure and Google Cloud Storage know them."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.gcs import GCS
from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.io.s3 import S3


def root_in_hadoop(place: ObjectPlace) -> str:
    """A place of one of the two; empty: nobody says which account it is of, or that has an address of its own.

    :param place: resolved.
    """
    if place.scheme in S3.schemes:
        return ""
    if place.scheme in GCS.schemes:
        return f"{GCS.schemes[0]}://{place.key('')}"
    settings = dict(place.settings)
    account, endpoint = settings.get("account_name", ""), settings.get("endpoint", "").rstrip("/")
    host = place.account_host.replace(".blob.", ".dfs.", 1)
    if not host and account and endpoint in ("", f"https://{account}.blob.core.windows.net"):
        host = f"{account}.dfs.core.windows.net"
    return f"abfss://{place.bucket}@{host}/{place.prefix}" if host else ""


def uri_in_hadoop(uri: str, options: Mapping[str, str]) -> str:
    """As :func:`root_in_hadoop`, of a URI.

    :param options: of delta-rs; of the account, with or without ``AZURE_STORAGE_``.
    """
    try:
        place = ObjectPlace.parse("a table", uri)
    except ConfigurationError:
        return ""
    known = {name.lower().removeprefix("azure_").removeprefix("storage_"): value for name, value in options.items()}
    given = tuple((name, known[name]) for name in ("account_name", "endpoint") if name in known)
    return root_in_hadoop(
        ObjectPlace(
            bucket=place.bucket,
            prefix=place.prefix,
            scheme=place.scheme,
            account_host=place.account_host,
            settings=given,
        )
    )
