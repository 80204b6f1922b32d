"""For tests of topologies, spouts and states: runs in one process, and the promises as suites. Needs no server, and no
test framework in particular."""

from airflow_trident.engine.local import LocalEngine as LocalEngine
from airflow_trident.ledger.ledger import MemoryLedger as MemoryLedger
from airflow_trident.runtime.local import LocalRunner as LocalRunner
from airflow_trident.spouts.memory import MemoryTransactionalSpout as MemoryTransactionalSpout
from airflow_trident.spouts.memory import OpaqueMemoryTransactionalSpout as OpaqueMemoryTransactionalSpout
from airflow_trident.states.memory import MemoryState as MemoryState
from airflow_trident.testing.local_runner import contents as contents
from airflow_trident.testing.local_runner import local_runner as local_runner
from airflow_trident.testing.suites import SPOUT_CHECKS as SPOUT_CHECKS
from airflow_trident.testing.suites import STATE_CHECKS as STATE_CHECKS
from airflow_trident.testing.suites import SpoutCase as SpoutCase
from airflow_trident.testing.suites import spout_suite as spout_suite
from airflow_trident.testing.suites import state_suite as state_suite
