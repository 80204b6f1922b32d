"""Spans of transactions, through Airflow's OpenTelemetry tracing. A span is a child of the span of the task or command
whose write ended the phase.

| span | from | until |
|---|---|---|
| ``trident.processing`` | an attempt begins | its batch is staged, or it failed |
| ``trident.waiting`` | the batch is staged | the commit begins |
| ``trident.commit`` | the commit begins | the transaction is committed |

The times come from the ledger's records, so a phase may begin in one task and end in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status

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
    for one in spans:
        about: dict[str, str | int] = {
            "trident.topology": topology,
            "trident.txid": one.txid,
            "trident.attempt": one.attempt,
        }
        span = tracer.start_span(f"trident.{one.name}", start_time=one.begin_ms * 1_000_000, attributes=about)
        if one.error:
            span.set_status(StatusCode.ERROR, one.error)
        span.end(end_time=one.end_ms * 1_000_000)
