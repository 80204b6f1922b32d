"""A task is killed between the submission of a driver and the moment when it remembers which driver that is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_trident.tasks.drivers import SparkDriver
from tests.fixtures.submit_kills import CONNECTION, Contender, Deployment, Outcome, Point, deployment

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("submit_kills")) as found:
        yield found


def test_the_providers_operator_submits_a_second_driver_and_nothing_when_it_is_cleared(killed: Deployment) -> None:
    """ResumableJobMixin itself documents this. Without this test the next one would prove nothing."""
    twice = Outcome(kills=1, drivers=2, at_work=2, succeeded=1)
    assert killed.kill(Contender.STOCK, Point.SUBMITTED, 1) == twice
    assert killed.clear(Contender.STOCK, Point.SUBMITTED) == twice


@pytest.mark.parametrize("point", Point)
def test_of_a_submitted_drain_one_driver_works_and_another_one_when_it_is_cleared(
    killed: Deployment, point: Point
) -> None:
    found = killed.kill(Contender.TRIDENT, point, 2)
    assert (found.at_work, found.doubles, found.succeeded) == (2, 0, 2), found
    if point is Point.SUBMITTED:
        cleared = killed.clear(Contender.TRIDENT, point)
        assert (cleared.at_work, cleared.succeeded) == (3, 2), cleared


def test_a_driver_that_the_cluster_has_forgotten_ends_a_retry_of_the_providers_operator_and_none_of_ours(
    killed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, killed.airflow.environment[CONNECTION])
    forgotten = "driver-20200101000000-0000"
    with pytest.raises(RuntimeError, match="returned failure for driver-2020"):
        SparkSubmitOperator(task_id="submit", conn_id="spark_kills").get_job_status(forgotten, {})
    driver = SparkDriver(masters=(f"http://127.0.0.1:{killed.cluster.rest}",), driver_id=forgotten)
    assert (driver.state(), driver.active()) == ("", False)
