"""Optional drivers. They are imported on first use; the error for a missing one says what to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from airflow_trident.errors import MissingExtraError

SUBMIT_EXTRA = "airflow-trident[submit]"
"""For connections of type ``spark`` and ``spark_connect``."""
KUBERNETES_PROVIDER = "apache-airflow-providers-cncf-kubernetes"
"""For masters of Kubernetes: the Spark provider needs it to submit to them."""


def require_extra(module: str, extra: str) -> ModuleType:
    """The module of an optional driver: ``require_extra("redis.cluster", "airflow-trident[redis]")``.

    :param extra: what to install for it, in pip's notation.
    :raises MissingExtraError: it, or a module that it needs, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the module {error.name!r} is not installed here", f'Install it: pip install "{extra}".'
        ) from error
