"""How many keys a partition may have where Python holds them all at once."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.errors import ConfigurationError
from airflow_trident.operations.interfaces import OperationContext

NO_LIMIT = 0


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """Of one node in one partition. `max_keys`: so many keys; NO_LIMIT: any number."""

    node: str
    max_keys: int
    context: OperationContext

    def require(self, keys: int) -> None:
        """:raises ConfigurationError: more keys than the limit. Its `txid` is the transaction's."""
        if keys <= self.max_keys or self.max_keys == NO_LIMIT:
            return
        context = self.context
        error = ConfigurationError(
            f"{self.node}: partition {context.partition_index + 1} of {context.num_partitions} has {keys:,} keys so "
            f"far in transaction {context.txid}, which Python holds all at once: more than the {self.max_keys:,} of "
            "[trident] max_partition_keys",
            "Give the operation more partitions (parallelism_hint, spark.sql.shuffle.partitions), use a built-in "
            "aggregator, which runs in the JVM, group by a coarser key, or make the batches smaller. Raise "
            "max_partition_keys where the Python workers have the memory, some 400 bytes a key.",
        )
        error.txid = context.txid
        error.may_quote_rows = False
        raise error
