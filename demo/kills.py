"""The processes that the demonstration kills with SIGKILL, at named points of the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.runtime.milestones import Milestone


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Kills, once, the first process that reaches `point` with transaction `txid`. `dag`: only tasks of this DAG."""

    name: str
    dag: str = ""
    point: Milestone
    txid: int
    story: str

    def marker(self, folder: Path) -> Path:
        """The file that the process creates right before it dies."""
        return folder / self.name


KILLS = (
    Kill(
        name="emitter",
        point=Milestone.STAGED,
        txid=2,
        story="SIGKILL to the task that processed it: Spark was done and rows were staged, but not published",
    ),
    Kill(
        name="committer",
        point=Milestone.APPLIED,
        txid=4,
        story="SIGKILL to the task that committed it: the state had the batch, but the ledger did not know yet",
    ),
)


def kill_setting(kills: Iterable[Kill], folder: Path) -> str:
    """The value of the environment variable that :mod:`tools.kills` reads."""
    return ",".join(f"{kill.dag and f'{kill.dag}/'}{kill.point}@{kill.txid}:{kill.marker(folder)}" for kill in kills)


def ending(kill: Kill, record: TxRecord) -> str:
    """A sentence about the end of the killed transaction."""
    if record.status is not Status.COMMITTED:
        return f"it is {record.status}"
    if kill.point is Milestone.STAGED:
        return f"attempt {record.attempt} processed it anew; what attempt 0 left behind was never read"
    return f"the next committer (fence {record.fence}) found it applied, did not apply it again, and closed it"
