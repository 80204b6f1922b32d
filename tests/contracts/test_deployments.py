"""Deployments and named workers as records, over znodes of every kind: the seed's sequence, and who is refused."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_trident.errors import ConfigurationError, NameTakenError, PlanError, TransitionError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Set
from airflow_trident.protocol.records import Command
from airflow_trident.storm.workers.deployment import (
    Acknowledgement,
    DeploymentCommand,
    Presence,
    Registration,
    Roster,
    WorkerStatus,
)
from airflow_trident.storm.workers.deployments import Deployments, deploy, undeploy
from tests.fixtures.ledger import DEFINITION, LEDGERS, OVER_ZNODES, Place

pytestmark = pytest.mark.zookeeper
NOWHERE = 2**22 + 1
"""No process of this machine has such an id: it is above the kernel's limit."""


@pytest.fixture(params=OVER_ZNODES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with LEDGERS[request.param](request) as found:
        yield found


def opened(place: Place, topology: str = "words") -> ZNodeLedger:
    ledger = place.registered(topology)
    assert isinstance(ledger, ZNodeLedger)
    Deployments(ledger.znodes, root_of(ledger)).ensure_folder()
    return ledger


def root_of(ledger: ZNodeLedger) -> str:
    return ledger._root


class Party:
    """A worker that does nothing by itself."""

    def __init__(
        self, place: Place, name: str, *, host: str = "h", pid: int = 1, session: str = "", process_ids: str = ""
    ) -> None:
        ledger = place.open()
        assert isinstance(ledger, ZNodeLedger)
        self.name, self.ledger = name, ledger
        self.deployments = Deployments(ledger.znodes, root_of(ledger))
        session = session or uuid.uuid4().hex
        self.mine = Registration(worker=name, session=session, host=host, pid=pid, process_ids=process_ids)

    def register(self) -> Party:
        self.deployments.register(self.mine)
        return self

    def roster(self, topology: str = "words") -> Roster:
        found = self.deployments.roster(topology)
        assert found is not None
        return found

    def says(self, status: WorkerStatus, error: str = "") -> None:
        """Until it is there: a lost answer is asked again, as a worker does at its next look."""
        while not self.roster().answered(self.name, status):
            roster = self.roster()
            epoch = roster.deployment.epoch
            self.deployments.acknowledge(
                roster,
                Acknowledgement(worker=self.name, session=self.mine.session, epoch=epoch, status=status, error=error),
            )

    def leads(self) -> DeploymentCommand:
        """The command after a look at whether another one is due."""
        for _ in range(3):
            self.deployments.advance(self.roster(), by=self.name)
        return self.roster().deployment.command


def test_the_sequence_of_the_seed_each_command_once(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1", "w2"], by="ann")
    first, second = Party(place, "w1").register(), Party(place, "w2")
    assert first.roster().deployment.command is DeploymentCommand.INTRODUCE
    assert first.roster().standing("w1") is Presence.INTRODUCED
    assert first.roster().standing("w2") is Presence.MISSING
    epochs = [first.roster().deployment.epoch]
    first.says(WorkerStatus.REGISTERED)
    assert first.leads() is DeploymentCommand.INTRODUCE  # one of two
    second.register().says(WorkerStatus.REGISTERED)
    assert second.leads() is DeploymentCommand.INIT
    epochs.append(first.roster().deployment.epoch)
    first.says(WorkerStatus.INITIALIZED)
    assert first.leads() is DeploymentCommand.INIT
    second.says(WorkerStatus.INITIALIZED)
    assert first.leads() is DeploymentCommand.RUN
    epochs.append(first.roster().deployment.epoch)
    while not first.roster().deployment.placed:
        first.deployments.place(first.roster(), "w1")
    ledger.set_command(Command.PAUSE, by="ann")
    assert second.leads() is DeploymentCommand.PAUSE
    epochs.append(first.roster().deployment.epoch)
    assert epochs == [1, 2, 3, 4]
    assert first.roster().deployment.changed_by == "ann"


def test_of_two_who_lead_at_once_one_writes(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    seen = party.roster()
    for _ in range(3):  # one request at most is lost
        party.deployments.advance(seen, by="w1")
        Party(place, "x").deployments.advance(seen, by="x")
    assert party.roster().deployment.epoch == seen.deployment.epoch + 1


def test_an_answer_to_an_older_command_is_not_written(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    old = party.roster()
    deploy(ledger, ["w1", "w2"])
    late = Acknowledgement(
        worker="w1", session=party.mine.session, epoch=old.deployment.epoch, status=WorkerStatus.REGISTERED
    )
    for _ in range(3):
        assert not party.deployments.acknowledge(old, late)
    assert party.roster().acknowledged == {}


def test_a_taken_name_is_refused_and_its_owner_is_unaffected(place: Place) -> None:
    deploy(opened(place), ["w1"])
    owner = Party(place, "w1", host="here", pid=7).register()
    owner.register()  # the same process again: its answer may have been lost
    refused = Party(place, "w1")
    with pytest.raises(NameTakenError, match=r"'w1' is taken by process 7 on here\. Choose another name, or end that"):
        refused.register()
    assert owner.roster().live["w1"] == owner.mine
    refused.ledger.close()
    owner.ledger.close()
    if place.name != "overtaken":  # what a network of that kind delivers late has no session that could end
        follower = Party(place, "w1").register()
        assert follower.roster().live["w1"] == follower.mine


def test_the_name_of_a_process_of_this_machine_that_is_gone_is_free_at_once(place: Place) -> None:
    deploy(opened(place), ["w1"])
    here = socket.gethostname()
    Party(place, "w1", host=here, pid=NOWHERE).register()
    alive = Party(place, "w1", host=here, pid=os.getpid()).register()
    with pytest.raises(NameTakenError, match=f"taken by process {os.getpid()} on {here}"):
        Party(place, "w1", host=here, pid=os.getpid()).register()
    assert alive.roster().live["w1"] == alive.mine


def test_the_name_of_a_process_of_another_container_or_machine_that_shares_the_host_name_is_taken(place: Place) -> None:
    deploy(opened(place), ["w1"])
    here = socket.gethostname()
    Party(place, "w1", host=here, pid=NOWHERE, process_ids="of another container").register()
    with pytest.raises(NameTakenError, match=f"taken by process {NOWHERE} on {here}"):
        Party(place, "w1", host=here, pid=os.getpid()).register()


@pytest.mark.parametrize("damage", [b"{", b'{"v":99}'], ids=["damaged", "of a newer version"])
def test_a_topology_whose_record_cannot_be_read_is_told_nothing_and_its_worker_goes_on(
    place: Place, damage: bytes
) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    path = ledger.paths().topology
    for _ in range(3):
        node = party.deployments.znodes.read([path]).nodes[path]
        assert node is not None
        party.deployments._done([Set(path, damage, node.version)])
    assert not party.deployments.advance(party.roster(), by="w1")


def test_a_worker_is_placed_only_while_it_is_there(place: Place) -> None:
    deploy(opened(place), ["w1", "w2"])
    first = Party(place, "w1").register()
    for _ in range(3):
        assert not first.deployments.place(first.roster(), "w2")
    assert first.roster().deployment.placed == ""


def test_run_for_workers_that_have_not_confirmed_is_refused_and_nothing_is_written(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1", "w2"])
    before = ledger.topology()
    with pytest.raises(TransitionError, match=r"when all of its workers are initialised \(w1, w2\).*calls missing"):
        ledger.set_command(Command.RUN)
    assert ledger.topology() == before


def test_a_pause_before_all_are_there_counts_when_they_are(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    ledger.set_command(Command.PAUSE)
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    assert party.leads() is DeploymentCommand.INIT
    party.says(WorkerStatus.INITIALIZED)
    assert party.leads() is DeploymentCommand.PAUSE
    ledger.set_command(Command.RUN)
    assert party.roster().deployment.command is DeploymentCommand.RUN


def test_a_pause_that_comes_between_look_and_step_is_not_lost(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    assert party.leads() is DeploymentCommand.INIT
    party.says(WorkerStatus.INITIALIZED)
    seen = party.roster()
    meanwhile = party.deployments.znodes
    read = meanwhile.read

    def read_then_pause(*paths, **folders):
        found = read(*paths, **folders)
        ledger.set_command(Command.PAUSE)
        return found

    meanwhile.read = read_then_pause  # type: ignore[method-assign]
    assert not party.deployments.advance(seen, by="w1")
    meanwhile.read = read  # type: ignore[method-assign]
    assert party.leads() is DeploymentCommand.PAUSE


def test_who_is_deployed_anew_registers_anew_and_what_others_said_is_forgotten(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1", "w2"], weight=3, affinity=["w2"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    again = deploy(ledger, ["w2", "w3"])
    assert (again.epoch, again.weight, again.affinity, again.placed) == (2, 1, (), "")
    assert party.roster().acknowledged == {}
    assert party.roster().deployment.command is DeploymentCommand.INTRODUCE
    assert party.deployments.read().of("w1") == []
    undeploy(ledger)
    assert party.deployments.roster("words") is None
    with pytest.raises(ConfigurationError, match="'words' is not deployed on any worker"):
        undeploy(ledger)


def test_a_topology_that_was_shut_down_runs_again_when_it_is_deployed_or_told_to(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    ledger.set_command(Command.SHUTDOWN)
    assert Party(place, "w1").roster().deployment.command is DeploymentCommand.SHUTDOWN
    ledger.set_command(Command.RUN)
    assert Party(place, "w1").roster().deployment.command is DeploymentCommand.INTRODUCE
    ledger.set_command(Command.SHUTDOWN)
    deploy(ledger, ["w1"])
    assert ledger.topology().command is Command.RUN


def test_names_that_cannot_be_and_no_names_are_refused_before_anything_is_written(place: Place) -> None:
    ledger = opened(place)
    with pytest.raises(PlanError, match="'a/b' cannot be the name of a worker"):
        deploy(ledger, ["a/b"])
    with pytest.raises(ConfigurationError, match="deployed on no worker"):
        deploy(ledger, [])
    assert Party(place, "w1").deployments.read().rosters == {}


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_read(place: Place) -> None:
    ledger, other = opened(place), opened(place, "other")
    deploy(ledger, ["w1"])
    deploy(other, ["w1"])
    path, party = ledger.paths().deployment, Party(place, "w1")
    for _ in range(3):
        node = party.deployments.znodes.read([path]).nodes[path]
        assert node is not None
        party.deployments._done([Set(path, b"?", node.version)])
    found = party.deployments.read()
    assert list(found.rosters) == ["other"]
    assert path in found.unreadable["words"]
    assert deploy(ledger, ["w1"]).epoch == 1  # a person mends it by what the error says
    assert sorted(party.deployments.read().rosters) == ["other", "words"]


def test_a_look_costs_three_round_trips_however_much_is_deployed(place: Place) -> None:
    for name in ("words", "other", "third"):
        deploy(opened(place, name), ["w1", "w2"])
        party = Party(place, "w1")
        party.deployments.read()  # with the connection
        before = party.deployments.znodes.round_trips
        assert name in party.deployments.read().rosters
        assert party.deployments.znodes.round_trips - before <= 3


def test_a_wait_is_armed_once_and_ends_with_each_change_that_concerns_the_worker(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1", "w2"])
    party, other = Party(place, "w1").register(), Party(place, "w2")
    changes = [
        other.register,
        lambda: other.says(WorkerStatus.REGISTERED),
        lambda: deploy(ledger, ["w1"]),
        lambda: deploy(opened(place, "others"), ["w2"]),
        lambda: undeploy(ledger),
    ]
    for change in changes:
        deployed = party.deployments.read()
        before = party.deployments.znodes.round_trips
        for _ in range(3):
            assert not party.deployments.wait_for_change(deployed, 0.0, worker="w1")
        assert party.deployments.znodes.round_trips <= before + 1
        change()
        assert party.deployments.wait_for_change(deployed, 60.0, worker="w1")
        assert party.deployments.wait_for_change(deployed, 0.0, worker="w1"), "it was noticed, and is not waited for"


def test_what_was_said_of_an_epoch_that_comes_again_counts_no_more(place: Place) -> None:
    ledger = opened(place)
    deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    undeploy(ledger)
    deploy(ledger, ["w1"])
    roster = party.roster()
    assert (roster.deployment.epoch, roster.acknowledged) == (1, {})
    assert party.leads() is DeploymentCommand.INTRODUCE


def test_a_new_life_of_the_topology_is_not_told_what_an_old_deployment_says(place: Place) -> None:
    ledger = opened(place)
    made = deploy(ledger, ["w1"])
    party = Party(place, "w1").register()
    party.says(WorkerStatus.REGISTERED)
    roster = party.roster()
    old = replace(roster, deployment=replace(made, incarnation="another"))
    for _ in range(3):
        assert not party.deployments.advance(old, by="w1")
    assert ledger.topology().definition == DEFINITION
