"""Groupings that users write, after Storm's CustomStreamGrouping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from airflow_trident.operations.api import Operation


class CustomGrouping(Operation, ABC):
    """Says to which partitions a tuple goes: one, several, or none, which drops it."""

    @abstractmethod
    def choose_partitions(self, num_partitions: int, *values: Any) -> Iterable[int]:
        """Numbers from 0 to ``num_partitions - 1`` for the tuple with these values."""
