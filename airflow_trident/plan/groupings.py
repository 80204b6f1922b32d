"""How tuples are spread over partitions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, assert_never

from airflow_trident.operations.calls.function_names import function_name


class Grouping(StrEnum):
    """Trident's groupings, and COLOCATED."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    """Anywhere; here tuples stay where they are. No engine sees it."""
    FIELDS = "fields"
    GLOBAL = "global"
    BATCH_GLOBAL = "batch_global"
    """One partition per batch. A batch is one job here, so it does what GLOBAL does."""
    BROADCAST = "broadcast"
    IDENTITY = "identity"
    """From partition i to partition i; here tuples stay where they are. No engine sees it."""
    COLOCATED = "colocated"
    """Partition i of every input of a union into partition i; no verb of a user says it."""
    CUSTOM = "custom"

    @property
    def gathers(self) -> bool:
        """Does everything go into one partition?"""
        return self in (Grouping.GLOBAL, Grouping.BATCH_GLOBAL)

    @property
    def repeats(self) -> bool:
        """May a tuple come out more than once, or not at all?"""
        return self in (Grouping.BROADCAST, Grouping.CUSTOM)

    @property
    def stays(self) -> bool:
        """Does every tuple stay where it is?"""
        return self in (Grouping.IDENTITY, Grouping.LOCAL_OR_SHUFFLE)

    def what(self, keys: tuple[str, ...], custom: Any) -> str:
        """The grouping in words. :param keys: for FIELDS. :param custom: the user's grouping, for CUSTOM."""
        match self:
            case Grouping.SHUFFLE:
                return "evenly"
            case Grouping.LOCAL_OR_SHUFFLE:
                return "anywhere"
            case Grouping.GLOBAL | Grouping.BATCH_GLOBAL:
                return "into one partition"
            case Grouping.FIELDS:
                return f"by ({', '.join(keys)})"
            case Grouping.BROADCAST:
                return "into every partition"
            case Grouping.IDENTITY | Grouping.COLOCATED:
                return "partition by partition"
            case Grouping.CUSTOM:
                return f"as {function_name(custom)} says"
        assert_never(self)
