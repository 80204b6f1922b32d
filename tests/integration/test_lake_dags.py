"""The examples with Delta Lake and Kafka, as they are: real Airflow, Spark, and servers."""

from __future__ import annotations

import pytest

from tests.airflow_fixtures import AirflowHome
from tests.integration.test_example_dags import examples  # noqa: F401 - a fixture

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

RUN = """
def run(dag):
    done = dag.test()
    return [done.state, {ti.task_id: ti.state for ti in done.get_task_instances()}]
def contents(topology):
    found = {}
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = {key[0]: value[0] for key, value in state.items()}
    return found
"""


def test_files_to_delta_sums_what_appears_and_nothing_twice(examples: AirflowHome) -> None:  # noqa: F811
    orders = examples.folder / "demo" / "orders"
    orders.mkdir()
    (orders / "1.csv").write_text("customer,cents\nann,120\nbob,5\nann,30\n")
    (orders / "2.csv").write_text("customer,cents\nbob,7\n")
    program = """
import files_to_delta
tell({"first": run(files_to_delta.dag), "again": run(files_to_delta.dag), "found": contents(files_to_delta.topology)})
"""
    told = examples.python(RUN + program)
    assert told["first"][0] == "success"
    assert told["again"][1]["files_to_delta.coordinate"] == "skipped"
    assert told["found"] == {"total_cents": {"ann": 150, "bob": 12}, "orders": {"ann": 2, "bob": 2}}
