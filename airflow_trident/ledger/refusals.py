"""The texts of refusals, the same in every ledger."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_trident.errors import DefinitionChangedError, HeldError, PassedOverError, TransitionError
from airflow_trident.protocol.diagnosis import backfill_of, take_back_of
from airflow_trident.protocol.records import FormerState, TxRecord


def definition_changed(name: str, differences: Sequence[str]) -> DefinitionChangedError:
    return DefinitionChangedError(
        f"the name {name!r} belongs to a topology with another definition: {'; '.join(differences)}",
        f"If that is meant and its states go on, `airflow trident ledger accept {name}`; else give the new topology "
        "another name.",
    )


def bound_otherwise(name: str, difference: str) -> DefinitionChangedError:
    return DefinitionChangedError(
        f"the name {name!r} belongs to a topology with another definition: {difference}",
        "Give the new topology another name. It may write to the same tables: a partition that is asked for replaces "
        "what the old one wrote there.",
    )


def claim_pruned(topology: str, key: str) -> TransitionError:
    return TransitionError(
        f"the cleared run {key!r} is so old that its claim was pruned: which transaction it had is not known",
        f"Replay its transaction by txid instead, `airflow trident backfill {topology} --txid TXID` (`airflow trident "
        f"ledger list {topology}` has them), or start a new run for new data.",
    )


def no_commit_under_way(txid: int, status: str) -> TransitionError:
    return TransitionError(
        f"transaction {txid} is {status}: there is no commit under way to go back from",
        "Run its emitter if it is to be processed again.",
    )


def batch_in_place(txid: int, attempt: int) -> TransitionError:
    return TransitionError(
        f"transaction {txid} is COMMITTING: the staged batch of attempt {attempt} is in place", "Run its committer."
    )


def never_attempted(txid: int) -> TransitionError:
    return TransitionError(
        f"transaction {txid} was not attempted with the batch that it has now, so nothing can be processed",
        "Start an attempt first.",
    )


def may_be_held(topology: str, txid: int) -> TransitionError:
    return TransitionError(
        f"transaction {txid} cannot be skipped: a commit of it has begun, so a state may hold it already",
        f"Run its commit again ({backfill_of(topology, txid)}); if that cannot succeed, "
        f"{take_back_of(topology, txid)} finds out whether a state holds it.",
    )


def nothing_to_take_back(tx: TxRecord) -> TransitionError:
    why = "every state has it" if tx.status.is_final else "no commit of it has begun, so no state can hold it"
    return TransitionError(f"transaction {tx.txid} is {tx.status}: {why}", "There is nothing to take back.")


def may_be_in_former(topology: str, txid: int, former: FormerState) -> HeldError:
    return HeldError(
        f"state {former.state!r} ({former.place}) left topology {topology!r} while transaction {txid} was committed. "
        "The state may hold it, so its commit cannot be taken back",
        f"Run its commit again into the other states: {backfill_of(topology, txid)}. Or put the "
        f"state back into the DAG file, type `airflow trident ledger accept {topology}`, and take the commit back.",
    )


def passed_over(topology: str, txid: int, by: int) -> PassedOverError:
    """
    :param by: the lowest transaction above it whose commit has begun.
    """
    return PassedOverError(
        f"transaction {txid} is SKIPPED and cannot be taken up now: the commit of transaction {by} went over it and "
        "has not ended, so a state may hold that one already",
        f"Try again when transaction {by} is COMMITTED. If nobody is at that, {backfill_of(topology, by)} commits it; "
        f"if that cannot succeed, {take_back_of(topology, by)}.",
    )
