"""How a deployment moves, and where its topology is placed: tables and decisions without effects."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError, CorruptRecordError, NewerRecordError, TransitionError
from airflow_trident.protocol.records import Command, Definition, TopologyRecord
from airflow_trident.storm.workers.deployment import (
    COMMANDS,
    Acknowledgement,
    Deployment,
    DeploymentCommand,
    Doing,
    Duty,
    Placeable,
    Presence,
    Registration,
    Roster,
    WorkerStatus,
    commanded,
    decode,
    duty,
    encode,
    missing,
    next_command,
    obeying,
    placed,
    placement,
    require_workers,
    standstill,
)
from tests.fixtures.record import GOLDEN

INTRODUCE, INIT, RUN, PAUSE, SHUTDOWN = DeploymentCommand
DEPLOYED = Deployment(topology="words", incarnation="i", workers=("w1", "w2"))


def process(name: str, session: str = "s") -> Registration:
    return Registration(worker=name, session=session, host="h", pid=1)


def roster(
    command: DeploymentCommand = INTRODUCE,
    *,
    live: str = "w1 w2",
    on: str = "",
    epoch: int = 3,
    **said: WorkerStatus,
) -> Roster:
    """:param said: worker -> what it acknowledged of this epoch."""
    return Roster(
        deployment=replace(DEPLOYED, command=command, epoch=epoch, placed=on),
        acknowledged={
            name: Acknowledgement(worker=name, session="s", epoch=epoch, status=status) for name, status in said.items()
        },
        live={name: process(name) for name in live.split()},
    )


# ---- the sequence ----------------------------------------------------------------------------------------------


def test_one_of_two_workers_alone_brings_no_command_and_both_bring_it() -> None:
    assert next_command(roster(w1=WorkerStatus.REGISTERED), Command.RUN) is None
    assert missing(roster(w1=WorkerStatus.REGISTERED)) == ("w2",)
    both = {"w1": WorkerStatus.REGISTERED, "w2": WorkerStatus.REGISTERED}
    assert next_command(roster(**both), Command.RUN) is INIT
    confirmed = {"w1": WorkerStatus.INITIALIZED, "w2": WorkerStatus.INITIALIZED}
    assert next_command(roster(INIT, **confirmed), Command.RUN) is RUN
    assert next_command(roster(INIT, **confirmed), Command.PAUSE) is PAUSE
    assert next_command(roster(INIT, **confirmed), Command.SHUTDOWN) is SHUTDOWN


@pytest.mark.parametrize("why", ["init_failed", "an older epoch", "another process", "not there"])
def test_who_has_not_confirmed_as_the_process_that_it_is_holds_up_the_run(why: str) -> None:
    found = roster(INIT, w1=WorkerStatus.INITIALIZED, w2=WorkerStatus.INITIALIZED)
    said = found.acknowledged["w2"]
    if why == "init_failed":
        found = replace(
            found,
            acknowledged={
                **found.acknowledged,
                "w2": replace(said, status=WorkerStatus.INIT_FAILED, error="boom"),
            },
        )
    elif why == "an older epoch":
        found = replace(found, acknowledged={**found.acknowledged, "w2": replace(said, epoch=2)})
    elif why == "another process":
        found = replace(found, live={**found.live, "w2": process("w2", "other")})
    else:
        found = replace(found, live={"w1": found.live["w1"]})
    assert missing(found) == ("w2",)
    assert next_command(found, Command.RUN) is None


def test_every_command_has_a_row_and_a_step_that_is_in_no_row_is_refused() -> None:
    assert set(COMMANDS) == set(DeploymentCommand)
    for before, after in itertools.product(DeploymentCommand, repeat=2):
        deployment = replace(DEPLOYED, command=before)
        if after in COMMANDS[before]:
            assert commanded(deployment, after).epoch == deployment.epoch + 1
        else:
            with pytest.raises(TransitionError, match="airflow trident workers words"):
                commanded(deployment, after)


def test_run_before_all_have_confirmed_is_refused_and_names_the_workers() -> None:
    for command in (INTRODUCE, INIT):
        with pytest.raises(TransitionError, match=r"when all of its workers are initialised \(w1, w2\)"):
            obeying(replace(DEPLOYED, command=command), Command.RUN)


def test_a_persons_commands_are_what_the_workers_are_told() -> None:
    running = replace(DEPLOYED, command=RUN, epoch=5)
    paused = obeying(running, Command.PAUSE, by="ann", now_ms=7)
    assert (paused.command, paused.epoch, paused.changed_by, paused.changed_ms) == (PAUSE, 6, "ann", 7)
    assert obeying(paused, Command.PAUSE) == paused
    assert obeying(paused, Command.RUN).command is RUN
    ended = obeying(paused, Command.SHUTDOWN)
    assert ended.command is SHUTDOWN
    # its processes have ended: they begin with their names
    again = obeying(replace(ended, placed="w1"), Command.RUN)
    assert (again.command, again.placed) == (INTRODUCE, "")
    # not all are there: the topology's own record says what follows
    assert obeying(DEPLOYED, Command.PAUSE) == DEPLOYED


LIFE = TopologyRecord(name="words", incarnation="i", definition=Definition(spouts={}, states={}))
FAILED, RUNNING = WorkerStatus.INIT_FAILED, WorkerStatus.RUNNING


@pytest.mark.parametrize(
    ("found", "topology", "expected"),
    [
        (roster(RUN, live=""), LIFE, "w1, w2 are not there. Start `airflow trident worker w1`"),
        (roster(RUN, live="", w1=RUNNING), LIFE, "w1, w2 are not there"),
        (roster(RUN, live="w2", w2=FAILED), LIFE, "w1 is not there and w2 cannot load it. Start"),
        (roster(RUN, w1=FAILED, w2=FAILED), LIFE, "w1, w2 cannot load it. See `airflow trident workers words`"),
        (roster(INTRODUCE, live="w1"), LIFE, "w2 is not there, and it runs when all of its workers are ready. Start"),
        (roster(INIT, w2=FAILED), LIFE, "w2 cannot load it, and it runs when all"),
        (roster(RUN, w1=RUNNING), replace(LIFE, incarnation="j"), "`airflow trident deploy words --workers w1,w2`"),
        # somebody works, or will by himself
        (roster(RUN, live="w2"), LIFE, ""),
        (roster(RUN, live="w2", w2=RUNNING), LIFE, ""),
        (roster(INTRODUCE), LIFE, ""),
        (roster(INIT, w1=WorkerStatus.INITIALIZED), LIFE, ""),
        # nobody shall
        (roster(PAUSE, live=""), replace(LIFE, command=Command.PAUSE), ""),
        (roster(INTRODUCE, live=""), replace(LIFE, command=Command.PAUSE), ""),
        (roster(SHUTDOWN, live=""), replace(LIFE, command=Command.SHUTDOWN), ""),
    ],
)
def test_a_topology_that_no_worker_will_run_without_a_person_stands_still_and_the_cure_is_named(
    found: Roster, topology: TopologyRecord, expected: str
) -> None:
    assert expected in str(standstill(found, topology) or "")
    assert bool(expected) == (standstill(found, topology) is not None)


# ---- what a worker does ----------------------------------------------------------------------------------------

READY = Doing(initialised=True)
BUSY = Doing(initialised=True, draining=True)


@pytest.mark.parametrize(
    ("found", "doing", "expected"),
    [
        (roster(INTRODUCE), Doing(), Duty.REGISTER),
        (roster(INTRODUCE), BUSY, Duty.FINISH),
        (roster(INIT), Doing(), Duty.INITIALISE),
        (roster(INIT), READY, Duty.CONFIRM),
        (roster(RUN, on="w1"), READY, Duty.DRAIN),
        (roster(RUN, on="w1"), BUSY, Duty.DRAIN),
        (roster(RUN, on="w1"), Doing(), Duty.INITIALISE),
        (roster(RUN, on=""), READY, Duty.STAND_BY),
        (roster(RUN, on="w2"), READY, Duty.STAND_BY),
        (roster(RUN, on="w2"), BUSY, Duty.FINISH),
        # it comes after who had it: never two by what the records say
        (roster(RUN, on="w1", w2=WorkerStatus.RUNNING), READY, Duty.STAND_BY),
        (roster(RUN, on="w1", live="w1", w2=WorkerStatus.RUNNING), READY, Duty.DRAIN),
        (roster(PAUSE, on="w1"), BUSY, Duty.FINISH),
        (roster(PAUSE, on="w1"), READY, Duty.REST),
        (roster(PAUSE), Doing(), Duty.INITIALISE),
        (roster(SHUTDOWN, on="w1"), BUSY, Duty.FINISH),
        (roster(SHUTDOWN), READY, Duty.LEAVE),
        (roster(SHUTDOWN), Doing(), Duty.LEAVE),
    ],
)
def test_a_worker_has_one_duty_at_a_time(found: Roster, doing: Doing, expected: Duty) -> None:
    assert duty(found, "w1", doing) is expected


def test_a_lost_worker_is_missing_and_the_others_are_still_told_to_run() -> None:
    found = roster(RUN, live="w1", on="w1", w1=WorkerStatus.RUNNING, w2=WorkerStatus.STANDBY)
    assert missing(found) == ("w2",)
    assert found.standing("w2") is Presence.LOST
    assert found.able == ("w1",)
    assert next_command(found, Command.RUN) is None


def test_how_a_worker_stands_for_people() -> None:
    assert roster(live="").standing("w1") is Presence.MISSING
    assert roster().standing("w1") is Presence.INTRODUCED
    assert roster(w1=WorkerStatus.REGISTERED).standing("w1") is WorkerStatus.REGISTERED
    assert roster(SHUTDOWN, live="", w1=WorkerStatus.STOPPED).standing("w1") is WorkerStatus.STOPPED
    assert roster(live="", w1=WorkerStatus.RUNNING).standing("w1") is Presence.LOST


def test_records_are_read_as_they_were_written() -> None:
    deployment = replace(DEPLOYED, command=RUN, epoch=4, weight=3, affinity=("w2",), placed="w2", changed_by="ann")
    assert decode(Deployment, encode(deployment), "here") == deployment
    said = Acknowledgement(worker="w1", session="s", epoch=4, status=WorkerStatus.INIT_FAILED, error="é", at_ms=5)
    assert decode(Acknowledgement, encode(said), "here") == said
    assert decode(Registration, encode(process("w1")), "here") == process("w1")


DEPLOYMENT = replace(DEPLOYED, command=RUN, epoch=4, weight=3, affinity=("w2",), placed="w2", changed_by="ann")
ANSWER = Acknowledgement(worker="w2", session="5e55", epoch=4, status=WorkerStatus.INIT_FAILED, error="boom", at_ms=5)
PROCESS = Registration(worker="w2", session="5e55", host="h", pid=7, task="airflow trident worker w2", since_ms=6)


@pytest.mark.parametrize(
    ("file", "kind", "record"),
    [
        ("v1-deployment.json", Deployment, DEPLOYMENT),
        ("v1-acknowledgement.json", Acknowledgement, ANSWER),
        ("v1-registration.json", Registration, PROCESS),
    ],
)
def test_what_version_1_wrote_is_read_for_ever(file: str, kind: type[Deployment], record: object) -> None:
    data = (GOLDEN / file).read_bytes()
    assert decode(kind, data, file) == record
    assert decode(kind, data.replace(b'"v":1', b'"v":1,"later":2'), file) == record
    with pytest.raises(NewerRecordError):
        decode(kind, data.replace(b'"v":1', b'"v":2'), file)
    with pytest.raises(CorruptRecordError, match=file):
        decode(kind, data[:-1], file)


# ---- placement -------------------------------------------------------------------------------------------------


def place(name: str, able: str = "a b", affinity: str = "", on: str = "", weight: int = 1) -> Placeable:
    return Placeable(
        topology=name,
        able=frozenset(able.split()),
        affinity=frozenset(affinity.split()),
        placed=on,
        weight=weight,
    )


def test_the_heaviest_go_first_and_each_to_the_least_load() -> None:
    assert placement([place("x", weight=10), place("y"), place("z")]) == {"x": "a", "y": "b", "z": "b"}


def test_an_affinity_comes_before_the_load_and_is_left_when_nobody_of_it_is_able() -> None:
    loaded = place("x", on="b", weight=10)
    assert placement([loaded, place("y", affinity="b")]) == {"x": "b", "y": "b"}
    assert placement([place("y", able="a", affinity="b")]) == {"y": "a"}
    assert placement([place("y", on="a", affinity="b")]) == {"y": "b"}  # and taken up again


def test_what_can_stay_stays_and_what_nobody_can_run_is_nowhere() -> None:
    assert placement([place("x", on="b"), place("y", on="b"), place("z", able="")]) == {"x": "b", "y": "b"}
    assert placement([place("x", able="a", on="b")]) == {"x": "a"}


NAMES = st.sampled_from(["a", "b", "c"])
PLACEABLES = st.lists(
    st.builds(
        Placeable,
        topology=st.uuids().map(str),
        able=st.frozensets(NAMES),
        affinity=st.frozensets(NAMES),
        placed=st.one_of(st.just(""), NAMES),
        weight=st.integers(1, 9),
    ),
    max_size=8,
)


@given(PLACEABLES, st.randoms(use_true_random=False))
def test_everybody_comes_to_the_same_answer_and_a_second_look_moves_nothing(every: list[Placeable], random) -> None:
    found = placement(every)
    shuffled = list(every)
    random.shuffle(shuffled)
    assert placement(shuffled) == found
    for one in every:
        assert (one.topology in found) == bool(one.able)
        if one.topology in found:
            assert found[one.topology] in (one.able & one.affinity or one.able)
    assert placement([replace(one, placed=found.get(one.topology, "")) for one in every]) == found


def test_only_deployments_that_are_to_run_are_placed() -> None:
    ready = {"w1": WorkerStatus.INITIALIZED, "w2": WorkerStatus.INITIALIZED}
    assert placed([roster(INIT, **ready)]) == {}
    assert placed([roster(RUN, **ready)]) == {"words": "w1"}
    assert placed([roster(RUN, live="w2", on="w1", **ready)]) == {"words": "w2"}


# ---- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "affinity", "weight", "text"),
    [
        ((), (), 1, r"'words' is deployed on no worker. Name them, as in --workers w1,w2"),
        (("w1", "w1"), (), 1, "'w1' of topology 'words' is named twice"),
        (("w1", "w2"), ("w3",), 1, "affinity to 'w3', which is none of its workers. Its workers are w1, w2"),
        (("w1",), (), 0, "weight of topology 'words' is 0. Give a whole number from 1 on"),
    ],
)
def test_a_deployment_that_cannot_be_meant_is_refused(
    workers: tuple[str, ...], affinity: tuple[str, ...], weight: int, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        require_workers("words", workers, affinity, weight)
