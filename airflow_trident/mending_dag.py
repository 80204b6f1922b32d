"""The DAG that does the actions of the page that need the topology's own code."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import DAG

from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.mending import TridentMendingOperator
from airflow_trident.tasks.mending_order import MENDING_DAG

_DOC = """\
Runs what is asked for on the page "Transactions": backfill, accept, bisect. The page starts a run for who may edit the
DAG that has the topology. Who may trigger this DAG by hand may mend every topology.
"""


def trident_mending_dag(**dag_args: Any) -> DAG:
    """Make the mending DAG. Call it once in an installation, in a DAG file of two lines::

        from airflow_trident import trident_mending_dag

        dag = trident_mending_dag()

    :param dag_args: arguments of the DAG, such as ``default_args`` with a pool or a queue.
    :raises ConfigurationError: they set the DAG's id, by which the page finds it, or its schedule.
    """
    for name in ("dag_id", "schedule"):
        if name in dag_args:
            raise ConfigurationError(f"{name} of the mending DAG cannot be chosen", f"Leave out {name}.")
    arguments = {"catchup": False, "is_paused_upon_creation": False, "tags": ["trident"], "doc_md": _DOC, **dag_args}
    with DAG(MENDING_DAG, schedule=None, **arguments) as dag:
        TridentMendingOperator(task_id="mend", retries=0)
    return dag
