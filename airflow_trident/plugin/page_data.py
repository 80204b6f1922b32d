"""Reads from the ledger what the page shows. A request uses one ZooKeeper session for any number of topologies, and the
next request uses it again.

Which transactions a page of the list shows: filters, order and paging, which read as few records as possible. Pure.

A filter by status uses the lists of exceptions, and one by time uses that txids rise with time, so neither needs every
record. A search for a text needs every record; the next request continues where the last answer ended.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import TridentError
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.open import Ledgers, Overview, SessionPool
from airflow_trident.ledger.plan_pictures import picture_in
from airflow_trident.plugin import airflow_runs, page_partitions
from airflow_trident.plugin.rows import (
    Sight,
    code_words,
    details,
    named_worker_row,
    row,
    searched,
    seen,
    shown,
    summary,
    worker_row,
)
from airflow_trident.protocol.diagnosis import Evidence, Health, Stalled, diagnose_transaction, unreadable
from airflow_trident.protocol.outcomes import CoordinatorOutcome
from airflow_trident.protocol.records import LedgerView, Status, TxRecord
from airflow_trident.tasks.task_instances import abandoned, abandoned_of, eventless_text, without_event

PAGE = 50
"""Transactions on a page."""
LOOKED_THROUGH = 2_000
"""How many records one answer searches for a text; the next answer continues after them."""
_RANGE = re.compile(r"(\d{1,19}) to (\d{1,19})")
_AT_WORK = frozenset({Status.PROCESSING, Status.PROCESSED, Status.COMMITTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`statuses`: empty means all; `text`: in the run, DAG, owner or error, or a txid, or a range (``5 to 24``);
    `from_ms`, `to_ms`: when the transaction began; `after`: the page begins after this txid; `oldest_first`: the
    order; `partition`: only transactions of this partition, the first of which is `up_to` or a lower one."""

    statuses: frozenset[Status] = frozenset()
    text: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    after: int | None = None
    oldest_first: bool = False
    partition: str = ""
    up_to: int | None = None

    @property
    def reads_all(self) -> bool:
        """Must a record be read to know whether it belongs to the list?"""
        return bool(self.partition) or (bool(self.text) and self._range is None)

    @property
    def _range(self) -> tuple[int, int] | None:
        match = _RANGE.fullmatch(self.text)
        return (int(match[1]), int(match[2])) if match else None

    def may_have(self, kept: Sequence[int], view: LedgerView, begun_ms: Callable[[int], int]) -> list[int]:
        """The txids that may be on the list, in its order, from the first one of the page.

        :param kept: txids that have a record, rising.
        :param begun_ms: gives the time when a txid began; called for few txids.
        """
        first = 0 if self.from_ms is None else bisect_left(kept, self.from_ms, key=begun_ms)
        last = len(kept) if self.to_ms is None else bisect_right(kept, self.to_ms, key=begun_ms)
        if self._range is not None:
            first, last = max(first, bisect_left(kept, self._range[0])), min(last, bisect_right(kept, self._range[1]))
        if self.up_to is not None:
            last = min(last, bisect_right(kept, self.up_to))
        wanted = [txid for txid in kept[first:last] if self._may_be(txid, view)]
        if not self.oldest_first:
            wanted.reverse()
        if self.after is None:
            return wanted
        return [txid for txid in wanted if (txid > self.after if self.oldest_first else txid < self.after)]

    def is_sure_of(self, txid: int, view: LedgerView) -> bool:
        """Is a txid of :meth:`may_have` on the list, whatever its record says?"""
        return not self.reads_all and (not self.statuses or _may_have_status(txid, view) <= self.statuses)

    def _may_be(self, txid: int, view: LedgerView) -> bool:
        return not self.statuses or bool(self.statuses & _may_have_status(txid, view))

    def ends_with(self, record: TxRecord) -> bool:
        """Is none behind it on the list? Not behind the first transaction of a partition."""
        if record.partition is None or self.oldest_first:
            return False
        return (record.partition.key, record.partition.n) == (self.partition, 1)

    def has(self, record: TxRecord, shown: str) -> bool:
        """:param shown: what the user sees of the record: nobody can search in what is hidden from them."""
        if self.statuses and record.status not in self.statuses:
            return False
        if self.partition and self.partition not in record.partitions:
            return False
        return (
            not self.text
            or self._range is not None
            or self.text.casefold() in shown.casefold()
            or self.text == str(record.txid)
        )


