"""Groupings that users write, after Storm's CustomStreamGrouping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from airflow_trident.operations.api import Operation


class CustomGrouping(Operation, ABC):
    """Chooses the partitions of a tuple: one, several, or none, which drops the tuple."""

    @abstractmethod
    def choose_partitions(self, num_partitions: int, *values: Any) -> Iterable[int]:
        """Partition numbers from 0 to ``num_partitions - 1`` for a tuple with these values."""
