"""Where everything is in ZooKeeper: only this module puts paths together.

Layout below a root::

    v1/<topology>                              TopologyRecord
    v1/<topology>/<incarnation>/head           next txid
                               /commit         commit pointer and fence
                               /exceptions     failed, skipped, late and replayed txids
                               /coordinator    the coordinator's last outcome, for people
                               /plan           the plan as boxes and arrows, for people
                               /events         which commits have their asset event, if any are asked for
                               /tx/<19 digits> transactions
                               /run/<2hex>/<sha1>  claim keys
                               /keys/<period>  partition keys, if the topology is bound to partitions
                               /m/<19 digits>-<8hex>-<i>  chunks of large metadata
                               /m/<19 digits>-staged-<attempt>  small staged batches
                               /m/base-<19 digits>-<8hex>-<i>  of such as many transactions share
                               /workers        ephemeral nodes of those who work
    deployments/<topology>                     Deployment
    deployments/<topology>/<worker>            Acknowledgement
    workers/<worker>                           ephemeral nodes of named workers: Registration

The nodes of a new incarnation of a topology, and of a transaction that is imported or seeded.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from itertools import starmap

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.znodes import Create, require_path
from airflow_trident.protocol import codec
from airflow_trident.protocol.metadata import BaseRef, BlobRef, Earlier, chunk_name, pack_metadata, share_metadata
from airflow_trident.protocol.partition_keys import period_of
from airflow_trident.protocol.records import CommitPointer, Exceptions, TopologyRecord, TxRecord
from airflow_trident.protocol.topologies import Definition

DEFAULT_ROOT = "/airflow-trident"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")
BUCKETS = tuple(f"{number:02x}" for number in range(256))


def topologies_folder(root: str) -> str:
    """Its children are the names of all topologies.

    :raises ConfigurationError: `root` is no absolute path of ZooKeeper.
    """
    if root:
        require_path("the ledger root", root, DEFAULT_ROOT)
    return f"{root}/v1"


def topology_path(root: str, name: str) -> str:
    """:raises ConfigurationError: the name cannot be a node's name."""
    if not _NAME.match(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a topology",
            "Use up to 200 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return f"{topologies_folder(root)}/{name}"


def deployments_folder(root: str) -> str:
    """Its children are the names of all topologies that are deployed on named workers."""
    return f"{root}/deployments"


def registrations_folder(root: str) -> str:
    """Its children are the names of all live named workers."""
    return f"{root}/workers"


def tx_name(txid: int) -> str:
    """Names sort in the order of their numbers."""
    return f"{txid:019d}"


class _Below:
    """A node below the base."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: LedgerPaths, owner: type[LedgerPaths]) -> str:
        return f"{paths.base}/{self._name}"


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """Where the records of one incarnation of a topology are.

    :raises ConfigurationError: the incarnation, which a template or a request gave, cannot be a node's name.
    """

    topology: str
    incarnation: str
    base: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.match(self.incarnation):
            raise ConfigurationError(
                f"{self.incarnation!r:.200} cannot be the incarnation of a topology",
                "Take it from the XCom of the coordinator, or load the page again.",
            )
        object.__setattr__(self, "base", f"{self.topology}/{self.incarnation}")

    @property
    def deployment(self) -> str:
        root, _, name = self.topology.rpartition("/v1/")
        return f"{deployments_folder(root)}/{name}"

    head = _Below("head")
    commit = _Below("commit")
    exceptions = _Below("exceptions")
    coordinator = _Below("coordinator")
    plan = _Below("plan")
    events = _Below("events")
    transactions = _Below("tx")
    claims = _Below("run")
    chunks = _Below("m")
    workers = _Below("workers")
    keys = _Below("keys")

    def about(self, txid: int) -> list[str]:
        """The nodes that decide about a transaction, in reading order. The head comes before the transaction, so a
        missing one was pruned, not begun in between. 0: the topology alone.

        A new transaction rewrites the coordinator's outcome; reading it with the rest costs no round trip.
        """
        shared = [self.head, self.commit, self.exceptions, self.coordinator]
        return [*shared, self.tx(txid)] if txid >= 1 else shared

    def pruned(self) -> list[str]:
        """The folders whose records are pruned."""
        return [self.transactions, self.chunks]

    def tx(self, txid: int) -> str:
        return f"{self.base}/tx/{tx_name(txid)}"

    def bucket(self, name: str) -> str:
        return f"{self.base}/run/{name}"

    def claim(self, key: str) -> str:
        digest = hashlib.sha1(key.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
        return f"{self.base}/run/{digest[:2]}/{digest}"

    def period(self, key: str) -> str:
        """The record that has a partition key."""
        return f"{self.base}/keys/{period_of(key)}"

    def chunk(self, name: str) -> str:
        return f"{self.base}/m/{name}"

    def chunks_of(self, txid: int, ref: BlobRef | BaseRef) -> list[str]:
        """:param txid: the record's, or the base's."""
        return [self.chunk(chunk_name(txid, ref, index)) for index in range(ref.chunks)]

    def folders(self, *, bound: bool = False) -> tuple[str, ...]:
        """Every node that only holds others, parents first.

        :param bound: with that of a topology that is bound to partitions.
        """
        plain = (self.base, self.transactions, self.claims, self.chunks, self.workers)
        index = (self.keys,) if bound else ()
        return (*plain, *index, *(self.bucket(name) for name in BUCKETS))


def new_topology(
    name: str, path: str, definition: Definition, *, op: str, now_ms: int
) -> tuple[TopologyRecord, list[Create]]:
    """Its record, and all its nodes, to be created in one step.

    :param path: of the record.
    :param op: marks the record as written by this operation.
    """
    incarnation = uuid.uuid4().hex[:8]
    paths = LedgerPaths(path, incarnation)
    record = TopologyRecord(
        name=name,
        incarnation=incarnation,
        definition=definition,
        created_ms=now_ms,
        since=dict.fromkeys(definition.states, 1),
    )
    folders = [Create(folder) for folder in paths.folders(bound=bool(definition.partitions))]
    shared = shared_records(paths, 1, CommitPointer(committed=0, fence=0), Exceptions())
    return record, [Create(path, codec.encode_topology(record, op=op)), *folders, *starmap(Create, shared.items())]


def shared_records(
    paths: LedgerPaths, next_txid: int, pointer: CommitPointer, exceptions: Exceptions
) -> dict[str, bytes]:
    """Path -> content of the records that all transactions share."""
    return {
        paths.head: codec.encode_head(next_txid),
        paths.commit: codec.encode_pointer(pointer),
        paths.exceptions: codec.encode_exceptions(exceptions),
    }


def nodes_of(paths: LedgerPaths, tx: TxRecord) -> list[Create]:
    """Its record, and chunks for metadata that is too large for it."""
    ref, chunks = kept_apart(paths, tx)
    return [Create(paths.tx(tx.txid), codec.encode_tx(tx, ref)), *chunks]


def kept_apart(paths: LedgerPaths, tx: TxRecord, earlier: Earlier | None = None) -> tuple[BlobRef | None, list[Create]]:
    """Where metadata too large for its record is kept, and what creates its chunks; None and nothing if it fits.

    :param earlier: metadata that it may share.
    """
    ref, chunks = (earlier and share_metadata(tx, earlier)) or pack_metadata(tx) or (None, [])
    if ref is None:
        return None, []
    new = ref if ref.chunks or ref.base is None else ref.base
    return ref, list(map(Create, paths.chunks_of(tx.txid, new), chunks))
