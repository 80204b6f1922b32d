"""The kinds of histories, and what may happen in each: every accident is a switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What may happen in a history, besides kills, pauses, lost answers, late writes, stores that fail to open,
    duplicates and people's commands.

    `opaque`: the spout is opaque. `restores`: the ledger is restored from an old copy. `tasks`: the processes are the
    operators, as tasks of a simulated Airflow with tries, clears, deploys, dead workers, drains and backfills, some
    with a staging folder of their own or a ZooKeeper server that lags behind, and clocks that move. `ordered`: a state
    depends on the order of batches. `stores`: a store goes back to an old copy, vanishes or is two. `lives`: the
    topology is deleted and created again. `versions`: some processes are of a later version of the package, whose
    records have one field more. `elsewhere`: files that an engine writes do not reach the staging folder. `taken_back`:
    committers fall asleep, or die, in the middle of commits, and people take these commits back. `groups`: several
    transactions are begun, processed and committed together. `chunks`: some processes keep small staged batches in the
    ledger, others do not. `ready`: runs begin with a ready sensor, or are made by the events of a batch trigger; in
    some all runs are given up at the end, and only new ones can commit what they left. `levels`: new values of a state
    feed the second one, and those of the second one a third. `bound`: the topology is bound to days, whose sources
    change all the time.
    """

    opaque: bool = False
    restores: bool = False
    tasks: bool = False
    ordered: bool = False
    stores: bool = False
    lives: bool = False
    versions: bool = False
    elsewhere: bool = False
    taken_back: bool = False
    groups: bool = False
    chunks: bool = False
    ready: bool = False
    levels: bool = False
    bound: bool = False

    @property
    def in_order(self) -> bool:
        """Is what was skipped and passed lost, because a state cannot take it any more?"""
        return self.ordered or self.levels or self.bound


KINDS: dict[str, Kind] = {
    "transactional": Kind(),
    "opaque": Kind(opaque=True),
    "restored": Kind(restores=True),
    "restored-opaque": Kind(restores=True, opaque=True),
    "ordered": Kind(ordered=True),
    "elsewhere": Kind(elsewhere=True),
    "levels": Kind(levels=True),
    "levels-opaque": Kind(levels=True, opaque=True),
    "taken-back": Kind(taken_back=True),
    "bound": Kind(bound=True),
    "groups": Kind(groups=True),
    "chunks": Kind(chunks=True),
    "chunks-opaque": Kind(chunks=True, opaque=True),
    "groups-chunks": Kind(groups=True, chunks=True),
    "groups-taken-back": Kind(groups=True, taken_back=True),
    "groups-restored": Kind(groups=True, restores=True),
    "groups-bound": Kind(groups=True, bound=True),
    "tasks": Kind(tasks=True),
    "tasks-opaque": Kind(tasks=True, opaque=True),
    "tasks-ordered": Kind(tasks=True, ordered=True),
    "tasks-levels": Kind(tasks=True, levels=True),
    "stores": Kind(tasks=True, stores=True),
    "lives": Kind(tasks=True, lives=True, ready=True),
    "versions": Kind(tasks=True, versions=True),
    "ready": Kind(tasks=True, ready=True),
    "ready-opaque": Kind(tasks=True, ready=True, opaque=True),
}
