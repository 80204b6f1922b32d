"""Arguments and answers of the verbs, and their defaults.

Arguments and answers of the verbs of emitters and committers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from airflow_trident.names import DEFAULT_MAX_PENDING
from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.partition_keys import PartitionEntry
from airflow_trident.protocol.partitions import Partition
from airflow_trident.protocol.records import Claim, CommitTicket, Owner, StagedRef, TxRecord
from airflow_trident.types import Json


@dataclass(frozen=True, slots=True)
class Begun:
    """The claim's transaction. `new`: this very call began it (or one whose answer was lost)."""

    record: TxRecord | None
    txid: int
    new: bool


@dataclass(frozen=True, slots=True)
class NothingNew:
    """No stream has data after what the ledger holds; nothing was begun."""


@dataclass(frozen=True, slots=True)
class PartitionMoved:
    """Another request changed the partition since the caller looked at it; nothing was begun. Look again."""

    key: str


NotBegun = NothingNew | Full | Paused | Blocked | PartitionMoved
"""Why nothing was begun."""

BeginResult = tuple[Begun, ...] | NotBegun
"""The transactions of the first claims, in order. Empty only if there were no claims, or if other writes filled the
step."""

LagOf = Callable[[dict[str, Json]], dict[str, Lag]]
"""``position -> stream -> what its source has beyond it``: for people; asked with the position after a new batch."""

MetadataOf = Callable[[int, dict[str, Json]], dict[str, Json] | None]
"""``(txid, position) -> metadata`` per stream with new data; None if no stream has any. It must have no effects: it is
called again if somebody else begins a transaction."""

BatchesOf = Callable[[int, dict[str, Json], int], Sequence[dict[str, Json]]]
"""``(txid, position, most) -> metadata``: as :data:`MetadataOf`, for this transaction and the next ones, at most
`most`; each goes on where the one before it ended."""


def no_batches(*_: object) -> Sequence[dict[str, Json]]:
    """Begins nothing: whoever asks with it gets what the claims have already."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPartition:
    """A partition that a claim asks for. `seen`: the entry of its key when the caller looked at its sources;
    `metadata`: of these sources; `reason`: a person's, which the record keeps."""

    partition: Partition
    seen: PartitionEntry
    metadata: dict[str, Json]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NextBatches:
    """The batches that :meth:`Ledger.begin` begins, and how.

    `claims`: in the order of their transactions.
    `batches_of`: is asked for as many batches as there may be, and again for fewer if they do not fit into one step.
    `attempt_by`: who processes new transactions at once, in the same process: then their attempt 0 starts in the same
    step, which saves `attempt`.
    `lag_of`: is asked about the position after the last one; None: the known lag of the sources stays as it is.
    `plan`: digest of the plan that they are begun with.
    `partitions`: of a bound topology: claim key -> what it asks for. Then `batches_of` is not asked.
    """

    claims: Sequence[Claim]
    batches_of: BatchesOf = no_batches
    _: KW_ONLY
    max_pending: int = DEFAULT_MAX_PENDING
    attempt_by: Owner | str = ""
    lag_of: LagOf | None = None
    plan: str = ""
    partitions: Mapping[str, AskedPartition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """An attempt that ended well, and what it staged."""

    txid: int
    attempt: int
    staged: StagedRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """`tickets`: of those whose gate the same step opened."""

    records: tuple[TxRecord, ...]
    tickets: tuple[CommitTicket, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """`begun`: by the same step. `why_not`: why it is empty; None if the step was full, or nothing was to begin."""

    records: tuple[TxRecord, ...]
    begun: tuple[Begun, ...] = ()
    why_not: NotBegun | None = None