def _may_have_status(txid: int, view: LedgerView) -> frozenset[Status]:
    lists = view.exceptions
    if txid in lists.failed:
        return frozenset({Status.FAILED})
    if txid in lists.skipped:
        return frozenset({Status.SKIPPED})
    if txid > view.pointer.committed or txid in lists.late or txid in lists.replaying:
        return _AT_WORK
    return frozenset({Status.COMMITTED, Status.CLOSED})


OPEN_SHOWN = 200
"""How many of the lowest uncommitted transactions are read, whatever page is shown."""
HISTORY = 100
"""How many of the latest committed transactions are in the charts."""
ASKED = 20
"""How many of the latest transactions are read to find the DAGs of a topology, if nothing else needs them."""
DEADLINE_S = 5.0
"""Limit for each call to ZooKeeper: the page soon asks again, so it must not hold a thread of the API server long."""
SESSIONS = SessionPool()
"""Of this process of the API server. Open pages ask every few seconds: sessions of their own would be most of the
ensemble's work."""


def names(sight: Sight, dag_id: str = "", run_id: str = "") -> dict[str, Any]:
    """`names`: of all topologies, sorted; `of_dag`: of those with transactions of this DAG, those of the run first."""
    with open_ledgers() as ledgers:
        every = ledgers.names()
        if not dag_id or dag_id not in sight.dags:
            return {"names": every, "of_dag": []}
        runs = {name: _runs_of(overview, dag_id) for name, overview in _overviews(ledgers).items()}
        matches = [name for name in every if runs.get(name)]
        return {"names": every, "of_dag": sorted(matches, key=lambda name: (run_id not in runs[name], name))}


def topologies(sight: Sight) -> list[dict[str, Any]]:
    """One summary for each topology, the worst state first, then by name; for one that cannot be read, why.

    :raises TridentError: ZooKeeper does not answer; the text says why.
    """
    with open_ledgers() as ledgers:
        read, beside = _overviews(ledgers), ledgers.beside()
    stuck = {
        name: ([overview.lowest], overview.workers)
        for name, overview in read.items()
        if isinstance(overview, Overview) and overview.lowest
    }
    stalled = abandoned_of(stuck)
    every = [_overview_of(overview, name, beside, sight, stalled.get(name, {})) for name, overview in read.items()]
    return sorted(every, key=lambda overview: list(Health).index(overview["diagnosis"]["state"]))


