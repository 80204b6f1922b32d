"""Arguments of tasks, as templates and XComs give them."""

from __future__ import annotations

from typing import Any

from airflow_trident.errors import ConfigurationError


def parse_txids(value: Any) -> list[int]:
    """One txid or several from a template or an XCom: lowest first, each once.

    :raises ConfigurationError: one of them is not a number from 1 upwards, or there is none.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
    values = value if isinstance(value, list | tuple) else [value]
    return sorted({parse_txid(one) for one in values or [None]})


def parse_txid(value: Any) -> int:
    """A txid from a template or an XCom.

    :raises ConfigurationError: it is not a number from 1 upwards.
    """
    try:
        txid = int(str(value).strip())
    except ValueError:
        txid = 0
    if txid < 1:
        raise ConfigurationError(
            f"{value!r} is not a txid", "Give the coordinator's output, as in txid=coordinator.output."
        )
    return txid


def is_known(value: Any) -> bool:
    """Is the value known while the DAG is built, so neither a template nor the output of another task?"""
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and "{" not in value)
