"""A shaken run: the same job under settings that mean nothing. What comes out otherwise depended on them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_trident.contracts.spout import Split

MORE = 3
"""So many partitions more."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"


def turned(splits: Sequence[Split]) -> list[Split]:
    """The last one first, and so numbered: their numbers say who reads which, too."""
    return [replace(split, index=place) for place, split in enumerate(reversed(splits))]


def shaken_conf(setting: Callable[[str, str], str]) -> dict[str, str]:
    """Settings of Spark that change how it gets somewhere, and not where.

    :param setting: ``setting(name, default)``: as they are.
    """
    adaptive = setting(_ADAPTIVE, "true").lower() == "true"
    return {_PARTITIONS: str(int(setting(_PARTITIONS, "200")) + MORE), _ADAPTIVE: "false" if adaptive else "true"}


def told(conf: dict[str, str]) -> str:
    """For people."""
    adaptive = "on" if conf[_ADAPTIVE] == "true" else "off"
    return f"shaken: {conf[_PARTITIONS]} shuffle partitions, adaptive execution {adaptive}, the last input first"
