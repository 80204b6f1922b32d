"""The contract of a wing: a room over all others, which none of them imports.

A wing adds commands, and records of its own beside the transactions of a ledger. The rooms below see them only by this
contract. `_WINGS` is the one place that names the wings. A wing is imported when a room first needs it, so no process
can lack it.

Promises of an implementation:

W1  Importing the module of a wing is cheap, and so is `commands`: every command of Airflow does both.
W2  `read` writes nothing. A record that cannot be read is a reason for a standstill, not an error.
W3  `obeying` is pure: it decides from the snapshot, and its writes go into the step of the topology's new command.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any

from airflow_trident.protocol.diagnosis import Stalled
from airflow_trident.protocol.records import Command, TopologyRecord

_WINGS = ("airflow_trident.storm.wing:StormWing",)


class WingRecords(ABC):
    """The records of a wing, as they were at one moment."""

    @abstractmethod
    def standstill(self, topology: TopologyRecord) -> Stalled | None:
        """Why nothing of the topology runs until a person acts; None if there is no such reason."""

    @abstractmethod
    def rows(self, topology: str) -> Sequence[dict[str, Any]]:
        """A row for each worker of the topology, with `worker`, `status`, `epoch`, `told`, `host`, `pid`, `task`,
        `since_ms`, `error`."""


class Wing(ABC):
    """A wing as the other rooms see it."""

    @abstractmethod
    def commands(self) -> Sequence[Any]:
        """Commands of ``airflow trident``, of Airflow's class `CLICommand`."""

    @abstractmethod
    def read(self, znodes: Any, root: str, topologies: Collection[str] | None) -> WingRecords:
        """
        :param znodes: the :class:`~airflow_trident.ledger.znodes.ZNodes` of the ledgers.
        :param root: the folder of all ledgers.
        :param topologies: only these; None: all.
        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """

    @abstractmethod
    def obeying(self, snap: Any, topology: TopologyRecord, command: Command, by: str) -> tuple[Any, ...]:
        """The writes that follow a new lifecycle command; empty if there are none.

        :param snap: the :class:`~airflow_trident.ledger.snapshot.Snapshot` of the step.
        :raises TransitionError: the command cannot be obeyed yet.
        """


@cache
def wings() -> tuple[Wing, ...]:
    return tuple(resolve_name(name)() for name in _WINGS)


@dataclass(frozen=True, slots=True)
class Beside:
    """The records of all wings beside the transactions."""

    parts: tuple[WingRecords, ...]

    @classmethod
    def read(cls, znodes: Any, root: str, topologies: Collection[str] | None = None) -> Beside:
        """:raises LedgerUnavailableError: ZooKeeper does not answer."""
        return cls(tuple(wing.read(znodes, root, topologies) for wing in wings()))

    def standstill(self, topology: TopologyRecord) -> Stalled | None:
        return next(filter(None, (part.standstill(topology) for part in self.parts)), None)

    def rows(self, topology: str) -> list[dict[str, Any]]:
        return [row for part in self.parts for row in part.rows(topology)]
