"""A PySpark script by spark-submit under a real scheduler: whoever is killed, every order is in
the files once."""

from __future__ import annotations

import os
import signal

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_trident.protocol.records import Status
from tests.system.conftest import Scene

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]


def bring(scene: Scene, *numbers: int) -> None:
    (scene.folder / "orders").mkdir(exist_ok=True)
    for number in numbers:
        whole = scene.folder / f"{number}.csv"
        whole.write_text(f"customer,cents\nann,{number}\nbob,{10 * number}\nann,{100 * number}\n")
        whole.rename(scene.folder / "orders" / whole.name)


def assert_exact(scene: Scene, transactions: int) -> None:
    rows = [row for file in (scene.folder / "lake").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    wanted = [(name, cents) for n in range(1, transactions + 1) for name, cents in (("ann", 101 * n), ("bob", 10 * n))]
    assert sorted((row["customer"], row["cents"]) for row in rows) == sorted(wanted)
    assert scene.statuses() == [Status.COMMITTED] * transactions


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("scene", ["script_kills"], indirect=True)
def test_kill_9_of_the_task_leaves_a_driver_that_the_next_attempt_ends_and_kill_9_of_a_driver_is_tried_again(
    scene: Scene,
) -> None:
    bring(scene, 1)
    hold = scene.tell("hold-1")
    scene.trigger(1)
    left = scene.held(1, 0)
    scene.kill_owner(1)
    scene.held(1, 1)
    scene.until(lambda: _ended(left), "the driver of the killed task is ended")
    hold.unlink()
    assert scene.until_finished() == {"tx-1": "success"}
    assert not (scene.folder / "wrote-1-0").exists()
    assert scene.records()[1].attempt == 1
    assert_exact(scene, 1)

    bring(scene, 2)
    hold = scene.tell("hold-2")
    scene.trigger(2)
    os.kill(scene.held(2, 0), signal.SIGKILL)
    scene.held(2, 1)
    hold.unlink()
    assert scene.until_finished()["tx-2"] == "success"
    assert scene.records()[2].attempt == 1
    assert not (scene.folder / "wrote-2-0").exists()
    assert_exact(scene, 2)