def transactions(topology: str, sight: Sight, txid: int | None = None, choice: Choice | None = None) -> dict[str, Any]:
    """The summary and a page of the transactions of a topology, latest first if nothing else is chosen.

    `more`: the next page begins after this txid, None at the end; `found`: how many there are in all, None if only
    reading many of them could tell; `open`: the lowest uncommitted ones; `history`: the latest committed ones, for
    charts; `plan`: see :class:`PlanPicture`, None if the ledger has none; `named_workers`: the workers that the
    topology is deployed on, see :meth:`airflow_trident.contracts.wing.WingRecords.rows`.

    :param txid: add the `details` of this transaction, which are None if there is no record of it.
    """
    choice = choice or Choice()
    with open_ledgers() as ledgers:
        ledger = ledgers.ledger(topology)
        view = ledger.view(0)
        unfinished, workers, outcome = open_transactions(ledger, view), ledger.workers(), ledger.coordinator()
        history = latest_committed(ledger, view)
        near = [*unfinished, *history[-ASKED:]]
        visible = sight.may_see(dags_of(near, outcome))
        partitions = page_partitions.calendar(view)
        if choice.partition:
            choice = replace(choice, up_to=page_partitions.latest_of(ledger, partitions, choice.partition))
        page, more, count = _page(ledger, view, choice, sight, visible)
        chosen = None if txid is None else ledger.view(txid).tx
        code = code_words(ledger, chosen) if chosen is not None and visible else ""
        partition_now = None if chosen is None else page_partitions.partition_now(ledger, chosen)
        beside = ledgers.beside([topology])
        eventless = without_event(ledger, view)
        picture = picture_in(ledger) if visible else None
    red = [run for run in airflow_runs.red_runs([*history, *unfinished]) if run[0] in sight.dags] if visible else []
    stalled = abandoned({record.txid: record for record in [*unfinished, *page]}.values(), workers)

    records = {record.txid: record for record in [*page, *unfinished, *([] if chosen is None else [chosen])]}
    evidence = seen(
        Evidence(
            view=view,
            outcome=outcome,
            records=records,
            stalled=stalled,
            workers=beside.standstill(view.topology),
            red_runs=bool(red),
        ),
        sight,
        visible,
    )

    def shown_row(record: TxRecord) -> dict[str, Any]:
        return {**row(record, sight, visible), "diagnosis": _diagnosed(evidence, record)}

    about = summary(evidence, visible)
    return {
        **about,
        "notes": [*about["notes"], *([f"{eventless_text(eventless).capitalize()}."] if eventless else [])],
        "plan": None if picture is None else asdict(picture),
        "red_runs": [{"dag_id": dag_id, "run_id": run_id} for dag_id, run_id in red],
        "transactions": [shown_row(record) for record in page],
        "partitions": page_partitions.described(partitions),
        "more": more,
        "found": count,
        "open": [shown_row(record) for record in unfinished],
        "history": [_point(record) for record in history if record.status is Status.COMMITTED],
        "workers": [worker_row(worker, sight, visible) for worker in workers],
        "named_workers": [named_worker_row(worker, sight, visible) for worker in beside.rows(topology)],
        "details": None
        if chosen is None
        else {
            **details(chosen, sight, visible),
            "diagnosis": _diagnosed(evidence, chosen),
            "partition_now": partition_now,
            "code": code if row(chosen, sight, visible)["visible"] else "",
        },
        "dags": sorted(dags_of(near, outcome) - {""}) if visible else [],
    }


def transaction(topology: str, txid: int, sight: Sight) -> dict[str, Any] | None:
    """One transaction with its batches' metadata; None if there is no record of it (never begun, or pruned)."""
    with open_ledgers() as ledgers:
        ledger = ledgers.ledger(topology)
        view = ledger.view(txid)
        if view.tx is None:
            return None
        return details(view.tx, sight, sight.may_see(dags_of_topology(ledger, view) | {view.tx.claim.dag_id}))


# ---- reading ---------------------------------------------------------------------------------------------------


@contextmanager
def open_ledgers() -> Iterator[Ledgers]:
    """:raises RetryableError: Airflow has no such connection."""
    with SESSIONS.used(ZooKeeperHook().get_ledgers(deadline_s=DEADLINE_S)) as ledgers:
        yield ledgers


def dags_of(records: Iterable[TxRecord], outcome: CoordinatorOutcome | None) -> set[str]:
    return {record.claim.dag_id for record in records} | ({outcome.dag_id} if outcome else set())


def dags_of_topology(ledger: Ledger, view: LedgerView) -> set[str]:
    """The DAGs of the latest transactions and of the last coordinator; "" among them if one has no DAG."""
    return dags_of(_latest(ledger, view), ledger.coordinator())


def dags_of_backfill(ledger: Ledger, view: LedgerView, first: int | None, last: int | None) -> set[str]:
    """The DAGs of what a backfill of a range may replay and commit; of all that is not committed, without one. Those
    that are COMMITTED stay as they are, and are not read: there may be very many."""
    passed, exceptions = view.pointer.committed, view.exceptions
    wanted = {*exceptions.unfinished, *range(passed + 1, view.next_txid)}
    if first is not None and last is not None:
        wanted = {txid for txid in (*wanted, *exceptions.skipped) if first <= txid <= last}
    return dags_of(_records(ledger, sorted(wanted)), None) if wanted else set()


def latest_committed(ledger: Ledger, view: LedgerView) -> Sequence[TxRecord]:
    return ledger.transactions(max(1, view.pointer.committed - HISTORY + 1), view.pointer.committed)


def _overviews(ledgers: Ledgers) -> dict[str, Overview | TridentError]:
    return ledgers.overviews(latest=ASKED, lowest_of=lambda view: view.lowest_uncommitted(view.next_txid))


