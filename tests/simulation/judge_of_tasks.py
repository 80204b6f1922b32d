"""Watches the tasks of a simulated Airflow: which transactions their runs are given, and what they say in the end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow_trident.protocol.records import Status
from tests.simulation.judge import Judge


class JudgeOfTasks(Judge):
    def failed(self) -> set[tuple[int, int]]:
        """Txid and attempt of what is FAILED now."""
        return {(one.txid, one.attempt) for one in self.records.values() if one.status is Status.FAILED}

    def coordinated(self, task: Any, result: Any, before: Collection[int], failed: Collection[tuple[int, int]]) -> None:
        """A run's first transaction stays its first, however often its coordinator runs again. Besides, the run may be
        given a transaction that another run left, but for a FAILED one: only a person decides about that.

        :param before: COMMITTED when the coordinator began, so nobody can have left them to it.
        :param failed: FAILED when the coordinator began.
        """
        txids = result if isinstance(result, list) else [result]
        self.told.setdefault(task.run.run_id, set()).update(txids)
        who = (task.run.run_id, task.task_id)
        others = {txid for other, txid in self.heard.items() if other[0] == who[0] and other != who}
        known = who in self.heard or self._claimed_by(who, txids[0])
        if not known and txids[0] in others and txids[0] in before:
            self.broken("P1", f"{task.name} has {result}, which another task of its run had and committed")
        self.heard.setdefault(who, txids[0])
        record = self.records.get(txids[0])
        tried = None if record is None else (record.txid, record.attempt)
        if record is not None and record.claim.run_id != who[0] and tried in failed and tried in self.failed():
            self.broken("P12", f"{task.name} has {result} of {record.claim.run_id}, which only a person replays")
        if record is not None and record.claim.key.split(":")[1:2] == [task.task_id] and record.claim.run_id == who[0]:
            first = self.first_of.setdefault(who, txids[0])
            if first != txids[0]:
                self.broken("P1", f"{task.name} has {result} and had {first} before")

    def _claimed_by(self, who: tuple[str, str], txid: int) -> bool:
        """Did this task of this run begin it, although it died before it heard so? A deploy may have renamed the task
        since, and another deploy may have given it its name back."""
        mine = (key for key, claimed in self.claims.items() if claimed == txid)
        return any(key.split(":")[1:2] == [who[1]] and key.endswith(f":{who[0]}") for key in mine)

    def green(self, task: Any, result: Any) -> None:
        """If a committer succeeds, the transactions of its run are COMMITTED: all of them, if the transaction was given
        to one task for each of them and the DAG now has one task for all."""
        for txid in result if isinstance(result, list) else [result]:
            if txid not in self.done:
                self.broken("P8", f"{task.name} succeeds and {txid} is not COMMITTED")
            if not self._is_given(task, txid):
                whose = self.records[txid].claim.run_id
                self.broken("P1", f"{task.name} succeeds with {txid}, which belongs to {whose!r}")
