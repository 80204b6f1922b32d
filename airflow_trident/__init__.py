"""Exactly-once batches on Airflow and Spark: Storm's Trident as Airflow tasks, with a ledger in ZooKeeper.

Importing this package and building a DAG with it opens no connection, and imports neither Spark nor ZooKeeper's client:
each public name below is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.public_names import public_name, public_names
from airflow_trident.version import VERSION

if TYPE_CHECKING:
    # Each public name is listed only here: `public_names` reads these lines.
    from airflow_trident.contracts.updater import StateUpdater as StateUpdater
    from airflow_trident.errors import FailedException as FailedException
    from airflow_trident.errors import TridentError as TridentError
    from airflow_trident.mending_dag import trident_mending_dag as trident_mending_dag
    from airflow_trident.operations.aggregators import Count as Count
    from airflow_trident.operations.aggregators import Max as Max
    from airflow_trident.operations.aggregators import Min as Min
    from airflow_trident.operations.aggregators import Sum as Sum
    from airflow_trident.operations.interfaces import Aggregator as Aggregator
    from airflow_trident.operations.interfaces import CombinerAggregator as CombinerAggregator
    from airflow_trident.operations.interfaces import CustomGrouping as CustomGrouping
    from airflow_trident.operations.interfaces import Filter as Filter
    from airflow_trident.operations.interfaces import Function as Function
    from airflow_trident.operations.interfaces import GroupedMultiReducer as GroupedMultiReducer
    from airflow_trident.operations.interfaces import JoinType as JoinType
    from airflow_trident.operations.interfaces import MultiReducer as MultiReducer
    from airflow_trident.operations.interfaces import OperationContext as OperationContext
    from airflow_trident.operations.interfaces import ReducerAggregator as ReducerAggregator
    from airflow_trident.operations.interfaces import TransformContext as TransformContext
    from airflow_trident.operations.interfaces import VectorFilter as VectorFilter
    from airflow_trident.operations.interfaces import VectorFunction as VectorFunction
    from airflow_trident.operations.state_functions import QueryFunction as QueryFunction
    from airflow_trident.operations.state_functions import StatefulFunction as StatefulFunction
    from airflow_trident.operators.backfill import TridentBackfillOperator as TridentBackfillOperator
    from airflow_trident.operators.drain import TridentDrainOperator as TridentDrainOperator
    from airflow_trident.operators.query import TridentQueryOperator as TridentQueryOperator
    from airflow_trident.operators.spark_submit import TridentSparkSubmitOperator as TridentSparkSubmitOperator
    from airflow_trident.operators.transaction import TridentCommitterOperator as TridentCommitterOperator
    from airflow_trident.operators.transaction import TridentCoordinatorOperator as TridentCoordinatorOperator
    from airflow_trident.operators.transaction import TridentEmitterOperator as TridentEmitterOperator
    from airflow_trident.protocol.partitions import Partitions as Partitions
    from airflow_trident.runtime.query import query as query
    from airflow_trident.sensors.ready import TridentReadySensor as TridentReadySensor
    from airflow_trident.sensors.turn import TridentTurnSensor as TridentTurnSensor
    from airflow_trident.spouts.data_frames import DataFrameSpout as DataFrameSpout
    from airflow_trident.spouts.files.spout import FileSpout as FileSpout
    from airflow_trident.spouts.kafka.spout import KafkaSpout as KafkaSpout
    from airflow_trident.spouts.memory import FixedBatchSpout as FixedBatchSpout
    from airflow_trident.spouts.redis import RedisSpout as RedisSpout
    from airflow_trident.spouts.redis import RedisStreamSpout as RedisStreamSpout
    from airflow_trident.spouts.spool.spout import SpooledSpout as SpooledSpout
    from airflow_trident.spouts.sql import SqlSpout as SqlSpout
    from airflow_trident.spouts.tables import TableSpout as TableSpout
    from airflow_trident.states.delta.state import DeltaState as DeltaState
    from airflow_trident.states.delta.table import DeltaTable as DeltaTable
    from airflow_trident.states.files.sink import FileSink as FileSink
    from airflow_trident.states.iceberg.table import IcebergTable as IcebergTable
    from airflow_trident.states.keyvalue.stateful import KeyValueStates as KeyValueStates
    from airflow_trident.states.memory import MemoryState as MemoryState
    from airflow_trident.states.redis.state import RedisState as RedisState
    from airflow_trident.states.sql.postgres import PostgresState as PostgresState
    from airflow_trident.states.sql.sqlalchemy_state import SqlState as SqlState
    from airflow_trident.states.sql.sqlite import SqliteState as SqliteState
    from airflow_trident.states.sql.table_sink import TableSink as TableSink
    from airflow_trident.task_group import trident_transaction as trident_transaction
    from airflow_trident.tasks.retry_policy import TridentRetryPolicy as TridentRetryPolicy
    from airflow_trident.topology.script import Script as Script
    from airflow_trident.topology.stream import Stream as Stream
    from airflow_trident.topology.topology import Topology as Topology
    from airflow_trident.triggers.batch import TridentBatchTrigger as TridentBatchTrigger


__version__ = VERSION


def __getattr__(name: str) -> Any:
    return ["__version__", *public_names(__name__)] if name == "__all__" else public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *public_names(__name__)])
