"""The three kinds of spout: the ledger records which one made a transaction."""

from __future__ import annotations

from enum import StrEnum


class SpoutKind(StrEnum):
    """What a replay of a txid gives (Storm's three kinds of spout)."""

    TRANSACTIONAL = "transactional"
    """Always the same batch."""
    OPAQUE = "opaque"
    """Perhaps another batch, but every record is in exactly one committed batch."""
    NON_TRANSACTIONAL = "non-transactional"
    """No promise."""
