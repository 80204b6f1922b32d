"""Accidents in the world around the protocol: clocks, stores, and people who delete a topology."""

from __future__ import annotations

from airflow_trident.errors import StateBehindLedgerError, UnknownTopologyError
from airflow_trident.ledger.znodes import Delete
from tests.simulation.stores import Store
from tests.simulation.world import World

JUMPS_S = (-100_000, -3_600, 0, 0, 3_600, 100_000)


def clock_moves(world: World, _place: int) -> None:
    world.clock.wrong_s = world.random.choice(JUMPS_S)
    world.note(f"the clock is {world.clock.wrong_s} s off")


def store_accident(world: World, _place: int) -> None:
    """A store goes back to an old copy, vanishes, or turns out to be two."""
    if not world.kind.stores or not world.judge.done or world.judge.damaged:
        return
    name = world.random.choice(sorted(world.stores[0]))
    store = world.stores[0][name]
    if name not in world.copies:
        world.copies[name] = store.copy()
        world.note(f"state {name} is copied")
        return
    what = world.random.choice(("back", "gone", "two"))
    world.judge.damaged = True
    world.may_refuse += (StateBehindLedgerError,)
    world.note(f"state {name}: {what}")
    if what == "two":
        world.judge.two = True
        world.stores[1].update({one: Store() for one in world.stores[0]})
    else:
        store.put_back(world.copies[name] if what == "back" else Store())


def topology_removed(world: World, _place: int) -> None:
    """A person follows "Remove a topology" while no task runs. Tasks that are queued, or cleared later, find another
    incarnation."""
    if not world.kind.lives or world.at_work > 1 or world.judge.next_txid < 2 or world.removals >= 2:
        return
    world.note("the topology is removed, with its states and staging folders")
    world.removals += 1
    world.judge.lives = True
    world.may_refuse += (UnknownTopologyError,)
    root = "/airflow-trident/v1/simulated"
    found = [path for path in world.tree.paths() if path == root or path.startswith(f"{root}/")]
    world.tree.held.clear()
    world.judge.reborn()
    world.tree.apply([Delete(path) for path in sorted(found, key=len, reverse=True)])
    for store in world.stores[0].values():
        store.put_back(Store())
    for staging in world.stagings.values():
        staging.manifests.clear()
        staging.files.clear()
    world.dead.clear()
    for task in list(world.airflow.running()):
        world.airflow.ends(task, task.process, RuntimeError("no heartbeat"))
