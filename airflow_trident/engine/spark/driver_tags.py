"""The name and tags of a driver in the cluster, so that a person, or a retry, finds it there.

They are set three times: as Spark settings, shown on its web page; as YARN tags, to query its resource manager; and as
labels of the driver's pod.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_trident.engine.base import Job

YARN_TAGS = "spark.yarn.tags"
_SETTINGS = "spark.trident."
_LABELS = "spark.kubernetes.driver.label."
ORDER_TAG = "trident-order-"
"""Begins the tag of one submission."""
ORDER_LABEL = "trident-order"
POD_NAME = "spark.kubernetes.driver.pod.name"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_REFUSED = re.compile(r"[^A-Za-z0-9._-]")
_LABEL_LENGTH = 63
_DIGEST_LENGTH = 16
_HAS_DIGEST = re.compile(r"(\A|-)[0-9a-f]{16}\Z")
_YARN_LENGTH = 100
"""YARN refuses longer tags, and tags that are not ASCII."""


@dataclass(frozen=True, kw_only=True)
class DriverTags:
    """`txid`: "7", "7-9", or "" for a drain. `attempt`: of the last one. `order`: the name of this submission alone, or
    ""."""

    topology: str
    txid: str = ""
    attempt: str = ""
    order: str = ""

    @property
    def about(self) -> str:
        """The current work, appended to the application's name."""
        return f" {self.txid}, attempt {self.attempt}" if self.txid else ""

    @property
    def yarn_tag(self) -> str:
        """The tag of this submission alone. YARN converts tags to lower case."""
        return f"{ORDER_TAG}{self.order}".lower()

    @property
    def order_setting(self) -> str:
        """The setting of this submission alone, as it is in the command line of spark-submit."""
        return f"{_SETTINGS}order={self.order}"

    def conf(self, given: Mapping[str, str]) -> dict[str, str]:
        """Settings of the application.

        :param given: its other settings; a person's own tags for YARN stay.
        """
        named = {name: value for name, value in self._named().items() if value}
        labels = {f"{_LABELS}trident-{name}": label(value) for name, value in named.items()}
        tags = [f"trident-{name}-{value}".lower() for name, value in named.items()]
        own = [tag for tag in tags if tag.isascii() and "," not in tag and len(tag) <= _YARN_LENGTH]
        yarn = {YARN_TAGS: ",".join(filter(None, [given.get(YARN_TAGS, ""), *own]))} if own else {}
        return {**{f"{_SETTINGS}{name}": value for name, value in named.items()}, **labels, **yarn}

    def pod(self, given: Mapping[str, str]) -> dict[str, str]:
        """The name of the driver's pod, unless a person has named it: one submission makes one pod."""
        return {POD_NAME: f"trident-{self.order}-driver"} if self.order and POD_NAME not in given else {}

    def _named(self) -> dict[str, str]:
        return {"topology": self.topology, "txid": self.txid, "attempt": self.attempt, "order": self.order}


def label(value: str) -> str:
    """A label of Kubernetes for any text. One that is too long, or has other characters, is shortened and gets a digest
    of the whole, so that no two texts have one label."""
    if _LABEL.match(value) and not _HAS_DIGEST.search(value):
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_LENGTH]
    kept = _REFUSED.sub("-", value)[: _LABEL_LENGTH - _DIGEST_LENGTH - 1].lstrip("._-")
    return f"{kept}-{digest}" if kept else digest


NO_TAGS = DriverTags(topology="")


def tags_of(jobs: Sequence[Job], order: str) -> DriverTags:
    """The tags of one application that runs all of these jobs.

    :param order: the name of this submission alone.
    """
    first, last = jobs[0].slot, jobs[-1].slot
    txid = str(last.txid) if first.txid == last.txid else f"{first.txid}-{last.txid}"
    return DriverTags(topology=last.topology, txid=txid, attempt=str(last.attempt), order=order)
