"""Notes in the ledger, for people, how a coordinator ended. Otherwise a topology that cannot begin would look like one
with nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import LedgerUnavailableError, OutcomeUnknownError, recorded_text, spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import BeginResult, NothingNew
from airflow_trident.ledger.plan_pictures import note_picture
from airflow_trident.plan.show.picture import picture_of
from airflow_trident.protocol.decide import Blocked, Paused
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag, OutcomeKind
from airflow_trident.protocol.records import Claim
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def tell(ledger: Ledger, claim: Claim, kind: OutcomeKind, error: str = "") -> None:
    """If this fails, nothing else fails."""
    with suppress(Exception):
        ledger.note_coordinator(CoordinatorOutcome(kind=kind, dag_id=claim.dag_id, run_id=claim.run_id, error=error))


def tell_result(ledger: Ledger, claim: Claim, result: BeginResult | None) -> None:
    if isinstance(result, NothingNew):
        tell(ledger, claim, OutcomeKind.NOTHING_NEW)
    elif isinstance(result, Paused):
        tell(ledger, claim, OutcomeKind.PAUSED)
    elif isinstance(result, Blocked):
        tell(ledger, claim, OutcomeKind.BLOCKED, f"transaction {result.by} is FAILED")


def tell_plan(ledger: Ledger, topology: Topology) -> None:
    """Keeps the plan's picture if the ledger has another one. If this fails, nothing else fails."""
    with suppress(Exception):
        note_picture(ledger, picture_of(topology.compile()))


@contextmanager
def telling(ledger: Ledger, claim: Claim, *, rows_in_errors: bool = True) -> Iterator[Callable[[BeginResult], None]]:
    """Wraps the check of the definition and a look at the sources: notes an error before it is raised further, and a
    result that is passed to the yielded function. The step that begins a transaction notes that itself. A wait for room
    in the window is not noted: most are short."""
    try:
        yield partial(tell_result, ledger, claim)
    except (LedgerUnavailableError, OutcomeUnknownError):
        raise  # the ledger could not note it either, and each try takes its deadline
    except Exception as error:
        tell(ledger, claim, OutcomeKind.ERROR, recorded_text(error, rows=rows_in_errors))
        raise


def lags_of(coordinators: Mapping[str, Coordinator]) -> Callable[[dict[str, Json]], dict[str, Lag]]:
    """How much the sources have beyond a position, for those that can say."""

    def asked(position: dict[str, Json]) -> dict[str, Lag]:
        found: dict[str, Lag] = {}
        for name, coordinator in coordinators.items():
            with suppress(Exception), spout_code(name):
                lag = coordinator.lag(position.get(name))
                if lag is not None:
                    found[name] = {str(unit): int(count) for unit, count in lag.items()}
        return found

    return asked
