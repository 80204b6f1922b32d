"""Storm's older APIs, over the rest of this package: transactional topologies, bolts and spouts in other programs,
topology files of qtopology, named workers.

As in :mod:`airflow_trident`, each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.public_names import public_name, public_names

if TYPE_CHECKING:
    from airflow_trident.operations.interfaces import TransactionAttempt as TransactionAttempt
    from airflow_trident.storm.bolts import BaseBatchBolt as BaseBatchBolt
    from airflow_trident.storm.bolts import BaseStatefulBolt as BaseStatefulBolt
    from airflow_trident.storm.bolts import BaseTransactionalBolt as BaseTransactionalBolt
    from airflow_trident.storm.bolts import BasicBolt as BasicBolt
    from airflow_trident.storm.bolts import BasicOutputCollector as BasicOutputCollector
    from airflow_trident.storm.bolts import BatchOutputCollector as BatchOutputCollector
    from airflow_trident.storm.bolts import BoltTuple as BoltTuple
    from airflow_trident.storm.bolts import FieldsDeclarer as FieldsDeclarer
    from airflow_trident.storm.bolts import ICommitter as ICommitter
    from airflow_trident.storm.bolts import OutputFieldsDeclarer as OutputFieldsDeclarer
    from airflow_trident.storm.bolts import TopologyContext as TopologyContext
    from airflow_trident.storm.builder import TransactionalTopologyBuilder as TransactionalTopologyBuilder
    from airflow_trident.storm.components.bolt import bolt as bolt
    from airflow_trident.storm.components.bolt_sink import BoltSink as BoltSink
    from airflow_trident.storm.components.multilang import ShellBolt as ShellBolt
    from airflow_trident.storm.components.qtopology import NodeBolt as NodeBolt
    from airflow_trident.storm.components.spouts import NodeSpout as NodeSpout
    from airflow_trident.storm.components.spouts import ShellSpout as ShellSpout
    from airflow_trident.storm.operators import TridentWorkerOperator as TridentWorkerOperator
    from airflow_trident.storm.qtopology_import import from_qtopology as from_qtopology
    from airflow_trident.storm.spouts import OpaquePartitionedTransactionalSpout as OpaquePartitionedTransactionalSpout
    from airflow_trident.storm.spouts import PartitionedTransactionalSpout as PartitionedTransactionalSpout
    from airflow_trident.storm.spouts import TransactionalSpout as TransactionalSpout


def __getattr__(name: str) -> Any:
    return [*public_names(__name__)] if name == "__all__" else public_name(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *public_names(__name__)])
