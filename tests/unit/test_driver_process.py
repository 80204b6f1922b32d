"""How a driver is looked for that somebody lost sight of."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from airflow_trident.engine.spark.submit import DriverTags
from airflow_trident.errors import SparkJobError
from airflow_trident.ledger.workers import Worker, is_alive, own_process_ids
from airflow_trident.protocol.records import Owner
from airflow_trident.runtime.drains import app as drain_app
from airflow_trident.tasks.drivers import ClusterKind, DriverCluster, DriverProcess, find_client_driver
from tests.fixtures.spark import free_port

ORDER = "/staging/drains/fruit-1.order"


def test_a_driver_on_this_machine_is_known_by_the_order_in_its_command_line() -> None:
    program = "import sys; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, ORDER, "result"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        driver = DriverProcess(host=socket.gethostname(), pid=process.pid, order=ORDER, workers=tuple)
        assert driver.active()
        assert not replace(driver, order="/staging/drains/fruit-2.order").active()  # its id was given anew
        driver.kill()
        process.wait(30)
        assert (driver.active(), driver.state()) == (False, "")
        driver.kill()


def test_a_spark_submit_is_found_by_the_setting_of_its_order_and_ended_with_the_application_below_it() -> None:
    child = "import sys; print('up', flush=True); sys.stdin.read()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); sys.stdin.read()"
    mine, others = (DriverTags(topology="fruit", order=one).order_setting for one in ("0af1", "0af2"))
    command = [sys.executable, "-c", program, "--conf", mine, "job.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert find_client_driver(others) is None
        driver = find_client_driver(mine)
        assert driver is not None
        assert (driver.pid, driver.active()) == (process.pid, True)
        (below,) = psutil.Process(process.pid).children()
        driver.kill()
        assert process.wait(30) == -signal.SIGTERM
        below.wait(30)
        assert not driver.active()
        assert find_client_driver(mine) is None


def test_a_driver_on_another_machine_is_looked_up_among_the_live_workers() -> None:
    listed: list[Worker] = [Worker(host="elsewhere", pid=7, task="drain", txid=None, since_ms=0)]
    driver = DriverProcess(host="elsewhere", pid=7, order=ORDER, workers=lambda: listed)
    assert driver.active()
    assert not replace(driver, pid=8).active()
    listed.clear()
    assert not driver.active()


def test_a_worker_whose_process_ids_are_not_ours_is_alive_as_long_as_it_is_listed() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    gone = Worker(host=socket.gethostname(), pid=process.pid, task="drain", txid=None, since_ms=0)
    owner = Owner(program="drain", host=gone.host, pid=gone.pid)
    assert not is_alive([gone], owner)  # listed by a version that did not say
    assert not is_alive([replace(gone, process_ids=own_process_ids())], owner)
    assert is_alive([replace(gone, process_ids="of a container with the network of this machine")], owner)


def test_the_task_of_a_submitted_drain_is_alive_while_its_driver_is() -> None:
    """Its own process may have ended: it is deferred."""
    task = Owner(dag_id="dag", run_id="run", task_id="drain", try_number=1, host="where it was", pid=7)
    owner = drain_app.here(task)
    assert owner.is_same_task(task)
    assert is_alive([Worker.of(owner)], owner)
    program = Owner(program="airflow trident drain")
    assert drain_app.here(program) == program


@pytest.mark.parametrize("kind", [ClusterKind.STANDALONE, ClusterKind.YARN])
def test_a_cluster_that_does_not_answer_is_an_error_that_names_its_address(kind: ClusterKind) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    cluster = DriverCluster(kind=kind, addresses=(address,))
    with pytest.raises(SparkJobError, match=rf"answers? at {address} ") as refused:
        cluster.driver("driver-1").active()
    assert ("spark.master.rest.enabled" in refused.value.cure) == (kind is ClusterKind.STANDALONE)
    assert ("yarn_resourcemanager_webapp_address" in refused.value.cure) == (kind is ClusterKind.YARN)
