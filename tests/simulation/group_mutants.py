"""Deliberate defects in the code for groups: markers, fences, attempts and staged batches; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.transact import Unchanged
from airflow_trident.ledger.verbs import attempts, begin, commits, common
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.commit import GroupCommitter
from airflow_trident.states.core import marker as marker_module
from tests.simulation.cure_mutants import MUTANTS
from tests.simulation.mutants import Patch, mutant
from tests.simulation.pieces import SimArea

__all__ = ["MUTANTS"]

SLOWLY = 60
"""How many steps others may take in between."""


# ---- states ----------------------------------------------------------------------------------------------------------


@mutant("a marker does not say what came with its highest txid", "groups")
def _() -> Sequence[Patch]:
    def admit_group(*args: Any, **named: Any) -> Any:
        marker, verdicts = original(*args, **named)
        return replace(marker, group={}), verdicts

    original = marker_module.admit_group
    return [(marker_module, "admit_group", admit_group)]


@mutant("a marker has only those of a step that were new", "groups")
def _() -> Sequence[Patch]:
    def admit_group(marker: Any, given: Any, **named: Any) -> Any:
        after, verdicts = original(marker, given, **named)
        new = {one.txid for one, verdict in zip(given, verdicts, strict=True) if verdict is marker_module.Verdict.APPLY}
        return replace(after, group={txid: digest for txid, digest in after.group.items() if txid in new}), verdicts

    original = marker_module.admit_group
    return [(marker_module, "admit_group", admit_group)]


@mutant("a state takes a group by an old fence", "groups-taken-back")
def _() -> Sequence[Patch]:
    def admit_group(marker: Any, given: Any, **named: Any) -> Any:
        fence = 0 if marker is None else marker.fence
        return original(marker, [replace(one, fence=max(one.fence, fence)) for one in given], **named)

    original = marker_module.admit_group
    return [(marker_module, "admit_group", admit_group)]


# ---- what was merged by key ------------------------------------------------------------------------------------------


@mutant("a batch of several is taken for that of each of them", "groups")
def _() -> Sequence[Patch]:
    def read_each(self: SimArea, manifest: Any, whose: Any, state: str, schema: Any) -> Any:
        if manifest.inseparable:
            return [self._read(manifest, state, schema)]
        return original(self, manifest, whose, state, schema)

    original = SimArea.read_each
    return [(SimArea, "read_each", read_each)]


@mutant("the batches of a commit come in the order of their files", "ordered")
def _() -> Sequence[Patch]:
    def staged(self: GroupCommitter, commits: Any, manifests: Any) -> Any:
        files = list(dict.fromkeys(one.staged.manifest for one in commits))
        by_file = sorted(range(len(commits)), key=lambda place: files.index(commits[place].staged.manifest))
        found = original(self, commits, manifests)

        def batches(state: str) -> Any:
            each = found(state)
            return [each[place] for place in by_file] if len(each) == len(commits) else each

        return batches

    original = GroupCommitter._staged
    return [(GroupCommitter, "_staged", staged)]


# ---- the ledger ------------------------------------------------------------------------------------------------------


@mutant("there is room for a group where there is room for one", "groups")
def _() -> Sequence[Patch]:
    return [(begin, "_room", lambda view, max_pending, wanted: wanted)]


@mutant("what is run again in halves keeps its attempts", "groups")
def _() -> Sequence[Patch]:
    def attempt(snap: Any, members: Any, **named: Any) -> Any:
        found = [snap.tx(one) for one in members if isinstance(one, int)]
        if 1 < len(found) == len(members) and all(tx.status is Status.PROCESSING and tx.attempt >= 0 for tx in found):
            return Unchanged(tuple(found))
        return original(snap, members, **named)

    original = attempts.attempt
    return [(Ledger.attempt, "decide", attempt)]


@mutant("a group is PROCESSED from any attempt", "groups")
def _() -> Sequence[Patch]:
    def processed(snap: Any, done: Any, **named: Any) -> Any:
        if len(done) == 1:
            return original(snap, done, **named)
        with mock.patch.object(common, "of_attempt", lambda snap, txid, attempt: common.existing(snap, txid)):
            return original(snap, done, **named)

    original = attempts.processed
    return [(Ledger.processed, "decide", processed)]


@mutant("a group's commit prunes what it commits itself", "groups")
def _() -> Sequence[Patch]:
    def prune(snap: Any, upto: int, exceptions: Any, retention: int, *, just_committed: Any) -> Any:
        return original(snap, upto, exceptions, retention, just_committed=[*just_committed][:1])

    original = commits.prune
    return [(commits, "prune", prune)]


@mutant("who takes a commit back asks for what its group has not committed yet", "groups-taken-back")
def _() -> Sequence[Patch]:
    original = commits.for_states
    return [(commits, "for_states", lambda view, txid, barred: original(view, txid, barred=False))]


@mutant("what a group went over is taken up before its commit has ended", "taken-back")
def _() -> Sequence[Patch]:
    return [(common, "require_not_passed_over", lambda snap, tx: None)]
