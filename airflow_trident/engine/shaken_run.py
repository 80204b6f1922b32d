"""A shaken run: the same job under settings that must not change the result. If the output differs, it depends on them.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_trident.contracts.spout import Split

MORE = 3
"""How many more partitions."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"


def turned(splits: Sequence[Split]) -> list[Split]:
    """Reverses the splits and renumbers them: their numbers also decide who reads which."""
    return [replace(split, index=place) for place, split in enumerate(reversed(splits))]


def shaken_conf(setting: Callable[[str, str], str]) -> dict[str, str]:
    """Settings that change how Spark works, but not the result.

    :param setting: ``setting(name, default)``: the current value.
    """
    adaptive = setting(_ADAPTIVE, "true").lower() == "true"
    return {_PARTITIONS: str(int(setting(_PARTITIONS, "200")) + MORE), _ADAPTIVE: "false" if adaptive else "true"}


def told(conf: dict[str, str]) -> str:
    """The settings in words, for people."""
    adaptive = "on" if conf[_ADAPTIVE] == "true" else "off"
    return f"shaken: {conf[_PARTITIONS]} shuffle partitions, adaptive execution {adaptive}, the last input first"
