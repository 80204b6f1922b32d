"""A task is killed between the submission of a driver and the moment when it is remembered which one that is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.submit_kills import Contender, Deployment, Outcome, Point, deployment

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("submit_kills")) as found:
        yield found


def test_the_providers_operator_submits_a_second_driver(killed: Deployment) -> None:
    """What ResumableJobMixin says of itself. Without this the next test would say nothing."""
    assert killed.kill(Contender.STOCK, Point.SUBMITTED, 1) == Outcome(kills=1, drivers=2, at_work=2, succeeded=1)


@pytest.mark.parametrize("point", Point)
def test_of_a_submitted_drain_one_driver_works(killed: Deployment, point: Point) -> None:
    outcome = killed.kill(Contender.TRIDENT, point, 2)
    assert (outcome.at_work, outcome.doubles, outcome.succeeded) == (2, 0, 2), outcome
