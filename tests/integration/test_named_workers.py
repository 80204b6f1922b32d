"""Two real workers and a real ZooKeeper: the seed's sequence, and SIGKILL at each step of it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.znodes import Set
from airflow_trident.protocol.records import Command, Status
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.storm.workers.deployment import DeploymentCommand, Presence, WorkerStatus
from airflow_trident.storm.workers.deployments import undeploy
from tests.fixtures.named_worker import EXPECTED, LIMIT_S, Site, Worker, all_stopped, site, statuses, undisturbed
from tests.programs import word_count

__all__ = ["site", "undisturbed"]

pytestmark = pytest.mark.zookeeper


# ---- the seed's sequence ---------------------------------------------------------------------------------------


def test_every_message_of_the_seed_in_its_order(site: Site, undisturbed: dict[str, list[object]]) -> None:
    ledger = site.deploy("w1", "w2")
    first = Worker(site, "w1")
    alone = site.until(lambda found: found.status("w1") is WorkerStatus.REGISTERED)
    assert alone.deployment.command is DeploymentCommand.INTRODUCE  # one of two: nobody is initialised
    assert alone.standing("w2") is Presence.MISSING
    second = Worker(site, "w2")
    running = site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
    assert running.deployment.command is DeploymentCommand.RUN
    assert running.deployment.epoch == 3
    site.until_committed()
    ledger.set_command(Command.PAUSE, by="ann")
    paused = site.until(lambda found: statuses(found) == [WorkerStatus.PAUSED, WorkerStatus.PAUSED])
    assert (paused.deployment.epoch, paused.deployment.changed_by) == (4, "ann")
    ledger.set_command(Command.RUN, by="ann")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
    ledger.set_command(Command.SHUTDOWN, by="ann")
    assert (first.ended(), second.ended()) == (0, 0)
    assert all_stopped(site.roster())
    assert site.onlooker.read().live == {}
    for worker in (first, second):
        obeyed = [line.rpartition(": ")[2] for line in worker.said if "(epoch " in line]
        ready = "running" if worker is first else "standby"
        # one who is ready says so before it is known who is to run the topology
        obeyed = [line for line in obeyed if not (worker is first and line.startswith("standby"))]
        assert obeyed == [
            "registered (epoch 1)",
            "initialized (epoch 2)",
            f"{ready} (epoch 3)",
            "paused (epoch 4)",
            f"{ready} (epoch 5)",
            "stopped (epoch 6)",
        ]
    assert word_count.contents(site.folder) == undisturbed


def test_who_comes_again_while_it_is_paused_stays_paused(site: Site) -> None:
    ledger = site.deploy("w1")
    Worker(site, "w1")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING])
    ledger.set_command(Command.PAUSE)
    site.until(lambda found: statuses(found) == [WorkerStatus.PAUSED])
    assert {tx.status for tx in ledger.transactions()} <= {Status.COMMITTED}  # nothing of it is in its hands
    site.started[0].kill()
    again = Worker(site, "w1")
    site.until(lambda found: found.status("w1") is WorkerStatus.PAUSED and found.live["w1"].pid == again.process.pid)
    begun = ledger.view(0).next_txid
    ledger.set_command(Command.RUN)
    site.until_committed()
    assert site.roster().deployment.command is DeploymentCommand.RUN
    assert ledger.view(0).next_txid >= begun


# ---- SIGKILL at each step --------------------------------------------------------------------------------------

STEPS = [
    # the kill before a step is nearly the one after the step before it
    pytest.param(f"{step} {when}", marks=[pytest.mark.rare] if when == "before" else [])
    for step in (
        "register",
        "acknowledge registered",
        "advance init",
        "acknowledge initialized",
        "advance run",
        "place",
        "acknowledge running",
        "acknowledge stopped",
    )
    for when in ("before", "after")
]


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_is_killed_at_a_step_and_comes_again_ends_as_if_nothing_had_been(
    site: Site, undisturbed: dict[str, list[object]], step: str
) -> None:
    """The killed one is the only one who can do the step: it comes last, or there is no other."""
    workers = ["w1", "w2"] if step.startswith(("register", "acknowledge reg", "acknowledge init")) else ["w1"]
    ledger = site.deploy(*workers)
    if len(workers) == 2:
        Worker(site, "w2")
        site.until(lambda found: found.status("w2") is WorkerStatus.REGISTERED)
    victim = Worker(site, "w1", AIRFLOW_TRIDENT_KILL=f"{step} 1")
    if "stopped" in step:
        site.until_committed()
        ledger.set_command(Command.SHUTDOWN)
    assert victim.ended() == -signal.SIGKILL
    again = Worker(site, "w1")
    if "stopped" not in step:
        site.until_committed()
        ledger.set_command(Command.SHUTDOWN)
    assert again.ended() == 0
    assert all_stopped(site.until(all_stopped))
    assert word_count.contents(site.folder) == undisturbed


@pytest.mark.parametrize("milestone", [Milestone.PUBLISHED, Milestone.APPLIED])
def test_the_others_take_up_what_a_lost_worker_was_at(
    site: Site, undisturbed: dict[str, list[object]], milestone: Milestone
) -> None:
    ledger = site.deploy("w1", "w2", affinity=["w1"])
    victim = Worker(site, "w1", AIRFLOW_TRIDENT_CRASH=f"{milestone}@3:{site.folder}/killed")
    survivor = Worker(site, "w2")
    assert victim.ended() == -signal.SIGKILL
    lost = site.until(lambda found: found.standing("w1") is Presence.LOST)
    assert lost.deployment.command is DeploymentCommand.RUN
    site.until(lambda found: found.status("w2") is WorkerStatus.RUNNING)
    site.until_committed()
    # it comes back, is initialised alone, and where it belongs the topology goes back to it
    again = Worker(site, "w1")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
    ledger.set_command(Command.SHUTDOWN)
    assert (again.ended(), survivor.ended()) == (0, 0)
    assert word_count.contents(site.folder) == undisturbed


def test_a_worker_that_is_asked_to_end_finishes_what_it_began_and_another_goes_on(site: Site) -> None:
    ledger = site.deploy("w1", "w2")
    first, second = Worker(site, "w1"), Worker(site, "w2")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == 0
    its_own = [tx for tx in ledger.transactions() if tx.owner.pid == first.process.pid]
    assert {tx.status for tx in its_own} <= {Status.COMMITTED}
    site.until(lambda found: statuses(found) == [Presence.LOST, WorkerStatus.RUNNING])  # at once: its session is ended
    site.until_committed()
    ledger.set_command(Command.SHUTDOWN)
    assert second.ended() == 0


def test_a_worker_that_was_stopped_for_so_long_that_it_was_lost_leaves_the_topology_to_who_took_it(
    site: Site, undisturbed: dict[str, list[object]]
) -> None:
    ledger = site.deploy("w1", "w2")
    first = Worker(site, "w1")
    second = Worker(site, "w2")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
    first.process.send_signal(signal.SIGSTOP)
    site.until(lambda found: statuses(found) == [Presence.LOST, WorkerStatus.RUNNING])
    first.process.send_signal(signal.SIGCONT)
    site.until(lambda found: statuses(found) == [WorkerStatus.STANDBY, WorkerStatus.RUNNING])
    site.until_committed()
    ledger.set_command(Command.SHUTDOWN)
    assert (first.ended(), second.ended()) == (0, 0)
    assert word_count.contents(site.folder) == undisturbed


def test_a_drain_beside_a_worker_takes_its_part_and_everything_is_counted_once(
    site: Site, undisturbed: dict[str, list[object]]
) -> None:
    ledger = site.deploy("w1")
    worker = Worker(site, "w1")
    site.until(lambda found: found.status("w1") is WorkerStatus.REGISTERED or found.runner == "w1")
    word_count.main(site.hosts, site.root, str(site.folder), "2")
    site.until_committed()
    site.until(lambda found: found.runner == "w1")
    ledger.set_command(Command.SHUTDOWN)
    assert worker.ended() == 0
    assert word_count.contents(site.folder) == undisturbed


# ---- names and several topologies ------------------------------------------------------------------------------


def test_a_second_process_of_a_taken_name_ends_and_the_first_is_unaffected(site: Site) -> None:
    site.deploy("w1")
    first = Worker(site, "w1")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING])
    second = Worker(site, "w1")
    assert second.ended() == 1
    assert f"the name 'w1' is taken by process {first.process.pid}" in second.said[-1]
    assert site.roster().live["w1"].pid == first.process.pid
    site.until_committed()


def test_a_worker_waits_for_its_deployment_and_for_its_name(site: Site) -> None:
    first = Worker(site, "w1", AIRFLOW_TRIDENT_WAIT_S=str(LIMIT_S))
    while not any("is not deployed" in line or "no topology is deployed" in line for line in first.said):
        assert first.process.poll() is None
    site.deploy("w1")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING])
    second = Worker(site, "w1", AIRFLOW_TRIDENT_WAIT_S=str(LIMIT_S))
    while not any("is taken by process" in line for line in second.said):
        assert second.process.poll() is None
    first.kill()
    site.until(lambda found: found.status("w1") is WorkerStatus.RUNNING and found.live["w1"].pid == second.process.pid)
    site.until_committed()


def test_a_worker_that_cannot_initialise_says_why_and_nobody_runs(site: Site) -> None:
    ledger = site.deploy("w1", "w2")
    word_count.main(site.hosts, f"{site.root}-other", str(site.folder))  # the states belong to another ledger
    Worker(site, "w1")
    Worker(site, "w2")
    failed = site.until(lambda found: statuses(found) == [WorkerStatus.INIT_FAILED, WorkerStatus.INIT_FAILED])
    assert failed.deployment.command is DeploymentCommand.INIT
    assert "airflow trident repair crash_test" in failed.acknowledged["w1"].error
    assert list(ledger.transactions()) == []


def test_a_worker_whose_deployment_cannot_be_read_begins_nothing_more_and_goes_on_when_it_is_mended(site: Site) -> None:
    ledger = site.deploy("w1")
    worker = Worker(site, "w1")
    running = site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING])
    ledger.znodes.multi([Set(ledger.paths().deployment, b"?", running.version)])
    while not any("is damaged" in line or "cannot be" in line for line in worker.said):
        assert worker.process.poll() is None
    site.deploy("w1")
    site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING])
    site.until_committed()
    ledger.set_command(Command.SHUTDOWN)
    assert worker.ended() == 0


def test_two_topologies_go_to_two_workers_and_to_one_when_the_other_is_lost(site: Site) -> None:
    site.deploy("w1", "w2")
    site.deploy("w1", "w2", topology="others")
    first, second = Worker(site, "w1"), Worker(site, "w2")
    for topology in EXPECTED:
        site.until_committed(topology)
        site.until(lambda found: found.runner != "", topology)
    assert {site.roster(topology).runner for topology in EXPECTED} == {"w1", "w2"}
    first.kill()
    for topology in EXPECTED:
        site.until(lambda found: found.runner == "w2", topology)
    # one is taken away, the other shut down: nothing is left to serve
    undeploy(site.ledger("others"))
    site.ledger("crash_test").set_command(Command.SHUTDOWN)
    assert second.ended() == 0


def test_a_worker_that_serves_one_topology_alone_leaves_the_other_to_others(site: Site) -> None:
    site.deploy("w1")
    site.deploy("w1", topology="others")
    Worker(site, "w1", "others")
    site.until_committed("others")
    assert site.roster().standing("w1") is Presence.INTRODUCED
    assert list(site.ledger("crash_test").transactions()) == []


def test_workers_go_on_when_the_server_of_zookeeper_was_killed_and_is_there_again(
    tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    server.start()
    with ExitStack() as opened:
        opened.callback(server.stop)
        site = Site(server.hosts, "/killed", tmp_path, opened)
        try:
            ledger = site.deploy("w1", "w2")
            workers = [Worker(site, "w1"), Worker(site, "w2")]
            site.until(lambda found: statuses(found) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
            os.kill(server.status().pid, signal.SIGKILL)
            assert server.start().started_here
            site.until_committed()
            site.until(lambda found: sorted(statuses(found)) == [WorkerStatus.RUNNING, WorkerStatus.STANDBY])
            ledger.set_command(Command.SHUTDOWN)
            assert [one.ended() for one in workers] == [0, 0]
        finally:
            for one in site.started:
                one.process.kill()
                one.process.wait()
    assert word_count.contents(tmp_path) == undisturbed
