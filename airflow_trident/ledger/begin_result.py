"""What the verb `begin` is given and answers, and the defaults of the verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.records import TxRecord
from airflow_trident.types import Json

DEFAULT_MAX_PENDING = 2
DEFAULT_RETENTION = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """The claim has this transaction. `new`: it was begun by this very call (or by one whose answer was lost)."""

    record: TxRecord | None
    txid: int
    new: bool


@dataclass(frozen=True, slots=True)
class NothingNew:
    """No stream has data after what the ledger holds; nothing was begun."""


BeginResult = Begun | NothingNew | Full | Paused | Blocked

LagOf = Callable[[dict[str, Json]], dict[str, Lag]]
"""``position -> stream -> what its source has beyond it``: for people, asked with the position after a new batch."""

MetadataOf = Callable[[int, dict[str, Json]], dict[str, Json] | None]
"""``(txid, position) -> metadata`` per stream that has new data, None if none has. May be called again with other
arguments when somebody else began a transaction meanwhile: it must be free of effects."""
