"""Do the states hold exactly what the ledger says? Checked before anything begins, and before each commit (P11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from airflow_trident.contracts.state import Marker, State, in_question, of_others, other_ledger
from airflow_trident.errors import LedgerBehindStateError, StateBehindLedgerError, TridentError, state_code
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.refusals import definition_changed
from airflow_trident.protocol.decide import Commit, decide_commit
from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.protocol.state_gaps import needed_by, state_behind
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.topology.topology import Topology

Records: TypeAlias = Callable[[Txids], Sequence[TxRecord]]


def markers_of(topology: Topology) -> dict[str, Marker | None]:
    """State name -> its marker, for each state that knows which txids it holds."""
    markers: dict[str, Marker | None] = {}
    for name, spec in topology.states.items():
        if spec.factory.capabilities.knows_txids:
            with state_code(name), spec.factory.make_state(spec) as state:
                markers[name] = state.marker()
    return markers


def markers_of_open(topology: Topology, states: Mapping[str, State]) -> dict[str, Marker | None]:
    """The same as :func:`markers_of`, for states that are open."""
    specs = topology.states
    markers: dict[str, Marker | None] = {}
    for name, state in states.items():
        if specs[name].factory.capabilities.knows_txids:
            with state_code(name):
                markers[name] = state.marker()
    return markers


def require_ledger_ahead(
    topology: str, markers: Mapping[str, Marker | None], view: LedgerView, records: Records
) -> None:
    """A ledger that was wiped or restored gives used txids to new data: the states would skip the data, or hold them
    twice. A fence that a state has seen and the ledger never gave out proves it; so does a txid; and so does a
    transaction that a state holds and that is another one in the ledger.

    :param markers: state name -> marker.
    :param view: read after the markers. Others may begin and commit meanwhile, so a later view knows all that a state
        held.
    :param records: :meth:`Ledger.records`; called only if a state holds what is not committed yet.
    :raises LedgerBehindStateError: a state is ahead of the ledger (P11).
    """
    present = {name: marker for name, marker in markers.items() if marker is not None}
    for name, marker in present.items():
        numbers = marker.high < view.next_txid and marker.fence <= view.pointer.fence
        is_other = marker.incarnation != view.topology.incarnation
        if is_other or not numbers:
            raise (other_ledger if is_other else _behind)(
                topology,
                f"state {name!r} of topology {topology!r} holds transactions up to {marker.high} (incarnation "
                f"{marker.incarnation}, fence {marker.fence}) and the ledger begins at {view.next_txid} (incarnation "
                f"{view.topology.incarnation}, fence {view.pointer.fence})",
            )
    since = {name: view.topology.since.get(name, 1) for name in present}
    unsure = Txids.joined(part for name in present for part in in_question(present[name], view, since[name]).ranges)
    records_in_question = records(unsure) if unsure else ()
    for name, marker in present.items():
        if others := of_others(marker, view, since[name], records_in_question):
            raise _behind(topology, f"state {name!r} of topology {topology!r} holds {others}")


def _behind(topology: str, problem: str) -> LedgerBehindStateError:
    return LedgerBehindStateError(
        f"{problem}: the ledger was wiped, or restored from an old copy",
        "Nothing was changed. Pause the DAG and restore the ledger, or seed it from the states with `airflow trident "
        f"repair {topology}`; or give the topology a new name and new states.",
    )


def lacking(name: str, marker: Marker | None, view: LedgerView) -> Txids:
    """The txids that the ledger calls COMMITTED and a state does not hold.

    :param view: read before the marker: the state must now hold everything that was committed then.
    """
    through = view.pointer.committed
    needed = needed_by(view, name, through)
    return needed if marker is None else marker.lacks(needed)


def require_states_whole(topology: str, markers: Mapping[str, Marker | None], view: LedgerView) -> None:
    """No state may go on over a gap: what it lacks would be missing for good. A gap means that the state was deleted,
    or restored from an old copy, or that two workers have a copy each.

    :param view: read before the markers.
    :raises StateBehindLedgerError: a state lacks what the ledger calls COMMITTED (P11).
    """
    for name, marker in markers.items():
        missing = lacking(name, marker, view)
        if missing:
            raise state_behind(topology, name, missing, 0 if marker is None else marker.high)


def require_agreement(ledger: Ledger, topology: Topology) -> None:
    """Checks that ledger and states say the same.

    :raises LedgerBehindStateError: a state is ahead of the ledger.
    :raises StateBehindLedgerError: a state lacks what the ledger calls COMMITTED.
    """
    before = ledger.view(0, ahead=True)
    markers = markers_of(topology)
    try:
        require_ledger_ahead(topology.name, markers, before, ledger.records)
    except LedgerBehindStateError:
        # Others may have gone on meanwhile.
        require_ledger_ahead(topology.name, markers, ledger.view(0, ahead=True), ledger.records)
    require_states_whole(topology.name, markers, before)


def empty_states(topology: Topology, before: Definition) -> list[str]:
    """The names of the states that another definition changed and that hold nothing: they begin anew."""
    empty: list[str] = []
    now = topology.definition()
    for name, spec in topology.states.items():
        if before.same_state(now, name) or not spec.factory.capabilities.knows_txids:
            continue
        try:
            with state_code(name), spec.factory.make_state(spec) as state:
                marker = state.marker()
        except TridentError:
            continue  # the next committer says what is wrong with it
        if marker is None or not marker.high:
            empty.append(name)
    return empty


def may_commit(
    ledger: Ledger, topology: Topology, view: LedgerView, txid: int, states: OpenStates, *, strictly: bool = False
) -> LedgerView | None:
    """The view that shows that the transaction's turn has come and that ledger and states agree; None: it is not its
    turn.

    :param strictly: read the ledger again after the markers. That is only needed if the first check fails: a ledger
        only grows, so if it agrees with markers that were read after it, it would also agree with them now.
    :raises DefinitionChangedError: a committer of an older definition would not know a state that was accepted
        meanwhile.
    """
    if not isinstance(decide_commit(view, txid), Commit):
        return None
    differences = view.topology.definition.differences(topology.definition())
    if differences:
        raise definition_changed(topology.name, differences)
    markers = markers_of_open(topology, states.opened())
    try:
        require_states_whole(topology.name, markers, view)
        if strictly:
            view = ledger.view(txid, ahead=True)  # again, after the markers
        require_ledger_ahead(topology.name, markers, view, ledger.records)
    except (LedgerBehindStateError, StateBehindLedgerError):
        if strictly:
            raise
        now = ledger.view(txid, ahead=True)  # others may have committed
        return may_commit(ledger, topology, now, txid, states, strictly=True)
    return view if isinstance(decide_commit(view, txid), Commit) else None
