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
                               /m/<19 digits>-<8hex>-<i>  chunks of large metadata
                               /m/<19 digits>-staged-<attempt>  small staged batches
                               /m/base-<19 digits>-<8hex>-<i>  of such as many transactions share
                               /workers        ephemeral nodes of those who work
    deployments/<topology>                     Deployment
    deployments/<topology>/<worker>            Acknowledgement
    workers/<worker>                           ephemeral nodes of named workers: Registration
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.large_metadata import BaseRef, BlobRef, chunk_name

DEFAULT_ROOT = "/airflow-trident"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")
BUCKETS = tuple(f"{number:02x}" for number in range(256))


def topologies_folder(root: str) -> str:
    """Its children are the names of all topologies.

    :raises ConfigurationError: `root` is no absolute path.
    """
    if root and (not root.startswith("/") or "//" in root or root.endswith("/")):
        raise ConfigurationError(f"the ledger root {root!r} is no path", "Write it like /airflow-trident.")
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
    """Where the records of one incarnation of a topology are."""

    topology: str
    incarnation: str
    base: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
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

    def chunk(self, name: str) -> str:
        return f"{self.base}/m/{name}"

    def chunks_of(self, txid: int, ref: BlobRef | BaseRef) -> list[str]:
        """:param txid: the record's, or the base's."""
        return [self.chunk(chunk_name(txid, ref, index)) for index in range(ref.chunks)]

    def folders(self) -> tuple[str, ...]:
        """Every node that only holds others, parents first."""
        plain = (self.base, self.transactions, self.claims, self.chunks, self.workers)
        return plain + tuple(self.bucket(name) for name in BUCKETS)
