"""Metrics of transactions, through Airflow's metrics: the backend in ``[metrics]`` (StatsD, Datadog, OpenTelemetry)
gets them, tagged with the topology. The process whose write changed the ledger counts, so each event counts once.

| metric | kind | when |
|---|---|---|
| ``trident.begun``, ``.committed``, ``.failed``, ``.skipped`` | counters | a transaction becomes that |
| ``trident.attempts`` | counter | an attempt begins |
| ``trident.rows``, ``.bytes`` | counters | a batch is staged: rows read from the sources, bytes staged |
| ``trident.late_rows`` | counter | a commit: tuples too late for all their windows, or without a time |
| ``trident.fenced`` | counter | an attempt or a commit was refused, because a newer one has taken over |
| ``trident.processing``, ``.commit`` | timings, ms | an attempt's processing; a commit |
| ``trident.lag`` | timing, ms | from begun to committed |
| ``trident.pending`` | gauge | transactions above the commit pointer |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from airflow_trident.errors import FencedError, StaleAttemptError
from airflow_trident.ledger.begin_result import Begun
from airflow_trident.ledger.group_answers import Committed, Processed
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.tasks.spans import phase_spans, trace

PREFIX = "trident."


class MetricKind(StrEnum):
    COUNTER = "incr"
    TIMING = "timing"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """`value`: the increment, the milliseconds, or the current number."""

    kind: MetricKind
    name: str
    value: int


def metrics_of(verb: str, answer: object) -> list[Metric]:
    """The metrics of a verb's answer. Pure."""
    if isinstance(answer, (FencedError, StaleAttemptError)):
        return [Metric(MetricKind.COUNTER, "fenced", 1)]
    return [metric for part in parts_of(answer) for metric in _of(verb, part)]


def parts_of(answer: object) -> Iterator[object]:
    """The records that a verb wrote, and the transactions that it began."""
    if isinstance(answer, Committed):
        yield from answer.records
        yield from answer.begun
    elif isinstance(answer, Processed):
        yield from answer.records
    elif isinstance(answer, (tuple, list)):
        yield from answer
    else:
        yield answer


def _of(verb: str, part: object) -> list[Metric]:
    if isinstance(part, Begun):
        return [Metric(MetricKind.COUNTER, "begun", 1)] if part.new else []
    if not isinstance(part, TxRecord):
        return []
    by_status = _BY_STATUS.get(part.status)
    if verb == "attempt":
        return [Metric(MetricKind.COUNTER, "attempts", 1)]
    if by_status is None or verb not in by_status[0]:
        return []
    return by_status[1](part)


def _processed(record: TxRecord) -> list[Metric]:
    assert record.staged is not None
    took = Metric(MetricKind.TIMING, "processing", _between(record, Status.PROCESSING, Status.PROCESSED))
    rows = Metric(MetricKind.COUNTER, "rows", max(0, record.staged.rows_read))
    return [took, rows, Metric(MetricKind.COUNTER, "bytes", record.staged.bytes)]


def _committed(record: TxRecord) -> list[Metric]:
    late = sum(record.late_rows.values())
    return [
        Metric(MetricKind.COUNTER, "committed", 1),
        Metric(MetricKind.TIMING, "commit", _between(record, Status.COMMITTING, Status.COMMITTED)),
        Metric(MetricKind.TIMING, "lag", _between(record, "begun", Status.COMMITTED)),
        *([Metric(MetricKind.COUNTER, "late_rows", late)] if late else []),
    ]


def _counted(name: str) -> Callable[[TxRecord], list[Metric]]:
    return lambda _record: [Metric(MetricKind.COUNTER, name, 1)]


_BY_STATUS: dict[Status, tuple[tuple[str, ...], Callable[[TxRecord], list[Metric]]]] = {
    Status.PROCESSED: (("processed",), _processed),
    Status.COMMITTED: (("committed",), _committed),
    Status.FAILED: (("fail", "take_back"), _counted("failed")),
    Status.SKIPPED: (("skip", "fail"), _counted("skipped")),
}
"""Status -> the verbs that lead to it, and its metrics."""


def _between(record: TxRecord, first: str, last: str) -> int:
    return max(0, record.times_ms.get(last, 0) - record.times_ms.get(first, 0))


def listen(ledger: Any, verb: str, answer: object) -> None:
    """The listener of the ledgers that tasks, page and commands open. Sends metrics and spans."""
    records = (part for part in parts_of(answer) if isinstance(part, TxRecord))
    trace(ledger.topology_name, (span for record in records for span in phase_spans(verb, record)))
    found = metrics_of(verb, answer)
    if not found:
        return
    from airflow.providers.common.compat.sdk import Stats

    tags = {"topology": ledger.topology_name}
    if any(metric.name in ("begun", "committed", "skipped") for metric in found):
        found.append(Metric(MetricKind.GAUGE, "pending", ledger.view(0, remembered=True).pending))
    for metric in found:
        getattr(Stats, metric.kind)(PREFIX + metric.name, metric.value, tags=tags)


def initialize() -> None:
    """Set up Airflow's metrics in a process that runs no task: a command, the API server. Opens no connection."""
    try:
        from airflow.sdk.configuration import conf
        from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
    except ModuleNotFoundError:
        return  # Airflow 3.1 does it with the first metric
    stats: Any = import_module("airflow.sdk.observability.stats")
    if hasattr(stats, "initialize"):
        legacy = conf.getboolean("metrics", "legacy_names_on")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=legacy)
    else:  # Airflow 3.2
        make: Any = get_stats_factory
        stats.Stats.initialize(factory=make(stats.Stats))
