"""Are there more rows for a state than a committer should hold at once? Counted before any state is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.plan.stages import Plan

if TYPE_CHECKING:
    from airflow_trident.staging.manifest import Manifest


def require_mergeable(manifest: Manifest, plan: Plan, limit: int) -> None:
    """:param limit: how many rows of a state a commit may hold at once.
    :raises ConfigurationError: more rows were staged for a state that takes its batch whole. The error names the
        transaction, unless several were staged together: alone each may be small enough.
    """
    from airflow_trident.runtime.staged_batches import needed_whole

    whole, rows = needed_whole(plan), manifest.rows
    for sink in plan.staged:
        many = rows.get(sink.name, 0)
        if many > limit and (sink.name in whole or not _goes_in_pieces(sink, manifest)):
            error = ConfigurationError(
                f"{_named(manifest)} {many:,} rows for state {sink.name}, which takes its batch whole: more than the "
                f"{limit:,} of [trident] max_merge_rows",
                "Raise max_merge_rows if the committer has the memory, and run the task again. Smaller batches "
                "(max_files, max_rows, max_bytes of the spout) help transactions that are not begun yet.",
            )
            error.txid = None if manifest.group else manifest.slot.txid
            raise error


def _goes_in_pieces(sink: SinkNode, manifest: Manifest) -> bool:
    if not isinstance(sink, PersistNode) or not sink.state.factory.takes_pieces(sink.state):
        return False
    # If the processing phase did not look which rows of its table are replaced, the committer does, with all keys.
    return not sink.state.rewrites or any(rewrite.state == sink.name for rewrite in manifest.rewrites)


def _named(manifest: Manifest) -> str:
    txids = [member.txid for member in manifest.members]
    if len(txids) == 1:
        return f"transaction {txids[0]} has"
    return f"transactions {txids[0]} to {txids[-1]} together have"
