"""What a DataFrame function may know about its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_trident.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """Given to a transform that has a parameter `context`.

    `time_ms`: of the transaction, in milliseconds since 1970: when its run was due, or when it began. Every attempt has
    the same, unlike `current_timestamp()`. `metadata`: stream -> what its spout recorded, for streams with data in this
    batch.
    """

    topology: str
    txid: int
    attempt: int
    time_ms: int
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """`time_ms` in UTC, for a literal column."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)
