"""``airflow trident state fold | publish``."""

from __future__ import annotations

from argparse import Namespace

from airflow_trident.cli.console import OK, say, trident_command
from airflow_trident.cli.topologies import state_of
from airflow_trident.contracts.upkeep import Upkeep

_DONE = {Upkeep.FOLD: "folded", Upkeep.PUBLISH: "published"}


@trident_command
def fold(args: Namespace) -> int | None:
    return _keep_up(args, Upkeep.FOLD)


@trident_command
def publish(args: Namespace) -> int | None:
    return _keep_up(args, Upkeep.PUBLISH)


def _keep_up(args: Namespace, act: Upkeep) -> int:
    from airflow_trident.runtime.upkeep import keep_up

    done = keep_up(state_of(args), act, lambda line: say(f"state {args.state}: {line}"))
    say(f"state {args.state}: {_DONE[act] if done else f'nothing to {act}'}")
    return OK
