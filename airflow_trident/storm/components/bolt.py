"""The base of all bolts in other programs. A bolt is a picklable description: making one starts no process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.errors import ConfigurationError, PlanError

if TYPE_CHECKING:
    from airflow_trident.storm.components.channel import Channel
    from airflow_trident.storm.components.starting import Program
    from airflow_trident.storm.components.talk import BoltListener, BoltPlace, BoltTalk, ChildLimits


class OnFail(StrEnum):
    """What happens to a row that a component fails."""

    ATTEMPT = "attempt"
    """The attempt fails."""
    DROP = "drop"
    """The row and its emits are dropped, and counted in the log."""


class ChildBolt(ABC):
    """A bolt in another program."""

    strict_streams: ClassVar[bool] = True
    """Is an emit on an undeclared stream an error? If not, such emits are counted and dropped."""
    limits: ChildLimits
    fail: OnFail

    @property
    def matches(self) -> bool:
        """Is the row of each emit known?"""
        return True

    @property
    def why_unmatched(self) -> str:
        """Why the row of an emit is not known."""
        return ""

    def declare_output_fields(self, declarer: Any) -> None:
        """Declare what the bolt emits, for a TransactionalTopologyBuilder: override it in a subclass (Storm:
        declareOutputFields). The verbs of a stream take the fields as an argument instead.

        :param declarer: an OutputFieldsDeclarer.
        :raises PlanError: it is not overridden.
        """
        raise PlanError(
            f"{self} does not say what it emits",
            "Make a subclass of it with declare_output_fields(self, declarer), as in "
            'declarer.declare("id, word string").',
        )

    @abstractmethod
    def program(self, place: BoltPlace) -> Program:
        """The program to start."""

    @abstractmethod
    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> BoltTalk:
        """The conversation with a started child."""

    @abstractmethod
    def describe(self) -> str:
        """The bolt as text, the same in every process: it is part of the definition of a topology."""

    def __str__(self) -> str:
        return self.describe()


def on_fail(value: str) -> OnFail:
    try:
        return OnFail(value)
    except ValueError:
        raise ConfigurationError(f"fail is {value!r}", 'Use "attempt" or "drop".') from None
