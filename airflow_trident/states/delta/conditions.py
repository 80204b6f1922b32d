"""Does the store of a Delta table in a bucket give a name away only once? delta-rs relies on that without a check."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow_trident.io.delta import DeltaPlace
from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.staging.storage import ObjectStorage

_SCHEMES = ("s3", "s3a")
_SETTINGS = {
    name: name
    for name in (
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "endpoint",
        "virtual_hosted_style_request",
    )
} | {"endpoint_url": "endpoint", "default_region": "region"}
"""Storage option of delta-rs, without ``aws_`` -> setting of obstore."""


def require_conditions(place: DeltaPlace) -> None:
    """:raises ConfigurationError: it does not: two committers could both write the next version.
    :raises MissingExtraError: the check needs obstore.
    """
    parts = urlsplit(place.where)
    if parts.scheme not in _SCHEMES:
        return
    said = {name.lower().removeprefix("aws_"): value for name, value in place.options.items()}
    settings = {_SETTINGS[name]: value for name, value in said.items() if name in _SETTINGS}
    bucket = ObjectPlace(bucket=parts.netloc, prefix=parts.path.strip("/"), settings=tuple(sorted(settings.items())))
    ObjectStorage(bucket).require_usable()
