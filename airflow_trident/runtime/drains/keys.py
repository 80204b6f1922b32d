"""The partitions that a drain of a bound topology does: the requests for them, and the result of each.

Each key is a transaction by itself. So the others are committed if one cannot begin or keeps failing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_trident.errors import IncompletePartitionError, TridentError
from airflow_trident.ledger.answers import BeginResult, Begun, NothingNew
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.partition_keys import has_failed
from airflow_trident.protocol.partitions import OnMissing
from airflow_trident.protocol.records import Claim, Owner, Status, TxRecord
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.partitions import (
    PartitionAnswer,
    PartitionRequest,
    PartitionUnchanged,
    PartitionUnderWay,
    begin_partitions,
    bound_to,
    not_begun,
)
from airflow_trident.topology.topology import Topology

WAITS = 10
"""How often a drain asks again for a partition whose transaction is being committed by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPartitions:
    """`keys`: of the partitions to do, in this order. The others: see :class:`PartitionRequest`."""

    keys: tuple[str, ...]
    redo: bool = False
    gone: OnMissing | None = None
    empty: OnMissing | None = None
    reason: str = ""


class KeyOutcome(StrEnum):
    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    """It was committed before, and its sources are as they were."""
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """It is not complete or did not begin, or another process has its transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """`txid`: the transaction of the partition; 0: none began. `detail`: the error."""

    key: str
    outcome: KeyOutcome
    txid: int = 0
    detail: str = ""


@dataclass(kw_only=True)
class KeyQueue:
    """Begins the transactions of keys, as many at a time as the caller has room for.

    :param claim: the partition's key is added to its key. A process that asks with the same claim again gets the same
        transactions. A skipped one is followed by another one of its partition.
    """

    ledger: Ledger
    topology: Topology
    asked: AskedPartitions
    claim: Claim
    coordinators: OpenCoordinators
    txids: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    unchanged: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """:raises ConfigurationError: the topology is not bound, or a key is none of its keys."""
        partitions = bound_to(self.topology)
        keys = [partitions.parse(key).key for key in self.asked.keys]
        self._claims = {key: replace(self.claim, key=f"{self.claim.key}/{key}") for key in keys}
        self._ahead = deque(self._claims)
        self._waits: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many have not begun."""
        return len(self._ahead)

    def begin(self, most: int, max_pending: int, owner: Owner | str) -> BeginResult:
        """Begins the next ones, at most so many. :class:`NothingNew`: all have begun, or cannot. :class:`Full`: also if
        commits of others must end first."""
        while self._ahead:
            keys = [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
            requests = [self._request(key) for key in keys]
            answers = begin_partitions(
                self.ledger,
                self.topology,
                requests,
                max_pending=max_pending,
                attempt_by=owner,
                coordinators=self.coordinators,
            )
            open_answers = [
                (key, answer) for key, answer in zip(keys, answers, strict=True) if not self._settled(key, answer)
            ]
            waiting = [key for key, answer in open_answers if isinstance(answer, PartitionUnderWay)]
            self._ahead.extendleft(key for key, _ in reversed(open_answers) if key not in waiting)
            self._ahead.extend(waiting)
            self._waits.update(waiting)
            if begun := tuple(answer for answer in answers if isinstance(answer, Begun) and not _is_over(answer)):
                return begun
            for answer in answers:
                if isinstance(answer, Full | Paused | Blocked):
                    return answer
            if waiting and len(waiting) == len(self._ahead):
                return Full(oldest=0, pending=0)
        return NothingNew()

    def _request(self, key: str) -> PartitionRequest:
        asked = self.asked
        return PartitionRequest(
            key=key,
            claim=self._claims[key],
            redo=asked.redo,
            gone=asked.gone,
            empty=asked.empty,
            reason=asked.reason,
        )

    def _settled(self, key: str, answer: PartitionAnswer) -> bool:
        """Is the request over? If not, it is asked again."""
        if isinstance(answer, TridentError):
            self.errors[key] = answer
        elif isinstance(answer, PartitionUnchanged):
            self.unchanged[key] = answer.txid
        elif isinstance(answer, PartitionUnderWay) and self._waits[key] >= WAITS:
            self.errors[key] = not_begun(self.topology.name, key, answer)
        elif isinstance(answer, Begun) and _is_over(answer):
            claim = self._claims[key]
            self._claims[key] = replace(claim, key=f"{claim.key}/{answer.txid}")
            return False
        elif isinstance(answer, Begun):
            self.txids[key] = answer.txid
        else:
            return False
        return True

    def results(self, committed: Collection[int], errors: Mapping[int, Exception]) -> tuple[KeyResult, ...]:
        """The result of each key.

        :param errors: txid -> error, of transactions that were processed.
        """
        txids = sorted(txid for txid in self.txids.values() if txid not in committed)
        records = {record.txid: record for record in self.ledger.records(txids)} if txids else {}
        return tuple(self._result(key, committed, errors, records) for key in self._claims)

    def _result(
        self,
        key: str,
        committed: Collection[int],
        errors: Mapping[int, Exception],
        records: Mapping[int, TxRecord],
    ) -> KeyResult:
        if key in self.errors:
            is_early = isinstance(self.errors[key], IncompletePartitionError)
            outcome = KeyOutcome.UNFINISHED if is_early else KeyOutcome.FAILED
            return KeyResult(key=key, outcome=outcome, detail=str(self.errors[key]))
        if key in self.unchanged:
            return KeyResult(key=key, outcome=KeyOutcome.UNCHANGED, txid=self.unchanged[key])
        txid = self.txids.get(key, 0)
        if not txid:
            return KeyResult(key=key, outcome=KeyOutcome.UNFINISHED)
        record = records.get(txid)
        if txid in committed or record is None or record.status is Status.COMMITTED:
            return KeyResult(key=key, outcome=KeyOutcome.COMMITTED, txid=txid)
        if has_failed(record) or txid in errors:
            detail = str(errors.get(txid) or record.first_error or record.error)
            return KeyResult(key=key, outcome=KeyOutcome.FAILED, txid=txid, detail=detail)
        detail = f"its transaction {txid} is {record.status}"
        return KeyResult(key=key, outcome=KeyOutcome.UNFINISHED, txid=txid, detail=detail)

    def raised(self, errors: Mapping[int, Exception]) -> Iterator[Exception]:
        """The errors of keys, in their order."""
        for key in self._claims:
            error = self.errors.get(key) or errors.get(self.txids.get(key, 0))
            if error is not None:
                yield error


def _is_over(begun: Begun) -> bool:
    """Has an earlier try of the same request given its transaction up?"""
    record = begun.record
    return not begun.new and record is not None and record.status in (Status.SKIPPED, Status.CLOSED)
