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

Spans of transactions, through Airflow's OpenTelemetry tracing. A span is a child of the span of the task or command
whose write ended the phase.

| span | from | until |
|---|---|---|
| ``trident.processing`` | an attempt begins | its batch is staged, or it failed |
| ``trident.waiting`` | the batch is staged | the commit begins |
| ``trident.commit`` | the commit begins | the transaction is committed |

The times come from the ledger's records, so a phase may begin in one task and end in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from airflow_trident.errors import FencedError, StaleAttemptError
from airflow_trident.ledger.answers import Begun, Committed, Processed
from airflow_trident.protocol.records import Status, TxRecord

_PHASES = {
    "processed": (("processing", Status.PROCESSING, Status.PROCESSED),),
    "committed": (
        ("waiting", Status.PROCESSED, Status.COMMITTING),
        ("commit", Status.COMMITTING, Status.COMMITTED),
    ),
}
"""The name of a verb, which is also the new status -> the phases that end with it."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """`begin_ms`, `end_ms`: Unix milliseconds; `error`: "" if the phase ended well."""

    name: str
    begin_ms: int
    end_ms: int
    txid: int
    attempt: int
    error: str = ""


def phase_spans(verb: str, record: TxRecord) -> Iterator[PhaseSpan]:
    """The phases that the verb ended, from the record that it wrote. Pure."""
    if verb == "fail":
        for past in record.attempts[-1:]:
            if past.attempt == record.attempt and past.begun_ms and past.ended_ms:
                error = past.error.partition(":")[0]
                yield PhaseSpan(
                    "processing", past.begun_ms, past.ended_ms, record.txid, past.attempt, error or "failed"
                )
        return
    for name, first, last in _PHASES.get(record.status.lower(), ()):
        begin_ms, end_ms = record.times_ms.get(first), record.times_ms.get(last)
        if verb == record.status.lower() and begin_ms is not None and end_ms is not None:
            yield PhaseSpan(name, begin_ms, max(begin_ms, end_ms), record.txid, record.attempt)


def trace(topology: str, spans: Iterator[PhaseSpan]) -> None:
    """Send the spans to Airflow's tracing backend (``[traces]``), if that is on."""
    from opentelemetry.trace import StatusCode, get_tracer

    tracer = get_tracer("airflow_trident")
    for phase in spans:
        about: dict[str, str | int] = {
            "trident.topology": topology,
            "trident.txid": phase.txid,
            "trident.attempt": phase.attempt,
        }
        span = tracer.start_span(f"trident.{phase.name}", start_time=phase.begin_ms * 1_000_000, attributes=about)
        if phase.error:
            span.set_status(StatusCode.ERROR, phase.error)
        span.end(end_time=phase.end_ms * 1_000_000)


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
    metrics = metrics_of(verb, answer)
    if not metrics:
        return
    from airflow.providers.common.compat.sdk import Stats

    tags = {"topology": ledger.topology_name}
    if any(metric.name in ("begun", "committed", "skipped") for metric in metrics):
        metrics.append(Metric(MetricKind.GAUGE, "pending", ledger.view(0, remembered=True).pending))
    for metric in metrics:
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
