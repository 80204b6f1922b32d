"""Arguments of tasks, as templates and XComs give them."""

from __future__ import annotations

from typing import Any

from airflow_trident.settings import parse_txid


def parse_txids(value: Any) -> list[int]:
    """One txid or several from a template or an XCom: lowest first, each once.

    :raises ConfigurationError: one of them is not a number from 1 upwards, or there is none.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
    values = value if isinstance(value, list | tuple) else [value]
    return sorted({parse_txid(one) for one in values or [None]})


def is_known(value: Any) -> bool:
    """Is the value known while the DAG is built, so neither a template nor the output of another task?"""
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and "{" not in value)
