"""The last outcome of a coordinator and the lag of its sources, as text for commands."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind


def time_text(time_ms: int | None) -> str | None:
    """``2026-01-31 12:00:00`` in UTC; None for no time."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def outcome_text(outcome: CoordinatorOutcome) -> str:
    """``error at 2026-01-31 12:00:00 UTC in run scheduled__2026-01-31 of DAG words``."""
    when = f" at {time_text(outcome.time_ms)} UTC" if outcome.time_ms else ""
    run = f" in run {outcome.run_id} of DAG {outcome.dag_id}" if outcome.dag_id else ""
    return f"{outcome.kind}{when}{run}"


def lag_text(outcome: CoordinatorOutcome | None) -> str | None:
    """Data that no transaction has taken yet: ``lines: 3 files, 1,200 bytes``; None: not known."""
    if outcome is None or not outcome.lag_ms:
        return None
    if outcome.kind is OutcomeKind.NOTHING_NEW:
        return "none"
    parts = [
        f"{stream}: {', '.join(f'{count:,} {unit}' for unit, count in lag.items())}"
        for stream, lag in sorted(outcome.lag.items())
    ]
    return "; ".join(parts) or None
