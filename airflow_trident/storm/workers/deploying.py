"""What a person does about the workers of a topology. The workers' own steps are in
:mod:`airflow_trident.storm.workers.deployments`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_trident.errors import ConfigurationError, CorruptRecordError
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change
from airflow_trident.ledger.znodes import Delete
from airflow_trident.names import require_name
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command, TopologyRecord
from airflow_trident.storm.workers.deployment import (
    Deployment,
    DeploymentCommand,
    commanded,
    decode,
    encode,
    obeying,
    require_workers,
)


def deploy(
    snap: Snapshot, workers: Sequence[str], *, weight: int = 1, affinity: Collection[str] = (), by: str = ""
) -> Change[Deployment]:
    """Names the workers of the topology; they register and are initialised anew. If the topology was shut down, it runs
    again; if it was paused, it stays paused.

    The folder of deployments must exist.

    :param weight: of its load, compared with other topologies on the same workers.
    :param affinity: the workers that it should preferably run on.
    :param by: who deploys it; for people.
    :raises ConfigurationError: no worker is named, a worker is named twice, the affinity names another one, or the
        weight is below 1.
    :raises PlanError: a worker cannot have such a name.
    """
    for name in workers:
        require_name("worker", name)
    topology, path = snap.topology(), snap.paths.deployment
    require_workers(topology.name, workers, affinity, weight)
    anew = Deployment(
        topology=topology.name,
        incarnation=topology.incarnation,
        workers=tuple(workers),
        weight=weight,
        affinity=tuple(affinity),
        changed_ms=snap.now_ms,
        changed_by=by,
    )
    with suppress(CorruptRecordError):  # this step replaces a damaged one
        if (before := _deployment(snap)) is not None:  # its workers have acknowledged lower epochs
            anew = replace(anew, epoch=commanded(before, DeploymentCommand.INTRODUCE).epoch)
    writes = [snap.put(path, encode(anew)), *_without_answers(snap)]
    if topology.command is Command.SHUTDOWN:
        topology = replace(topology, command=Command.RUN, epoch=topology.epoch + 1)
    return _with_topology(snap, topology, writes, anew)


def undeploy(snap: Snapshot) -> Change[Deployment]:
    """Takes the topology from its workers: they finish what they began and no longer serve it. Its lifecycle command
    stays.

    :raises ConfigurationError: it is not deployed.
    """
    topology, path = snap.topology(), snap.paths.deployment
    if snap.data(path) is None:
        raise ConfigurationError(f"topology {topology.name!r} is not deployed on any worker", "There is nothing to do.")
    before = Deployment(topology=topology.name, incarnation=topology.incarnation, workers=())
    with suppress(CorruptRecordError):
        before = _deployment(snap) or before
    return _with_topology(snap, topology, [*_without_answers(snap), Delete(path)], before)


def obeyed(snap: Snapshot, topology: TopologyRecord, command: Command, by: str) -> tuple[Write, ...]:
    """The writes that tell the workers of a lifecycle command; empty if there are none, or they need not be told.

    :raises TransitionError: they cannot obey it yet.
    """
    before = _deployment(snap)
    if before is None or before.incarnation != topology.incarnation:
        return ()
    after = obeying(before, command, by=by, now_ms=snap.now_ms)
    return () if after == before else (snap.set(snap.paths.deployment, encode(after)),)


def _deployment(snap: Snapshot) -> Deployment | None:
    data = snap.data(snap.paths.deployment)
    return None if data is None else decode(Deployment, data, snap.paths.deployment)


def _without_answers(snap: Snapshot) -> list[Delete]:
    """Deletes of all workers' answers, also of those for an epoch that will come again."""
    path = snap.paths.deployment
    return [Delete(f"{path}/{name}") for name in sorted(snap.names(path))]


def _with_topology(
    snap: Snapshot, topology: TopologyRecord, writes: Sequence[Write], deployment: Deployment
) -> Change[Deployment]:
    """These writes and the topology's record as one change: the record's op id tells whether the step was done."""
    path = snap.paths.topology
    record = snap.set(path, codec.encode_topology(topology, op=snap.op))
    return Change(writes=(record, *writes), witness=path, result=deployment)
