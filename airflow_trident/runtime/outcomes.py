"""Notes in the ledger, for people, how a coordinator ended. Otherwise a topology that cannot begin would look like one
with nothing to do.

Coordinators learn from the ledger which of their batches are committed.

What everybody does who commits, before the first transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import LedgerUnavailableError, OutcomeUnknownError, recorded_text, spout_code
from airflow_trident.ledger.announcements import begin_events
from airflow_trident.ledger.answers import BeginResult, NothingNew
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.plan_pictures import note_picture
from airflow_trident.plan.show.explain import picture_of
from airflow_trident.protocol.decide import Blocked, Paused
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag, OutcomeKind
from airflow_trident.protocol.records import Claim, Status, TopologyRecord, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def tell_success(ledger: Ledger, topology: TopologyRecord, coordinators: Mapping[str, Coordinator]) -> None:
    """Tells coordinators that implement `success` which transactions are committed, those that implement `skipped`
    which ones are passed, and those that implement `cleanup_before` which are over. The ledger says so, so it is never
    too early; and they are told again each time, so a kill loses nothing. What nobody was told of is not pruned.

    :param topology: as the caller has seen it.
    """
    committing, passing, cleaning = (_with(name, coordinators) for name in ("success", "skipped", "cleanup_before"))
    records = ledger.transactions() if committing or cleaning or passing else ()
    committed = [record for record in records if record.status is Status.COMMITTED]
    for record in committed:
        for name in committing.keys() & record.metadata.keys():
            with spout_code(name, record.txid):
                committing[name].success(record.txid, record.metadata[name])
    _note(ledger, topology.told, _over(records) if committing else None)
    passed = [record for record in records if record.status in (Status.SKIPPED, Status.CLOSED)]
    for name, coordinator in passing.items():
        with spout_code(name):
            coordinator.skipped({record.txid: record.metadata[name] for record in passed if name in record.metadata})
    if committed:
        needed = [record.txid for record in records if not record.status.is_final]
        for name, coordinator in cleaning.items():
            with spout_code(name):
                coordinator.cleanup_before(min([committed[-1].txid, *needed]))


def _with(method: str, coordinators: Mapping[str, Coordinator]) -> dict[str, Coordinator]:
    """The coordinators that implement a method which need not be."""
    default = getattr(Coordinator, method)
    return {
        name: coordinator
        for name, coordinator in coordinators.items()
        if getattr(type(coordinator), method) is not default
    }


def _over(records: Sequence[TxRecord]) -> Txids:
    """What nobody has to be told of any more, with what is pruned: so it has no more gaps than there are unfinished
    transactions.

    :param records: all that are kept, after coordinators were told of them.
    """
    last = max((record.txid for record in records if record.status.is_final), default=0)
    return Txids.span(1, last) - Txids.of(*(record.txid for record in records if not record.status.is_final))


def _note(ledger: Ledger, recorded: Txids | None, notified: Txids | None) -> None:
    """Costs something only if there is news."""
    if (notified is None) != (recorded is None) or (
        notified is not None and recorded is not None and notified - recorded
    ):
        ledger.note_told(notified)


def tell(ledger: Ledger, claim: Claim, kind: OutcomeKind, error: str = "") -> None:
    """If this fails, nothing else fails."""
    with suppress(Exception):
        ledger.note_coordinator(CoordinatorOutcome(kind=kind, dag_id=claim.dag_id, run_id=claim.run_id, error=error))


def tell_result(ledger: Ledger, claim: Claim, begun: BeginResult | None) -> None:
    if isinstance(begun, NothingNew):
        tell(ledger, claim, OutcomeKind.NOTHING_NEW)
    elif isinstance(begun, Paused):
        tell(ledger, claim, OutcomeKind.PAUSED)
    elif isinstance(begun, Blocked):
        tell(ledger, claim, OutcomeKind.BLOCKED, f"transaction {begun.by} is FAILED")


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

    def lags_at(position: dict[str, Json]) -> dict[str, Lag]:
        lags: dict[str, Lag] = {}
        for name, coordinator in coordinators.items():
            with suppress(Exception), spout_code(name):
                lag = coordinator.lag(position.get(name))
                if lag is not None:
                    lags[name] = {str(unit): int(count) for unit, count in lag.items()}
        return lags

    return lags_at


def register(ledger: Ledger, topology: Topology) -> None:
    """Creates or checks the topology's ledger, and calls :func:`ask_for_events`.

    :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
    """
    ledger.register(topology.definition())
    ask_for_events(ledger, topology)


def ask_for_events(ledger: Ledger, topology: Topology) -> None:
    """If the topology has an asset, each commit from now on needs an event. A program cannot bring it, but what it
    commits must be on the list for the next task that can.

    :raises UnknownTopologyError: there is no ledger yet.
    """
    if topology.asset:
        begin_events(ledger)
