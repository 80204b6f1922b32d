"""Arguments and answers of the verbs, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.records import TxRecord
from airflow_trident.types import Json

DEFAULT_MAX_PENDING = 2
DEFAULT_RETENTION = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """The claim's transaction. `new`: this very call began it (or one whose answer was lost)."""

    record: TxRecord | None
    txid: int
    new: bool


@dataclass(frozen=True, slots=True)
class NothingNew:
    """No stream has data after what the ledger holds; nothing was begun."""


NotBegun = NothingNew | Full | Paused | Blocked
"""Why nothing was begun."""

BeginResult = Begun | NotBegun

BeginManyResult = tuple[Begun, ...] | NotBegun
"""Empty only if there were no claims, or if other writes filled the step."""

LagOf = Callable[[dict[str, Json]], dict[str, Lag]]
"""``position -> stream -> what its source has beyond it``: for people; asked with the position after a new batch."""

MetadataOf = Callable[[int, dict[str, Json]], dict[str, Json] | None]
"""``(txid, position) -> metadata`` per stream with new data; None if no stream has any. It must have no effects: it is
called again if somebody else begins a transaction."""

BatchesOf = Callable[[int, dict[str, Json], int], Sequence[dict[str, Json]]]
"""``(txid, position, most) -> metadata``: as :data:`MetadataOf`, for this transaction and the next ones, at most
`most`; each goes on where the one before it ended."""
