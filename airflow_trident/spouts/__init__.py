"""Base classes and types for spouts of your own, and the sources of a spooled spout.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.public_names import public_name, public_names

if TYPE_CHECKING:
    from airflow_trident.contracts.partitioned_spout import PartitionedSpout as PartitionedSpout
    from airflow_trident.contracts.spout import BatchSpout as BatchSpout
    from airflow_trident.contracts.spout import Coordinator as Coordinator
    from airflow_trident.contracts.spout import Emitter as Emitter
    from airflow_trident.contracts.spout import Split as Split
    from airflow_trident.contracts.spout import Spout as Spout
    from airflow_trident.protocol.spout_kinds import SpoutKind as SpoutKind
    from airflow_trident.spouts.spool.sources import CallableSource as CallableSource
    from airflow_trident.spouts.spool.sources import CommandSource as CommandSource
    from airflow_trident.spouts.spool.sources import Polled as Polled
    from airflow_trident.spouts.spool.sources import SpoolSource as SpoolSource


def __getattr__(name: str) -> Any:
    return [*public_names(__name__)] if name == "__all__" else public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *public_names(__name__)])