def _overview_of(
    read: Overview | TridentError, name: str, beside: Beside, sight: Sight, stalled: dict[int, Stalled]
) -> dict[str, Any]:
    if isinstance(read, TridentError):
        return {"name": name, "diagnosis": shown(unreadable(str(read)))}
    visible = sight.may_see(dags_of(read.latest, read.outcome))
    first = read.lowest
    evidence = Evidence(
        view=read.view,
        outcome=read.outcome,
        records={record.txid: record for record in [*read.latest, *([] if first is None else [first])]},
        stalled=stalled,
        workers=beside.standstill(read.view.topology),
    )
    return {
        **summary(seen(evidence, sight, visible), visible),
        "lowest": None if first is None else row(first, sight, visible),
        "history": [_point(record) for record in read.latest if record.status is Status.COMMITTED],
    }


def _latest(ledger: Ledger, view: LedgerView) -> Sequence[TxRecord]:
    return ledger.transactions(max(1, view.next_txid - ASKED))


def _runs_of(read: Overview | TridentError, dag_id: str) -> set[str]:
    """The runs of a DAG among the latest transactions. An error is not shown here but in the summary."""
    if isinstance(read, TridentError):
        return set()
    runs = {record.claim.run_id for record in read.latest if record.claim.dag_id == dag_id}
    outcome = read.outcome
    return runs | ({outcome.run_id} if outcome and outcome.dag_id == dag_id else set())


def open_transactions(ledger: Ledger, view: LedgerView) -> list[TxRecord]:
    first = view.pointer.committed + 1
    above = list(ledger.transactions(first, first + OPEN_SHOWN - 1)) if first < view.next_txid else []
    below = [txid for txid in view.exceptions.unfinished if txid < first][:OPEN_SHOWN]
    late = ledger.records(below) if below else ()
    return [*late, *(record for record in above if not record.status.lets_others_pass)]


def _page(
    ledger: Ledger, view: LedgerView, choice: Choice, sight: Sight, visible: bool
) -> tuple[list[TxRecord], int | None, int | None]:
    """The records, the txid after which the next page begins, and the number of matches from here on, if known."""
    folder = ledger.paths().transactions
    kept = sorted(int(name) for name in ledger.znodes.read([], [folder]).folders[folder] or ())

    def begun_ms(txid: int) -> int:
        begun_record = ledger.view(txid).tx
        return 0 if begun_record is None else begun_record.times_ms.get("begun", 0)

    wanted = choice.may_have(kept, view, begun_ms)
    unsure = [txid for txid in wanted if not choice.is_sure_of(txid, view)]
    countable = not choice.reads_all and len(unsure) <= OPEN_SHOWN
    if countable and unsure:  # only their records tell their statuses
        fits = {candidate.txid for candidate in _records(ledger, unsure) if choice.has(candidate, "")}
        wanted = [txid for txid in wanted if txid in fits or choice.is_sure_of(txid, view)]
    page: list[TxRecord] = []
    looked = 0
    while looked < len(wanted) and len(page) < PAGE and looked < LOOKED_THROUGH:
        some = wanted[looked : looked + PAGE * (8 if choice.reads_all else 1)]
        records = {candidate.txid: candidate for candidate in _records(ledger, some)}
        for txid in some:
            looked += 1
            record = records.get(txid)
            if record is not None and choice.has(record, searched(row(record, sight, visible))):
                page.append(record)
                if choice.ends_with(record):
                    wanted = wanted[:looked]
                if len(page) == PAGE:
                    break
    more = wanted[looked - 1] if 0 < looked < len(wanted) else None
    return page, more, len(wanted) if countable else None


def _records(ledger: Ledger, txids: Sequence[int]) -> Sequence[TxRecord]:
    """The records of these txids, in one round trip for each 1,000 of them."""
    return ledger.records(txids) if txids else ()


def _diagnosed(evidence: Evidence, record: TxRecord) -> dict[str, Any]:
    """:param evidence: as the user sees it, with the record."""
    return shown(diagnose_transaction(evidence, evidence.records[record.txid]))


def _point(record: TxRecord) -> dict[str, Any]:
    """The values that charts and throughput need of a transaction."""
    staged = record.staged
    return {
        "txid": record.txid,
        "status": record.status,
        "times_ms": record.times_ms,
        "rows_read": staged.rows_read if staged else None,
        "bytes": staged.bytes if staged else None,
    }
